/* SPDX-License-Identifier: MIT */
/* The send queue of a connection, see send_queue.c. */
#ifndef CQN_MESSAGES_SEND_QUEUE_H
#define CQN_MESSAGES_SEND_QUEUE_H

#include "messages/ring.h"
#include "work/wr.h"

/* A work request that has a completion. */
typedef struct {
    uint64_t number;
    uint64_t mark;  /* of the ring, with all that were posted until then */
    uint32_t slots; /* that it frees, with those before it that have no completion */
    PyObject *done; /* whose completed() is called; or NULL */
} cqn_signaled;

typedef struct {
    cqn_qp *qp;     /* strong; as all that follows */
    cqn_mr *mr;     /* a part of it is the ring */
    cqn_ring *ring; /* of the memory for frames */
    uint8_t *memory;
    uint64_t address; /* the same, for the device */

    uint32_t depth, taken; /* slots: how many work requests there can be, and are */
    uint64_t number;       /* of the latest work request */
    uint32_t unsignaled;   /* the last so many have no completion */
    uint64_t signaled_to;  /* mark of the ring, at the latest that has one */
    cqn_signaled *signaled;
    uint32_t signaled_first, signaled_len; /* a ring of `depth` */
    uint32_t calls;                        /* how many of these have a `done` */
    int (*reading_completed)(PyObject *);  /* what is called if that is a MessageReading */

    uint64_t at, length, before; /* the frame that is being written; the ring's mark without it */

    struct ibv_send_wr *wrs; /* frames that are to be posted; their numbers are the latest */
    struct ibv_sge *sges;
    uint32_t pending;
} cqn_send_queue;

/* -1 with an exception; cqn_send_queue_clear() and then _free() are for both cases. */
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

/* Memory for a frame, which the caller writes and adds; NULL if there is none. */
uint8_t *cqn_send_queue_reserve(cqn_send_queue *self, uint64_t length);

/* The frame that is being written has become shorter than the memory for it. */
void cqn_send_queue_shorten(cqn_send_queue *self, uint64_t length);

/* Returns the memory of the frame that was reserved. */
void cqn_send_queue_drop_frame(cqn_send_queue *self);

/* Adds the frame to those that are to be posted. `done` may be NULL. */
void cqn_send_queue_add(cqn_send_queue *self, bool solicited, PyObject *done);

/* Posts the frames, with one call of the verb. -1 with an exception. */
int cqn_send_queue_flush(cqn_send_queue *self);

/* Posts reads of one message, for which there are slots, of a list of pairs of SGE and
 * (length, address, rkey): they have one completion. -1 with an exception. */
int cqn_send_queue_post_reads(cqn_send_queue *self, PyObject *reads, PyObject *done);

/* The same for reads into one region that the caller sets in between: there are slots for n, and
 * frames that were added are posted before. -1 with an exception. */
int cqn_send_queue_begin_reads(cqn_send_queue *self, uint32_t n);
void cqn_send_queue_set_read(cqn_send_queue *self, uint32_t i, const cqn_mr *mr, uint64_t addr,
                             uint64_t length, uint64_t remote_addr, uint32_t rkey);
int cqn_send_queue_post_set(cqn_send_queue *self, uint32_t n, cqn_mr *mr, PyObject *done);

/* Posts an empty RDMA write, if there is a slot. -1 with an exception. */
int cqn_send_queue_post_probe(cqn_send_queue *self);

/* Which work request completes next, of those that have a completion. */
uint64_t cqn_send_queue_oldest(const cqn_send_queue *self);

/* Frees what a completion stands for that succeeded, by its number, and calls what is to be called.
 * -1 with an exception. */
int cqn_send_queue_completed(cqn_send_queue *self, uint64_t number);

#endif
