/* SPDX-License-Identifier: MIT */
/* The steps of the core, written to a file. */
#ifndef CQN_STEPS_H
#define CQN_STEPS_H

#include <stdint.h>

/* Writes a step, if the environment variable CQNOTIFY_STEPS names a file; called with the lock. */
void cqn_step(const char *name, const void *object, intptr_t a, intptr_t b, intptr_t c);

#endif
