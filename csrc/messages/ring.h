/* SPDX-License-Identifier: MIT */
/* Memory that is freed in the order in which it was allocated. */
#ifndef CQN_MESSAGES_RING_H
#define CQN_MESSAGES_RING_H

#include "base/base.h"

#define CQN_RING_ALIGN 64

typedef struct {
    PyObject_HEAD
    uint64_t size;
    uint64_t taken, freed; /* bytes in all; the difference is in use */
} cqn_ring;

extern PyType_Spec cqn_message_ring_spec;

static inline uint64_t cqn_ring_aligned(uint64_t nbytes)
{
    return (nbytes + CQN_RING_ALIGN - 1) / CQN_RING_ALIGN * CQN_RING_ALIGN;
}

/* Where so many bytes in one piece would be; and how far the ring were taken then. */
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

/* Stores where `nbytes` in one piece begin. False if they are not free. */
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

/* Returns a part of the latest allocation, of `nbytes`. */
static inline void cqn_ring_shorten(cqn_ring *self, uint64_t nbytes, uint64_t to)
{
    assert(to <= nbytes);
    self->taken -= cqn_ring_aligned(nbytes) - cqn_ring_aligned(to);
}

/* Frees what was allocated when `taken` was so much. */
static inline void cqn_ring_free_to(cqn_ring *self, uint64_t taken)
{
    assert(self->freed <= taken && taken <= self->taken);
    self->freed = taken;
}

#endif
