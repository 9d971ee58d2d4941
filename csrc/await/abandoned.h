/* SPDX-License-Identifier: MIT */
/* Operations whose task gave up; the next recv() of the same memory takes over a receive. */
#ifndef CQN_AWAIT_ABANDONED_H
#define CQN_AWAIT_ABANDONED_H

#include "await/await.h"

/* Records the memory of a receive. Returns -1 with MemoryError. */
int cqn_abandoned_remember(cqn_awaitable *self, const cqn_sg *sg);

/* Returns whether `self` took over an abandoned receive of the same memory. */
bool cqn_abandoned_take_over(cqn_awaitable *self);

/* Abandons an operation whose task gave up. If the device has its work request, the engine owns the
 * operation from here on; if it is COMPLETE, its completion goes to a claim or the stash. */
void cqn_operation_abandon(cqn_awaitable *self);

/* Empties the table of abandoned receives when the engine is closed. */
void cqn_abandoned_forget_all(cqn_engine *engine);

#endif
