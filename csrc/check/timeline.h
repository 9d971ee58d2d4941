/* SPDX-License-Identifier: MIT */
/* Writing a timeline, if one is asked for (CQNOTIFY_TRACE, a number of records). */
#ifndef CQN_CHECK_TIMELINE_H
#define CQN_CHECK_TIMELINE_H

#include <stddef.h>
#include <stdint.h>

#include "record.h"

extern struct timeline_header *cqn_timeline; /* NULL: none is written */

void cqn_timeline_open(uint64_t capacity);
void cqn_record_put(struct record record);

/* RECORD(.what = RECORD_ARM, .object = 1): the time and the thread are filled in. */
#define RECORD(...)                                       \
    do {                                                  \
        if (cqn_timeline != NULL)                         \
            cqn_record_put((struct record){__VA_ARGS__}); \
    } while (0)

#endif
