/* SPDX-License-Identifier: MIT */
/*
 * Making a queue pair: the arguments of QP(), and its handle.
 */

#include "verbs/qp.h"
#include <sys/random.h>

/* ---- arguments ---- */

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

/* ---- making ---- */

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

PyObject *cqn_qp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
    cqn_qp *self = cqn_new(type, &cqn_qp_kind, used, has_srq ? 4 : 3);
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
