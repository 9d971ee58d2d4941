/* SPDX-License-Identifier: MIT */
/* The taker: receives completions in C, in place of tasks; see taker.c. */
#ifndef CQN_AWAIT_TAKER_H
#define CQN_AWAIT_TAKER_H

#include "await/await.h"

/* Whether a task or a taker waits for completions of the CQ. */
static inline bool cqn_engine_is_awaited(const cqn_engine *self)
{
    return self->len > 0 || self->taker != NULL;
}

/* Gives the completions to `taker` from now on, in the running loop; the caller then calls
 * cqn_engine_update(). The engine holds the taker until it is closed, its loop is gone, or
 * cqn_taker_drop(). Returns -1 with an exception. */
int cqn_taker_set(cqn_engine *self, PyObject *taker, const cqn_taker_calls *calls,
                  bool solicited_only);
void cqn_taker_drop(cqn_engine *self);

/* Whether the taker waits only for solicited events. A change takes effect at the next arming. */
static inline bool cqn_taker_is_solicited(const cqn_engine *self)
{
    return self->taker != NULL && self->taker_solicited;
}
static inline void cqn_taker_set_solicited(cqn_engine *self, bool solicited_only)
{
    self->taker_solicited = solicited_only;
}

/* Records a failure for the taker. Returns whether there is a taker. */
bool cqn_taker_fail(cqn_engine *self, PyObject *error);

/* Lets the taker take the completions. `resume`: the caller is the loop's callback, where a task
 * may be resumed. `interrupt`: see cqn_callback_failed(). */
void cqn_taker_run(cqn_engine *self, bool resume, PyObject **interrupt);

#endif
