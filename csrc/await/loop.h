/* SPDX-License-Identifier: MIT */
/* The event loops: which one reads the events of a channel, and its turns. */
#ifndef CQN_AWAIT_LOOP_H
#define CQN_AWAIT_LOOP_H

#include "await/engine.h"

/* The turn of this thread's loops, as far as the core knows. */
uint64_t cqn_turn_now(void);

/* There was a new turn since that one. If the core did not know of it, the budget is whole again.
 */
void cqn_turn_passed(uint64_t since);

/* Takes n completions off the budget of this turn. */
void cqn_turn_used(size_t n);

/* Whether the budget is used up. */
bool cqn_turn_is_over(void);

/* Looks asyncio up, which an interpreter does once. -1 with an exception. */
int cqn_loop_know_asyncio(cqn_state *st);

/* Of a loop as cqnotify has it, the asyncio loop itself, and a future of it that has a result, see
 * call_task() in wakeup.c: new references; NULL of a loop of another library. -1 with an exception.
 */
int cqn_loop_parts(cqn_state *st, PyObject *loop, PyObject **raw_loop, PyObject **done);

/* Whether the caller runs in a task or a callback of that loop, of which cqn_loop_parts() has told.
 * -1 with an exception. */
int cqn_loop_runs_here(const cqn_state *st, PyObject *loop, PyObject *raw_loop);

/* Sees to it that the running loop reads the events of the engine's channel. -1 with an
 * exception. Can run any code. */
int cqn_loop_attach(cqn_engine *self);

/* What every wait begins with: the engine works, the loop is the running one, and no failure is
 * left to report. -1 with an exception. `qp` is NULL if any may be meant. */
int cqn_engine_enter(cqn_engine *self, cqn_qp *qp);

#endif
