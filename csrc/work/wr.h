/* SPDX-License-Identifier: MIT */
/*
 * Work requests: the common part of the files that build and post them.
 *
 *   post_send.c   posting sends and keepalives; binding windows; the limit of inline data
 *   post_recv.c   posting receives, to queue pairs and SRQs
 *   send_wr.c     SendWR: a send request that is built once
 *   recv_wr.c     RecvWR: a receive request that is built once
 *   send_args.c   the opcodes and arguments of a send request
 *   wr.c          the common part of both kinds: wr_ids, lists, refusals; the QP's state
 *   sg.c          the memory of a request
 *   wr_queue.c    the WR queues: requests that have not completed; restoring the user's wr_id
 *   queue.h       the device's id of a work request, and the objects that it keeps alive
 *   mw_state.c    the effects of requests on memory windows
 *
 * A request is built from the arguments of a call, on the stack, or as an object. Everything that
 * does not depend on the queue is checked when it is built; the rest, and whatever can change, at
 * each post. From there on no Python code runs until the device has the request and it is in the WR
 * queue.
 */
#ifndef CQN_WR_H
#define CQN_WR_H

#include "work/queue.h"
#include "work/sg.h"

/* The wr_id in the struct of the verbs is the core's; each post sets it. */
typedef struct {
    PyObject_HEAD
    uint64_t wr_id;
    struct ibv_recv_wr wr;
    cqn_sg sg;
} cqn_recv_wr;

/* The requirements and properties of an opcode. */
typedef struct {
    const char *name;
    uint32_t qp_types; /* bits 1 << IBV_QPT_* */
    bool imm, invalidates, remote, solicited, inlined, fills, atomic, swaps;
    bool rd_atomic; /* counts against max_rd_atomic */
    bool atomic_write, flush, tso;
    const char *verb; /* posts one request at a time; NULL: ibv_post_send() */
    cqn_wr_does does;
} cqn_opcode;

typedef struct {
    uint64_t wr_id;
    struct ibv_send_wr wr;
    const cqn_opcode *opcode;
    uint32_t qp_types; /* of QPs that can carry it out: bits 1 << IBV_QPT_* */
    bool has_rkey;     /* the user chose the key of a window; otherwise it gets the next one */
    uint32_t flush_length;
    uint8_t placement, level; /* of FLUSH */
    PyObject *header;         /* of TSO: bytes, or NULL; owned by a SendWR, else borrowed */
    cqn_sg sg;
} cqn_send;

typedef struct {
    PyObject_HEAD
    cqn_send send;
} cqn_send_wr;

/* post_send.c, post_recv.c */

/* Posts a work request that a task awaits, and adds it to the WR queue as awaited. It counts as
 * posted unless the device is known to have refused it. Returns 0; the device's errno without an
 * exception; or -1 with one. */
int cqn_post_awaited_send(cqn_qp *qp, cqn_send *send, cqn_awaitable *awaitable);
int cqn_post_awaited_recv(cqn_qp *qp, const cqn_sg *sg, cqn_awaitable *awaitable);

/* Posts a probe: an RDMA write of 0 bytes, which needs no receive and no memory of the peer. Only a
 * live peer acknowledges it. Returns -1 with an exception. */
int cqn_post_probe(cqn_qp *qp);

/* Posts an array of n work requests created by the core, which keep their MR alive. The wr_ids of
 * sends count up from `wr_id`; those of receives are in their structs. Returns -1 with an
 * exception: some may be posted, and none of them counts as refused. */
int cqn_post_own_sends(cqn_qp *qp, cqn_mr *mr, struct ibv_send_wr *wrs, size_t n, uint64_t wr_id);
int cqn_post_own_recvs(cqn_qp *qp, cqn_mr *mr, struct ibv_recv_wr *wrs, size_t n);

/* Raise VerbsError for the errno of a post. */
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
    CQN_REMOTE_SRQN,
    CQN_AWAITED_NAMES, /* operations that tasks await have only the arguments above */
    CQN_TSO_HEADER = CQN_AWAITED_NAMES,
    CQN_MSS,
    CQN_LENGTH,
    CQN_PLACEMENT,
    CQN_LEVEL,
    CQN_SEND_NAMES
};
extern const char *const cqn_send_names[CQN_SEND_NAMES + 1];

