/* SPDX-License-Identifier: MIT */
/* libibverbs, which is loaded when a device is first asked for: so the core can be installed and
 * imported where it is missing, and works with older ones than those that it was built with. */
#ifndef CQN_LIBRARY_H
#define CQN_LIBRARY_H

#include <stdbool.h>

#define CQN_LIBIBVERBS "libibverbs.so.1"

/* For a function that runs rarely: once, or when something fails, or before a call that takes the
 * kernel far longer. It is compiled for size. */
#define CQN_RARE __attribute__((cold))

enum { CQN_WHY = 1024 }; /* the size of a reason, in bytes */

/* Loads the library if it was not loaded, which must come before the first verb. Returns 0, or an
 * errno with the reason: ELIBACC if it is missing, with the package that has it. */
int cqn_library_load(char why[CQN_WHY]);

/* A function of the library that was loaded, which the core can do without; or NULL. In a build for
 * tests a macro of that name goes before it, see faults/replaced_calls.h. */
void *(cqn_library_find)(const char *function);

/* Around what takes locks that a whole library has: a fork waits until no thread is in between,
 * since its child would have the locks for ever. In between no Python code runs, nor is the GIL
 * waited for. errno stays as it is. */
void cqn_library_enter(void);
void cqn_library_leave(void);

/* Whether the library is too old for a verb, and the reason for that. */
bool cqn_library_lacks(const char *verb, char why[CQN_WHY]);

#endif
