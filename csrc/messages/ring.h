/* SPDX-License-Identifier: MIT */
/* Memory that is freed in the order of its allocation. */
#ifndef CQN_MESSAGES_RING_H
#define CQN_MESSAGES_RING_H

#include "base/base.h"

#define CQN_RING_ALIGN 64

typedef struct {
    PyObject_HEAD
    uint64_t size;
    uint64_t taken, freed; /* total bytes; the difference is in use */
} cqn_ring;

extern PyType_Spec cqn_message_ring_spec;

static inline uint64_t cqn_ring_aligned(uint64_t nbytes)
{
    return (nbytes + CQN_RING_ALIGN - 1) / CQN_RING_ALIGN * CQN_RING_ALIGN;
}

/* Returns the offset at which nbytes contiguous bytes would begin; *taken: the value of `taken`
 * after their allocation. */
static inline uint64_t cqn_ring_place(const cqn_ring *self, uint64_t nbytes, uint64_t *taken)
{
    const uint64_t at = self->taken % self->size;
    const uint64_t skipped = at + nbytes > self->size ? self->size - at : 0;
    *taken = self->taken + skipped + cqn_ring_aligned(nbytes);
    return skipped > 0 ? 0 : at;
}

static inline bool cqn_ring_has_room(const cqn_ring *self, uint64_t nbytes)
{
    uint64_t taken;
    cqn_ring_place(self, nbytes, &taken);
    return taken - self->freed <= self->size;
}

/* Allocates nbytes contiguous bytes; *at: their offset. Returns false if they are not free. */
static inline bool cqn_ring_allocate(cqn_ring *self, uint64_t nbytes, uint64_t *at)
{
    uint64_t taken;
    *at = cqn_ring_place(self, nbytes, &taken);
    if (taken - self->freed > self->size) {
        return false;
    }
    self->taken = taken;
    return true;
}

/* Reduces the latest allocation from `nbytes` to `to` bytes. */
static inline void cqn_ring_shorten(cqn_ring *self, uint64_t nbytes, uint64_t to)
{
    assert(to <= nbytes);
    self->taken -= cqn_ring_aligned(nbytes) - cqn_ring_aligned(to);
}

/* Frees everything that was allocated up to that value of `taken`. */
static inline void cqn_ring_free_to(cqn_ring *self, uint64_t taken)
{
    assert(self->freed <= taken && taken <= self->taken);
    self->freed = taken;
}

#endif
