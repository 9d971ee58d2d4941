/* SPDX-License-Identifier: MIT */
/*
 * The requests that post: AsyncCQ.send(), recv() and so on. Their methods, their arguments, and the
 * first step of their tasks.
 *
 * An operation is posted when its task takes the first step, if there is room in the queue; else it
 * waits for room, see room.c. A receive whose task was cancelled stays posted, see forsaken.c.
 */

#include "await/operation.h"
#include "await/async_cq.h"
#include "await/engine_look.h"
#include "await/forsaken.h"
#include "await/loop.h"
#include "await/room.h"
#include "await/scope.h"

#define FIRST_OWN_ID (UINT64_C(1) << 63) /* the ids of the user end here */

/* ---- the methods ---- */

#define MAX_ARGS 9

typedef struct {
    const char *name;
    cqn_request_kind kind;
    uint8_t opcode, opcode_with_imm;
    uint8_t required; /* arguments, by position */
    const char *names[MAX_ARGS + 1];
    uint8_t as[MAX_ARGS]; /* which argument of a send each is; the first is qp */
} method;

static const method sends = {
    .name = "send",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_SEND,
    .opcode_with_imm = IBV_WR_SEND_WITH_IMM,
    .required = 2,
    .names = {"qp", "sg", "imm_data", "send_flags", "wr_id", "ah", "remote_qpn", "remote_qkey",
              "remote_srqn"},
    .as = {0, CQN_SG, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID, CQN_AH, CQN_REMOTE_QPN,
           CQN_REMOTE_QKEY, CQN_REMOTE_SRQN},
};
static const method receives = {
    .name = "recv",
    .kind = CQN_RECEIVES,
    .required = 2,
    .names = {"qp", "sg", "wr_id"},
    .as = {0, CQN_SG, CQN_WR_ID},
};
static const method writes = {
    .name = "write",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_RDMA_WRITE,
    .opcode_with_imm = IBV_WR_RDMA_WRITE_WITH_IMM,
    .required = 4,
    .names = {"qp", "sg", "remote_addr", "rkey", "imm_data", "send_flags", "wr_id", "remote_srqn"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID,
           CQN_REMOTE_SRQN},
};
static const method reads = {
    .name = "read",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_RDMA_READ,
    .required = 4,
    .names = {"qp", "sg", "remote_addr", "rkey", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_SEND_FLAGS, CQN_WR_ID},
};
static const method swaps = {
    .name = "atomic_cmp_and_swp",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
    .required = 6,
    .names = {"qp", "sg", "remote_addr", "rkey", "compare_add", "swap", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_COMPARE_ADD, CQN_SWAP, CQN_SEND_FLAGS,
           CQN_WR_ID},
};
static const method adds = {
    .name = "atomic_fetch_and_add",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
    .required = 5,
    .names = {"qp", "sg", "remote_addr", "rkey", "compare_add", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_COMPARE_ADD, CQN_SEND_FLAGS, CQN_WR_ID},
};

