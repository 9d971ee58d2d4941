/* SPDX-License-Identifier: MIT */
/*
 * WQ: a receive queue, filled with packets by the queue pairs of an RwqIndTable.
 *
 * It owns its WR queue, which works like that of an SRQ: a completion covers only its own
 * receive.
 */

#include "verbs/wq.h"
#include "work/wr.h"

static int destroy_wq(void *handle)
{
    return ibv_destroy_wq(handle);
}

/* None of its receives completes any more, except those whose completions are in the CQ. If the CQ
 * cannot be polled, it keeps the wr_ids. */
static void drop_requests(cqn_wq *self, cqn_wr_queue *fresh)
{
    cqn_object *deferred = NULL;
    cqn_wr_queue *rq = self->rq;
    self->rq = fresh; /* before other code can run */
    if (rq == NULL) {
        return;
    }
    const bool asks = self->cq != NULL && self->cq->base.handle != NULL &&
                      !cqn_forked(&self->base) && !PyErr_Occurred();
    const bool left = asks && cqn_cq_drain(self->cq, &deferred) < 0;
    if (left) {
        PyErr_Clear();
    }
    cqn_wr_queue_forget(rq, &deferred);
    if (left) {
        cqn_cq_inherit(self->cq, rq);
    }
    else {
        cqn_wr_queue_drop(self->base.state, rq);
    }
    cqn_decref_deferred(deferred);
}

static void wq_after_destroy(cqn_object *op)
{
    drop_requests((cqn_wq *)op, NULL);
}

