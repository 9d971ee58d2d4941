/* SPDX-License-Identifier: MIT */
/* Waking the tasks that have something, in the thread of the loop. */
#ifndef CQN_AWAIT_ENGINE_WAKE_H
#define CQN_AWAIT_ENGINE_WAKE_H

#include "await/engine.h"

/* Wakes the task that sleeps on the request, if one does. -1 with an exception. */
int cqn_request_wake(cqn_request *self, bool resume);

/* Wakes the tasks of all requests that are to be woken: they go on soon; but with `resume`, which
 * only the callback of the event loop may give, the first goes on at once. -1 with what the handler
 * of a signal has raised. */
int cqn_engine_flush(cqn_engine *self, bool resume);

#endif
