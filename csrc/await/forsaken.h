/* SPDX-License-Identifier: MIT */
/* Receives whose task has given up: the next one of the same memory goes on with them. */
#ifndef CQN_AWAIT_FORSAKEN_H
#define CQN_AWAIT_FORSAKEN_H

#include "await/engine.h"

/* Remembers the memory of a receive. -1 with MemoryError. */
int cqn_forsaken_remember(cqn_request *self, const cqn_sg *sg);

/* Whether an abandoned receive of the same memory became this one. */
bool cqn_forsaken_take_over(cqn_request *self);

/* An abandoned receive can be found by its memory from now on. If there is no room in the table it
 * is just not found. */
void cqn_forsaken_add(cqn_request *self);

/* Takes the old receive out of the table, and drops the reference of the table if there is one. */
void cqn_forsaken_forget(cqn_request *old);
void cqn_forsaken_forget_all(cqn_engine *engine);

#endif
