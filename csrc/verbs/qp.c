/* SPDX-License-Identifier: MIT */
/*
 * QP: a queue pair, its states and attributes.
 *
 * The type: making, connecting by modify(), and going away. Posting is in work/post_send.c and
 * work/post_recv.c; what is in flight in work/wr_queue.c. A queue pair owns the books of its two
 * queues. As it is closed or reset it takes what has completed from its CQs first, so that it is
 * known which requests were carried out.
 */

#include "verbs/verbs.h"
#include <sys/random.h>

/* rxe destroys a QP when all packets of it have left, and sends meanwhile again and again what is
 * not acknowledged. Packets for a neighbour that does not answer wait for it up to 3 s, so that
 * some are always left; after 50 s rxe frees the QP all the same, and the kernel crashes. In RESET
 * nothing is sent. */
static bool sends_again(const cqn_qp *self)
{
    bool sends = self->state == IBV_QPS_RTS || self->state == IBV_QPS_SQD;
    return self->type == IBV_QPT_RC && sends && self->sq->len > 0;
}

/* Without the GIL. If it fails, all is as it was. */
static int stop_sending(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static void qp_before_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    self->must_stop = sends_again(self);
}

/* Without the GIL, by the thread that destroys it. */
static int destroy_qp(void *handle)
{
    struct ibv_qp *qp = handle;
    cqn_qp *self = qp->qp_context;
    self->stopped |= self->must_stop && stop_sending(qp) == 0;
    return cqn_qp_destroy_in_groups(qp);
}

/* From `op` on, with a reference. */
static cqn_qp *next_that_sends_again(cqn_object *op)
{
    for (; op != NULL; op = op->next) {
        cqn_qp *qp = (cqn_qp *)op;
        bool idle = op->handle != NULL && op->closing == 0 && op->in_use == 0;
        if (idle && !qp->must_stop && sends_again(qp) && cqn_try_ref(op)) {
            return qp;
        }
    }
    return NULL;
}

/* The state is set before the GIL is released, so that no thread posts to a queue pair in RESET. */
static void reset_before_all_close(cqn_qp *self)
{
    struct ibv_qp *qp = self->base.handle;
    const enum ibv_qp_state before = self->state;
    int err;
    self->must_stop = true; /* once is enough */
    self->state = IBV_QPS_RESET;
    CQN_IN_KERNEL(CQN_OBJ(self), err = stop_sending(qp));
    if (err != 0) {
        self->state = before;
    }
    self->stopped |= err == 0;
}

/* Before all are destroyed one after the other: while that waits for the packets of the
 * first one those of the others leave as well. */
void cqn_qps_stop_sending(cqn_context *ctx)
{
    cqn_object *first = ctx->first[CQN_RANK_QP];
    for (cqn_qp *self = next_that_sends_again(first), *next; self != NULL; self = next) {
        reset_before_all_close(self);
        const cqn_object *op = CQN_OBJ(self); /* others may have closed it meanwhile */
        next = next_that_sends_again(op->listed ? op->next : ctx->first[CQN_RANK_QP]);
        Py_DECREF(self);
    }
}

/* Of which of its queues it is known that nothing can come any more. */
typedef struct {
    bool send, recv;
} settled;

/* Takes what has completed into the stash, if the CQ can be polled, and so releases what the
 * requests kept alive; else the next poll does that. Returns whether nothing of that queue is left
 * behind. */
static bool settle_cq(const cqn_qp *self, const cqn_wr_queue *q, cqn_cq *cq, cqn_object **trash)
{
    if (q == NULL || (q->len == 0 && q->source == NULL) || cqn_forked(&self->base)) {
        return true;
    }
    if (cq->base.handle == NULL || PyErr_Occurred()) {
        return false;
    }
    const bool ok = cqn_cq_settle(cq, trash) == 0;
    if (!ok) {
        PyErr_Clear();
    }
    return ok;
}

static settled settle_cqs(const cqn_qp *self, cqn_object **trash)
{
    const bool send = settle_cq(self, self->sq, self->send_cq, trash);
    const bool recv = settle_cq(self, self->rq, self->recv_cq, trash);
    return (settled){.send = send, .recv = recv};
}

