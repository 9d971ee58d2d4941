/* SPDX-License-Identifier: MIT */
/* Wakeup: the object that an asyncio task sleeps on. */
#ifndef CQN_AWAIT_WAKEUP_H
#define CQN_AWAIT_WAKEUP_H

#include "base/base.h"

/* Returns a new Wakeup of the loop, or NULL with an exception. `done` is a finished future of the
 * loop, or NULL. */
PyObject *cqn_wakeup_new(cqn_state *st, PyObject *loop, PyObject *done);

/* Whether it was woken or cancelled. */
bool cqn_wakeup_is_done(const PyObject *wakeup);

/* Called when the task is about to sleep on it. */
void cqn_wakeup_yield(PyObject *wakeup);

/* Wakes the task that sleeps on the wakeup: it continues soon, in a later step of the loop; with
 * `resume`, if it is a Wakeup, here and now until it waits again. For a library other than asyncio,
 * calls wake(). Returns -1 with an exception, which after `resume` must end the loop. */
int cqn_wakeup_of_any(const cqn_state *st, PyObject *wakeup, bool resume);

#endif
