/* SPDX-License-Identifier: MIT */
/* Writing a timeline, if CQNOTIFY_TRACE is set, to a number of records. */
#ifndef CQN_CHECK_TIMELINE_H
#define CQN_CHECK_TIMELINE_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"

/* For variables that every call reads: they are accessed directly. */
#define HIDDEN __attribute__((visibility("hidden")))

extern struct timeline_header *cqn_timeline HIDDEN; /* NULL: no timeline */

void cqn_timeline_open(uint64_t capacity);
void cqn_timeline_ready(void); /* called when the process has a device to record */
void cqn_record_put(struct record *record);
/* Stores the wr_id, length and opcode of each success. Returns the number of the first. */
uint64_t cqn_timeline_completions(const struct ibv_wc *wc, uint32_t count);

/* RECORD(.what = RECORD_ARM, .object = 1): sets the thread, and the time if it is 0. */
#define RECORD(...)                                        \
    do {                                                   \
        if (cqn_timeline != NULL)                          \
            cqn_record_put(&(struct record){__VA_ARGS__}); \
    } while (0)

#endif
