/* SPDX-License-Identifier: MIT */
/*
 * The WR queue: the work requests of a queue that have not completed, what each keeps alive, and by
 * which ids the device knows them. See wr_queue.c.
 */
#ifndef CQN_WORK_QUEUE_H
#define CQN_WORK_QUEUE_H

#include "work/qp.h"
#include "work/sg.h"

typedef struct cqn_awaitable cqn_awaitable; /* see await/await.h */
typedef struct cqn_engine cqn_engine;       /* see await/await.h */

/* A line of awaited requests, in the order of arrival. It holds no references: a request leaves the
 * line before it is deallocated. */
typedef struct {
    cqn_awaitable *first, *last;
} cqn_waitlist;

/* What the WR queue must know of a work request: whether it changes a memory window, or takes a
 * receive from a list of tags. */
typedef enum { CQN_WR_TRANSFERS, CQN_WR_BINDS, CQN_WR_INVALIDATES, CQN_WR_DELETES } cqn_wr_does;

/* An entry: one object that a work request in flight keeps alive. A request has an entry for each
 * of its objects, at least one. A request that binds has two: the window, and the MR, unless it
 * unbinds. The entry owns its reference, and counts as a pin of the object. */
typedef struct {
    union {
        uint64_t wr_id; /* the user's */
        cqn_awaitable
            *awaitable; /* if a task awaits it; it has the wr_id, and knows its place here */
    };
    cqn_object *pinned; /* strong, or NULL */
    union {
        uint32_t rkey; /* the key that it binds or invalidates */
        uint32_t next; /* of an SRQ: the next slot of its request, or the next free one */
    };
    uint16_t generation; /* see wr_queue.c */
    uint8_t does;        /* cqn_wr_does */
    bool signaled;
    bool last;     /* the last entry of its work request */
    uint8_t marks; /* CQN_WR_FORGOTTEN, CQN_WR_AWAITED, CQN_WR_PROBE */
    bool plain;    /* a request of one entry, without marks, that changes no window */
} cqn_wr;

enum {
    CQN_WR_FORGOTTEN = 1, /* its queue pair was reset or closed: only the wr_id is still needed */
    CQN_WR_AWAITED = 2,
    CQN_WR_PROBE = 4 /* a probe, whose completion no program sees */
};

/* The state of a queue's latest probe. */
typedef enum {
    CQN_PROBE_NEVER, /* none was posted */
    CQN_PROBE_POSTED,
    CQN_PROBE_ANSWERED, /* or its queue pair was reset */
    CQN_PROBE_FAILED
} cqn_probe;

/* A WR queue, see wr_queue.c. A QP owns two, an SRQ one; they are freed with the last
 * user. */
struct cqn_wr_queue {
    cqn_wr *ring;           /* in the order of posting, except for an SRQ */
    uint64_t next;          /* position of the next entry; of an SRQ: how many were posted */
    uint32_t len, capacity; /* in entries; capacity is a power of two up to CQN_WR_SLOTS, or 0 */
    uint32_t requests;      /* at most as many as entries */
    uint32_t signaled;      /* those that give a completion if they succeed */
    uint32_t number;        /* see wr_queue.c */
    uint32_t users; /* the QP or SRQ, or the CQ that inherited it; of an SRQ, its QPs as well */
    uint32_t free;  /* of an SRQ: the first free slot */
    uint16_t types; /* of the queue pairs that use it: bits 1 << IBV_QPT_* */
    bool is_shared; /* it is the queue of an SRQ */
#ifdef Py_GIL_DISABLED
    uint8_t half; /* that of its context, see lock.h */
#endif
    uint8_t probe;        /* cqn_probe */
    cqn_waitlist waiting; /* operations that wait for free slots */
    cqn_qp *qp; /* its queue pair; NULL: it is the queue of an SRQ, or the queue pair is gone */
    size_t *flushes; /* the count of flushed queues of its CQ, while this is one of them; or NULL */
    cqn_wr_queue *source;      /* the queue of the SRQ, for the receives of a QP with one */
    cqn_wr_queue *next_orphan; /* see cqn_cq.orphans */
};

typedef struct cqn_wc_extra cqn_wc_extra; /* see notify/cq.h */

/* How the folders below await/ notify the requests that tasks await. module.c sets the engine's
 * functions, once. */
