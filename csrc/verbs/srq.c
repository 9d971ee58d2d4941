/* SPDX-License-Identifier: MIT */
/*
 * SRQ: a shared receive queue.
 *
 * The type. Posting is in work/post_recv.c; what a completion releases in work/wr_queue.c. It owns
 * the books of its queue, which the queues of its queue pairs use as well.
 */

#include "verbs/verbs.h"

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

static void srq_after_destroy(cqn_object *op)
{
    cqn_async_forget(op->uses[0]->context, op);
    drop_requests((cqn_srq *)op);
}

static int srq_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_srq *self = (cqn_srq *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

static int srq_clear(PyObject *op)
{
    cqn_srq *self = (cqn_srq *)op;
    if (self->base.handle == NULL) {
        drop_requests(self);
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
    PyObject *pd, *user_data;
    uint32_t max_wr, max_sge, srq_limit;
} srq_args;

static int check_max_wr(const struct ibv_device_attr *device, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "max_wr", 1, (uint64_t)device->max_srq_wr, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* The limits are the device's, known since it was opened. */
static int parse_new_srq(cqn_state *st, PyObject *args, PyObject *kwargs, srq_args *a)
{
    static char *names[] = {"pd", "max_wr", "max_sge", "srq_limit", "user_data", NULL};
    PyObject *max_wr, *max_sge = NULL, *srq_limit = NULL;
    *a = (srq_args){.user_data = Py_None, .max_sge = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOO:SRQ", names, &a->pd, &max_wr, &max_sge,
                                     &srq_limit, &a->user_data) ||
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
    return check_max_wr(&device, max_wr, &a->max_wr) < 0 ||
                   (max_sge != NULL &&
                    cqn_u32(max_sge, "max_sge", (uint32_t)sge, &a->max_sge) < 0) ||
                   (srq_limit != NULL &&
                    cqn_u32(srq_limit, "srq_limit", a->max_wr, &a->srq_limit) < 0)
               ? -1
               : 0;
}

static struct ibv_srq *create_srq(cqn_srq *self, const srq_args *a)
{
    const cqn_object *pd = CQN_OBJ(a->pd);
    struct ibv_srq_init_attr init = {
        .srq_context = self, /* for the asynchronous events that name it */
        .attr = {.max_wr = a->max_wr, .max_sge = a->max_sge},
    };
    struct ibv_pd *handle = pd->handle;
    struct ibv_srq *srq;
    int err;
    CQN_CREATING(CQN_OBJ(self), srq = ibv_create_srq(handle, &init); err = errno);
    if (srq == NULL) {
        cqn_verbs_error(self->base.state, err, "ibv_create_srq",
                        "max_wr=%u, max_sge=%u: ask for less of one of these, or close others: %s "
                        "has at most %d",
                        a->max_wr, a->max_sge, cqn_device_name(pd), pd->context->attr.max_srq);
        return NULL;
    }
    self->max_wr = init.attr.max_wr;
    self->max_sge = init.attr.max_sge;
    return srq;
}

/* Sets one of both. With the GIL, so that nothing is posted meanwhile: rxe refuses
 * a size below what it holds, and has lost the queue then. */
static int modify_srq(cqn_srq *self, struct ibv_srq_attr attr, int mask)
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

/* At no time the limit may be beyond the size. */
static int modify_both(cqn_srq *self, struct ibv_srq_attr attr)
{
    int first = attr.max_wr > self->max_wr ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    int second = first == IBV_SRQ_LIMIT ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    return modify_srq(self, attr, first) < 0 || modify_srq(self, attr, second) < 0 ? -1 : 0;
}

static PyObject *srq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    srq_args a;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        parse_new_srq(cqn_state_of(type), args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_object *pd = CQN_OBJ(a.pd);
    cqn_srq *self = cqn_new(type, &srq_kind, &pd, 1);
    if (self == NULL) {
        return NULL;
    }
    self->user_data = Py_NewRef(a.user_data);
    self->rq = cqn_wr_queue_new_shared(self->base.state);
    struct ibv_srq *srq = self->rq == NULL ? NULL : create_srq(self, &a);
    if (srq == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), srq);
    /* Creating one need not heed a limit. */
    const struct ibv_srq_attr limit = {.srq_limit = a.srq_limit};
    if (a.srq_limit > 0 && modify_srq(self, limit, IBV_SRQ_LIMIT) < 0) {
        cqn_close(CQN_OBJ(self), true);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* What modify_srq() is to set. Returns the mask, or -1. */
static int collect_srq_attr(const cqn_srq *self, PyObject *max_wr, PyObject *srq_limit,
                            struct ibv_srq_attr *attr)
{
    const struct ibv_device_attr device = self->base.context->attr;
    int mask = 0;
    attr->max_wr = self->max_wr;
    if (max_wr != NULL && max_wr != Py_None) {
        if (check_max_wr(&device, max_wr, &attr->max_wr) < 0) {
            return -1;
        }
        mask |= IBV_SRQ_MAX_WR;
    }
    if (srq_limit != NULL && srq_limit != Py_None) {
        if (cqn_u32(srq_limit, "srq_limit", attr->max_wr, &attr->srq_limit) < 0) {
            return -1;
        }
        mask |= IBV_SRQ_LIMIT;
    }
    if (mask == 0) {
        PyErr_SetString(PyExc_TypeError, "modify() needs max_wr or srq_limit");
        return -1;
    }
    return mask;
}

static int check_resize(const cqn_srq *self, uint32_t max_wr)
{
    const cqn_context *ctx = self->base.context;
    if (!(ctx->attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE)) {
        cqn_verbs_error(self->base.state, EOPNOTSUPP, "ibv_modify_srq",
                        "%s does not resize an SRQ (SRQ_RESIZE is not among its device_cap_flags)",
                        cqn_device_name(&self->base));
        return -1;
    }
    if (max_wr < self->rq->requests) {
        PyErr_Format(PyExc_ValueError,
                     "max_wr is %u: %zd receives are posted and have not completed", max_wr,
                     (Py_ssize_t)self->rq->requests);
        return -1;
    }
    return 0;
}

static PyObject *srq_modify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_wr", "srq_limit", NULL};
    cqn_srq *self = (cqn_srq *)op;
    PyObject *in[2] = {NULL, NULL};
    struct ibv_srq_attr attr = {.srq_limit = 0};
    if (cqn_open(&self->base) == NULL ||
        cqn_args("modify", names, 0, 0, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    int mask = collect_srq_attr(self, in[0], in[1], &attr);
    if (mask < 0 || cqn_open(&self->base) == NULL ||
        ((mask & IBV_SRQ_MAX_WR) && check_resize(self, attr.max_wr) < 0)) {
        return NULL;
    }
    bool both = mask == (IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
    int rc = both ? modify_both(self, attr) : modify_srq(self, attr, mask);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *srq_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_srq *srq = cqn_open(CQN_OBJ(op));
    if (srq == NULL) {
        return NULL;
    }
    struct ibv_srq_attr attr = {.max_wr = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_srq(srq, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_srq", "")
               : cqn_struct_to_dict(&attr, cqn_srq_fields);
}

static PyObject *srq_get_outstanding(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromSize_t(((cqn_srq *)op)->rq->requests) : NULL;
}

static PyObject *srq_repr(PyObject *op)
{
    CQN_LOCKED;
    const cqn_srq *self = (cqn_srq *)op;
    const struct ibv_srq *srq = self->base.handle;
    return srq == NULL
               ? cqn_short_repr(op)
               : PyUnicode_FromFormat("<SRQ on %s, handle %u, %u receives, %zd outstanding>",
                                      cqn_device_name(&self->base), srq->handle,
                                      (unsigned)self->max_wr, (Py_ssize_t)self->rq->requests);
}

static PyMethodDef srq_methods[] = {
    {"post_recv", (PyCFunction)(void (*)(void))cqn_srq_post_recv, METH_FASTCALL | METH_KEYWORDS,
     cqn_srq_post_recv_doc},
    {"modify", (PyCFunction)(void (*)(void))srq_modify, METH_FASTCALL | METH_KEYWORDS,
     "modify($self, /, *, max_wr=None, srq_limit=None)\n--\n\n"
     "Resize it, or arm its limit.\n\n"
     "With `srq_limit` above 0 the device reports SRQ_LIMIT_REACHED, once, when fewer receives are "
     "left than that (see Context.get_async_event()); arm it again after each. 0 disarms it. "
     "ValueError for a limit beyond the size, and a size beyond the device's or below what is "
     "outstanding; VerbsError (EOPNOTSUPP) where the device does not resize.\n\n"
     "Wraps ibv_modify_srq(3)."},
    {"query", srq_query, METH_NOARGS,
     "query($self, /)\n--\n\n"
     "Its attributes, as the device has them now; a limit that was reached is 0.\n\n"
     "Wraps ibv_query_srq(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef srq_getset[] = {
    CQN_USER_DATA(cqn_srq),
    {"pd", cqn_get_used, NULL, "The PD that it, and the memory that is posted, belongs to.",
     (void *)0},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"max_wr", cqn_get_u32, NULL, "Receives that it was granted, at least what was asked for.",
     (void *)offsetof(cqn_srq, max_wr)},
    {"max_sge", cqn_get_u32, NULL, "Scatter/gather elements that a receive can have.",
     (void *)offsetof(cqn_srq, max_sge)},
    {"outstanding", srq_get_outstanding, NULL,
     "How many receives were posted whose completion was not polled yet.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef srq_members[] = {
    CQN_OBJECT_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot srq_slots[] = {
    {Py_tp_doc,
     "SRQ(pd, max_wr, *, max_sge=1, srq_limit=0, user_data=None)\n--\n\n"
     "A shared receive queue: any number of queue pairs, QP(..., srq=...), receive from it.\n\n"
     "It has room for at least `max_wr` receives of up to `max_sge` elements. `srq_limit` arms its "
     "limit, see modify_srq(). BusyError at close() while queue pairs use it. What one took "
     "of it and did not complete when it was closed or reset is kept until the SRQ is closed.\n\n"
     "By the verbs the queue pairs need not be of its PD. (On rxe they must: there a receive fails "
     "in the end whose memory is not of the queue pair's.)\n\n"
     "Wraps ibv_create_srq(3)."},
    {Py_tp_new, srq_new},
    {Py_tp_repr, srq_repr},
    {Py_tp_traverse, srq_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, srq_methods},
    {Py_tp_getset, srq_getset},
    {Py_tp_members, srq_members},
    {0, NULL},
};

PyType_Spec cqn_srq_spec = {
    .name = "cqnotify.SRQ",
    .basicsize = sizeof(cqn_srq),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = srq_slots,
};
