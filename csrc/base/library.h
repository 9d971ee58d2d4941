/* SPDX-License-Identifier: MIT */
/* libibverbs, loaded on first use of a device. The core can therefore be installed and imported on
 * machines without the library, and works with older releases than the one it was built with. */
#ifndef CQN_LIBRARY_H
#define CQN_LIBRARY_H

#include <stdbool.h>

#define CQN_LIBIBVERBS "libibverbs.so.1"

/* Marks a function that rarely runs: once, only after a failure, or before a much slower system
 * call. It is compiled for size. */
#define CQN_RARE __attribute__((cold))

enum { CQN_WHY = 1024 }; /* size of an error text, in bytes */

/* Loads the library unless it is loaded; required before the first verb. Returns 0, or an errno and
 * its reason: ELIBACC if the library is missing, with the name of its package. */
int cqn_library_load(char why[CQN_WHY]);

/* Returns an optional function of the loaded library, or NULL. A build for tests replaces it by a
 * macro of this name, see faults/replaced_calls.h. */
void *(cqn_library_find)(const char *function);

/* Brackets for calls that take locks of the whole library. A fork waits for up to a second until no
 * thread is inside, since the child would find the locks taken forever. Inside, no Python code runs
 * and no thread waits for the GIL. Both functions leave errno alone. */
void cqn_library_enter(void);
void cqn_library_leave(void);

/* Returns whether the library is too old for a verb, and fills in the reason. */
bool cqn_library_lacks(const char *verb, char why[CQN_WHY]);

#endif