static int wq_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_wq *self = (cqn_wq *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

static int wq_clear(PyObject *op)
{
    cqn_wq *self = (cqn_wq *)op;
    if (self->base.handle == NULL) {
        self->cq = NULL;
        drop_requests(self, NULL);
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

static const cqn_kind wq_kind = {
    .name = "WQ",
    .destroy_verb = "ibv_destroy_wq",
    .rank = CQN_RANK_SRQ,
    .pinned_by = "RwqIndTable",
    .destroy = destroy_wq,
    .after_destroy = wq_after_destroy,
    .clear = wq_clear,
};

/* ---- creation ---- */

typedef struct {
    PyObject *pd, *cq, *user_data;
    struct ibv_wq_init_attr attr;
} wq_args;

static const uint32_t all_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING | IBV_WQ_FLAGS_SCATTER_FCS |
                                  IBV_WQ_FLAGS_DELAY_DROP | IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;

static int parse_sizes(PyObject *const *in, const struct ibv_device_attr *limits,
                       struct ibv_wq_init_attr *attr)
{
    const int sge = limits->max_sge < CQN_MAX_SGE ? limits->max_sge : CQN_MAX_SGE;
    uint64_t wr = 16, n = 1;
    uint32_t type = IBV_WQT_RQ;
    if ((in[0] != NULL && cqn_range(in[0], "max_wr", 1, (uint64_t)limits->max_qp_wr, &wr) < 0) ||
        (in[1] != NULL && cqn_range(in[1], "max_sge", 1, (uint64_t)sge, &n) < 0) ||
        (in[2] != NULL &&
         cqn_member32(in[2], "wq_type", "a WQType such as WQType.RQ", IBV_WQT_RQ, &type) < 0) ||
        (in[3] != NULL && cqn_member32(in[3], "create_flags", "WQFlags such as WQFlags.DELAY_DROP",
                                       all_flags, &attr->create_flags) < 0)) {
        return -1;
    }
    attr->max_wr = (uint32_t)wr;
    attr->max_sge = (uint32_t)n;
    attr->wq_type = type;
    attr->comp_mask = attr->create_flags != 0 ? IBV_WQ_INIT_ATTR_FLAGS : 0;
    return 0;
}

static int parse_new_wq(cqn_state *st, PyObject *args, PyObject *kwargs, wq_args *a)
{
    static char *names[] = {"pd",      "cq",           "max_wr",    "max_sge",
                            "wq_type", "create_flags", "user_data", NULL};
    PyObject *in[4] = {NULL};
    *a = (wq_args){.user_data = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOOOO:WQ", names, &a->pd, &a->cq, &in[0],
                                     &in[1], &in[2], &in[3], &a->user_data) ||
        cqn_expect(a->pd, st->PD, "pd") < 0) {
        return -1;
    }
    const struct ibv_device_attr limits = CQN_OBJ(a->pd)->context->attr;
    return parse_sizes(in, &limits, &a->attr) < 0 || cqn_open(CQN_OBJ(a->pd)) == NULL ||
                   cqn_expect_beside(a->cq, st->CQ, "cq", a->pd, "pd") < 0
               ? -1
               : 0;
}

static struct ibv_wq *create_wq(cqn_wq *self, struct ibv_wq_init_attr *attr)
{
    struct ibv_context *device = self->base.context->base.handle;
    struct ibv_wq *wq;
    int err;
    attr->wq_context = self;
    attr->pd = self->base.uses[0]->handle;
    attr->cq = self->cq->base.handle;
    CQN_CREATING(CQN_OBJ(self), wq = ibv_create_wq(device, attr); err = errno);
    if (wq == NULL) {
        cqn_verbs_error(self->base.state, err, "ibv_create_wq",
                        "a queue of receives, max_wr=%u, max_sge=%u, create_flags=0x%x",
                        attr->max_wr, attr->max_sge, attr->create_flags);
    }
    return wq;
}

CQN_RARE static PyObject *wq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    wq_args a;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        parse_new_wq(cqn_state_of(type), args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_object *used[2] = {CQN_OBJ(a.pd), CQN_OBJ(a.cq)};
    cqn_wq *self = cqn_new(type, &wq_kind, used, 2);
    if (self == NULL) {
        return NULL;
    }
    self->cq = (cqn_cq *)used[1];
    self->user_data = Py_NewRef(a.user_data);
    self->rq = cqn_wr_queue_new_shared(&self->base);
    struct ibv_wq *wq = self->rq == NULL ? NULL : create_wq(self, &a.attr);
    if (wq == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->wq_num = wq->wq_num;
    self->type = a.attr.wq_type;
    self->max_wr = a.attr.max_wr;
    self->max_sge = a.attr.max_sge;
    self->state = IBV_WQS_RESET;
    cqn_adopt(CQN_OBJ(self), wq);
    return (PyObject *)self;
}

/* ---- methods ---- */

/* Converts the arguments of modify(). Returns -1 with an exception. */
static int parse_modify(PyObject *const *in, struct ibv_wq_attr *attr)
{
    uint32_t state = IBV_WQS_RESET, current = IBV_WQS_RESET;
    if ((in[0] != NULL && cqn_member32(in[0], "wq_state", "a WQState such as WQState.RDY",
                                       IBV_WQS_ERR, &state) < 0) ||
        (in[1] != NULL && cqn_member32(in[1], "curr_wq_state", "a WQState such as WQState.RDY",
                                       IBV_WQS_ERR, &current) < 0) ||
        (in[2] != NULL && cqn_member32(in[2], "flags", "WQFlags such as WQFlags.DELAY_DROP",
                                       all_flags, &attr->flags) < 0) ||
        (in[3] != NULL && cqn_member32(in[3], "flags_mask", "WQFlags such as WQFlags.DELAY_DROP",
                                       all_flags, &attr->flags_mask) < 0)) {
        return -1;
    }
    if (in[0] == NULL && in[2] == NULL) {
        PyErr_SetString(PyExc_TypeError, "modify() needs wq_state or flags");
        return -1;
    }
    if ((in[2] == NULL) != (in[3] == NULL) || (attr->flags & ~attr->flags_mask)) {
        PyErr_Format(PyExc_ValueError,
                     "flags is 0x%x, flags_mask 0x%x: the mask says which of the flags are set",
                     attr->flags, attr->flags_mask);
        return -1;
    }
    attr->wq_state = state;
    attr->curr_wq_state = current;
    attr->attr_mask = (in[0] ? IBV_WQ_ATTR_STATE : 0u) | (in[1] ? IBV_WQ_ATTR_CURR_STATE : 0u) |
                      (in[2] ? IBV_WQ_ATTR_FLAGS : 0u);
    return 0;
}

/* A reset drops the receives without completing them, which empties the WR queue. Returns -1 with
 * an exception. */
static int carry_out(cqn_wq *self, struct ibv_wq_attr *attr)
{
    if (self->is_modified) { /* a late reset would drop newer receives */
        cqn_busy_error(self->base.state, "ibv_modify_wq",
                       PyUnicode_FromString("another thread modifies it: call again when that has "
                                            "returned"));
        return -1;
    }
    const bool moves = attr->attr_mask & IBV_WQ_ATTR_STATE;
    const uint32_t before = self->state;
    const bool resets = moves && attr->wq_state == IBV_WQS_RESET;
    cqn_wr_queue *fresh = resets ? cqn_wr_queue_new_shared(&self->base) : NULL;
    if (resets && fresh == NULL) {
        return -1;
    }
    struct ibv_wq *wq = self->base.handle;
    int err;
    self->state = resets ? IBV_WQS_RESET : before;
    self->is_modified = true;
    CQN_IN_KERNEL(CQN_OBJ(self), err = ibv_modify_wq(wq, attr));
    self->is_modified = false;
    if (err != 0) {
        self->state = before;
        cqn_wr_queue_drop(self->base.state, fresh);
        cqn_verbs_error(self->base.state, err, "ibv_modify_wq", "WQ %u: see ibv_modify_wq(3)",
                        self->wq_num);
        return -1;
    }
    self->state = moves ? attr->wq_state : before;
    if (resets) {
        drop_requests(self, fresh);
    }
    return 0;
}

CQN_RARE static PyObject *wq_modify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"wq_state", "curr_wq_state", "flags", "flags_mask", NULL};
    PyObject *in[4] = {NULL};
    struct ibv_wq_attr attr = {.attr_mask = 0};
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("modify", names, 0, 0, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        in[i] = in[i] == Py_None ? NULL : in[i];
    }
    return parse_modify(in, &attr) < 0 || cqn_open(CQN_OBJ(op)) == NULL ||
                   carry_out((cqn_wq *)op, &attr) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

static int post_to_wq(void *handle, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
    return ibv_post_wq_recv((struct ibv_wq *)handle, first, bad);
}

static int queue_of_wq(cqn_object *op, cqn_recv_queue *out)
{
    cqn_wq *wq = (cqn_wq *)op;
    *out = (cqn_recv_queue){.owner = op,
                            .pd = op->uses[0],
                            .wr_queue = wq->rq,
                            .max_sge = wq->max_sge,
                            .max_wr = wq->max_wr,
                            .verb = "ibv_post_wq_recv",
                            .post = post_to_wq};
    if (cqn_open(op) != NULL && wq->state == IBV_WQS_RESET) {
        cqn_verbs_error(op->state, EINVAL, out->verb, "WQ %u is in RESET: modify() it to RDY",
                        wq->wq_num);
        return -1;
    }
    return cqn_open(op) == NULL ? -1 : 0;
}

static PyObject *wq_post_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    return cqn_post_recv(CQN_OBJ(op), queue_of_wq, args, nargs, kwnames);
}

static PyObject *wq_get_outstanding(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromSize_t(((cqn_wq *)op)->rq->requests) : NULL;
}

static PyMethodDef wq_methods[] = {
    {"post_recv", (PyCFunction)(void (*)(void))wq_post_recv, METH_FASTCALL | METH_KEYWORDS,
     "post_recv($self, /, sg, *, wr_id=0)\n--\n\n"
     "Post memory for one packet, or a RecvWR, or a list of them, in state RDY.\n\n"
     "The parameters are those of `cqnotify.QP.post_recv`. Raises VerbsError (EINVAL) in state\n"
     "RESET, and (ENOMEM) when the queue is full.\n\n"
     "Wraps ibv_post_wq_recv(3)."},
    {"modify", (PyCFunction)(void (*)(void))wq_modify, METH_FASTCALL | METH_KEYWORDS,
     "modify($self, /, *, wq_state=None, curr_wq_state=None, flags=None, flags_mask=None)\n--\n\n"
     "Move it to another state, or set flags.\n\n"
     "wq_state: a WQState. RESET drops what is posted without completing it.\n"
     "curr_wq_state: the state in which the device is to find it.\n"
     "flags, flags_mask: WQFlags: their new values, and which of them are set.\n\n"
     "Wraps ibv_modify_wq(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef wq_getset[] = {
    CQN_USER_DATA(cqn_wq),
    {"pd", cqn_get_used, NULL, "The PD of the memory that is posted.", (void *)0},
    {"cq", cqn_get_used, NULL, "Where its receives complete.", (void *)1},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"wq_num", cqn_get_u32, NULL, "Its number.", (void *)offsetof(cqn_wq, wq_num)},
    {"wq_type", cqn_get_u32, NULL, "WQType.", (void *)offsetof(cqn_wq, type)},
    {"state", cqn_get_u32, NULL, "WQState, as last set; the device may have moved it to ERR.",
     (void *)offsetof(cqn_wq, state)},
    {"max_wr", cqn_get_u32, NULL, "Receives that it was granted.",
     (void *)offsetof(cqn_wq, max_wr)},
    {"max_sge", cqn_get_u32, NULL, "Scatter/gather elements that a receive can have.",
     (void *)offsetof(cqn_wq, max_sge)},
    {"outstanding", wq_get_outstanding, NULL,
     "How many receives were posted whose completion was not polled yet.", NULL},
    CQN_POINTER("struct ibv_wq"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef wq_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot wq_slots[] = {
    {Py_tp_doc,
     "WQ(pd, cq, *, max_wr=16, max_sge=1, wq_type=0, create_flags=0, user_data=None)\n--\n\n"
     "The base of cqnotify.hw.WQ.\n\n"
     "Wraps ibv_create_wq(3)."},
    {Py_tp_new, wq_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, wq_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, wq_methods},
    {Py_tp_getset, wq_getset},
    {Py_tp_members, wq_members},
    {0, NULL},
};

PyType_Spec cqn_wq_spec = {
    .name = "cqnotify.hw.WQ",
    .basicsize = sizeof(cqn_wq),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = wq_slots,
};