/* What may still come of it is for its CQ to know. */
static void drop_queue(const cqn_qp *self, cqn_wr_queue *q, cqn_cq *cq, bool is_settled,
                       cqn_object **trash)
{
    if (q == NULL) {
        return;
    }
    cqn_wr_queue_forget(q, trash);
    if (is_settled) {
        cqn_wr_queue_drop(self->base.state, q);
    }
    else {
        cqn_cq_inherit(cq, q);
    }
}

static void drop_queues(cqn_qp *self, settled known, cqn_object **trash)
{
    cqn_wr_queue *sq = self->sq, *rq = self->rq;
    self->sq = self->rq = NULL;
    drop_queue(self, sq, self->send_cq, known.send, trash);
    drop_queue(self, rq, self->recv_cq, known.recv, trash);
}

static void qp_after_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    cqn_object *trash = NULL;
    /* A device that fails to be polled can make code run that closes all that this used. */
    cqn_context *ctx = (cqn_context *)Py_NewRef((PyObject *)self->pd->context);
    const settled known = settle_cqs(self, &trash);
    cqn_async_forget(ctx, op);
    Py_DECREF(ctx);
    drop_queues(self, known, &trash);
    cqn_trash_empty(trash);
    PyMem_Free(self->groups);
    self->groups = NULL;
    self->groups_len = 0;
}

/* After a reset. What the CQs still hold is kept, and of the wr_ids those that may still come. */
static void forget_requests(cqn_qp *self)
{
    cqn_object *trash = NULL;
    const settled known = settle_cqs(self, &trash);
    if (self->sq != NULL) { /* not closed meanwhile */
        cqn_wr_queue_forget(self->sq, &trash);
        cqn_wr_queue_forget(self->rq, &trash);
        self->sq->len = known.send ? 0 : self->sq->len;
        self->rq->len = known.recv ? 0 : self->rq->len;
    }
    cqn_trash_empty(trash);
}

/* It stays open, and what was reset has lost its requests. */
static void qp_destroy_failed(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    bool stopped = self->stopped;
    self->must_stop = self->stopped = false;
    if (stopped) {
        self->state = IBV_QPS_RESET;
        forget_requests(self);
    }
}

/* Engines learn of a close when the queue pair is in no list any more, and before its callbacks
 * run. */
static void qp_tell(cqn_object *op, PyObject **interrupt)
{
    cqn_engines_tell((cqn_qp *)op, interrupt);
}

static int qp_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_qp *self = (cqn_qp *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->sq, visit, arg);
    rc = rc ? rc : cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

