/* SPDX-License-Identifier: MIT */
/*
 * What a CQ counts. All of it is numbers of 64 bits, so that counters are added up and passed to
 * Python as one row of numbers; cqnotify/metrics/_counters.py knows their order.
 *
 * Whatever is counted here is counted once for a poll, an event or a wake-up, never once for each
 * completion. No counter but `completions` ever falls.
 */
#ifndef CQN_COUNTERS_H
#define CQN_COUNTERS_H

#include "base/python.h"

/* The first bucket counts zeros, the second ones, the third twos, the next 3 and 4, and so on to
 * the powers of two; the last one counts all that is larger. */
#define CQN_BUCKETS 40
typedef struct {
    uint64_t sum, buckets[CQN_BUCKETS];
} cqn_histogram;

typedef struct {
    uint64_t events, acked, arms, polls, completions, spurious; /* those of CQStats */
    uint64_t fetched; /* completions that the device gave; those above were handed out */
    uint64_t thread_wakeups, task_wakeups;
} cqn_counts;

enum {
    CQN_PER_EVENT,      /* completions from one event to the next */
    CQN_THREAD_LATENCY, /* in ns, while it is measured, as the next */
    CQN_TASK_LATENCY,
    CQN_HISTOGRAMS
};

/* A row. */
typedef struct {
    cqn_counts counts;
    cqn_histogram histograms[CQN_HISTOGRAMS];
} cqn_counters;

/* Counters of the channels of a context, all of them together: added to once for each wake-up. */
typedef struct {
    uint64_t timeouts, thread_wakeups; /* of threads in get_event() */
    cqn_histogram *per_wake; /* events that a callback of an event loop read, each time it ran */
} cqn_channel_counters;

/* Most CQs need one histogram at most, and many none: each is made by the first number that is
 * added. Without memory for it the number is not counted, since it is no reason to fail. */
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
