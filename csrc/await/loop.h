/* SPDX-License-Identifier: MIT */
/* Calls of the event loop and of the AsyncCQ, which can run arbitrary Python code; and the
 * iterations of the loop. */
#ifndef CQN_AWAIT_LOOP_H
#define CQN_AWAIT_LOOP_H

#include "await/await.h"

/* ---- the AsyncCQ ---- */

/* Calls a method of the AsyncCQ: see cqn_call_method(). */
static inline PyObject *cqn_engine_call(cqn_engine *self, const char *method, PyObject *argument)
{
    return cqn_call_method((PyObject *)self, method, argument);
}

/* The same without the result: see cqn_do_method(). */
static inline int cqn_engine_do(cqn_engine *self, const char *method, PyObject *argument)
{
    return cqn_do_method((PyObject *)self, method, argument);
}

/* Returns -1 with RuntimeError if a subclass did not call __init__(). */
int cqn_engine_check_made(const cqn_engine *self);

/* Raises why nothing can be awaited. Returns -1. */
int cqn_engine_refuse(cqn_engine *self);

/* Checks that something can be awaited. Returns 0, or -1 with an exception. */
static inline int cqn_engine_check(cqn_engine *self)
{
    return !self->closed && self->error == NULL ? 0 : cqn_engine_refuse(self);
}

/* The same, and checks that the CQ is open. */
static inline int cqn_engine_check_open(cqn_engine *self)
{
    return cqn_engine_check(self) < 0 || cqn_open(&self->cq->base) == NULL ? -1 : 0;
}

/* Has the thread of the event loop wake the listed tasks. Returns -1 with an exception. */
int cqn_engine_wake_in_loop(cqn_engine *self);

/* The same for callers that cannot raise: the event loop raises the exception soon. */
void cqn_engine_wake_in_loop_or_defer(cqn_engine *self);

/* ---- the loop of a channel ---- */

/* Looks up asyncio, once per interpreter. Returns -1 with an exception. */
int cqn_loop_know_asyncio(cqn_state *st);

/* Stores new references to the asyncio loop behind cqnotify's `loop` and to a finished future of
 * it, see call_task() in wakeup.c; NULL if the loop is another library's. Returns -1 with an
 * exception. */
int cqn_loop_parts(cqn_state *st, PyObject *loop, PyObject **raw_loop, PyObject **done);

/* Returns whether the caller runs in a task or a callback of this loop; `raw_loop` is from
 * cqn_loop_parts(). -1 with an exception. */
int cqn_loop_runs_here(const cqn_state *st, PyObject *loop, PyObject *raw_loop);

/* Ensures that the running loop reads the events of the engine's channel. Returns -1 with an
 * exception. */
int cqn_loop_attach(cqn_engine *self);

/* Whether anything except the running task is ready in the loop: asyncio has a list, other
 * libraries do not reveal it. Can run arbitrary code. */
typedef enum { CQN_NOTHING_READY, CQN_SOMETHING_READY, CQN_READY_UNKNOWN } cqn_readiness;
cqn_readiness cqn_loop_readiness(cqn_engine *self);

/* ---- iterations ---- */

/* The iteration of this thread's loops, as far as the core knows. */
uint64_t cqn_iteration_now(void);

/* Notes that a new iteration began after `since`. If the core did not know of it, the budget is
 * full again. */
void cqn_iteration_passed(uint64_t since);

/* Takes n completions off the budget of this iteration. */
void cqn_budget_use(size_t n);

/* Whether the budget is used up. */
bool cqn_budget_is_spent(void);

/* Whether a task may still spin in this iteration; and the time that one spun. */
bool cqn_budget_allows_spin(void);
void cqn_budget_use_spin(int64_t ns);

#endif
