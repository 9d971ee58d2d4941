/* SPDX-License-Identifier: MIT */
/*
 * The requests that post: AsyncCQ.send(), recv() and so on.
 *
 * One is posted when its task takes the first step, if there is room in the queue; what
 * others have posted, and what is unsignaled, takes room, too. Else it waits in the line of
 * that queue, and nobody overtakes it. As soon as a completion has made room it is posted,
 * before any task runs.
 *
 * A receive whose task was cancelled stays posted, see forsaken.c.
 */

#include "await/engine.h"

#define FIRST_OWN_ID (UINT64_C(1) << 63) /* those of the user end here */

/* ---- the methods ---- */

#define MAX_ARGS 9

typedef struct {
    const char *name;
    cqn_request_kind kind;
    uint8_t opcode, opcode_with_imm;
    uint8_t required; /* arguments, by position */
    const char *names[MAX_ARGS + 1];
    uint8_t as[MAX_ARGS]; /* what each of these is, but the first, which is qp */
} method;

static const method sends = {
    .name = "send",
    .kind = CQN_SENDS,
    .opcode = IBV_WR_SEND,
    .opcode_with_imm = IBV_WR_SEND_WITH_IMM,
    .required = 2,
    .names = {"qp", "sg", "imm_data", "send_flags", "wr_id", "ah", "remote_qpn", "remote_qkey"},
    .as = {0, CQN_SG, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID, CQN_AH, CQN_REMOTE_QPN,
           CQN_REMOTE_QKEY},
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
    .names = {"qp", "sg", "remote_addr", "rkey", "imm_data", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID},
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

/* What all six methods do: sort the arguments, and hold them until the request is awaited. */
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
    self->qp = (cqn_qp *)Py_NewRef(in[0]); /* if it is one: asked when it begins */
    for (int i = 1; m->names[i] != NULL; i++) {
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

/* Queues of it complete here: the sends, the receives, or either. */
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

/* The user's wr_id, or one of our own. */
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

/* ---- posting ---- */

static cqn_wr_queue *queue_of(const cqn_request *self)
{
    return self->kind == CQN_RECEIVES ? self->qp->rq : self->qp->sq;
}

static uint32_t room_in(const cqn_request *self)
{
    const struct ibv_qp_cap *cap = &self->qp->cap;
    return self->kind == CQN_RECEIVES ? cap->max_recv_wr : cap->max_send_wr;
}

/* Completions that the queue will give as it is. If there are none only the device knows whether
 * there is room: some forget unsignaled work requests as soon as these are done. */
static size_t completions_due(const cqn_request *self)
{
    const cqn_wr_queue *q = queue_of(self);
    return self->kind == CQN_RECEIVES ? q->requests : q->signaled;
}

static int refuse_full(const cqn_request *self)
{
    const char *verb = self->kind == CQN_RECEIVES ? "ibv_post_recv" : "ibv_post_send";
    cqn_verbs_error(self->engine->state, ENOMEM, verb,
                    "the queue of QP %u takes no more than the %zu unsignaled work requests in "
                    "it, none of which will complete and make room: post one in %u, or more, with "
                    "SendFlags.SIGNALED",
                    self->qp->qp_num, queue_of(self)->requests, room_in(self));
    return -1;
}

static void note_posted(cqn_request *self)
{
    self->queue = queue_of(self);
    self->position = self->queue->next - 1;
    self->state = CQN_POSTED;
    if (!self->held) {
        cqn_engine_hold(self);
    }
}

/* 1: it is posted; 0: there is no room, and a completion will come that makes some; or -1. */
static int post_operation(cqn_request *self, cqn_send *send)
{
    const bool more_is_due = completions_due(self) > 0;
    if (more_is_due && queue_of(self)->requests >= room_in(self)) {
        return 0;
    }
    int err = self->kind == CQN_RECEIVES ? cqn_post_awaited_recv(self->qp, &send->sg, self)
                                         : cqn_post_awaited_send(self->qp, send, self);
    if (err == 0) {
        note_posted(self);
        return 1;
    }
    if (err == ENOMEM) {
        return more_is_due ? 0 : refuse_full(self);
    }
    if (err > 0 && self->kind == CQN_RECEIVES) {
        cqn_refuse_recv(self->qp, err);
    }
    else if (err > 0) {
        cqn_refuse_send(self->qp, err);
    }
    return -1;
}

/* Some devices take a work request in state ERR and never complete it. So the state is asked for
 * before the first one, and after something has failed. */
static int check_state(const cqn_request *self)
{
    cqn_qp *qp = self->qp;
    const uint32_t suspicions = qp->suspicions;
    if (suspicions == qp->cleared) {
        return 0;
    }
    struct ibv_qp *handle = cqn_open(&qp->base);
    if (handle == NULL) {
        return -1;
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init;
    int err;
    CQN_IN_KERNEL(&qp->base, err = ibv_query_qp(handle, &attr, IBV_QP_STATE, &init));
    const bool receives = self->kind == CQN_RECEIVES;
    if (err != 0) {
        cqn_verbs_error(qp->base.state, err, "ibv_query_qp", "QP %u", qp->qp_num);
        return -1;
    }
    if (attr.qp_state == IBV_QPS_ERR || (attr.qp_state == IBV_QPS_SQE && !receives)) {
        cqn_verbs_error(qp->base.state, EINVAL, receives ? "ibv_post_recv" : "ibv_post_send",
                        "QP %u is in %s: it works no more; move it to RESET and connect it anew",
                        qp->qp_num, cqn_qp_state_name(attr.qp_state));
        return -1;
    }
    if (attr.qp_state != IBV_QPS_SQE) {
        qp->cleared = suspicions; /* of a later one nothing is known */
    }
    return cqn_open(&qp->base) == NULL ? -1 : 0;
}

/* In the line of its queue, with what it will post. */
static int queue_up(cqn_request *self, const cqn_send *send)
{
    cqn_send *kept = PyMem_Malloc(sizeof(*kept));
    if (kept == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *kept = *send;
    if (cqn_sg_keep(&kept->sg) < 0) {
        PyMem_Free(kept);
        return -1;
    }
    kept->wr.sg_list = kept->sg.sge;
    self->kept = kept;
    self->state = CQN_QUEUED;
    cqn_line_add(&queue_of(self)->waiting, self);
    cqn_engine_hold(self);
    return 0;
}

static int post_or_queue(cqn_request *self, cqn_send *send)
{
    if (check_state(self) < 0) {
        return -1;
    }
    int rc = queue_of(self)->waiting.first != NULL ? 0 : post_operation(self, send);
    return rc != 0 ? rc : queue_up(self, send);
}

/* There may be room now for those in line, or their queue pair may work no more. */
static void serve_line(cqn_qp *qp, bool receives)
{
    for (;;) {
        const cqn_wr_queue *q = receives ? qp->rq : qp->sq;
        cqn_request *first = q == NULL ? NULL : q->waiting.first;
        if (first == NULL) {
            return;
        }
        if (!cqn_try_ref_object((PyObject *)first)) { /* it is being deallocated */
            cqn_line_remove(first);
            continue;
        }
        int rc = check_state(first);
        if (rc == 0 && first->state == CQN_QUEUED) {
            rc = post_operation(first, first->kept);
            if (rc == 0) {
                Py_DECREF(first);
                return;
            }
        }
        PyObject *error = rc < 0 ? cqn_take_exception() : NULL;
        if (first->state == CQN_QUEUED) {
            cqn_request_fail(first, error);
        }
        else if (rc > 0) {
            cqn_line_remove(first);
        }
        Py_XDECREF(error);
        Py_DECREF(first);
    }
}

void cqn_operations_serve(cqn_qp *qp)
{
    serve_line(qp, false);
    serve_line(qp, true);
}

/* ---- its life ---- */

/* A receive takes over an abandoned one of the same memory, if there is one, and posts nothing
 * then. */
static int begin_recv(cqn_request *self)
{
    cqn_sg_room room;
    cqn_send send;
    send.sg = (cqn_sg)CQN_SG_IN(room);
    if (cqn_sg_gather(&send.sg, self->engine->state, self->in[CQN_SG]) < 0 ||
        cqn_recv_check(&send.sg) < 0 || cqn_forsaken_remember(self, &send.sg) < 0) {
        return -1;
    }
    self->operation = "RECV";
    if (self->engine->forsaken.len > 0 && cqn_forsaken_take_over(self)) {
        return 0;
    }
    return post_or_queue(self, &send);
}

/* A send is checked and gathered first; if its queue is full it is kept, with its own references,
 * and stands in line. */
static int begin_send(cqn_request *self)
{
    const cqn_state *st = self->engine->state;
    PyObject *in[CQN_SEND_NAMES];
    cqn_sg_room room;
    cqn_send send;
    memcpy(in, self->in, sizeof(in));
    in[CQN_WR_ID] = NULL;
    send.sg = (cqn_sg)CQN_SG_IN(room);
    if (cqn_send_parse(in, (cqn_state *)st, self->qp, self->opcode, &send) < 0) {
        return -1;
    }
    send.wr.send_flags |= IBV_SEND_SIGNALED; /* a task that awaits a completion needs one */
    self->operation = send.opcode->name;
    int rc = cqn_send_gather(in, (cqn_state *)st, &send);
    rc = rc == 0 && cqn_open(&self->qp->base) != NULL ? post_or_queue(self, &send) : -1;
    if (self->kept == NULL) {
        cqn_sg_drop_bytes(&send.sg);
    }
    return rc;
}

int cqn_operation_begin(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    if (choose_id(self) < 0 || cqn_request_check_qp(self) < 0 ||
        cqn_engine_enter(engine, self->qp) < 0 || cqn_open(&self->qp->base) == NULL) {
        return -1;
    }
    int rc = self->kind == CQN_RECEIVES ? begin_recv(self) : begin_send(self);
    return rc < 0 || self->state == CQN_COMPLETE ? rc : cqn_engine_look(self);
}

/* The books keep its wr_id, and it goes on without them. */
void cqn_operation_detach(cqn_request *self)
{
    if (self->queue != NULL) {
        cqn_wr *wr = cqn_wr_at(self->queue, self->position);
        wr->wr_id = self->wr_id;
        wr->marks &= (uint8_t)~CQN_WR_AWAITED;
        self->queue = NULL;
    }
}

/* Whether the completion of an operation is for other consumers once its task has given up: it
 * tells of a message that came, or has a wr_id that the user chose. */
static bool is_for_others(const cqn_request *self)
{
    return self->kind == CQN_RECEIVES || self->own_id;
}

/* A completion that its task did not take, or does not want any more. */
bool cqn_operation_abandoned(cqn_request *self, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    cqn_engine *engine = self->engine;
    if (!is_for_others(self)) {
        engine->cq->stats.completions++;
        return true;
    }
    if (cqn_engine_claim(engine, wc, extra)) {
        return true;
    }
    if (self->forsaken && wc->status == IBV_WC_SUCCESS) {
        self->stashed = true;
        engine->stashed++;
        Py_INCREF(self); /* the table's */
    }
    return false;
}

/* Its task has given up. If it was posted nothing can be done about it. */
void cqn_operation_give_up(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    if (self->state == CQN_POSTED || (self->state == CQN_FAILED && self->queue != NULL)) {
        cqn_engine_own(self);
        if (self->kind == CQN_RECEIVES && self->state == CQN_POSTED) {
            cqn_forsaken_add(self);
        }
    }
    else if (self->state == CQN_COMPLETE) {
        const bool receives = self->kind == CQN_RECEIVES;
        self->abandoned = true;
        if (receives && self->wc.status == IBV_WC_SUCCESS) {
            cqn_forsaken_add(self);
        }
        engine->cq->stats.completions--;
        if (!cqn_operation_abandoned(self, &self->wc, &self->extra)) {
            cqn_stash_put_back(engine->cq, &self->wc, &self->extra);
        }
        if (self->forsaken && !self->stashed) {
            cqn_forsaken_forget(self);
        }
    }
    else if (self->held) {
        cqn_engine_let_go(self);
    }
}
