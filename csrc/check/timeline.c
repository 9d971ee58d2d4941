/* SPDX-License-Identifier: MIT */
/* Writing a timeline, whose format is in record.h. */
#include "timeline.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { READY_BYTES = 2 << 20 }; /* of records, and as many of completions */

struct timeline_header *cqn_timeline;

static uint64_t clock_now(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

uint64_t cqn_now(void)
{
    return clock_now(CLOCK_MONOTONIC);
}

/* Returns the number of completions for that many records, a power of two. */
static uint64_t completions_for(uint64_t records)
{
    uint64_t count = 1;
    while (count < records)
        count *= 2;
    return count;
}

static void fill_header(struct timeline_header *header, uint64_t capacity)
{
    header->header_size = sizeof(*header);
    header->record_size = sizeof(struct record);
    header->capacity = capacity;
    header->completions = completions_for(capacity);
    header->monotonic = clock_now(CLOCK_MONOTONIC);
    header->realtime = clock_now(CLOCK_REALTIME);
    header->pid = (uint32_t)getpid();
    ssize_t length = cqn_read_command(header->command, sizeof(header->command));
    for (ssize_t i = 0; i + 1 < length; i++)
        if (header->command[i] == '\0')
            header->command[i] = ' ';
    memcpy(header->magic, RECORD_MAGIC, sizeof(header->magic));
}

void cqn_timeline_open(uint64_t capacity)
{
    cqn_timeline = NULL; /* a child leaves the parent's file unchanged */
    int file = cqn_create_file("timeline");
    if (file < 0)
        return;
    size_t size = sizeof(struct timeline_header) + capacity * sizeof(struct record) +
                  completions_for(capacity) * sizeof(struct completion);
    void *memory = MAP_FAILED;
    if (ftruncate(file, (off_t)size) == 0)
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return;
    fill_header(memory, capacity);
    cqn_timeline = memory;
}

/* The first access to a page faults, in the middle of what is recorded. The first pages are
 * therefore populated in advance, once the process has a device, on kernels that support it
 * (5.14). */
static void populate(const void *start, size_t size)
{
#ifndef MADV_POPULATE_WRITE
    enum { MADV_POPULATE_WRITE = 23 };
#endif
    uintptr_t page = (uintptr_t)start & ~(uintptr_t)4095;
    size_t most = READY_BYTES;
    madvise((void *)page, size < most ? size : most, MADV_POPULATE_WRITE);
}

void cqn_timeline_ready(void)
{
    const struct timeline_header *header = cqn_timeline;
    if (!header || header->written)
        return;
    populate(header, sizeof(*header) + header->capacity * sizeof(struct record));
    populate((const struct record *)(header + 1) + header->capacity,
             header->completions * sizeof(struct completion));
}

void cqn_record_put(struct record *record)
{
    struct timeline_header *header = cqn_timeline;
    uint64_t number = __atomic_fetch_add(&header->written, 1, __ATOMIC_RELAXED);
    struct record *place = (struct record *)(header + 1) + number % header->capacity;
    uint16_t what = record->what;
    record->what = 0;
    if (record->time == 0)
        record->time = cqn_now();
    record->tid = cqn_tid();
    __atomic_store_n(&place->what, 0, __ATOMIC_RELAXED);
    *place = *record;
    __atomic_store_n(&place->what, what, __ATOMIC_RELEASE);
}

/* The first words of a completion match struct completion, except that the status, which is 0, is
 * in the place of the length. */
static inline void copy_one(struct completion *to, const struct ibv_wc *wc)
{
    memcpy(to, wc, sizeof(*to));
    to->length = wc->byte_len;
}

enum { STEP = 8 };

static inline void copy(struct completion *to, const struct ibv_wc *wc, uint32_t count)
{
    for (uint32_t steps = count / STEP; steps; steps--, to += STEP, wc += STEP)
#pragma GCC unroll 8
        for (int i = 0; i < STEP; i++)
            copy_one(to + i, wc + i);
    for (uint32_t rest = count % STEP; rest; rest--)
        copy_one(to++, wc++);
}

/* For completions that wrap around the end of the ring. */
static __attribute__((noinline)) void copy_around(struct completion *ring, uint64_t size,
                                                  uint64_t place, const struct ibv_wc *wc,
                                                  uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        copy_one(&ring[(place + i) & (size - 1)], &wc[i]);
}

uint64_t cqn_timeline_completions(const struct ibv_wc *wc, uint32_t count)
{
    struct timeline_header *header = cqn_timeline;
    uint64_t first = __atomic_fetch_add(&header->completed, count, __ATOMIC_RELAXED);
    struct completion *ring =
        (struct completion *)((struct record *)(header + 1) + header->capacity);
    uint64_t place = first & (header->completions - 1);
    if (place + count <= header->completions)
        copy(ring + place, wc, count);
    else
        copy_around(ring, header->completions, place, wc, count);
    return first;
}
