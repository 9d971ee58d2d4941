/* SPDX-License-Identifier: MIT */
#include "timeline.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

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

static void fill_header(struct timeline_header *header, uint64_t capacity)
{
    header->header_size = sizeof(*header);
    header->record_size = sizeof(struct record);
    header->capacity = capacity;
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
    cqn_timeline = NULL; /* a child leaves the parent's file alone */
    int file = cqn_create_file("timeline");
    if (file < 0)
        return;
    size_t size = sizeof(struct timeline_header) + capacity * sizeof(struct record);
    void *memory = MAP_FAILED;
    if (ftruncate(file, (off_t)size) == 0)
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return;
    fill_header(memory, capacity);
    cqn_timeline = memory;
}

void cqn_record_put(struct record record)
{
    struct timeline_header *header = cqn_timeline;
    uint64_t number = __atomic_fetch_add(&header->written, 1, __ATOMIC_RELAXED);
    struct record *place = (struct record *)(header + 1) + number % header->capacity;
    uint16_t what = record.what;
    record.what = 0;
    record.time = cqn_now();
    record.tid = cqn_tid();
    __atomic_store_n(&place->what, 0, __ATOMIC_RELAXED);
    *place = record;
    __atomic_store_n(&place->what, what, __ATOMIC_RELEASE);
}
