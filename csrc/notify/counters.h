/* SPDX-License-Identifier: MIT */
/*
 * The counters of a CQ. They are all 64-bit numbers, so they can be added and passed to Python as
 * one row; cqnotify/metrics/_counters.py knows the order.
 *
 * Counters are incremented once per poll, event or wake-up, never per completion. All are monotonic
 * except `completions`, which falls when a completion is put back into the stash.
 */
#ifndef CQN_COUNTERS_H
#define CQN_COUNTERS_H

#include "base/python.h"

/* Buckets 0, 1 and 2 count those numbers, the next one 3 and 4, the next 5 to 8, and so on up to
 * powers of two; the last one counts all larger numbers. */
#define CQN_BUCKETS 40
typedef struct {
    uint64_t sum, buckets[CQN_BUCKETS];
} cqn_histogram;

typedef struct {
    uint64_t events, acked, arms, polls, completions, spurious; /* the fields of CQStats */
    uint64_t fetched; /* completions read from the device; `completions` counts returned ones */
    uint64_t thread_wakeups, task_wakeups;
} cqn_counts;

enum {
    CQN_PER_EVENT,      /* completions between two events */
    CQN_THREAD_LATENCY, /* in ns, only while measured; so is the next */
    CQN_TASK_LATENCY,
    CQN_HISTOGRAMS
};

/* One row. */
typedef struct {
    cqn_counts counts;
    cqn_histogram histograms[CQN_HISTOGRAMS];
} cqn_counters;

/* The counters of a context's channels together, updated once per wake-up. */
typedef struct {
    uint64_t timeouts, thread_wakeups; /* of threads in get_event() */
    cqn_histogram *per_wake;           /* events read per callback of an event loop */
} cqn_channel_counters;

/* Adds a number to a histogram, which is allocated by the first one: most CQs use at most one. A
 * failed allocation drops the number, since statistics are no reason to fail. */
static inline void cqn_histogram_add(cqn_histogram **at, uint64_t n)
{
    const int i = n < 2 ? (int)n : 65 - __builtin_clzll(n - 1);
    if (*at == NULL && (*at = PyMem_Calloc(1, sizeof(**at))) == NULL) {
        return;
    }
    (*at)->buckets[i < CQN_BUCKETS ? i : CQN_BUCKETS - 1]++;
    (*at)->sum += n;
}

#endif
