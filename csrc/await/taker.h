/* SPDX-License-Identifier: MIT */
/* What takes completions in C, in the place of tasks: see taker.c. */
#ifndef CQN_AWAIT_TAKER_H
#define CQN_AWAIT_TAKER_H

#include "await/await.h"

/* Whether a task waits for completions of the CQ, or a taker does. */
static inline bool cqn_engine_is_awaited(const cqn_engine *self)
{
    return self->len > 0 || self->taker != NULL;
}

/* From now on `taker` gets the completions, in the loop that runs here. The caller then calls
 * cqn_engine_update(). The engine holds the taker until it is closed, its loop is gone, or the
 * taker is dropped. -1 with an exception. */
int cqn_taker_set(cqn_engine *self, PyObject *taker, const cqn_taker_calls *calls,
                  bool solicited_only);
void cqn_taker_drop(cqn_engine *self);

/* Whether the taker waits for solicited events only. The setter is for the next arming. */
static inline bool cqn_taker_is_solicited(const cqn_engine *self)
{
    return self->taker != NULL && self->taker_solicited;
}
static inline void cqn_taker_set_solicited(cqn_engine *self, bool solicited_only)
{
    self->taker_solicited = solicited_only;
}

/* The taker is to get this failure. Returns whether there is a taker. */
bool cqn_taker_fail(cqn_engine *self, PyObject *error);

/* Has the taker take what there is. `resume` and `interrupt` are as elsewhere: the callback of the
 * loop may resume a task, and the first exception that must end the loop is kept. */
void cqn_taker_run(cqn_engine *self, bool resume, PyObject **interrupt);

#endif
