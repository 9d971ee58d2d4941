/* SPDX-License-Identifier: MIT */
/*
 * Making a shared receive queue, of one of three types, and its end. The type is in srq.c.
 */

#include "verbs/srq.h"

static int destroy_srq(void *handle)
{
    return ibv_destroy_srq(handle);
}

/* Nothing that is posted to it completes any more: its memory is released. */
static void drop_requests(cqn_srq *self)
{
    cqn_object *trash = NULL;
    cqn_wr_queue *rq = self->rq;
    self->rq = NULL;
    if (rq != NULL) {
        cqn_wr_queue_forget(rq, &trash);
        cqn_wr_queue_drop(self->base.state, rq);
    }
    cqn_trash_empty(trash);
}

/* What its own CQ has of it is fetched, or else that CQ keeps the wr_ids. */
static void leave_cq(cqn_srq *self)
{
    cqn_object *trash = NULL;
    if (self->cq != NULL && self->cq->base.handle != NULL && !cqn_forked(&self->base) &&
        !PyErr_Occurred() && cqn_cq_settle(self->cq, &trash) < 0) {
        PyErr_Clear();
        cqn_wr_queue *rq = self->rq;
        self->rq = NULL;
        cqn_wr_queue_forget(rq, &trash);
        cqn_cq_inherit(self->cq, rq);
    }
    cqn_trash_empty(trash);
}

static void srq_after_destroy(cqn_object *op)
{
    cqn_async_forget(op->uses[0]->context, op);
    leave_cq((cqn_srq *)op);
    drop_requests((cqn_srq *)op);
}

