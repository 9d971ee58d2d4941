/* SPDX-License-Identifier: MIT */
/* Receives whose task has given up: the next one of the same memory goes on with them. */
#ifndef CQN_AWAIT_FORSAKEN_H
#define CQN_AWAIT_FORSAKEN_H

#include "await/engine.h"

/* Remembers the memory of a receive. -1 with MemoryError. */
int cqn_forsaken_remember(cqn_request *self, const cqn_sg *sg);

/* Whether an abandoned receive of the same memory became this one. */
bool cqn_forsaken_take_over(cqn_request *self);

/* An abandoned receive can be found by its memory from now on; without memory it can't be. */
void cqn_forsaken_add(cqn_request *self);

/* Takes it out of the table, and drops the table's reference if it has one. */
void cqn_forsaken_forget(cqn_request *old);
void cqn_forsaken_forget_all(cqn_engine *engine);

#endif
