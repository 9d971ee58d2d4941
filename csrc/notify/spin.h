/* SPDX-License-Identifier: MIT */
/* How long a wait spins before it sleeps, by what the latest spins have found: see spin.c. */
#ifndef CQN_SPIN_H
#define CQN_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define CQN_SPIN_BOUND 50000 /* ns: no wait spins for longer */
#define CQN_SPIN_STEPS 16    /* that a wait can spin for, besides 0 */

/* All zeros at first. */
typedef struct {
    uint8_t found[CQN_SPIN_STEPS]; /* how many of the latest probes found something by that step */
    uint8_t probes;                /* all of them */
    uint8_t until_probe;           /* waits that spin, and are no probe */
    uint16_t asleep;               /* waits in a row that did not spin */
    uint16_t asleep_at_most;       /* then one is a probe */
    uint16_t step; /* the next wait spins for that one, unless it is a probe; 0: not */
} cqn_spin_estimate;

/* A wait begins: for how many ns it is to spin; 0: not at all. */
uint32_t cqn_spin_begin(cqn_spin_estimate *self);

/* For how many ns a wait spins that is no probe. */
uint32_t cqn_spin_usual(const cqn_spin_estimate *self);

/* It has spun for all these `limit` ns in vain, or found what it waits for after `took`. Not to be
 * called where the spin ended for another reason. */
void cqn_spin_end(cqn_spin_estimate *self, uint32_t limit, bool found, int64_t took);

#endif
