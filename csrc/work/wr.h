/* SPDX-License-Identifier: MIT */
/*
 * Work requests: what the files share that build and post them.
 *
 *   sg.c          the memory of a request
 *   wr.c          what both kinds have in common: numbers, lists, refusals
 *   send_args.c   what a send request is
 *   send_wr.c     SendWR: one that was built before
 *   recv_wr.c     RecvWR: a receive request that was built before
 *   post_send.c   the posting of sends
 *   post_recv.c   the posting of receives
 *   wr_queue.c    what was posted and has not completed
 *   wr_ids.c      by which ids the device knows it
 *
 * A request is made from the arguments of a call, on the stack, or as an object
 * of its own. What does not depend on the queue is checked when it is made, the
 * rest, and what can have changed, at each post. From there on no Python code
 * runs until the device has it and it is in the books.
 */
#ifndef CQN_WR_H
#define CQN_WR_H

#include "base/core.h"

#define CQN_MAX_PINNED (CQN_MAX_SGE + 1) /* objects that a request can need: MRs, and an AH */

/* The memory of a request, and what else it needs. In an object the arrays and
 * what is in them are its own, otherwise borrowed. */
typedef struct {
    struct ibv_sge *sge;
    cqn_object **pinned; /* what must outlive the request, all of one PD */
    uint32_t num_sge, num_pinned;
    uint64_t length;
    bool writable;   /* every MR may be written by the device */
    Py_buffer bytes; /* of an INLINE send straight from a buffer; or obj == NULL */
} cqn_sg;

/* Room for the largest, on the stack. */
typedef struct {
    struct ibv_sge sge[CQN_MAX_SGE];
    cqn_object *pinned[CQN_MAX_PINNED];
} cqn_sg_room;
#define CQN_SG_IN(room)                                              \
    {                                                                \
        .sge = (room).sge, .pinned = (room).pinned, .writable = true \
    }

/* The wr_id in a struct of the verbs is that of the core, and set at each post. */
typedef struct {
    PyObject_HEAD
    uint64_t wr_id;
    struct ibv_recv_wr wr;
    cqn_sg sg;
} cqn_recv_wr;

/* What an opcode allows and asks for. */
typedef struct {
    const char *name;
    uint32_t qp_types; /* bits 1 << IBV_QPT_* */
    bool imm, invalidates, remote, solicited, inlined, fills, atomic, swaps;
    bool atomic_write; /* has a verb of its own */
    cqn_wr_does does;
} cqn_opcode;

typedef struct {
    uint64_t wr_id;
    struct ibv_send_wr wr;
    const cqn_opcode *opcode;
    uint32_t qp_types; /* that can carry it out */
    bool has_rkey;     /* for a window; else it gets the next one */
    cqn_sg sg;
} cqn_send;

typedef struct {
    PyObject_HEAD
    cqn_send send;
} cqn_send_wr;

/* sg.c */
bool cqn_sg_locate(cqn_state *st, PyObject *item, cqn_mr **mr, uint64_t *addr, uint64_t *length);
int cqn_sg_gather(cqn_sg *sg, cqn_state *st, PyObject *value);
int cqn_sg_gather_bytes(cqn_sg *sg, PyObject *buffer);
void cqn_sg_pin(cqn_sg *sg, cqn_object *object);
int cqn_sg_keep(cqn_sg *sg);
void cqn_sg_drop_bytes(cqn_sg *sg);
void cqn_sg_free(cqn_sg *sg);
int cqn_sg_traverse(const cqn_sg *sg, visitproc visit, void *arg);
int cqn_sg_refuse(const cqn_sg *sg, const cqn_object *owner, const cqn_object *pd,
                  uint32_t max_sge);

/* Whether a queue of that PD takes it; cqn_sg_refuse() says why not. */
static inline bool cqn_sg_fits(const cqn_sg *sg, const cqn_object *pd, uint32_t max_sge)
{
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        const cqn_object *object = sg->pinned[i];
        /* What has the PD of an open queue is of its context and process, too. */
        if (object->uses[0] != pd || object->handle == NULL || object->closing != 0) {
            return false;
        }
    }
    return sg->num_sge <= max_sge;
}

/* post_send.c, post_recv.c: for a request that is awaited. 0, the device's errno without an
 * exception, or -1 */
