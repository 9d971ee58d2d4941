/* SPDX-License-Identifier: MIT */
/*
 * The books: the requests of a queue that have not completed, what each keeps alive, and by which
 * ids the device knows them. See wr_queue.c.
 */
#ifndef CQN_WORK_QUEUE_H
#define CQN_WORK_QUEUE_H

#include "work/qp.h"
#include "work/sg.h"

typedef struct cqn_request cqn_request; /* see await/request.h */
typedef struct cqn_engine cqn_engine;   /* see await/engine.h */

/* A line of requests that are awaited, in the order in which they came. It holds no references: a
 * request leaves the line before it goes (await/lines.c). */
typedef struct {
    cqn_request *first, *last;
} cqn_line;

/* What a work request does that the books must know of: whether a memory window changes by it, or a
 * receive goes that was posted with a tag. */
typedef enum { CQN_WR_TRANSFERS, CQN_WR_BINDS, CQN_WR_INVALIDATES, CQN_WR_DELETES } cqn_wr_does;

/* One object that a work request in flight keeps alive. A request that needs several objects takes
 * as many entries, one that needs none takes one. A request that binds has two: the window, and the
 * MR, unless it unbinds. The entry owns its reference, and counts as a pin of the object. */
typedef struct {
    union {
        uint64_t wr_id;       /* the user's */
        cqn_request *request; /* of one that is awaited, which has the wr_id: it knows its place */
    };
    cqn_object *pinned; /* strong, or NULL */
    union {
        uint32_t rkey; /* of the window that it binds or invalidates */
        uint32_t next; /* the next slot of its request, or the next free one, if it is an SRQ's */
    };
    uint16_t generation; /* see wr_queue.c */
    uint8_t does;        /* cqn_wr_does */
    bool signaled;
    bool last;     /* of its work request */
    uint8_t marks; /* CQN_WR_FORGOTTEN, CQN_WR_AWAITED, CQN_WR_PROBE */
    bool plain;    /* a request of one entry, which touches no window and has no marks */
} cqn_wr;

enum {
    CQN_WR_FORGOTTEN = 1, /* it was reset or closed: only its wr_id is of use */
    CQN_WR_AWAITED = 2,
    CQN_WR_PROBE = 4 /* it asks whether the peer lives, and its completion is for nobody else */
};

/* What is known of a queue's latest probe. */
typedef enum {
    CQN_PROBE_NEVER, /* the queue never had one */
    CQN_PROBE_POSTED,
    CQN_PROBE_ANSWERED, /* or its queue pair was reset */
    CQN_PROBE_FAILED
} cqn_probe;

/* The work requests of a queue that have not completed, see wr_queue.c. A QP owns two of these, an
 * SRQ one, and it lives on with the last of its users. */
struct cqn_wr_queue {
    cqn_wr *ring;           /* in the order of posting; of an SRQ in any order */
    uint64_t next;          /* position of the next entry; of an SRQ how many were posted */
    uint32_t len, capacity; /* in entries; capacity is a power of two up to CQN_WR_SLOTS, or 0 */
    uint32_t requests;      /* not more than there are entries */
    uint32_t signaled;      /* of these, give a completion if they succeed */
    uint32_t number;        /* see wr_queue.c */
    uint32_t users;         /* the QP or SRQ, or the CQ that it was left to; and QPs, of an SRQ's */
    uint32_t free;          /* the first free slot, of an SRQ's */
    uint16_t types;         /* of the queue pairs that use it: bits 1 << IBV_QPT_* */
    bool is_shared;         /* an SRQ's */
    uint8_t probe;          /* cqn_probe */
    cqn_line waiting;       /* operations that wait for room */
    cqn_qp *qp;             /* whose it is; NULL: an SRQ's, or it is gone */
    size_t *flushes;        /* its CQ's count of those which are flushed, if it is one; or NULL */
    cqn_wr_queue *source;   /* the SRQ's, of the receives of a QP that has one */
    cqn_wr_queue *left_next; /* see cqn_cq.left */
};

typedef struct cqn_wc_extra cqn_wc_extra; /* see notify/cq.h */

/* What the folders below await/ tell the requests that are awaited. module.c puts the engine's
 * functions in its place; there is one set of them. */
typedef struct cqn_awaiting {
    /* Its queue pair was closed or reset; NULL: a later one has completed. */
    void (*lost)(cqn_request *request, const cqn_qp *qp);
    /* Whether its completion is for no other. */
    bool (*completed)(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra);
    /* Whether a completion() has asked for it. */
    bool (*claim)(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);
    bool (*wants)(const cqn_engine *engine); /* whether any completion() waits */
    void (*room)(cqn_engine *engine, cqn_qp *qp);
    bool (*has_news)(const cqn_engine *engine); /* whether a task is to be woken */
} cqn_awaiting;

#define CQN_WR_NUMBERS (UINT32_C(1) << 24)
#define CQN_WR_SLOTS (UINT32_C(1) << 24)

/* Of a position the lower bits are the slot, and the next ones the generation. */
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