static int srq_clear(PyObject *op)
{
    cqn_srq *self = (cqn_srq *)op;
    if (self->base.handle == NULL) {
        drop_requests(self);
        PyMem_Free(self->tagged);
        self->tagged = NULL;
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

static const cqn_kind srq_kind = {
    .name = "SRQ",
    .destroy_verb = "ibv_destroy_srq",
    .rank = CQN_RANK_SRQ,
    .destroy = destroy_srq,
    .after_destroy = srq_after_destroy,
    .clear = srq_clear,
};

typedef struct {
    PyObject *pd, *xrcd, *cq, *user_data;
    uint32_t max_wr, max_sge, srq_limit, type;
    struct ibv_tm_cap tm;
} srq_args;

int cqn_check_srq_size(const struct ibv_device_attr *device, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "max_wr", 1, (uint64_t)device->max_srq_wr, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* What only some types have. */
static int check_presence(PyObject *value, const char *name, bool wanted, const char *type)
{
    if ((value != NULL && value != Py_None) == wanted) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 wanted ? "%s is missing: an SRQ of type %s needs it"
                        : "%s was given, but an SRQ of type %s does not take it",
                 name, type);
    return -1;
}

static int check_no_tags(PyObject *value, const char *name, const char *type)
{
    uint32_t n = 0;
    return value != NULL && cqn_u32(value, name, UINT32_MAX, &n) < 0
               ? -1
               : check_presence(n == 0 ? NULL : value, name, false, type);
}

/* The limits are those that the device has for matching tags. */
static int parse_tags(PyObject *tags, PyObject *ops, srq_args *a)
{
    cqn_object *pd = CQN_OBJ(a->pd);
    struct ibv_device_attr_ex attr;
    if (check_presence(tags, "max_num_tags", true, "TM") < 0 ||
        check_presence(ops, "max_ops", true, "TM") < 0 || cqn_open(pd) == NULL ||
        cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    const struct ibv_tm_caps *caps = &attr.tm_caps;
    if (caps->max_num_tags == 0) {
        cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_create_srq_ex",
                        "SRQType.TM: %s matches no tags (query_device_ex().tm_caps)",
                        cqn_device_name(pd));
        return -1;
    }
    uint64_t n, m;
    if (cqn_range(tags, "max_num_tags", 1, caps->max_num_tags, &n) < 0 ||
        cqn_range(ops, "max_ops", 1, caps->max_ops, &m) < 0) {
        return -1;
    }
    a->tm = (struct ibv_tm_cap){.max_num_tags = (uint32_t)n, .max_ops = (uint32_t)m};
    return 0;
}

/* What the type asks for besides the sizes. */
static int parse_srq_type(cqn_state *st, PyObject *type, PyObject *tags, PyObject *ops, srq_args *a)
{
    if (type != NULL && cqn_member32(type, "srq_type", "an SRQType such as SRQType.BASIC",
                                     UINT8_MAX, &a->type) < 0) {
        return -1;
    }
    if (a->type > IBV_SRQT_TM) {
        PyErr_Format(PyExc_ValueError, "srq_type is %u: it must be SRQType.BASIC, XRC or TM",
                     a->type);
        return -1;
    }
    const bool xrc = a->type == IBV_SRQT_XRC, tm = a->type == IBV_SRQT_TM;
    const char *name = xrc ? "XRC" : tm ? "TM" : "BASIC";
    return check_presence(a->xrcd, "xrcd", xrc, name) < 0 ||
                   check_presence(a->cq, "cq", xrc || tm, name) < 0 ||
                   (tm && parse_tags(tags, ops, a) < 0) ||
                   (!tm && (check_no_tags(tags, "max_num_tags", name) < 0 ||
                            check_no_tags(ops, "max_ops", name) < 0)) ||
                   cqn_open(CQN_OBJ(a->pd)) == NULL ||
                   (xrc && cqn_expect_beside(a->xrcd, st->XRCD, "xrcd", a->pd, "pd") < 0) ||
                   (a->cq != Py_None && cqn_expect_beside(a->cq, st->CQ, "cq", a->pd, "pd") < 0)
               ? -1
               : 0;
}

/* The limits are the device's, known since it was opened. */
static int parse_new_srq(cqn_state *st, PyObject *args, PyObject *kwargs, srq_args *a)
{
    static char *names[] = {"pd", "max_wr",       "max_sge", "srq_limit", "srq_type", "xrcd",
                            "cq", "max_num_tags", "max_ops", "user_data", NULL};
    PyObject *max_wr, *max_sge = NULL, *srq_limit = NULL, *type = NULL, *tags = NULL, *ops = NULL;
    *a = (srq_args){.xrcd = Py_None, .cq = Py_None, .user_data = Py_None, .max_sge = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOOOOOOO:SRQ", names, &a->pd, &max_wr,
                                     &max_sge, &srq_limit, &type, &a->xrcd, &a->cq, &tags, &ops,
                                     &a->user_data) ||
        cqn_expect(a->pd, st->PD, "pd") < 0) {
        return -1;
    }
    /* A copy: the conversions can run code that closes the PD. */
    const struct ibv_device_attr device = CQN_OBJ(a->pd)->context->attr;
    if (device.max_srq == 0) {
        cqn_verbs_error(st, EOPNOTSUPP, "ibv_create_srq",
                        "%s has no shared receive queues (its max_srq is 0)",
                        cqn_device_name(CQN_OBJ(a->pd)));
        return -1;
    }
    const int sge = device.max_srq_sge < CQN_MAX_SGE ? device.max_srq_sge : CQN_MAX_SGE;
    return cqn_check_srq_size(&device, max_wr, &a->max_wr) < 0 ||
                   (max_sge != NULL &&
                    cqn_u32(max_sge, "max_sge", (uint32_t)sge, &a->max_sge) < 0) ||
                   (srq_limit != NULL &&
                    cqn_u32(srq_limit, "srq_limit", a->max_wr, &a->srq_limit) < 0) ||
                   cqn_open(CQN_OBJ(a->pd)) == NULL || parse_srq_type(st, type, tags, ops, a) < 0
               ? -1
               : 0;
}

/* A basic one has a verb of its own, which older devices have as well. */
static struct ibv_srq *create_srq(cqn_srq *self, const srq_args *a)
{
    const cqn_object *pd = CQN_OBJ(a->pd);
    struct ibv_srq_init_attr_ex init = {
        .srq_context = self, /* for the asynchronous events that name it */
        .attr = {.max_wr = a->max_wr, .max_sge = a->max_sge},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ,
        .srq_type = a->type,
        .pd = pd->handle,
    };
    const bool basic = a->type == IBV_SRQT_BASIC;
    if (!basic) {
        init.cq = self->cq->base.handle;
    }
    if (a->type == IBV_SRQT_XRC) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        init.xrcd = CQN_OBJ(a->xrcd)->handle;
    }
    if (a->type == IBV_SRQT_TM) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
        init.tm_cap = a->tm;
    }
    struct ibv_context *device = pd->context->base.handle;
    struct ibv_srq *srq;
    int err;
    CQN_CREATING(CQN_OBJ(self),
                 srq = basic ? ibv_create_srq(init.pd, (struct ibv_srq_init_attr *)&init)
                             : ibv_create_srq_ex(device, &init);
                 err = errno);
    if (srq == NULL) {
        cqn_verbs_error(self->base.state, err, basic ? "ibv_create_srq" : "ibv_create_srq_ex",
                        "max_wr=%u, max_sge=%u: %sclose others: %s has at most %d", a->max_wr,
                        a->max_sge, err != EAGAIN ? "ask for less of one of these, or " : "",
                        cqn_device_name(pd), pd->context->attr.max_srq);
        return NULL;
    }
    self->max_wr = init.attr.max_wr;
    self->max_sge = init.attr.max_sge;
    return srq;
}