typedef struct cqn_awaiting {
    /* Its queue pair `qp` was closed or reset; NULL: a later request has completed. */
    void (*lost)(cqn_awaitable *awaitable, const cqn_qp *qp);
    /* False: others get its completion as well. */
    bool (*completed)(cqn_awaitable *awaitable, struct ibv_wc *wc, const cqn_wc_extra *extra);
    /* Gives it to the completion() that asked for it; false: there is none. */
    bool (*claim)(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);
    bool (*wants)(const cqn_engine *engine); /* whether any completion() waits */
    void (*has_capacity)(cqn_engine *engine, cqn_qp *qp);
    bool (*has_work)(const cqn_engine *engine); /* whether a task is to be woken */
} cqn_awaiting;

#define CQN_WR_NUMBERS (UINT32_C(1) << 24)
#define CQN_WR_SLOTS (UINT32_C(1) << 24)

/* The lower bits of a position are the slot, the next ones the generation. */
static inline uint64_t cqn_wr_id(const cqn_wr_queue *q, uint64_t position)
{
    return position << 24 | q->number;
}

static inline uint16_t cqn_wr_generation(uint64_t position)
{
    return (uint16_t)(position >> 24);
}

static inline uint64_t cqn_wr_position(uint64_t id)
{
    return id >> 24;
}

/* Finds the queue that the id of a completion names, in the module's table. Without a GIL only one
 * under the same half of the lock as the CQ, which the caller holds. */
static inline bool cqn_wr_queue_find(cqn_wr_queue *const *queues, uint32_t len,
                                     const cqn_object *cq, uint64_t id, cqn_wr_queue **found)
{
    const uint32_t number = id & (CQN_WR_NUMBERS - 1);
    if (number >= len || ((uintptr_t)queues[number] & 1)) { /* a link of free numbers */
        return false;
    }
    *found = queues[number];
#ifdef Py_GIL_DISABLED
    return (*found)->half == cq->half;
#else
    (void)cq;
    return true;
#endif
}

/* The same, or NULL. */
static inline cqn_wr_queue *cqn_wr_queue_of(const cqn_object *cq, uint64_t id)
{
    const cqn_state *st = cq->state;
    cqn_wr_queue *queue;
    return cqn_wr_queue_find(st->queues, st->queues_len, cq, id, &queue) ? queue : NULL;
}

/* wr_queue.c */

/* A new queue of a queue pair, with one user; its receives come from `srq`, if that is not NULL.
 * NULL with MemoryError. */
cqn_wr_queue *cqn_wr_queue_new(cqn_qp *qp, uint32_t types, cqn_srq *srq);

/* Whether the request of that id is in the WR queue of an SRQ. */
bool cqn_wr_queue_has(const cqn_wr_queue *queue, uint64_t id);

/* A new queue of an SRQ. */
cqn_wr_queue *cqn_wr_queue_new_shared(const cqn_object *srq);

/* Drops a user, and with the last one the queue. */
void cqn_wr_queue_drop(cqn_state *st, cqn_wr_queue *queue);

/* Its queue pair was moved to an error state: counts the queue in `*count`, of its CQ, until the
 * queue is empty. */
void cqn_wr_queue_flushes(cqn_wr_queue *queue, size_t *count);

/* Its queue pair was destroyed or reset, so its requests will not complete: moves all that they
 * keep alive to `deferred`; only their wr_ids stay. */
void cqn_wr_queue_forget(cqn_wr_queue *queue, cqn_object **deferred);

/* Retires the requests of as many of n completions, from the first on, as belong to plain requests
 * of queue pairs' queues of other types than `special` (bits as those of cqn_wr_queue.types): most
 * do. Ends after one of a queue for which operations wait. Returns how many, and the queue of the
 * last one; 0: use cqn_wr_completed() for the first one. */
size_t cqn_wr_completed_run(const cqn_object *cq, uint32_t special, struct ibv_wc *wcs, size_t n,
                            cqn_wr_queue **last, cqn_object **deferred);

/* Retires the request that completed, and in a queue pair's queue all before it. Returns the
 * request if a task awaits it, borrowed; otherwise NULL, and the completion has the user's wr_id.
 */
cqn_awaitable *cqn_wr_completed(cqn_context *ctx, cqn_wr_queue *queue, struct ibv_wc *wc,
                                cqn_object **deferred);

/* Whether a completion, whose request was not retired yet, is that of a probe; see verbs/qp.c. */
bool cqn_wr_is_probe(const cqn_wr_queue *queue, const struct ibv_wc *wc);

/* Visits what the requests keep alive; `queue` may be NULL. */
int cqn_wr_queue_traverse(const cqn_wr_queue *queue, visitproc visit, void *arg);

/* Grows the queue for n more entries. -1 with MemoryError: the queue is unchanged. */
int cqn_wr_queue_grow(cqn_wr_queue *queue, size_t n);

