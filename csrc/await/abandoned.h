/* SPDX-License-Identifier: MIT */
/* Operations whose task has given up; the next recv() of the same memory takes over a receive. */
#ifndef CQN_AWAIT_ABANDONED_H
#define CQN_AWAIT_ABANDONED_H

#include "await/await.h"

/* Remembers the memory of a receive. -1 with MemoryError. */
int cqn_abandoned_remember(cqn_awaitable *self, const cqn_sg *sg);

/* Whether an abandoned receive of the same memory became this one. */
bool cqn_abandoned_take_over(cqn_awaitable *self);

/* The task has given up its operation. If the device has its work request, the engine owns the
 * operation from now on; if it is COMPLETE, others can have its completion. */
void cqn_operation_abandon(cqn_awaitable *self);

/* The engine is closed: no abandoned receive is found by its memory any more. */
void cqn_abandoned_forget_all(cqn_engine *engine);

#endif