/* Sets one of both. With the GIL, so that nothing is posted meanwhile: rxe refuses
 * a size below what it holds, and has lost the queue then. */
int cqn_srq_set(cqn_srq *self, struct ibv_srq_attr attr, int mask)
{
    int err = ibv_modify_srq(self->base.handle, &attr, mask);
    if (err != 0) {
        bool resize = mask == IBV_SRQ_MAX_WR;
        cqn_verbs_error(self->base.state, err, "ibv_modify_srq",
                        resize ? "from max_wr %u to %u: %s" : "max_wr %u, srq_limit %u: %s",
                        self->max_wr, resize ? attr.max_wr : attr.srq_limit,
                        err == EINVAL ? "is the limit, this or the armed one, within the size?"
                                      : "see ibv_modify_srq(3)");
        return -1;
    }
    if (mask == IBV_SRQ_MAX_WR) {
        self->max_wr = attr.max_wr;
    }
    return 0;
}

/* A new object of what it is to use, without a handle yet. */
static cqn_srq *new_srq(PyTypeObject *type, const srq_args *a)
{
    cqn_object *used[3] = {CQN_OBJ(a->pd)};
    size_t n = 1;
    if (a->cq != Py_None) {
        used[n++] = CQN_OBJ(a->cq);
    }
    if (a->xrcd != Py_None) {
        used[n++] = CQN_OBJ(a->xrcd);
    }
    cqn_srq *self = cqn_new(type, &srq_kind, used, n);
    if (self != NULL) {
        self->cq = n > 1 ? (cqn_cq *)used[1] : NULL;
        self->type = a->type;
        self->user_data = Py_NewRef(a->user_data);
        self->rq = cqn_wr_queue_new_shared(self->base.state);
        self->max_num_tags = a->tm.max_num_tags;
    }
    if (self != NULL && self->max_num_tags > 0 &&
        (self->tagged = PyMem_Calloc(self->max_num_tags, sizeof(*self->tagged))) == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(self);
    }
    return self;
}

CQN_RARE PyObject *cqn_srq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    srq_args a;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        parse_new_srq(cqn_state_of(type), args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_srq *self = new_srq(type, &a);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_srq *srq = self->rq == NULL ? NULL : create_srq(self, &a);
    if (srq == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), srq);
    /* Creating one need not heed a limit. */
    const struct ibv_srq_attr limit = {.srq_limit = a.srq_limit};
    if (a.srq_limit > 0 && cqn_srq_set(self, limit, IBV_SRQ_LIMIT) < 0) {
        cqn_close(CQN_OBJ(self), true);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}
