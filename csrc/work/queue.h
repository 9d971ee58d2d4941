/* SPDX-License-Identifier: MIT */
/*
 * The WR queue: the work requests of a queue that have not completed, the objects that each keeps
 * alive, and the ids that the device has for them. See wr_queue.c.
 */
#ifndef CQN_WORK_QUEUE_H
#define CQN_WORK_QUEUE_H

#include "work/qp.h"
#include "work/sg.h"

typedef struct cqn_awaitable cqn_awaitable; /* see await/await.h */
typedef struct cqn_engine cqn_engine;       /* see await/await.h */

/* A list of awaitables in order of arrival. It holds no references: an awaitable leaves the list
 * before it is deallocated. */
typedef struct {
    cqn_awaitable *first, *last;
} cqn_waitlist;

/* The effect of a work request that the WR queue tracks: on a memory window, or deleting a tagged
 * receive. */
typedef enum { CQN_WR_TRANSFERS, CQN_WR_BINDS, CQN_WR_INVALIDATES, CQN_WR_DELETES } cqn_wr_does;

/* An entry: one object that a work request in flight keeps alive. A work request has an entry for
 * each of its objects, at least one. A bind has two: the window, and the MR unless it unbinds. The
 * entry owns its reference and counts as a pin of the object. */
typedef struct {
    union {
        uint64_t wr_id;           /* the user's */
        cqn_awaitable *awaitable; /* of an awaited request; has the wr_id and its place here */
    };
    cqn_object *pinned; /* strong, or NULL */
    union {
        uint32_t rkey; /* the key that it binds or invalidates */
        uint32_t next; /* of an SRQ: the request's next slot, or the next free one */
    };
    uint16_t generation; /* see wr_queue.c */
    uint8_t does;        /* cqn_wr_does */
    bool signaled;
    bool last;     /* the last entry of its work request */
    uint8_t marks; /* CQN_WR_FORGOTTEN, CQN_WR_AWAITED, CQN_WR_PROBE */
    bool plain;    /* one entry, no marks, no effect on windows */
} cqn_wr;

enum {
    CQN_WR_FORGOTTEN = 1, /* its queue pair was reset or closed; only the wr_id is still needed */
    CQN_WR_AWAITED = 2,
    CQN_WR_PROBE = 4 /* a probe: its completion is invisible to programs */
};

/* The state of a queue's latest probe. */
typedef enum {
    CQN_PROBE_NEVER, /* none was posted */
    CQN_PROBE_POSTED,
    CQN_PROBE_ANSWERED, /* or its queue pair was reset */
    CQN_PROBE_FAILED
} cqn_probe;

/* A WR queue, see wr_queue.c. A QP owns two, an SRQ one; a queue is freed with its last user. */
struct cqn_wr_queue {
    cqn_wr *ring;           /* in order of posting, except for an SRQ */
    uint64_t next;          /* position of the next entry; of an SRQ: number of posts */
    uint32_t len, capacity; /* in entries; capacity: 0 or a power of two, at most CQN_WR_SLOTS */
    uint32_t requests;      /* not more than the entries */
    uint32_t signaled;      /* requests with a completion if they succeed */
    uint32_t number;        /* see wr_queue.c */
    uint32_t users; /* the QP or SRQ, or the CQ that inherited it; of an SRQ, also its QPs */
    uint32_t free;  /* of an SRQ: the first free slot */
    uint16_t types; /* of the queue pairs that use it: bits 1 << IBV_QPT_* */
    bool is_shared; /* the queue of an SRQ */
#ifdef Py_GIL_DISABLED
    uint8_t half; /* that of its context, see lock.h */
#endif
    uint8_t probe;             /* cqn_probe */
    cqn_waitlist waiting;      /* operations that wait for free slots */
    cqn_qp *qp;                /* NULL: the queue of an SRQ, or its queue pair was destroyed */
    size_t *flushes;           /* counter in its CQ while its requests are flushed; or NULL */
    cqn_wr_queue *source;      /* the SRQ's queue, for the receives of a QP with one */
    cqn_wr_queue *next_orphan; /* see cqn_cq.orphans */
};

typedef struct cqn_wc_extra cqn_wc_extra; /* see notify/cq.h */

/* The engine's functions for the folders below await/. module.c sets them once. */
typedef struct cqn_awaiting {
    /* The request's queue pair `qp` was closed or reset; NULL: a later request completed. */
    void (*lost)(cqn_awaitable *awaitable, const cqn_qp *qp);
    /* Routes the completion; false: it goes into the stash. */
    bool (*completed)(cqn_awaitable *awaitable, struct ibv_wc *wc, const cqn_wc_extra *extra);
    /* Gives the completion to the completion() that claims it; false: there is none. */
    bool (*claim)(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);
    bool (*wants)(const cqn_engine *engine); /* whether any completion() waits */
    void (*has_capacity)(cqn_engine *engine, cqn_qp *qp);
    bool (*has_work)(const cqn_engine *engine); /* whether a task is to be woken */
} cqn_awaiting;

#define CQN_WR_NUMBERS (UINT32_C(1) << 24)
#define CQN_WR_SLOTS (UINT32_C(1) << 24)

/* The lower 24 bits of a position are the slot, the next 16 the generation. */
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

/* Finds the queue that a completion's id names, in the module's table. Without a GIL, only a queue
 * with the same half of the lock as the CQ, which the caller holds. */
