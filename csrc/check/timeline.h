/* SPDX-License-Identifier: MIT */
/* Writing a timeline, if one is asked for (CQNOTIFY_TRACE, a number of records). */
#ifndef CQN_CHECK_TIMELINE_H
#define CQN_CHECK_TIMELINE_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

/* For variables that every call reads: they are reached directly. */
#define HIDDEN __attribute__((visibility("hidden")))

extern struct timeline_header *cqn_timeline HIDDEN; /* NULL: none is written */

void cqn_timeline_open(uint64_t capacity);
void cqn_timeline_ready(void); /* the process has a device, and so something to record */
void cqn_record_put(struct record *record);
/* The wr_id, length and opcode of each of these successes; where the first of them is. */
uint64_t cqn_timeline_completions(const struct ibv_wc *wc, uint32_t count);

/* RECORD(.what = RECORD_ARM, .object = 1): the thread is filled in, and the time, if it is 0. */
#define RECORD(...)                                        \
    do {                                                   \
        if (cqn_timeline != NULL)                          \
            cqn_record_put(&(struct record){__VA_ARGS__}); \
    } while (0)

#endif