/* What all six methods do: they sort the arguments, and hold them until the request is awaited. */
static PyObject *make_operation(const method *m, PyObject *op, PyObject *const *args,
                                Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *in[MAX_ARGS] = {NULL};
    if (cqn_args(m->name, m->names, m->required, m->required, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_request *self = cqn_request_new((cqn_engine *)op, m->kind, m->name);
    if (self == NULL) {
        return NULL;
    }
    self->qp = (cqn_qp *)Py_NewRef(in[0]); /* whether it is a QP is asked in the first step */
    for (int i = 1; m->names[i] != NULL; i++) {
        assert(m->as[i] < CQN_AWAITED_NAMES);
        if (in[i] != NULL && (in[i] != Py_None || m->as[i] == CQN_SG)) {
            self->in[m->as[i]] = Py_NewRef(in[i]);
            self->given = self->given > m->as[i] ? self->given : m->as[i] + 1;
        }
    }
    self->opcode = self->in[CQN_IMM_DATA] != NULL ? m->opcode_with_imm : m->opcode;
    if (cqn_scope_enter(self) < 0) {
        Py_CLEAR(self);
    }
    return cqn_engine_shaped((cqn_engine *)op, self);
}

#define METHOD(name)                                              \
    CQN_OPERATION(name)                                           \
    {                                                             \
        CQN_LOCKED;                                               \
        return make_operation(&name, self, args, nargs, kwnames); \
    }
METHOD(sends)
METHOD(receives)
METHOD(writes)
METHOD(reads)
METHOD(swaps)
METHOD(adds)
#undef METHOD

/* ---- what is asked of its arguments ---- */

static int check_is_qp(const cqn_request *self)
{
    const cqn_state *st = self->engine->state;
    PyObject *qp = (PyObject *)self->qp;
    if (PyObject_TypeCheck(qp, st->QP)) {
        return cqn_open(&self->qp->base) == NULL ? -1 : 0;
    }
    if (PyObject_TypeCheck(qp, st->SRQ)) {
        PyErr_SetString(PyExc_TypeError,
                        "qp must be a QP, not an SRQ, whose receives complete on the CQs of all "
                        "its QPs: use its post_recv(), and wait() or completion() here");
    }
    else {
        PyErr_Format(PyExc_TypeError, "qp must be a QP, not %s", Py_TYPE(qp)->tp_name);
    }
    return -1;
}

/* Sends must complete on the CQ of this engine, or receives must, or for a completion() either. */
int cqn_request_check_qp(const cqn_request *self)
{
    if (check_is_qp(self) < 0) {
        return -1;
    }
    const cqn_cq *cq = self->engine->cq;
    const bool sends = self->kind != CQN_RECEIVES, receives = self->kind != CQN_SENDS;
    if ((sends && self->qp->send_cq == cq) || (receives && self->qp->recv_cq == cq)) {
        return 0;
    }
    const char *const both = sends && receives ? " and " : "";
    PyErr_Format(PyExc_ValueError,
                 "QP %u %s%s%s on another CQ than that of this AsyncCQ: see QP.%s%s%s",
                 self->qp->qp_num, sends ? "sends" : "", both, receives ? "receives" : "",
                 sends ? "send_cq" : "", both, receives ? "recv_cq" : "");
    return -1;
}

/* An operation has the wr_id of the user, or one that the core chooses and no other operation has.
 */
static int choose_id(cqn_request *self)
{
    PyObject *value = self->in[CQN_WR_ID];
    if (value == NULL) {
        self->wr_id = FIRST_OWN_ID + self->engine->state->ids_chosen++;
        return 0;
    }
    if (cqn_uint(value, "wr_id", UINT64_MAX, &self->wr_id) < 0) {
        return -1;
    }
    if (self->wr_id >= FIRST_OWN_ID) {
        PyErr_Format(PyExc_ValueError,
                     "wr_id is %S: your own are 0 to 2**63 - 1, those above are chosen for you",
                     value);
        return -1;
    }
    self->own_id = true;
    return 0;
}

/* ---- its first step ---- */

/* A receive takes over an abandoned receive of the same memory, if there is one, and then posts
 * nothing. */
static int begin_recv(cqn_request *self)
{
    cqn_sg_arrays arrays;
    cqn_send send;
    send.sg = (cqn_sg)CQN_SG_IN(arrays);
    const int gathered = cqn_sg_gather(&send.sg, self->engine->state, self->in[CQN_SG]);
    CQN_PLACE("memory");
    if (gathered < 0 || cqn_recv_check(&send.sg) < 0 || cqn_engine_check(self->engine) < 0 ||
        cqn_forsaken_remember(self, &send.sg) < 0) {
        return -1;
    }
    self->operation = "RECV";
    if (self->engine->forsaken.len > 0 && cqn_forsaken_take_over(self)) {
        return 0;
    }
    return cqn_operation_post(self, &send);
}

/* The arguments of a send are checked and gathered on the stack. If the queue is full, the request
 * keeps a copy with references of its own. */
static int begin_send(cqn_request *self)
{
    const cqn_state *st = self->engine->state;
    PyObject *in[CQN_SEND_NAMES] = {NULL};
    cqn_sg_arrays arrays;
    cqn_send send;
    memcpy(in, self->in, sizeof(self->in));
    in[CQN_WR_ID] = NULL;
    send.sg = (cqn_sg)CQN_SG_IN(arrays);
    if (cqn_send_parse(in, self->qp, self->opcode, &send) < 0) {
        return -1;
    }
    send.wr.send_flags |= IBV_SEND_SIGNALED; /* a task that awaits a completion needs one */
    self->operation = send.opcode->name;
    int rc = cqn_send_gather(in, (cqn_state *)st, &send);
    CQN_PLACE("memory");
    rc = rc == 0 && cqn_open(&self->qp->base) != NULL ? cqn_operation_post(self, &send) : -1;
    if (self->kept == NULL) {
        cqn_sg_drop_bytes(&send.sg);
    }
    return rc;
}

int cqn_operation_begin(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    if (choose_id(self) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    if (cqn_request_check_qp(self) < 0 || cqn_engine_enter(engine, self->qp) < 0 ||
        cqn_open(&self->qp->base) == NULL) {
        return -1;
    }
    int rc = self->kind == CQN_RECEIVES ? begin_recv(self) : begin_send(self);
    return rc < 0 || self->state == CQN_COMPLETE ? rc : cqn_engine_look(self);
}
