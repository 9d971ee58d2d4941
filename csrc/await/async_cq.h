/* SPDX-License-Identifier: MIT */
/* What the core asks of the AsyncCQ, which is Python code: all of it can run any code. */
#ifndef CQN_AWAIT_ASYNC_CQ_H
#define CQN_AWAIT_ASYNC_CQ_H

#include "await/engine.h"

/* Calls a method of the AsyncCQ. `argument` may be NULL. */
PyObject *cqn_engine_call(cqn_engine *self, const char *method, PyObject *argument);

/* The same without the result: 0, or -1 with an exception. */
int cqn_engine_do(cqn_engine *self, const char *method, PyObject *argument);

/* -1 with RuntimeError if a subclass did not call __init__(). */
int cqn_engine_check_made(const cqn_engine *self);

/* Raises why nothing can be awaited. Returns -1. */
int cqn_engine_refuse(cqn_engine *self);

/* Whether something can be awaited. */
static inline int cqn_engine_check(cqn_engine *self)
{
    return !self->closed && self->error == NULL ? 0 : cqn_engine_refuse(self);
}

/* The same, and whether the CQ is open. */
static inline int cqn_engine_check_open(cqn_engine *self)
{
    return cqn_engine_check(self) < 0 || cqn_open(&self->cq->base) == NULL ? -1 : 0;
}

/* No task was told of that failure: the next one that waits is. */
void cqn_engine_report(cqn_engine *self, PyObject *error);

/* If tasks are to be woken, has the thread of the event loop do that. -1 with an exception. */
int cqn_engine_hand_over(cqn_engine *self);

/* The same where no exception can be raised: the event loop raises it soon. */
void cqn_engine_hand_over_or_put_off(cqn_engine *self);

/* What a method returns for a request: the request itself, or a coroutine around it for an old
 * anyio. Steals the reference. */
PyObject *cqn_engine_shaped(cqn_engine *self, cqn_request *request);

#endif
