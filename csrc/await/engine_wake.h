/* SPDX-License-Identifier: MIT */
/* Waking the tasks that have something, in the thread of the loop. */
#ifndef CQN_AWAIT_ENGINE_WAKE_H
#define CQN_AWAIT_ENGINE_WAKE_H

#include "await/engine.h"

/* Wakes the task that sleeps on the request, if one does. -1 with an exception. */
int cqn_request_wake(cqn_request *self, bool resume);

/* Wakes all that are to be woken: soon, but with `resume`, for the loop's callback alone, the
 * first one at once. -1 with what a signal's handler raised. */
int cqn_engine_flush(cqn_engine *self, bool resume);

#endif