/* Enters a receive that was posted to an SRQ; it fits. */
void cqn_wr_queue_push_shared(cqn_wr_queue *queue, uint64_t wr_id, const cqn_sg *sg);

/* Enters an operation on a list of tags that was posted; its two entries fit. When it has
 * completed, the receive of the id `deleted` never does; 0: it deletes none. */
void cqn_wr_queue_push_op(cqn_wr_queue *queue, uint64_t wr_id, uint64_t deleted);

/* The last entry of a request that was posted. Not for an SRQ. */
static inline cqn_wr *cqn_wr_at(const cqn_wr_queue *q, uint64_t position)
{
    return &q->ring[position & (q->capacity - 1)];
}

/* How many entries a request needs: one for each object, at least one. */
static inline size_t cqn_wr_entries(const cqn_sg *sg)
{
    return sg->num_pinned > 0 ? sg->num_pinned : 1;
}

static inline bool cqn_wr_queue_fits(const cqn_wr_queue *q, size_t n)
{
    return q->len + n <= q->capacity;
}

/* Grows the queue if n more entries do not fit, so that the push after a post can't fail. */
static inline int cqn_wr_queue_reserve(cqn_wr_queue *q, size_t n)
{
    return cqn_wr_queue_fits(q, n) ? 0 : cqn_wr_queue_grow(q, n);
}

/* The id of the next request, of n entries; not for an SRQ. */
static inline uint64_t cqn_wr_queue_id(const cqn_wr_queue *q, size_t n)
{
    return cqn_wr_id(q, q->next + n - 1);
}

/* The ids of the next requests, one after the other, for any queue; they fit. */
typedef struct {
    uint64_t next;
    uint32_t slot;
} cqn_wr_cursor;

static inline cqn_wr_cursor cqn_wr_queue_cursor(const cqn_wr_queue *q)
{
    return (cqn_wr_cursor){q->next, q->free};
}

static inline uint64_t cqn_wr_queue_next_id(const cqn_wr_queue *q, cqn_wr_cursor *at, size_t n)
{
    if (!q->is_shared) {
        at->next += n;
        return cqn_wr_id(q, at->next - 1);
    }
    const uint64_t id = cqn_wr_id(q, at->next++ * CQN_WR_SLOTS + at->slot);
    for (size_t i = 0; i < n; i++) {
        at->slot = q->ring[at->slot].next;
    }
    return id;
}

/* The device refused n requests: their ids are not used again. */
static inline void cqn_wr_queue_refused(cqn_wr_queue *q, size_t n)
{
    q->next += q->is_shared ? n : CQN_WR_SLOTS;
}

static inline void cqn_wr_pin(cqn_object *object)
{
    if (object != NULL) {
        Py_INCREF(object);
        object->pins++;
    }
}

/* Field by field: the compiler does not make that out of a copy of the struct. */
static inline void cqn_wr_queue_put(cqn_wr_queue *q, const cqn_wr *wr, cqn_object *pinned,
                                    cqn_wr_does does, bool last)
{
    cqn_wr *place = &q->ring[q->next & (q->capacity - 1)];
    place->wr_id = wr->wr_id;
    place->pinned = pinned;
    place->rkey = wr->rkey;
    place->generation = cqn_wr_generation(q->next);
    place->does = (uint8_t)does;
    place->signaled = wr->signaled;
    place->last = last;
    place->marks = wr->marks;
    place->plain = last && does == CQN_WR_TRANSFERS && wr->marks == 0;
    q->next++;
    q->len++;
    cqn_wr_pin(pinned);
}

/* Enters a request that was posted: `wr`, except for what it keeps alive. */
static inline void cqn_wr_queue_push(cqn_wr_queue *q, const cqn_wr *wr, const cqn_sg *sg)
{
    const uint32_t n = sg->num_pinned;
    cqn_wr_does does = wr->does;
    for (uint32_t i = 0; i + 1 < n; i++) {
        cqn_wr_queue_put(q, wr, sg->pinned[i], does, false);
        does = CQN_WR_TRANSFERS; /* only the first entry says it */
    }
    cqn_wr_queue_put(q, wr, n > 0 ? sg->pinned[n - 1] : NULL, does, true);
    q->requests++;
    q->signaled += wr->signaled;
}

/* Enters a receive that was posted to any queue. */
static inline void cqn_wr_queue_push_recv(cqn_wr_queue *q, uint64_t wr_id, const cqn_sg *sg)
{
    if (q->is_shared) {
        cqn_wr_queue_push_shared(q, wr_id, sg);
    }
    else {
        cqn_wr_queue_push(q, &(cqn_wr){.wr_id = wr_id}, sg);
    }
}

#endif
