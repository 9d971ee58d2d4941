/* SPDX-License-Identifier: MIT */
/* The observer's memory, and its table of the program's objects. */
#ifndef CQN_CHECK_MEMORY_H
#define CQN_CHECK_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL; and its return, of the same size. */
void *cqn_alloc(size_t size);
void cqn_free(void *memory, size_t size);

/* A table by key, which is not 0. Reading takes no lock: a key that is being added or removed by
 * another thread is found or not. */
struct table {
    struct slots *slots;
    uint32_t used; /* with those that were removed */
};

void *cqn_table_find(const struct table *table, uintptr_t key);
void cqn_table_put(struct table *table, uintptr_t key, void *value);
void cqn_table_remove(struct table *table, uintptr_t key);

#endif
