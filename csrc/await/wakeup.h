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

/* The task goes on soon, in a later step of the loop. -1 with an exception. */
int cqn_wakeup_wake(PyObject *wakeup);

/* The task goes on here and now, and runs until it waits again. -1 with what must end the loop. */
int cqn_wakeup_resume(PyObject *wakeup);

/* The same of any wakeup: that of a task of another library than asyncio only has wake(). */
int cqn_wakeup_of_any(const cqn_state *st, PyObject *wakeup, bool resume);

#endif
