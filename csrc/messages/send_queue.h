/* SPDX-License-Identifier: MIT */
/* The send queue of a connection, see send_queue.c. */
#ifndef CQN_MESSAGES_SEND_QUEUE_H
#define CQN_MESSAGES_SEND_QUEUE_H

#include "messages/ring.h"
#include "work/wr.h"

/* A signaled work request. */
typedef struct {
    uint64_t number;
    uint64_t mark;  /* the ring's `taken` at its post */
    uint32_t slots; /* freed by its completion, including earlier unsignaled ones */
    PyObject *done; /* its completed() is called; or NULL */
} cqn_signaled;

typedef struct {
    cqn_qp *qp;     /* strong, like the next two */
    cqn_mr *mr;     /* a part of it is the ring */
    cqn_ring *ring; /* of the memory for frames */
    uint8_t *memory;
    uint64_t address; /* the same, for the device */

    uint32_t depth, taken; /* slots: their number, and how many are in use */
    uint64_t number;       /* of the latest work request */
    uint32_t unsignaled;   /* work requests since the last signaled one */
    uint64_t signaled_to;  /* the ring's `taken` at the last signaled one */
    cqn_signaled *signaled;
    uint32_t signaled_first, signaled_len; /* a ring of `depth` entries */
    uint32_t calls;                        /* how many of these have a `done` */
    int (*reading_completed)(PyObject *);  /* called if `done` is a MessageReading */

    uint64_t at, length, before; /* the frame being written; the ring's `taken` without it */

    struct ibv_send_wr *wrs; /* frames to be posted, with the latest numbers */
    struct ibv_sge *sges;
    uint32_t pending;
} cqn_send_queue;

/* Returns -1 with an exception; even then the owner calls cqn_send_queue_clear() and then
 * cqn_send_queue_free(). */
int cqn_send_queue_init(cqn_send_queue *self, cqn_qp *qp, cqn_mr *mr, cqn_ring *ring,
                        uint64_t start, uint32_t depth);
int cqn_send_queue_traverse(const cqn_send_queue *self, visitproc visit, void *arg);
void cqn_send_queue_clear(cqn_send_queue *self);
void cqn_send_queue_free(cqn_send_queue *self);

static inline uint32_t cqn_send_queue_free_slots(const cqn_send_queue *self)
{
    return self->depth - self->taken;
}

static inline bool cqn_send_queue_has_room(const cqn_send_queue *self, uint64_t length)
{
    return self->taken < self->depth && cqn_ring_has_room(self->ring, length);
}

/* Returns memory for a frame, which the caller writes and adds; NULL without an exception if there
 * is none. */
uint8_t *cqn_send_queue_reserve(cqn_send_queue *self, uint64_t length);

/* Shortens the frame that is being written. */
void cqn_send_queue_shorten(cqn_send_queue *self, uint64_t length);

/* Returns the memory of the reserved frame to the ring. */
void cqn_send_queue_drop_frame(cqn_send_queue *self);

/* Adds the frame to those to be posted. `done` may be NULL. */
void cqn_send_queue_add(cqn_send_queue *self, bool solicited, PyObject *done);

/* Posts the added frames, with one call of the verb. Returns -1 with an exception. */
int cqn_send_queue_flush(cqn_send_queue *self);

/* Posts the reads of one message, from a list of pairs of SGE and (length, address, rkey); they
 * have one completion. There must be enough slots. Returns -1 with an exception. */
int cqn_send_queue_post_reads(cqn_send_queue *self, PyObject *reads, PyObject *done);

/* The same for n reads into one MR, which the caller sets in between: the first posts the added
 * frames, the last posts the reads. There must be n slots. Return -1 with an exception. */
int cqn_send_queue_begin_reads(cqn_send_queue *self, uint32_t n);
void cqn_send_queue_set_read(cqn_send_queue *self, uint32_t i, const cqn_mr *mr, uint64_t addr,
                             uint64_t length, uint64_t remote_addr, uint32_t rkey);
int cqn_send_queue_post_set(cqn_send_queue *self, uint32_t n, cqn_mr *mr, PyObject *done);

/* Posts an empty RDMA write, if there is a slot. Returns -1 with an exception. */
int cqn_send_queue_post_probe(cqn_send_queue *self);

/* Returns the number of the signaled work request that completes next. */
uint64_t cqn_send_queue_oldest(const cqn_send_queue *self);

/* Frees everything up to the successful work request of this number, and calls completed() where
 * needed. Returns -1 with an exception. */
int cqn_send_queue_completed(cqn_send_queue *self, uint64_t number);

#endif
