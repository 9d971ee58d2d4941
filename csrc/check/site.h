/* SPDX-License-Identifier: MIT */
/*
 * The origin of a call: the backtrace of the last arm, poll and ack of each CQ.
 *
 * Walking the stack takes thousands of instructions, so a backtrace is taken once for each pair of
 * return address and stack pointer, and kept. A call from the same place as the last one, as nearly
 * all are, compares two words.
 */
#ifndef CQN_CHECK_SITE_H
#define CQN_CHECK_SITE_H

#include <stdint.h>

enum { MAX_FRAMES = 24 };

struct site {
    uintptr_t caller;
    uintptr_t stack;
    uint32_t backtrace; /* its number; 0: only the caller is known */
    uint32_t tid;
};

struct backtrace {
    uint32_t count;
    uintptr_t frames[MAX_FRAMES]; /* return addresses, innermost first */
};

#define SITE_HERE(site)                                         \
    cqn_site_note(site, (uintptr_t)__builtin_return_address(0), \
                  (uintptr_t)__builtin_frame_address(0))

void cqn_site_take(struct site *site, uintptr_t caller, uintptr_t stack);
const struct backtrace *cqn_site_backtrace(const struct site *site, struct backtrace *alone);
void cqn_backtrace(struct backtrace *backtrace);
void cqn_backtrace_ready(void);

static inline void cqn_site_note(struct site *site, uintptr_t caller, uintptr_t stack)
{
    if (site->caller != caller || site->stack != stack)
        cqn_site_take(site, caller, stack);
}

#endif
