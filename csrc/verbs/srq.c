/* SPDX-License-Identifier: MIT */
/*
 * SRQ: a shared receive queue.
 *
 * The type. Making one is in srq_create.c, posting in work/post_recv.c; what a completion releases
 * in work/wr_queue.c. It owns the books of its queue, which the queues of its queue pairs use as
 * well.
 */

#include "verbs/srq.h"

static int srq_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_srq *self = (cqn_srq *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

/* At no time the limit may be beyond the size. */
static int modify_both(cqn_srq *self, struct ibv_srq_attr attr)
{
    int first = attr.max_wr > self->max_wr ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    int second = first == IBV_SRQ_LIMIT ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    return cqn_srq_set(self, attr, first) < 0 || cqn_srq_set(self, attr, second) < 0 ? -1 : 0;
}

/* What modify_srq() is to set. Returns the mask, or -1. */
static int collect_srq_attr(const cqn_srq *self, PyObject *max_wr, PyObject *srq_limit,
                            struct ibv_srq_attr *attr)
{
    const struct ibv_device_attr device = self->base.context->attr;
    int mask = 0;
    attr->max_wr = self->max_wr;
    if (max_wr != NULL && max_wr != Py_None) {
        if (cqn_check_srq_size(&device, max_wr, &attr->max_wr) < 0) {
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

CQN_RARE static PyObject *srq_modify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
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
    int rc = both ? modify_both(self, attr) : cqn_srq_set(self, attr, mask);
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

static PyObject *srq_get_srq_num(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_srq *srq = cqn_open(CQN_OBJ(op));
    uint32_t number = 0;
    if (srq == NULL) {
        return NULL;
    }
    int err = ibv_get_srq_num(srq, &number);
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_get_srq_num",
                                 "the number of an SRQ; those of type XRC have one")
               : PyLong_FromUnsignedLong(number);
}

static PyObject *srq_get_cq(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *cq = (PyObject *)((cqn_srq *)op)->cq;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(cq ? cq : Py_None) : NULL;
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
    {"post_ops", (PyCFunction)(void (*)(void))cqn_srq_post_ops, METH_FASTCALL | METH_KEYWORDS,
     cqn_srq_post_ops_doc},
    {"modify", (PyCFunction)(void (*)(void))srq_modify, METH_FASTCALL | METH_KEYWORDS,
     "modify($self, /, *, max_wr=None, srq_limit=None)\n--\n\n"
     "Resize it, or arm its limit.\n\n"
     "With `srq_limit` above 0 the device reports SRQ_LIMIT_REACHED, once, when fewer receives are "
     "left than that (see Context.get_async_event()); arm it again after each. 0 disarms it. "
     "ValueError for a limit beyond the size, and a size beyond the device's or below what is "
     "outstanding; VerbsError (EOPNOTSUPP) where the device does not resize.\n\n"
     "Wraps ibv_modify_srq(3)."},
    {"get_srq_num", srq_get_srq_num, METH_NOARGS,
     "get_srq_num($self, /)\n--\n\n"
     "Its number, which a sender gives as remote_srqn.\n\n"
     "VerbsError (EOPNOTSUPP) where it has none: it is for SRQs of type XRC.\n\n"
     "Wraps ibv_get_srq_num(3)."},
    {"query", srq_query, METH_NOARGS,
     "query($self, /)\n--\n\n"
     "Its attributes, as the device has them now; a limit that was reached is 0.\n\n"
     "Wraps ibv_query_srq(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef srq_getset[] = {
    CQN_USER_DATA(cqn_srq),
    CQN_POINTER("struct ibv_srq"),
    {"pd", cqn_get_used, NULL, "The PD that it, and the memory that is posted, belongs to.",
     (void *)0},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"srq_type", cqn_get_u32, NULL, "SRQType.", (void *)offsetof(cqn_srq, type)},
    {"cq", srq_get_cq, NULL, "Where its messages complete, if it is of type XRC or TM, or None.",
     NULL},
    {"max_wr", cqn_get_u32, NULL, "Receives that it was granted, at least what was asked for.",
     (void *)offsetof(cqn_srq, max_wr)},
    {"max_sge", cqn_get_u32, NULL, "Scatter/gather elements that a receive can have.",
     (void *)offsetof(cqn_srq, max_sge)},
    {"outstanding", srq_get_outstanding, NULL,
     "How many receives, and operations on its list of tags, were posted whose completion was not "
     "polled yet.",
     NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef srq_members[] = {
    CQN_OBJECT_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot srq_slots[] = {
    {Py_tp_doc,
     "SRQ(pd, max_wr, *, max_sge=1, srq_limit=0, srq_type=0, xrcd=None, cq=None, max_num_tags=0, "
     "max_ops=0, user_data=None)\n--\n\n"
     "A shared receive queue: any number of queue pairs, QP(..., srq=...), receive from it.\n\n"
     "It has room for at least `max_wr` receives of up to `max_sge` elements. `srq_limit` arms its "
     "limit, see modify_srq(). BusyError at close() while queue pairs use it. What one took "
     "of it and did not complete when it was closed or reset is kept until the SRQ is closed.\n\n"
     "`srq_type` is an SRQType. One of type XRC, of the domain `xrcd`, gets the messages that name "
     "its number, see get_srq_num(), and they complete on `cq`. One of type TM matches tags, in "
     "the "
     "order of post_ops(), with a list of up to `max_num_tags` receives, while up to `max_ops` "
     "operations are under way. VerbsError (EOPNOTSUPP) where the device lacks these.\n\n"
     "By the verbs the queue pairs need not be of its PD. (On rxe they must: there a receive fails "
     "in the end whose memory is not of the queue pair's.)\n\n"
     "Wraps ibv_create_srq(3), and for XRC and TM ibv_create_srq_ex(3)."},
    {Py_tp_new, cqn_srq_new},
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
