/* SPDX-License-Identifier: MIT */
/* Included in each source of a core that has mutants, see mutants_planted.py. */
#ifndef CQN_MUTANTS_RUNTIME_H
#define CQN_MUTANTS_RUNTIME_H

/* The number of the mutant that is chosen, or 0. The environment variable CQNOTIFY_MUTANT sets it
 * when the core is loaded; mutants_guest.py sets it in a child. */
extern __attribute__((visibility("default"))) int cqn_mutant;

/* A byte for each number, of the file that CQNOTIFY_MUTANTS_REACHED names. */
extern unsigned char *cqn_mutants_reached;

static inline _Bool cqn_is_mutant(int number)
{
    return __builtin_expect(cqn_mutant == number, 0);
}

static inline void cqn_reach(int number)
{
    cqn_mutants_reached[number] = 1;
}

#endif