int cqn_post_awaited_send(cqn_qp *qp, cqn_send *send, cqn_request *request);
int cqn_post_awaited_recv(cqn_qp *qp, const cqn_sg *sg, cqn_request *request);
void cqn_refuse_send(const cqn_qp *qp, int err);
void cqn_refuse_recv(cqn_qp *qp, int err);

/* send_args.c */
enum {
    CQN_SG,
    CQN_WR_ID,
    CQN_OPCODE,
    CQN_SEND_FLAGS,
    CQN_IMM_DATA,
    CQN_REMOTE_ADDR,
    CQN_RKEY,
    CQN_COMPARE_ADD,
    CQN_SWAP,
    CQN_INVALIDATE_RKEY,
    CQN_MW,
    CQN_ACCESS,
    CQN_AH,
    CQN_REMOTE_QPN,
    CQN_REMOTE_QKEY,
    CQN_SEND_NAMES
};
extern const char *const cqn_send_names[CQN_SEND_NAMES + 1];
int cqn_send_parse(PyObject *const *in, cqn_state *st, const cqn_qp *qp, uint32_t opcode,
                   cqn_send *out);
int cqn_send_gather(PyObject *const *in, cqn_state *st, cqn_send *out);
int cqn_send_check_window(const cqn_send *send);
int cqn_send_refuse_type(const cqn_send *send, enum ibv_qp_type type);

/* atomic_write.c */
int cqn_post_atomic_write(cqn_qp *qp, const struct ibv_send_wr *wr);

/* recv_wr.c */
int cqn_recv_check(const cqn_sg *sg);

/* post_recv.c: to whatever has a queue of receives */
typedef struct {
    cqn_object *owner;
    const cqn_object *pd;
    cqn_wr_queue *books;
    uint32_t max_sge, max_wr;
    const char *verb;
    int (*post)(void *handle, struct ibv_recv_wr *first, struct ibv_recv_wr **bad);
} cqn_recv_queue;
typedef int (*cqn_recv_queue_of)(cqn_object *owner, cqn_recv_queue *out); /* -1: it can't be now */
PyObject *cqn_post_recv(cqn_object *owner, cqn_recv_queue_of queue_of, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* wr.c */
typedef struct {
    const cqn_object *owner; /* of the queue */
    const char *verb;
    uint32_t max_wr; /* that were granted */
    size_t requests; /* that have not completed */
    int err;
    size_t posted, of; /* of those of this call */
    PyObject *bad_wr;  /* borrowed; or NULL */
} cqn_wr_refusal;
PyObject *cqn_wr_get_id(PyObject *self, void *offset);
int cqn_wr_set_id(PyObject *self, PyObject *value, void *offset);
int cqn_wr_is_alone(const char *const *names, PyObject *const *in);
bool cqn_wr_is_list(PyObject *value, PyTypeObject *type);
PyObject *cqn_wr_list(PyObject *value, PyTypeObject *type);
void *cqn_wr_refused(const cqn_wr_refusal *refusal);
int cqn_qp_require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb);

/* wr_ids.c */
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
int cqn_wr_queue_grow(cqn_wr_queue *queue, size_t n);
void cqn_wr_queue_push_shared(cqn_wr_queue *queue, uint64_t wr_id, const cqn_sg *sg);

/* Of a request that was posted, where it stands: its last entry. Not for an SRQ. */
static inline cqn_wr *cqn_wr_at(const cqn_wr_queue *q, uint64_t position)
{
    return &q->ring[position & (q->room - 1)];
}

/* Entries of the books that a request takes: one for each object, at least one. */
static inline size_t cqn_wr_entries(const cqn_sg *sg)
{
    return sg->num_pinned > 0 ? sg->num_pinned : 1;
}

static inline bool cqn_wr_queue_has_room(const cqn_wr_queue *q, size_t n)
{
    return q->len + n <= q->room;
}

/* Room for n more entries, so that the push after a post can't fail. */
static inline int cqn_wr_queue_reserve(cqn_wr_queue *q, size_t n)
{
    return cqn_wr_queue_has_room(q, n) ? 0 : cqn_wr_queue_grow(q, n);
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
    cqn_wr *place = &q->ring[q->next & (q->room - 1)];
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