static int qp_clear(PyObject *op)
{
    cqn_qp *self = (cqn_qp *)op;
    if (self->base.handle == NULL) {
        cqn_object *trash = NULL;
        drop_queues(self, (settled){.send = true, .recv = true}, &trash);
        cqn_trash_empty(trash);
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

static const cqn_kind qp_kind = {
    .name = "QP",
    .destroy_verb = "ibv_destroy_qp",
    .rank = CQN_RANK_QP,
    .before_destroy = qp_before_destroy,
    .destroy = destroy_qp,
    .destroy_failed = qp_destroy_failed,
    .after_destroy = qp_after_destroy,
    .tell = qp_tell,
    .clear = qp_clear,
};

typedef struct {
    PyObject *pd, *send_cq, *recv_cq, *srq, *user_data;
    struct ibv_qp_init_attr attr;
    bool atomic_write;
} qp_args;

/* `value` must be an open CQ or SRQ of the context of `pd`. */
static int check_queue(PyTypeObject *type, PyObject *value, const char *name, PyObject *pd)
{
    if (cqn_expect(value, type, name) < 0) {
        return -1;
    }
    if (CQN_OBJ(value)->context != CQN_OBJ(pd)->context) {
        PyErr_Format(PyExc_ValueError, "%s belongs to another Context than pd", name);
        return -1;
    }
    return 0;
}

/* One of the five capacities, NULL for its default; device limit `max`. */
static int parse_capacity(PyObject *value, const char *name, uint32_t fallback, int max,
                          uint32_t *out)
{
    *out = fallback;
    return value == NULL ? 0 : cqn_u32(value, name, (uint32_t)max, out);
}

/* With an SRQ there is no receive queue. */
static int parse_capacities(const struct ibv_device_attr *limits, PyObject *const *v, bool has_srq,
                            struct ibv_qp_cap *cap)
{
    const uint32_t recvs = has_srq ? 0 : 16, recv_sge = has_srq ? 0 : 1;
    if (has_srq && (v[1] != NULL || v[3] != NULL)) {
        PyErr_Format(PyExc_ValueError,
                     "%s was given, but with srq there is no receive queue: give it to the SRQ",
                     v[1] != NULL ? "max_recv_wr" : "max_recv_sge");
        return -1;
    }
    int sge = limits->max_sge < CQN_MAX_SGE ? limits->max_sge : CQN_MAX_SGE;
    return parse_capacity(v[0], "max_send_wr", 16, limits->max_qp_wr, &cap->max_send_wr) < 0 ||
                   parse_capacity(v[1], "max_recv_wr", recvs, limits->max_qp_wr,
                                  &cap->max_recv_wr) < 0 ||
                   parse_capacity(v[2], "max_send_sge", 1, sge, &cap->max_send_sge) < 0 ||
                   parse_capacity(v[3], "max_recv_sge", recv_sge, sge, &cap->max_recv_sge) < 0 ||
                   parse_capacity(v[4], "max_inline_data", 0, INT32_MAX, &cap->max_inline_data) < 0
               ? -1
               : 0;
}

/* Two types are known to the verbs, and not to cqnotify: that is said of them, instead of an
 * unknown number. */
static int refuse_xrc(cqn_state *st, const struct ibv_device_attr *limits, uint32_t type)
{
    const char *name = type == IBV_QPT_XRC_SEND ? "QPType.XRC_SEND" : "QPType.XRC_RECV";
    if (limits->device_cap_flags & IBV_DEVICE_XRC) {
        PyErr_Format(PyExc_ValueError, "qp_type is %s: cqnotify has no XRC", name);
    }
    else {
        cqn_verbs_error(st, EOPNOTSUPP, "ibv_create_qp", "%s", name);
    }
    return -1;
}

static int parse_qp_type(cqn_state *st, const struct ibv_device_attr *limits, PyObject *value,
                         enum ibv_qp_type *out)
{
    uint32_t type;
    if (cqn_u32(value, "qp_type", UINT8_MAX, &type) < 0) {
        return -1;
    }
    if (type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV) {
        return refuse_xrc(st, limits, type);
    }
    if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_UD) {
        PyErr_Format(PyExc_ValueError, "qp_type is %R: it must be QPType.RC, UC or UD", value);
        return -1;
    }
    *out = type;
    return 0;
}

static int check_atomic_write(const qp_args *a)
{
    if (a->attr.qp_type != IBV_QPT_RC) {
        PyErr_SetString(PyExc_ValueError, "atomic_write is possible with QPType.RC only");
        return -1;
    }
    return cqn_check_atomic_write(CQN_OBJ(a->pd));
}

/* The order matters: conversions can run code that closes what was checked before them, so the
 * objects are checked again, or after them. */
static int parse_new_qp(cqn_state *st, PyObject *args, PyObject *kwargs, qp_args *a)
{
    /* clang-format off */
    static char *names[] = {"pd", "qp_type", "send_cq", "recv_cq", "srq", "max_send_wr",
                            "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data",
                            "sq_sig_all", "atomic_write", "user_data", NULL};
    /* clang-format on */
    PyObject *type, *cap[5] = {NULL};
    int sig_all = 0, atomic_write = 0;
    *a = (qp_args){.user_data = Py_None, .recv_cq = Py_None, .srq = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOOOOOOOppO:QP", names, &a->pd, &type,
                                     &a->send_cq, &a->recv_cq, &a->srq, &cap[0], &cap[1], &cap[2],
                                     &cap[3], &cap[4], &sig_all, &atomic_write, &a->user_data)) {
        return -1;
    }
    if (a->send_cq == NULL) {
        PyErr_SetString(PyExc_TypeError, "QP() missing required argument 'send_cq'");
        return -1;
    }
    if (a->recv_cq == Py_None) {
        a->recv_cq = a->send_cq;
    }
    a->attr.sq_sig_all = sig_all;
    a->atomic_write = atomic_write;
    if (cqn_expect(a->pd, st->PD, "pd") < 0) {
        return -1;
    }
    /* A copy: the conversions can run code that closes the PD. */
    const struct ibv_device_attr limits = CQN_OBJ(a->pd)->context->attr;
    return parse_qp_type(st, &limits, type, &a->attr.qp_type) < 0 ||
                   parse_capacities(&limits, cap, a->srq != Py_None, &a->attr.cap) < 0 ||
                   cqn_open(CQN_OBJ(a->pd)) == NULL ||
                   check_queue(st->CQ, a->send_cq, "send_cq", a->pd) < 0 ||
                   check_queue(st->CQ, a->recv_cq, "recv_cq", a->pd) < 0 ||
                   (a->srq != Py_None && check_queue(st->SRQ, a->srq, "srq", a->pd) < 0) ||
                   (atomic_write && check_atomic_write(a) < 0)
               ? -1
               : 0;
}

