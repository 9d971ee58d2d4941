/* SPDX-License-Identifier: MIT */
/* The engine: polling and arming the CQ, waking tasks, notifying them of failures. */
#ifndef CQN_AWAIT_ENGINE_H
#define CQN_AWAIT_ENGINE_H

#include "await/await.h"

#define CQN_BATCH 16 /* a poll for one costs as much as for a few */

/* ---- polling and arming ---- */

/* Polls once for a new awaitable. Returns -1 with an exception. */
int cqn_engine_poll_for(cqn_awaitable *awaitable);

/* Makes it safe to sleep for all pending awaitables: arms the CQ, then polls it. `polled`: the
 * caller polled, and nothing was posted since. If the device fails, all tasks get the error. May
 * leave an exception set that is no Exception. */
void cqn_engine_prepare(cqn_engine *self, bool polled);

/* Called after any change that may affect pending awaitables: makes it safe to sleep again, and
 * wakes tasks. Sets no exception. */
void cqn_engine_update(cqn_engine *self);

/* Polls once, without an event, and wakes the tasks that got something. For the thread of the loop.
 * Returns -1 with an exception. */
int cqn_engine_look(cqn_engine *self);

/* ---- waking ---- */

/* Wakes the tasks of all listed awaitables: they go on soon. With `resume`, which only the loop's
 * callback may pass, the first one continues at once. Returns -1 with the exception of a signal
 * handler. */
int cqn_engine_wake_listed(cqn_engine *self, bool resume);

/* Counts a wake-up of a task, or of the taker, that gets this number of completions. */
static inline void cqn_engine_count_wakeup(cqn_engine *self, size_t completions)
{
    self->wakeups++;
    self->cq->stats.task_wakeups++;
    if (self->max_per_wake < completions) {
        self->max_per_wake = completions;
    }
}

/* ---- failures ---- */

/* Gives an error to every task whose wait may depend on this QP; NULL means any. Returns
 * whether a task or the taker got it. */
bool cqn_engine_notify(cqn_engine *self, PyObject *error, const PyObject *qp);

/* Ends the pending state of all awaitables. */
void cqn_engine_drop_all(cqn_engine *self);

/* Makes every waiting task raise the error, and every later wait. Returns -1 with an exception. */
int cqn_engine_fail_for_good(cqn_engine *self, PyObject *error);

/* Gives the current exception to all tasks, after polling or arming failed. */
void cqn_engine_fail_with_exception(cqn_engine *self);

#endif
