/* SPDX-License-Identifier: MIT */
/*
 * The observer's memory: blocks whose sizes are powers of two, cut from large mappings and kept for
 * reuse. The slots of a table are read without a lock, and never freed.
 */
#include "memory.h"

#include <string.h>
#include <sys/mman.h>

#include "lock.h"

enum { SMALLEST = 5, LARGEST = 16, CHUNK = 1 << 20 };

static lock_t heap_lock, table_lock;
static void *kept[LARGEST + 1]; /* by power: a list linked through the first word */
static char *chunk;
static size_t chunk_left;

static void *map(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int power_of(size_t size)
{
    int power = SMALLEST;
    while (((size_t)1 << power) < size)
        power++;
    return power;
}

static void *cut(size_t size)
{
    if (chunk_left < size) {
        chunk = map(CHUNK);
        chunk_left = chunk ? CHUNK : 0;
        if (!chunk)
            return NULL;
    }
    void *memory = chunk;
    chunk += size;
    chunk_left -= size;
    return memory;
}

void *cqn_alloc(size_t size)
{
    int power = power_of(size);
    if (power > LARGEST)
        return map(size);
    cqn_lock(&heap_lock);
    void *memory = kept[power];
    if (memory) {
        kept[power] = *(void **)memory;
        memset(memory, 0, (size_t)1 << power);
    }
    else
        memory = cut((size_t)1 << power);
    cqn_unlock(&heap_lock);
    return memory;
}

void cqn_free(void *memory, size_t size)
{
    if (!memory)
        return;
    int power = power_of(size);
    if (power > LARGEST) {
        munmap(memory, size);
        return;
    }
    cqn_lock(&heap_lock);
    *(void **)memory = kept[power];
    kept[power] = memory;
    cqn_unlock(&heap_lock);
}

/* ---- the table --------------------------------------------------------------------------- */

static const uintptr_t GONE = 1;

/* Returns true if it took a free slot, false for the slot of a removed key. */
static bool insert(struct slots *slots, uintptr_t key, void *value)
{
    size_t i = cqn_table_place(key);
    while (slots->slot[i & slots->mask].key > GONE)
        i++;
    struct slot *slot = &slots->slot[i & slots->mask];
    bool was_free = slot->key == 0;
    __atomic_store_n(&slot->value, value, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->key, key, __ATOMIC_RELEASE);
    return was_free;
}

/* Copies the keys in use to new slots, with space for more. Readers may still use the old slots.
 * Returns false if there is no memory. */
static bool renew(struct table *table)
{
    const struct slots *old = table->slots;
    size_t live = 0;
    for (size_t i = 0; old && i <= old->mask; i++)
        live += old->slot[i].key > GONE;
    size_t size = 64;
    while (size < 4 * (live + 1))
        size *= 2;
    struct slots *slots = cqn_alloc(sizeof(*slots) + size * sizeof(slots->slot[0]));
    if (!slots)
        return false;
    slots->mask = size - 1;
    for (size_t i = 0; old && i <= old->mask; i++)
        if (old->slot[i].key > GONE)
            insert(slots, old->slot[i].key, old->slot[i].value);
    table->used = (uint32_t)live;
    __atomic_store_n(&table->slots, slots, __ATOMIC_RELEASE);
    return true;
}

/* Without memory for more slots a table fills up, except for the slot that ends searches. */
bool cqn_table_put(struct table *table, uintptr_t key, void *value)
{
    cqn_lock(&table_lock);
    const struct slots *slots = table->slots;
    bool has_room = (slots && 2 * (size_t)table->used <= slots->mask) || renew(table) ||
                    (slots && table->used < slots->mask);
    if (has_room)
        table->used += insert(table->slots, key, value);
    cqn_unlock(&table_lock);
    return has_room;
}

void cqn_table_remove(struct table *table, uintptr_t key)
{
    cqn_lock(&table_lock);
    struct slots *slots = table->slots;
    size_t i = cqn_table_place(key);
    while (slots && slots->slot[i & slots->mask].key != key) {
        if (slots->slot[i & slots->mask].key == 0)
            slots = NULL;
        i++;
    }
    if (slots) {
        __atomic_store_n(&slots->slot[i & slots->mask].key, GONE, __ATOMIC_RELEASE);
        /* Removed slots at the end of a run become free: no search passes them. */
        for (size_t end = i; slots->slot[(end + 1) & slots->mask].key == 0 &&
                             slots->slot[end & slots->mask].key == GONE;
             end--) {
            __atomic_store_n(&slots->slot[end & slots->mask].key, 0, __ATOMIC_RELEASE);
            table->used--;
        }
    }
    cqn_unlock(&table_lock);
}