static uint32_t random_psn(void)
{
    uint32_t n = 0;
    ssize_t got = getrandom(&n, sizeof(n), GRND_NONBLOCK);
    (void)got; /* 0 is a PSN, too */
    return n & 0xffffff;
}

static int make_queues(cqn_qp *self, enum ibv_qp_type type)
{
    self->sq = cqn_wr_queue_new(self, 1u << type, NULL);
    self->rq = self->sq ? cqn_wr_queue_new(self, 1u << type, self->srq) : NULL;
    return self->rq != NULL ? 0 : -1;
}

static PyObject *qp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    cqn_state *st = cqn_state_of(type);
    qp_args a;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 || parse_new_qp(st, args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_object *used[4] = {CQN_OBJ(a.pd), CQN_OBJ(a.send_cq), CQN_OBJ(a.recv_cq), CQN_OBJ(a.srq)};
    const bool has_srq = a.srq != Py_None;
    cqn_qp *self = cqn_new(type, &qp_kind, used, has_srq ? 4 : 3);
    if (self == NULL) {
        return NULL;
    }
    self->pd = used[0];
    self->send_cq = (cqn_cq *)used[1];
    self->recv_cq = (cqn_cq *)used[2];
    self->user_data = Py_NewRef(a.user_data);
    self->sq_psn = random_psn();
    self->suspicions = 1;     /* until its state was asked for */
    a.attr.qp_context = self; /* for the asynchronous events that name it */
    a.attr.send_cq = used[1]->handle;
    a.attr.recv_cq = used[2]->handle;
    if (has_srq) {
        self->srq = (cqn_srq *)used[3];
        a.attr.srq = used[3]->handle;
    }
    if (make_queues(self, a.attr.qp_type) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    struct ibv_pd *pd = used[0]->handle;
    struct ibv_qp *qp;
    int err;
    CQN_CREATING(CQN_OBJ(self), qp = a.atomic_write ? cqn_create_atomic_write_qp(pd, &a.attr)
                                                    : ibv_create_qp(pd, &a.attr);
                 err = errno);
    if (qp == NULL) {
        const struct ibv_qp_cap *c = &a.attr.cap;
        cqn_verbs_error(st, err, a.atomic_write ? "ibv_create_qp_ex" : "ibv_create_qp",
                        "max_send_wr=%u, max_recv_wr=%u, max_send_sge=%u, max_recv_sge=%u, "
                        "max_inline_data=%u: ask for less of one of these",
                        c->max_send_wr, c->max_recv_wr, c->max_send_sge, c->max_recv_sge,
                        c->max_inline_data);
        Py_DECREF(self);
        return NULL;
    }
    self->qp_num = qp->qp_num;
    self->type = a.attr.qp_type;
    self->state = IBV_QPS_RESET;
    self->sq_sig_all = a.attr.sq_sig_all;
    self->atomic_write = a.atomic_write;
    self->cap = a.attr.cap;
    if (has_srq) {
        self->cap.max_recv_wr = self->cap.max_recv_sge = 0; /* a device may leave anything there */
    }
    cqn_adopt(CQN_OBJ(self), qp);
    return (PyObject *)self;
}

static const cqn_field *qp_field(PyObject *name)
{
    const cqn_field *f = cqn_qp_fields;
    while (f->name != NULL && PyUnicode_CompareWithASCIIString(name, f->name) != 0) {
        f++;
    }
    return f->name != NULL && f->mask != 0 ? f : NULL;
}

static int cap_fields_from(PyObject *mapping, struct ibv_qp_cap *cap)
{
    Py_ssize_t known = 0;
    for (const cqn_field *f = cqn_cap_fields; f->name != NULL; f++) {
        known += PyDict_GetItemString(mapping, f->name) != NULL;
    }
    if (known != PyDict_GET_SIZE(mapping)) {
        PyErr_SetString(PyExc_TypeError, "cap has a key that is no field of QPCap");
        return -1;
    }
    for (const cqn_field *f = cqn_cap_fields; f->name != NULL; f++) {
        PyObject *value = PyDict_GetItemString(mapping, f->name);
        if (value != NULL && cqn_field_from(value, cap, f) < 0) {
            return -1;
        }
    }
    return 0;
}

static int cap_from(PyObject *mapping, struct ibv_qp_cap *cap)
{
    PyObject *copy = cqn_dict_copy(mapping, "cap", "a QPCap");
    int rc = copy == NULL ? -1 : cap_fields_from(copy, cap);
    Py_XDECREF(copy);
    return rc;
}

/* One attribute of modify_qp(). Returns its bit of the mask, or -1. */
static int set_attribute(const cqn_qp *self, PyObject *name, PyObject *value, int ports,
                         struct ibv_qp_attr *attr)
{
    if (PyUnicode_CompareWithASCIIString(name, "ah_attr") == 0) {
        return cqn_ah_attr_from(value, "ah_attr", ports, &attr->ah_attr) < 0 ? -1 : IBV_QP_AV;
    }
    if (PyUnicode_CompareWithASCIIString(name, "alt_ah_attr") == 0) {
        return cqn_ah_attr_from(value, "alt_ah_attr", ports, &attr->alt_ah_attr) < 0
                   ? -1
                   : IBV_QP_ALT_PATH;
    }
    if (PyUnicode_CompareWithASCIIString(name, "cap") == 0) {
        attr->cap = self->cap;
        return cap_from(value, &attr->cap) < 0 ? -1 : IBV_QP_CAP;
    }
    const cqn_field *field = qp_field(name);
    if (field == NULL) {
        PyErr_Format(PyExc_TypeError, "modify() got an unexpected keyword argument '%U'", name);
        return -1;
    }
    return cqn_field_from(value, attr, field) < 0 ? -1 : field->mask;
}

static int check_port(int port, const char *name, int ports)
{
    if (port < 1 || port > ports) {
        PyErr_Format(PyExc_ValueError, "%s is %d: this device has port 1 to %d", name, port, ports);
        return -1;
    }
    return 0;
}

/* One bit of the mask stands for all four attributes of the alternate path. */
static int complete_alternate_path(struct ibv_qp_attr *attr, int ports)
{
    if (attr->alt_ah_attr.port_num == 0) {
        PyErr_SetString(PyExc_TypeError,
                        "alt_port_num, alt_pkey_index and alt_timeout go with alt_ah_attr");
        return -1;
    }
    if (attr->alt_port_num == 0) {
        attr->alt_port_num = attr->alt_ah_attr.port_num;
    }
    return check_port(attr->alt_port_num, "alt_port_num", ports);
}

/* Converting the values can run Python code, which can close the QP: `kwargs` is a copy. */
static int collect_attributes(const cqn_qp *self, PyObject *kwargs, struct ibv_qp_attr *attr)
{
    const int ports = self->base.context->attr.phys_port_cnt;
    int mask = 0;
    PyObject *name, *value;
    Py_ssize_t pos = 0;
    while (kwargs != NULL && PyDict_Next(kwargs, &pos, &name, &value)) {
        if (!PyUnicode_Check(name)) { /* which Python leaves to us */
            PyErr_SetString(PyExc_TypeError, "keywords must be strings");
            return -1;
        }
        int bit = set_attribute(self, name, value, ports, attr);
        if (bit < 0) {
            return -1;
        }
        mask |= bit;
    }
    if (mask == 0) {
        PyErr_SetString(PyExc_TypeError, "modify() needs at least one attribute");
        return -1;
    }
    return ((mask & IBV_QP_PORT) && check_port(attr->port_num, "port_num", ports) < 0) ||
                   ((mask & IBV_QP_ALT_PATH) && complete_alternate_path(attr, ports) < 0)
               ? -1
               : mask;
}

static const char *modify_hint(int err, int mask)
{
    switch (err) {
    case EINVAL:
        if (mask & IBV_QP_ALT_PATH) {
            return "the transition is not allowed with an alternate path (see the table in "
                   "ibv_modify_qp(3)), or the port is of RoCE, which has none";
        }
        return "the transition is not allowed, an attribute that it needs is missing or wrong (see "
               "the table in ibv_modify_qp(3)), or the peer's GID can't be reached from ours";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "the peer's GID could not be reached: check that both GIDs are of one subnet and "
               "that its link is up";
    case EOPNOTSUPP:
        return mask & IBV_QP_RATE_LIMIT ? "rate_limit" : "one of the attributes";
    default:
        return "see ibv_modify_qp(3)";
    }
}

/* What a modify_qp() has brought. */
typedef struct {
    int err; /* all else only if it is 0 */
    bool has_cap;
    struct ibv_qp_cap cap;
    uint32_t max_message; /* of the port that was set */
} changes;

/* Without the GIL. A device may take other capacities than it was asked for, and say nothing. */
static changes carry_out(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    changes made = {.err = ibv_modify_qp(qp, attr, mask)};
    if (made.err == 0 && (mask & IBV_QP_CAP)) {
        struct ibv_qp_attr now = {.qp_state = IBV_QPS_RESET};
        struct ibv_qp_init_attr init;
        made.has_cap = ibv_query_qp(qp, &now, IBV_QP_CAP, &init) == 0;
        made.cap = now.cap;
    }
    if (made.err == 0 && (mask & IBV_QP_PORT)) {
        made.max_message = cqn_qp_ask_limit(qp, attr->port_num);
    }
    return made;
}

/* With an SRQ there is no receive queue, whatever a device says of it. */
static void enter_capacities(cqn_qp *self, const struct ibv_qp_cap *cap)
{
    self->cap = *cap;
    if (self->srq != NULL) {
        self->cap.max_recv_wr = self->cap.max_recv_sge = 0;
    }
}

/* A reset forgets the work requests without completing them. Nothing may be
 * posted from the moment in which the device may be in RESET. */
static int modify_qp(cqn_qp *self, struct ibv_qp_attr *attr, int mask)
{
    if (cqn_qp_await_turn(self) < 0) {
        return -1;
    }
    struct ibv_qp *qp = self->base.handle;
    enum ibv_qp_state before = self->state;
    enum ibv_qp_state after = mask & IBV_QP_STATE ? attr->qp_state : before;
    if (after == IBV_QPS_RESET) {
        self->state = after;
    }
    changes made;
    CQN_IN_KERNEL(CQN_OBJ(self), made = carry_out(qp, attr, mask));
    if (made.err != 0) {
        self->state = before;
        cqn_verbs_error(self->base.state, made.err, "ibv_modify_qp", "QP %u from %s to %s: %s",
                        self->qp_num, cqn_qp_state_name(before), cqn_qp_state_name(after),
                        modify_hint(made.err, mask));
        return -1;
    }
    self->state = after;
    if (made.has_cap) {
        enter_capacities(self, &made.cap);
    }
    if (mask & IBV_QP_PORT) {
        self->port_num = attr->port_num;
        self->max_message = made.max_message;
    }
    if (after == IBV_QPS_RESET) {
        forget_requests(self);
    }
    return 0;
}

/* Whether requests that were posted before will not succeed any more. */
static bool gives_up(enum ibv_qp_state state)
{
    return state == IBV_QPS_RESET || state == IBV_QPS_SQE || state == IBV_QPS_ERR;
}

/* Those that post get to know, and those that wait for solicited events alone. */
static void note_failure(cqn_qp *self)
{
    self->suspicions++;
    if (self->state != IBV_QPS_RESET) {
        cqn_wr_queue_flushes(self->sq, &self->send_cq->flushing);
        cqn_wr_queue_flushes(self->rq, &self->recv_cq->flushing);
    }
}

static PyObject *qp_modify(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    cqn_qp *self = (cqn_qp *)op;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    if (!PyArg_ParseTuple(args, ";modify() takes attributes by name only") ||
        cqn_open(&self->base) == NULL || cqn_freeze_keywords(&kwargs, &copy) < 0) {
        return NULL;
    }
    int mask = collect_attributes(self, kwargs, &attr);
    if (mask < 0 || modify_qp(self, &attr, mask) < 0) {
        return NULL;
    }
    PyObject *interrupt = NULL;
    if ((mask & IBV_QP_STATE) && gives_up(attr.qp_state) && cqn_is_open(&self->base)) {
        note_failure(self);
        cqn_engines_tell(self, &interrupt);
    }
    if (interrupt != NULL) {
        cqn_raise_interrupt(interrupt);
        return NULL;
    }
    Py_RETURN_NONE;
}

static int add_to_dict(PyObject *dict, const char *name, PyObject *value)
{
    int rc = value == NULL ? -1 : PyDict_SetItemString(dict, name, value);
    Py_XDECREF(value);
    return rc;
}

static PyObject *qp_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init;
    const int all = (IBV_QP_DEST_QPN << 1) - 1; /* the library refuses unknown bits */
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_qp(qp, &attr, all, &init));
    if (err != 0) {
        return cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_qp", "QP %u",
                               ((cqn_qp *)op)->qp_num);
    }
    PyObject *dict = cqn_struct_to_dict(&attr, cqn_qp_fields);
    if (dict != NULL &&
        (add_to_dict(dict, "ah_attr", cqn_ah_attr_to_dict(&attr.ah_attr)) < 0 ||
         add_to_dict(dict, "alt_ah_attr", cqn_ah_attr_to_dict(&attr.alt_ah_attr)) < 0 ||
         add_to_dict(dict, "cap", cqn_struct_to_dict(&attr.cap, cqn_cap_fields)) < 0)) {
        Py_CLEAR(dict);
    }
    return dict;
}

