/* SPDX-License-Identifier: MIT */
/* How long a wait spins before it sleeps, estimated from the latest spins: see spin.c. */
#ifndef CQN_SPIN_H
#define CQN_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define CQN_SPIN_BOUND 50000 /* ns: the longest spin */
#define CQN_SPIN_STEPS 16    /* lengths of a spin, in addition to 0 */

/* All zeros initially. */
typedef struct {
    uint8_t found[CQN_SPIN_STEPS]; /* latest probes that found something within each step */
    uint8_t probes;                /* all latest probes */
    uint8_t until_probe;           /* spinning waits before the next probe */
    uint16_t asleep;               /* consecutive waits that did not spin */
    uint16_t asleep_at_most;       /* the limit of `asleep`; then one is a probe */
    uint16_t step;                 /* the spin of the next wait, unless it is a probe; 0: none */
} cqn_spin_estimate;

/* Begins a wait. Returns for how many ns it is to spin; 0: not at all. */
uint32_t cqn_spin_begin(cqn_spin_estimate *self);

/* Returns for how many ns a wait spins if it is not a probe. */
uint32_t cqn_spin_usual(const cqn_spin_estimate *self);

/* Ends a wait that spun for all of `limit` ns in vain, or found something after `took` ns. Not
 * called if the spin ended for another reason. */
void cqn_spin_end(cqn_spin_estimate *self, uint32_t limit, bool found, int64_t took);

#endif
