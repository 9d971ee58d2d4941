/* SPDX-License-Identifier: MIT */
/* Wakeup: what a task of asyncio sleeps on. */
#ifndef CQN_AWAIT_WAKEUP_H
#define CQN_AWAIT_WAKEUP_H

#include "base/base.h"

/* A new Wakeup of that loop. `done` is a future of it that has a result, or NULL. */
PyObject *cqn_wakeup_new(cqn_state *st, PyObject *loop, PyObject *done);

/* Whether it was woken or cancelled. */
bool cqn_wakeup_is_done(const PyObject *wakeup);

/* The task is about to sleep on it. */
void cqn_wakeup_yield(PyObject *wakeup);

/* The task that sleeps on it goes on soon, in a later step of the loop; or with `resume`, if it is
 * a Wakeup, here and now, until it waits again. A wakeup of another library than asyncio has
 * wake(). -1 with an exception; with `resume` it must end the loop. */
int cqn_wakeup_of_any(const cqn_state *st, PyObject *wakeup, bool resume);

#endif
