/* SPDX-License-Identifier: MIT */
/* The engine: polling and arming the CQ, waking tasks, notifying them of failures. */
#ifndef CQN_AWAIT_ENGINE_H
#define CQN_AWAIT_ENGINE_H

#include "await/await.h"

#define CQN_BATCH 16 /* a poll costs the same for one as for a few */

/* ---- polling, and arming ---- */

/* Polls once for an awaitable that has just begun. -1 with an exception. */
int cqn_engine_poll_for(cqn_awaitable *awaitable);

/* Makes it safe to sleep for all pending awaitables: arms the CQ, and polls after that. `polled`:
 * the caller has polled, and nothing was posted since. If the device fails, all tasks get the
 * error. */
void cqn_engine_prepare(cqn_engine *self, bool polled);

/* Call after any change that may concern pending awaitables: makes it safe to sleep again, and
 * wakes tasks. Sets no exception. */
void cqn_engine_update(cqn_engine *self);

/* Polls once, without an event, and wakes the tasks for which something came. For the thread of
 * the loop. -1 with an exception. */
int cqn_engine_look(cqn_engine *self);

/* ---- waking ---- */

/* Wakes the tasks of all awaitables that are to be woken: they go on soon; with `resume`, which
 * only the callback of the event loop may give, the first goes on at once. -1 with the exception of
 * a signal handler. */
int cqn_engine_wake_listed(cqn_engine *self, bool resume);

/* Counts a wake-up of a task, or of the taker, that gets so many completions. */
static inline void cqn_engine_count_wakeup(cqn_engine *self, size_t completions)
{
    self->wakeups++;
    self->cq->stats.task_wakeups++;
    if (self->max_per_wake < completions) {
        self->max_per_wake = completions;
    }
}

/* ---- failures ---- */

/* Every task whose wait may be for this QP (NULL: for any) gets the error. Returns whether there
 * was one. */
bool cqn_engine_notify(cqn_engine *self, PyObject *error, const PyObject *qp);

/* Nothing is pending any more. */
void cqn_engine_drop_all(cqn_engine *self);

/* Every task that waits raises the error, and so does every later wait. -1 with an exception. */
int cqn_engine_fail_for_good(cqn_engine *self, PyObject *error);

/* The device failed while it was polled or armed: all tasks get the exception that is set. */
void cqn_engine_fail_with_exception(cqn_engine *self);

#endif