static PyObject *qp_get_srq(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *srq = (PyObject *)((cqn_qp *)op)->srq;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(srq ? srq : Py_None) : NULL;
}

static PyObject *qp_get_outstanding(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? Py_BuildValue("(nn)", (Py_ssize_t)self->sq->requests,
                                                 (Py_ssize_t)self->rq->requests)
                                 : NULL;
}

static PyObject *qp_get_outstanding_signaled(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? PyLong_FromSize_t(self->sq->signaled) : NULL;
}

static PyObject *qp_check(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    if (!PyArg_ParseTuple(args, ";check() takes attributes by name only") ||
        cqn_open(CQN_OBJ(op)) == NULL || cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        collect_attributes((cqn_qp *)op, kwargs, &attr) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *qp_repr(PyObject *op)
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return self->base.handle == NULL
               ? cqn_short_repr(op)
               : PyUnicode_FromFormat("<QP %u on %s, %s, %s>", (unsigned)self->qp_num,
                                      cqn_device_name(&self->base), cqn_qp_type_name(self->type),
                                      cqn_qp_state_name(self->state));
}

static PyMethodDef qp_methods[] = {
    {"modify", (PyCFunction)(void (*)(void))qp_modify, METH_VARARGS | METH_KEYWORDS,
     "modify($self, /, **attrs)\n--\n\n"
     "Set attributes, named as in struct ibv_qp_attr; the mask follows from what is given.\n\n"
     "qp_state moves it to another state. A reset drops its work requests without completing "
     "them.\n\nWraps ibv_modify_qp(3)."},
    {"check", (PyCFunction)(void (*)(void))qp_check, METH_VARARGS | METH_KEYWORDS,
     "check($self, /, **attrs)\n--\n\n"
     "Refuse the attributes that modify_qp() would refuse by itself; change nothing."},
    {"query", qp_query, METH_NOARGS,
     "query($self, /)\n--\n\n"
     "All attributes, as the device has them now.\n\nWraps ibv_query_qp(3)."},
    {"attach_mcast", (PyCFunction)(void (*)(void))cqn_qp_attach_mcast,
     METH_FASTCALL | METH_KEYWORDS, cqn_qp_attach_mcast_doc},
    {"detach_mcast", (PyCFunction)(void (*)(void))cqn_qp_detach_mcast,
     METH_FASTCALL | METH_KEYWORDS, cqn_qp_detach_mcast_doc},
    {"post_send", (PyCFunction)(void (*)(void))cqn_qp_post_send, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_post_send_doc},
    {"bind_mw", (PyCFunction)(void (*)(void))cqn_qp_bind_mw, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_bind_mw_doc},
    {"post_recv", (PyCFunction)(void (*)(void))cqn_qp_post_recv, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_post_recv_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef qp_getset[] = {
    CQN_USER_DATA(cqn_qp),
    {"pd", cqn_get_used, NULL, "The PD that it belongs to.", (void *)0},
    {"send_cq", cqn_get_used, NULL, "CQ of its sends.", (void *)1},
    {"recv_cq", cqn_get_used, NULL, "CQ of its receives.", (void *)2},
    {"srq", qp_get_srq, NULL, "The SRQ that it receives from, or None.", NULL},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"qp_num", cqn_get_u32, NULL, "Its number, by which peers and completions name it.",
     (void *)offsetof(cqn_qp, qp_num)},
    {"qp_type", cqn_get_u32, NULL, "QPType.", (void *)offsetof(cqn_qp, type)},
    {"sq_psn", cqn_get_u32, NULL,
     "A packet sequence number to start sending with, drawn at random when it was made.",
     (void *)offsetof(cqn_qp, sq_psn)},
    {"max_send_wr", cqn_get_u32, NULL,
     "Work requests that the send queue was granted. Some devices take more, rxe among them.",
     (void *)offsetof(cqn_qp, cap.max_send_wr)},
    {"max_recv_wr", cqn_get_u32, NULL,
     "Work requests that the receive queue was granted. Some devices take more, rxe among them.",
     (void *)offsetof(cqn_qp, cap.max_recv_wr)},
    {"max_send_sge", cqn_get_u32, NULL, "Scatter/gather elements that a send can have.",
     (void *)offsetof(cqn_qp, cap.max_send_sge)},
    {"max_recv_sge", cqn_get_u32, NULL, "Scatter/gather elements that a receive can have.",
     (void *)offsetof(cqn_qp, cap.max_recv_sge)},
    {"max_inline_data", cqn_get_u32, NULL, "Bytes that an INLINE send can have.",
     (void *)offsetof(cqn_qp, cap.max_inline_data)},
    {"outstanding", qp_get_outstanding, NULL,
     "(sends, receives): work requests whose completion was not polled yet. The receives of an SRQ "
     "are not among them.",
     NULL},
    {"outstanding_signaled", qp_get_outstanding_signaled, NULL,
     "How many of the outstanding sends give a completion if they succeed. With 0, a send queue "
     "that is full may stay full for ever.",
     NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef qp_members[] = {
    CQN_OBJECT_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot qp_slots[] = {
    {Py_tp_doc,
     "QP(pd, qp_type, *, send_cq, recv_cq=None, srq=None, max_send_wr=16, max_recv_wr=16, "
     "max_send_sge=1, max_recv_sge=1, max_inline_data=0, sq_sig_all=False, atomic_write=False, "
     "user_data=None)\n--\n\n"
     "A queue pair of type RC, UC or UD, in state RESET.\n\n"
     "Without `recv_cq` both its sides complete on `send_cq`. The device may grant more than was "
     "asked for: see its attributes of the same names. With `srq` it has no receive queue, and its "
     "messages go to what is posted to that SRQ. With `atomic_write`, for RC, it takes "
     "ATOMIC_WRITE, "
     "too; VerbsError (EOPNOTSUPP) where the device does not.\n\n"
     "Wraps ibv_create_qp(3), and with `atomic_write` ibv_create_qp_ex(3)."},
    {Py_tp_new, qp_new},
    {Py_tp_repr, qp_repr},
    {Py_tp_traverse, qp_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, qp_methods},
    {Py_tp_getset, qp_getset},
    {Py_tp_members, qp_members},
    {0, NULL},
};

PyType_Spec cqn_qp_spec = {
    .name = "cqnotify.QP",
    .basicsize = sizeof(cqn_qp),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = qp_slots,
};