/* The queue of what completed under that id, or NULL. */
static inline cqn_wr_queue *cqn_wr_queue_of(const cqn_state *st, uint64_t id)
{
    const uint32_t number = id & (CQN_WR_NUMBERS - 1);
    cqn_wr_queue *queue = number < st->queues_len ? st->queues[number] : NULL;
    return (uintptr_t)queue & 1 ? NULL : queue;
}

/* wr_queue.c */

/* A new queue of a queue pair, with one user. Its receives come from `srq`, or that is NULL. NULL
 * with MemoryError. */
cqn_wr_queue *cqn_wr_queue_new(cqn_qp *qp, uint32_t types, cqn_srq *srq);

/* Whether the request of that id is in the books of an SRQ. */
bool cqn_wr_queue_has(const cqn_wr_queue *queue, uint64_t id);

/* A new queue of an SRQ. */
cqn_wr_queue *cqn_wr_queue_new_shared(cqn_state *st);

/* One of its users goes, and with the last one the queue. */
void cqn_wr_queue_drop(cqn_state *st, cqn_wr_queue *queue);

/* The queue pair was moved to an error state: the queue is counted in `*count`, of its CQ, until
 * nothing is in it. */
void cqn_wr_queue_flushes(cqn_wr_queue *queue, size_t *count);

/* The queue pair was destroyed or reset, so its requests will not complete: all that they keep
 * alive goes to `trash`, and only their wr_ids stay. */
void cqn_wr_queue_forget(cqn_wr_queue *queue, cqn_object **trash);

/* Settles as many of n completions, from the first on, as are plain requests in a row of that
 * queue: most are. Returns how many; 0: take the first one by cqn_wr_completed(). */
size_t cqn_wr_completed_run(cqn_wr_queue *queue, struct ibv_wc *wcs, size_t n, cqn_object **trash);

/* Settles the request that completed, and in a queue pair's queue all before it. Returns the
 * request if a task awaits it, borrowed; else NULL, and the completion has the user's wr_id. */
cqn_request *cqn_wr_completed(cqn_context *ctx, cqn_wr_queue *queue, struct ibv_wc *wc,
                              cqn_object **trash);

/* Whether a completion, which was not settled yet, is that of a probe; see verbs/qp.c. */
bool cqn_wr_is_probe(const cqn_wr_queue *queue, const struct ibv_wc *wc);

/* Visits what the requests keep alive; NULL has none. */
int cqn_wr_queue_traverse(const cqn_wr_queue *queue, visitproc visit, void *arg);

/* Makes room for n more entries. -1 with MemoryError; then the queue is as it was. */
int cqn_wr_queue_grow(cqn_wr_queue *queue, size_t n);

/* A receive was posted to an SRQ, for which there is room. */
void cqn_wr_queue_push_shared(cqn_wr_queue *queue, uint64_t wr_id, const cqn_sg *sg);

/* An operation on its list of tags was posted, for whose two entries there is room. When it has
 * completed, the receive of the id `deleted` never does; 0: it deletes none. */
void cqn_wr_queue_push_op(cqn_wr_queue *queue, uint64_t wr_id, uint64_t deleted);

/* Of a request that was posted, where it stands: its last entry. Not for an SRQ. */
static inline cqn_wr *cqn_wr_at(const cqn_wr_queue *q, uint64_t position)
{
    return &q->ring[position & (q->capacity - 1)];
}

/* Entries of the books that a request takes: one for each object, at least one. */
static inline size_t cqn_wr_entries(const cqn_sg *sg)
{
    return sg->num_pinned > 0 ? sg->num_pinned : 1;
}

static inline bool cqn_wr_queue_fits(const cqn_wr_queue *q, size_t n)
{
    return q->len + n <= q->capacity;
}

/* Room for n more entries, so that the push after a post can't fail. */
static inline int cqn_wr_queue_reserve(cqn_wr_queue *q, size_t n)
{
    return cqn_wr_queue_fits(q, n) ? 0 : cqn_wr_queue_grow(q, n);
}

/* The id of the request that is posted next, in n entries; not for an SRQ. */
static inline uint64_t cqn_wr_queue_id(const cqn_wr_queue *q, size_t n)
{
    return cqn_wr_id(q, q->next + n - 1);
}

/* The ids of those that are posted next, one after the other, for any queue. There is room. */
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

/* Field by field, which the compiler does not make out of a copy. */
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

/* A request that was posted: `wr`, but for what it keeps alive. */
static inline void cqn_wr_queue_push(cqn_wr_queue *q, const cqn_wr *wr, const cqn_sg *sg)
{
    const uint32_t n = sg->num_pinned;
    cqn_wr_does does = wr->does;
    for (uint32_t i = 0; i + 1 < n; i++) {
        cqn_wr_queue_put(q, wr, sg->pinned[i], does, false);
        does = CQN_WR_TRANSFERS; /* the first entry says it */
    }
    cqn_wr_queue_put(q, wr, n > 0 ? sg->pinned[n - 1] : NULL, does, true);
    q->requests++;
    q->signaled += wr->signaled;
}

/* A receive that was posted, to any queue. */
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
