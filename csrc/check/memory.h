/* SPDX-License-Identifier: MIT */
/* The observer's memory, and its table of the program's objects. */
#ifndef CQN_CHECK_MEMORY_H
#define CQN_CHECK_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns zeroed memory, or NULL; cqn_free() takes the same size. */
void *cqn_alloc(size_t size);
void cqn_free(void *memory, size_t size);

struct slot {
    uintptr_t key; /* 0: free; GONE: removed */
    void *value;
};

struct slots {
    size_t mask;
    struct slot slot[];
};

/* A table by key, which is neither 0 nor 1. Reading takes no lock: a key that another thread is
 * adding or removing may or may not be found. */
struct table {
    struct slots *slots;
    uint32_t used; /* including removed keys */
};

/* Returns false if there is no memory: the table does not have the key then. */
bool cqn_table_put(struct table *table, uintptr_t key, void *value);
void cqn_table_remove(struct table *table, uintptr_t key);

static inline size_t cqn_table_place(uintptr_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15U) >> 20);
}

static inline void *cqn_table_find(const struct table *table, uintptr_t key)
{
    const struct slots *slots = __atomic_load_n(&table->slots, __ATOMIC_ACQUIRE);
    if (!slots)
        return NULL;
    for (size_t i = cqn_table_place(key);; i++) {
        const struct slot *slot = &slots->slot[i & slots->mask];
        uintptr_t found = __atomic_load_n(&slot->key, __ATOMIC_ACQUIRE);
        if (found == key)
            return __atomic_load_n(&slot->value, __ATOMIC_RELAXED);
        if (found == 0)
            return NULL;
    }
}

#endif