static inline bool cqn_wr_queue_find(cqn_wr_queue *const *queues, uint32_t len,
                                     const cqn_object *cq, uint64_t id, cqn_wr_queue **found)
{
    const uint32_t number = id & (CQN_WR_NUMBERS - 1);
    if (number >= len || ((uintptr_t)queues[number] & 1)) { /* a link between free numbers */
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

/* The same; returns the queue, borrowed, or NULL. */
static inline cqn_wr_queue *cqn_wr_queue_of(const cqn_object *cq, uint64_t id)
{
    const cqn_state *st = cq->state;
    cqn_wr_queue *queue;
    return cqn_wr_queue_find(st->queues, st->queues_len, cq, id, &queue) ? queue : NULL;
}

/* wr_queue.c */

/* Returns a new queue of a queue pair, with one user; its receives come from `srq` unless that is
 * NULL. NULL with MemoryError. */
cqn_wr_queue *cqn_wr_queue_new(cqn_qp *qp, uint32_t types, cqn_srq *srq);

/* Whether the WR queue of an SRQ has the request with this id. */
bool cqn_wr_queue_has(const cqn_wr_queue *queue, uint64_t id);

/* Returns a new queue of an SRQ, with one user; NULL with MemoryError. */
cqn_wr_queue *cqn_wr_queue_new_shared(const cqn_object *srq);

/* Removes a user, and frees the queue with the last one. */
void cqn_wr_queue_drop(cqn_state *st, cqn_wr_queue *queue);

/* Called when the queue pair was moved to an error state: counts the queue in its CQ's `*count`
 * until the queue is empty. */
void cqn_wr_queue_flushes(cqn_wr_queue *queue, size_t *count);

/* Called when the queue pair was destroyed or reset, so its requests will not complete: moves the
 * references of all entries to `deferred`; only the wr_ids stay. */
void cqn_wr_queue_forget(cqn_wr_queue *queue, cqn_object **deferred);

/* Retires the work requests of the first of n completions, as long as they are plain requests in
 * queues of queue pairs without a type in `special` (bits like cqn_wr_queue.types), as most are.
 * Stops after one whose queue has waiting operations. Returns their number, and the queue of the
 * last one; after 0, use cqn_wr_completed() for the first one. */
size_t cqn_wr_completed_run(const cqn_object *cq, uint32_t special, struct ibv_wc *wcs, size_t n,
                            cqn_wr_queue **last, cqn_object **deferred);

/* Retires the completed work request and, in a queue pair's queue, all before it. Returns the
 * awaitable, borrowed, if a task awaits it; otherwise NULL, and the completion has the user's
 * wr_id. */
cqn_awaitable *cqn_wr_completed(cqn_context *ctx, cqn_wr_queue *queue, struct ibv_wc *wc,
                                cqn_object **deferred);

/* Whether a completion, whose request is not retired yet, belongs to a probe; see verbs/qp.c. */
bool cqn_wr_is_probe(const cqn_wr_queue *queue, const struct ibv_wc *wc);

/* Visits the objects that the entries keep alive; `queue` may be NULL. */
int cqn_wr_queue_traverse(const cqn_wr_queue *queue, visitproc visit, void *arg);

/* Enlarges the queue for n more entries. Returns -1 with MemoryError: the queue is unchanged. */
int cqn_wr_queue_grow(cqn_wr_queue *queue, size_t n);

/* Adds a receive that was posted to an SRQ; there must be space. */
void cqn_wr_queue_push_shared(cqn_wr_queue *queue, uint64_t wr_id, const cqn_sg *sg);

/* Adds a posted operation on tagged receives; there must be space for its two entries. After it
 * completed, the receive with the id `deleted` never will; 0: it deletes none. */
void cqn_wr_queue_push_op(cqn_wr_queue *queue, uint64_t wr_id, uint64_t deleted);

/* Returns the entry at a position, borrowed. Not for an SRQ. */
static inline cqn_wr *cqn_wr_at(const cqn_wr_queue *q, uint64_t position)
{
    return &q->ring[position & (q->capacity - 1)];
}

/* Returns the number of entries of a request: one per object, at least one. */
static inline size_t cqn_wr_entries(const cqn_sg *sg)
{
    return sg->num_pinned > 0 ? sg->num_pinned : 1;
}

static inline bool cqn_wr_queue_fits(const cqn_wr_queue *q, size_t n)
{
    return q->len + n <= q->capacity;
}

/* Enlarges the queue if needed for n more entries, so the push after a post cannot fail.
 * Returns -1 with MemoryError. */
static inline int cqn_wr_queue_reserve(cqn_wr_queue *q, size_t n)
{
    return cqn_wr_queue_fits(q, n) ? 0 : cqn_wr_queue_grow(q, n);
}

/* Returns the id of the next request, with n entries; not for an SRQ. */
static inline uint64_t cqn_wr_queue_id(const cqn_wr_queue *q, size_t n)
{
    return cqn_wr_id(q, q->next + n - 1);
}

/* A cursor over the ids of the next requests, for any queue; there must be space. */
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

/* Called when the device refused n requests: their ids are not used again. */
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

/* Copies each field, because the compiler generates worse code for a copy of the struct. */
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

/* Adds a posted request, from `wr` and the objects that it keeps alive. */
static inline void cqn_wr_queue_push(cqn_wr_queue *q, const cqn_wr *wr, const cqn_sg *sg)
{
    const uint32_t n = sg->num_pinned;
    cqn_wr_does does = wr->does;
    for (uint32_t i = 0; i + 1 < n; i++) {
        cqn_wr_queue_put(q, wr, sg->pinned[i], does, false);
        does = CQN_WR_TRANSFERS; /* only the first entry has the effect */
    }
    cqn_wr_queue_put(q, wr, n > 0 ? sg->pinned[n - 1] : NULL, does, true);
    q->requests++;
    q->signaled += wr->signaled;
}

/* Adds a receive that was posted to any queue. */
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
