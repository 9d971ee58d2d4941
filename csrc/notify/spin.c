/* SPDX-License-Identifier: MIT */
/*
 * The estimate of spin="auto": how long a wait should spin, from what the latest spins found. It is
 * a pure function of these numbers and uses no clock, no device and nothing else of the core.
 *
 * A sleep costs as much as CQN_SPIN_BOUND of spinning: a completion that arrives within that time
 * is found sooner by spinning, at hardly more CPU than an event and a wake-up take. So a wait of
 * length t that spins for up to s costs t if t <= s, otherwise s and a sleep. The estimate is the s
 * by which the latest waits would have cost the least; s is one of a few steps, or 0. With waits of
 * 10 us spinning pays if more than one in five is that short; with waits of 40 us, if more than
 * four in five are.
 *
 * The length of a wait that slept is unknown, because the wake-up takes longer than many a wait. So
 * only probes count, waits that spin up to the bound. One wait in eight is a probe, and every wait
 * is one until a few are known. Where spinning does not pay, one in 32 is a probe, and each one in
 * vain doubles the distance to the next, up to one in 256: with messages a millisecond apart,
 * probes take 1 in 5,000 of the CPU. If such a probe finds something, all earlier ones are
 * forgotten.
 */

#include "notify/spin.h"
#include <string.h>

#define PROBE_EVERY 8      /* waits that spin */
#define ASLEEP_AT_FIRST 31 /* waits that do not */
#define ASLEEP_AT_LAST 255
#define FEW 4   /* probes */
#define MANY 32 /* probes; then each counts half */

/* In ns; the last one is CQN_SPIN_BOUND. */
static const uint16_t steps[CQN_SPIN_STEPS] = {1000,  1500,  2000,  3000,  4000,  5000,
                                               6000,  8000,  10000, 12000, 16000, 20000,
                                               25000, 32000, 40000, 50000};

/* Returns the cheapest step, from 1; 0: not to spin. */
static uint16_t best_step(const cqn_spin_estimate *self)
{
    uint32_t least = (uint32_t)self->probes * CQN_SPIN_BOUND, spun = 0, later = self->probes;
    uint16_t best = 0;
    for (uint16_t i = 0; i < CQN_SPIN_STEPS; i++) {
        spun += (uint32_t)self->found[i] * steps[i];
        later -= self->found[i];
        const uint32_t cost = spun + later * (steps[i] + CQN_SPIN_BOUND);
        if (self->found[i] > 0 && cost < least) {
            least = cost;
            best = (uint16_t)(i + 1);
        }
    }
    return best;
}

static bool is_probe(const cqn_spin_estimate *self)
{
    return self->probes < FEW || (self->step > 0 && self->until_probe == 0) ||
           (self->step == 0 && self->asleep >= self->asleep_at_most);
}

uint32_t cqn_spin_usual(const cqn_spin_estimate *self)
{
    return self->step == 0 ? 0 : steps[self->step - 1];
}

uint32_t cqn_spin_begin(cqn_spin_estimate *self)
{
    if (is_probe(self)) {
        return CQN_SPIN_BOUND;
    }
    if (self->step == 0) {
        self->asleep++;
    }
    return cqn_spin_usual(self);
}

/* Makes the latest probes count more. */
static void halve(cqn_spin_estimate *self)
{
    uint8_t found = 0, in_vain = self->probes;
    for (int i = 0; i < CQN_SPIN_STEPS; i++) {
        in_vain = (uint8_t)(in_vain - self->found[i]);
        self->found[i] /= 2;
        found = (uint8_t)(found + self->found[i]);
    }
    self->probes = (uint8_t)(found + in_vain / 2);
}

static void count_probe(cqn_spin_estimate *self, bool found, int64_t took)
{
    if (self->probes == MANY) {
        halve(self);
    }
    int i = 0;
    while (i < CQN_SPIN_STEPS - 1 && took > steps[i]) {
        i++;
    }
    self->found[i] = (uint8_t)(self->found[i] + found);
    self->probes++;
}

/* Ends a probe where spinning does not pay. */
static void end_rare_probe(cqn_spin_estimate *self, bool found)
{
    self->asleep = 0;
    if (found) {
        memset(self->found, 0, sizeof(self->found));
        self->probes = 0;
    }
    else {
        const uint16_t next = (uint16_t)(2 * self->asleep_at_most + 1);
        self->asleep_at_most = next < ASLEEP_AT_LAST ? next : ASLEEP_AT_LAST;
    }
}

void cqn_spin_end(cqn_spin_estimate *self, uint32_t limit, bool found, int64_t took)
{
    if (limit < CQN_SPIN_BOUND) {
        self->until_probe = (uint8_t)(self->until_probe > 0 ? self->until_probe - 1 : 0);
        return;
    }
    if (self->probes >= FEW && self->step == 0) {
        end_rare_probe(self, found);
    }
    count_probe(self, found, took);
    self->step = best_step(self);
    self->until_probe = PROBE_EVERY - 1;
    if (self->step > 0 || self->asleep_at_most == 0) {
        self->asleep_at_most = ASLEEP_AT_FIRST;
    }
}