/* Converts the numbers of a send request, which can run arbitrary code. `qp` is the queue pair if
 * it is known already, else NULL; `opcode` is the default. Returns -1 with an exception. */
int cqn_send_parse(PyObject *const *in, const cqn_qp *qp, uint32_t opcode, cqn_send *out);

/* Adds the objects: memory, window, address handle. They are borrowed, except for the view of a
 * buffer, which cqn_sg_drop_bytes() releases, even after a failure. Returns -1 with an
 * exception. */
int cqn_send_gather(PyObject *const *in, cqn_state *st, cqn_send *out);

/* Returns the entry of an opcode; NULL with ValueError. */
const cqn_opcode *cqn_opcode_of(uint32_t opcode);

/* Returns -1 with ValueError if the request binds a type 1 window: only QP.bind_mw() can do
 * that. */
int cqn_send_check_window(const cqn_send *send);

/* Raises ValueError with the reason why queue pairs of this type cannot carry it out. Returns
 * -1. */
int cqn_send_refuse_type(const cqn_send *send, enum ibv_qp_type type);

/* recv_wr.c */

/* Returns -1 with ValueError if the device may not write to the memory. */
int cqn_recv_check(const cqn_sg *sg);

/* post_recv.c: the receive queue of a QP, an SRQ or a WQ */
typedef struct {
    cqn_object *owner;
    const cqn_object *pd;
    cqn_wr_queue *wr_queue;
    uint32_t max_sge, max_wr;
    const char *verb;
    int (*post)(void *handle, struct ibv_recv_wr *first, struct ibv_recv_wr **bad);
} cqn_recv_queue;
typedef int (*cqn_recv_queue_of)(cqn_object *owner, cqn_recv_queue *out); /* -1 with an exception */
/* The method post_recv() of an object with such a queue. Calls `queue_of` after the last
 * conversion: from there on no Python code runs until the device has the request. */
PyObject *cqn_post_recv(cqn_object *owner, cqn_recv_queue_of queue_of, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);

/* wr.c */
typedef struct {
    const cqn_object *owner; /* of the queue */
    const char *verb;
    uint32_t max_wr; /* as granted */
    size_t requests; /* not completed */
    int err;
    size_t posted, of; /* in this call */
    PyObject *bad_wr;  /* borrowed; or NULL */
} cqn_wr_refusal;

/* Getter and setter of wr_id, whose closure is its offset in the object. */
PyObject *cqn_wr_get_id(PyObject *self, void *offset);
int cqn_wr_set_id(PyObject *self, PyObject *value, void *offset);

/* Returns -1 with TypeError if a SendWR or RecvWR was given with other arguments. */
int cqn_wr_is_alone(const char *const *names, PyObject *const *in);

/* Whether the value is a list of requests of this type, not one of memory. */
bool cqn_wr_is_list(PyObject *value, PyTypeObject *type);

/* Returns a copy of the list as a tuple, which no other thread changes; NULL with an exception. */
PyObject *cqn_wr_list(PyObject *value, PyTypeObject *type);

/* Raises VerbsError for a post that the device refused. Returns NULL. */
void *cqn_wr_refused(const cqn_wr_refusal *refusal);

/* Returns the largest message of a port, in bytes: queries the port, with or without the GIL. */
uint32_t cqn_qp_query_limit(struct ibv_qp *qp, uint8_t port_num);

/* Waits until no other thread is inside a call that changes the queue pair. Returns -1 with
 * ClosedError. */
int cqn_qp_await_turn(cqn_qp *qp);

/* Returns -1 with VerbsError unless the queue pair has reached the state `least`. */
int cqn_qp_require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb);

/* methods of QP and SRQ, and the types */
PyObject *cqn_qp_post_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *cqn_qp_post_recv(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *cqn_srq_post_recv(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);
PyObject *cqn_qp_bind_mw(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
extern const char cqn_qp_bind_mw_doc[], cqn_qp_post_send_doc[], cqn_qp_post_recv_doc[],
    cqn_srq_post_recv_doc[];
extern PyType_Spec cqn_send_wr_spec, cqn_recv_wr_spec;

#endif
