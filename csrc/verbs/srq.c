/* SPDX-License-Identifier: MIT */
/*
 * SRQ: a shared receive queue, of one of three types.
 *
 * work/post_recv.c posts the receives; work/wr_queue.c handles their completions. The SRQ owns its
 * WR queue, which the receive queues of its queue pairs share.
 */

#include "verbs/verbs.h"

/* ---- destruction ---- */

static int destroy_srq(void *handle)
{
    return ibv_destroy_srq(handle);
}

/* Frees the requests: none of them completes any more. */
static void drop_requests(cqn_srq *self)
{
    cqn_object *deferred = NULL;
    cqn_wr_queue *rq = self->rq;
    self->rq = NULL;
    if (rq != NULL) {
        cqn_wr_queue_forget(rq, &deferred);
        cqn_wr_queue_drop(self->base.state, rq);
    }
    cqn_decref_deferred(deferred);
}

/* Fetches the completions in its own CQ; if that fails, the CQ keeps the wr_ids. */
static void leave_cq(cqn_srq *self)
{
    cqn_object *deferred = NULL;
    if (self->cq != NULL && self->cq->base.handle != NULL && !cqn_forked(&self->base) &&
        !PyErr_Occurred() && cqn_cq_drain(self->cq, &deferred) < 0) {
        PyErr_Clear();
        cqn_wr_queue *rq = self->rq;
        self->rq = NULL;
        cqn_wr_queue_forget(rq, &deferred);
        cqn_cq_inherit(self->cq, rq);
    }
    cqn_decref_deferred(deferred);
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

/* ---- size and limit ---- */

/* Converts the argument `max_wr`, limited by the device. Returns -1 with an exception. */
static int check_size(const struct ibv_device_attr *device, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "max_wr", 1, (uint64_t)device->max_srq_wr, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* Sets the size or the limit. Keeps the GIL, so nothing is posted in between: rxe refuses a size
 * too small for the posted requests, and loses the queue nevertheless. Returns -1 with an
 * exception. */
static int set_attr(cqn_srq *self, struct ibv_srq_attr attr, int mask)
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

/* Sets both in the order that keeps the limit within the size. Returns -1 with an exception. */
static int modify_both(cqn_srq *self, struct ibv_srq_attr attr)
{
    int first = attr.max_wr > self->max_wr ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    int second = first == IBV_SRQ_LIMIT ? IBV_SRQ_MAX_WR : IBV_SRQ_LIMIT;
    return set_attr(self, attr, first) < 0 || set_attr(self, attr, second) < 0 ? -1 : 0;
}

/* Converts the arguments of modify(). Returns the mask; -1 with an exception. */
static int collect_srq_attr(const cqn_srq *self, PyObject *max_wr, PyObject *srq_limit,
                            struct ibv_srq_attr *attr)
{
    const struct ibv_device_attr device = self->base.context->attr;
    int mask = 0;
    attr->max_wr = self->max_wr;
    if (max_wr != NULL && max_wr != Py_None) {
        if (check_size(&device, max_wr, &attr->max_wr) < 0) {
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
    int rc = both ? modify_both(self, attr) : set_attr(self, attr, mask);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- creation ---- */

typedef struct {
    PyObject *pd, *xrcd, *cq, *user_data;
    uint32_t max_wr, max_sge, srq_limit, type;
    struct ibv_tm_cap tm;
} srq_args;

/* Returns -1 with ValueError if a wanted argument is missing, or an unwanted one given. `what` is a
 * type of SRQ or an operation. */
static int check_presence(PyObject *value, const char *name, bool wanted, const char *what)
{
    const bool given = value != NULL && value != Py_None;
    if (given == wanted) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 wanted ? "%s is missing: %s needs it" : "%s was given, but %s does not take it",
                 name, what);
    return -1;
}

static int check_no_tags(PyObject *value, const char *name, const char *what)
{
    uint32_t n = 0;
    return value != NULL && cqn_u32(value, name, UINT32_MAX, &n) < 0
               ? -1
               : check_presence(n == 0 ? NULL : value, name, false, what);
}

/* Converts both arguments, limited by the device. Returns -1 with an exception. */
static int parse_tags(PyObject *tags, PyObject *ops, srq_args *a)
{
    cqn_object *pd = CQN_OBJ(a->pd);
    struct ibv_device_attr_ex attr;
    if (check_presence(tags, "max_num_tags", true, "an SRQ of type TM") < 0 ||
        check_presence(ops, "max_ops", true, "an SRQ of type TM") < 0 || cqn_open(pd) == NULL ||
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

/* Converts the arguments that depend on the type. Returns -1 with an exception. */
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
    const char *name = xrc  ? "an SRQ of type XRC"
                       : tm ? "an SRQ of type TM"
                            : "an SRQ of type BASIC";
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
    return check_size(&device, max_wr, &a->max_wr) < 0 ||
                   (max_sge != NULL &&
                    cqn_u32(max_sge, "max_sge", (uint32_t)sge, &a->max_sge) < 0) ||
                   (srq_limit != NULL &&
                    cqn_u32(srq_limit, "srq_limit", a->max_wr, &a->srq_limit) < 0) ||
                   cqn_open(CQN_OBJ(a->pd)) == NULL || parse_srq_type(st, type, tags, ops, a) < 0
               ? -1
               : 0;
}

/* A basic SRQ uses the older verb, which all devices have. */
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
        assert(self->cq != NULL); /* parse_srq_type() */
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

/* Returns a new object without a handle; NULL with an exception. */
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
        self->rq = cqn_wr_queue_new_shared(&self->base);
        self->max_num_tags = a->tm.max_num_tags;
    }
    if (self != NULL && self->max_num_tags > 0 &&
        (self->tagged = PyMem_Calloc(self->max_num_tags, sizeof(*self->tagged))) == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(self);
    }
    return self;
}

CQN_RARE static PyObject *srq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
    /* Creating an SRQ does not always set a limit. */
    const struct ibv_srq_attr limit = {.srq_limit = a.srq_limit};
    if (a.srq_limit > 0 && set_attr(self, limit, IBV_SRQ_LIMIT) < 0) {
        cqn_close(CQN_OBJ(self), true);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- the list of tags of an SRQ of type TM: receives for messages with a certain tag ----
 *
 * An operation that adds a receive posts two requests, the operation and the receive; the WR queue
 * has both. A receive deleted by its handle never completes, so the SRQ records the handle of each
 * receive. */

enum { OPCODE, WR_ID, FLAGS, SG, RECV_WR_ID, TAG, MASK, HANDLE, UNEXPECTED, NAMES };
static const char *const op_names[NAMES + 1] = {"opcode",         "wr_id", "flags", "sg",
                                                "recv_wr_id",     "tag",   "mask",  "handle",
                                                "unexpected_cnt", NULL};

/* Returns the place of a handle, or a free one. Most devices count handles from 0. */
static cqn_tagged *place_of(cqn_srq *srq, uint32_t handle)
{
    cqn_tagged *free_place = NULL;
    for (uint32_t i = 0; i < srq->max_num_tags; i++) {
        cqn_tagged *place = &srq->tagged[(handle + i) % srq->max_num_tags];
        const bool is_used = place->id != 0 && cqn_wr_queue_has(srq->rq, place->id);
        if (is_used && place->handle == handle) {
            return place;
        }
        if (!is_used && free_place == NULL) {
            free_place = place;
        }
    }
    return free_place;
}

static int check_given(PyObject *const *in, int i, bool wanted, const char *opcode)
{
    return check_presence(in[i], op_names[i], wanted, opcode);
}

/* Converts all numbers. Returns the user's wr_ids separately, because the device gets those of the
 * core. -1 with an exception. */
static int parse_numbers(PyObject *const *in, struct ibv_ops_wr *op, uint64_t *wr_id,
                         uint64_t *recv_wr_id)
{
    const bool adds = op->opcode == IBV_WR_TAG_ADD, deletes = op->opcode == IBV_WR_TAG_DEL;
    const char *name = adds ? "TAG_ADD" : deletes ? "TAG_DEL" : "TAG_SYNC";
    uint32_t flags = 0;
    op->tm.add.mask = adds ? UINT64_MAX : 0;
    if (check_given(in, TAG, adds, name) < 0 || check_given(in, HANDLE, deletes, name) < 0 ||
        (!adds && (check_given(in, SG, false, name) < 0 || check_given(in, MASK, false, name) < 0 ||
                   check_given(in, RECV_WR_ID, false, name) < 0)) ||
        (in[WR_ID] && cqn_uint(in[WR_ID], "wr_id", UINT64_MAX, wr_id) < 0) ||
        (in[FLAGS] && cqn_member32(in[FLAGS], "flags", "OpsFlags such as OpsFlags.SIGNALED",
                                   IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, &flags) < 0) ||
        (in[UNEXPECTED] &&
         cqn_u32(in[UNEXPECTED], "unexpected_cnt", UINT32_MAX, &op->tm.unexpected_cnt) < 0) ||
        (deletes && cqn_u32(in[HANDLE], "handle", UINT32_MAX, &op->tm.handle) < 0) ||
        (adds && cqn_uint(in[TAG], "tag", UINT64_MAX, &op->tm.add.tag) < 0) ||
        (in[MASK] && in[MASK] != Py_None &&
         cqn_uint(in[MASK], "mask", UINT64_MAX, &op->tm.add.mask) < 0) ||
        (in[RECV_WR_ID] && in[RECV_WR_ID] != Py_None &&
         cqn_uint(in[RECV_WR_ID], "recv_wr_id", UINT64_MAX, recv_wr_id) < 0)) {
        return -1;
    }
    op->flags = (int)(flags | IBV_OPS_SIGNALED); /* nothing else reports its end */
    return 0;
}

static int parse_op(PyObject *const *in, struct ibv_ops_wr *op, uint64_t *wr_id,
                    uint64_t *recv_wr_id)
{
    uint32_t opcode;
    if (cqn_member32(in[OPCODE], "opcode", "an OpsWROpcode such as OpsWROpcode.TAG_ADD",
                     IBV_WR_TAG_SYNC, &opcode) < 0) {
        return -1;
    }
    op->opcode = opcode;
    return parse_numbers(in, op, wr_id, recv_wr_id);
}

/* Returns the id of the receive to delete; 0 with LookupError if no receive has this handle. */
static uint64_t find_tagged(cqn_srq *srq, uint32_t handle)
{
    const cqn_tagged *place = place_of(srq, handle);
    if (place == NULL || place->handle != handle || place->id == 0 ||
        !cqn_wr_queue_has(srq->rq, place->id)) {
        PyErr_Format(PyExc_LookupError, "handle is %u: no receive that was added has it", handle);
        return 0;
    }
    return place->id;
}

/* No Python code runs between the checks and the insertion into the WR queue. */
static PyObject *post_op(cqn_srq *srq, struct ibv_ops_wr *op, const cqn_sg *sg, uint64_t wr_id,
                         uint64_t recv_wr_id)
{
    const bool adds = op->opcode == IBV_WR_TAG_ADD;
    uint64_t deleted = 0;
    if (op->opcode == IBV_WR_TAG_DEL && (deleted = find_tagged(srq, op->tm.handle)) == 0) {
        return NULL;
    }
    if (cqn_wr_queue_reserve(srq->rq, 2 + cqn_wr_entries(sg)) < 0) {
        return NULL;
    }
    cqn_wr_cursor at = cqn_wr_queue_cursor(srq->rq);
    op->wr_id = cqn_wr_queue_next_id(srq->rq, &at, 2);
    op->tm.add.recv_wr_id = adds ? cqn_wr_queue_next_id(srq->rq, &at, cqn_wr_entries(sg)) : 0;
    struct ibv_ops_wr *bad = NULL;
    int err = cqn_errno_of(ibv_post_srq_ops((struct ibv_srq *)srq->base.handle, op, &bad));
    if (err != 0) {
        cqn_wr_queue_refused(srq->rq, 2);
        return cqn_verbs_error(srq->base.state, err, "ibv_post_srq_ops",
                               "%s, of up to %u tags and max_ops operations under way: poll those "
                               "that were posted before",
                               adds      ? "TAG_ADD"
                               : deleted ? "TAG_DEL"
                                         : "TAG_SYNC",
                               srq->max_num_tags);
    }
    cqn_wr_queue_push_op(srq->rq, wr_id, deleted);
    if (!adds) {
        Py_RETURN_NONE;
    }
    cqn_wr_queue_push_shared(srq->rq, recv_wr_id, sg);
    cqn_tagged *place = place_of(srq, op->tm.handle);
    if (place != NULL) {
        *place = (cqn_tagged){.id = op->tm.add.recv_wr_id, .handle = op->tm.handle};
    }
    return PyLong_FromUnsignedLong(op->tm.handle);
}

static const char post_ops_doc[] =
    "post_ops($self, /, opcode, *, wr_id=0, flags=1, sg=None, recv_wr_id=0, tag=None, mask=None, "
    "handle=None, unexpected_cnt=0)\n--\n\n"
    "Change the list of tags of an SRQ of type TM, and return the handle of what TAG_ADD\n"
    "adds.\n\n"
    "opcode: an hw.OpsWROpcode: TAG_ADD adds memory for one message, TAG_DEL deletes it, and\n"
    "    TAG_SYNC informs the device of messages that no tag matched.\n"
    "wr_id: 64 bits, which the completion of the operation returns.\n"
    "flags: hw.OpsFlags; SIGNALED is always set.\n"
    "sg: TAG_ADD: the memory, as for post_recv().\n"
    "recv_wr_id: TAG_ADD: 64 bits, which the completion of the receive returns.\n"
    "tag: TAG_ADD: that of the messages to receive, 64 bits.\n"
    "mask: TAG_ADD: the bits of the tag that are compared; None: all.\n"
    "handle: TAG_DEL: what TAG_ADD returned.\n"
    "unexpected_cnt: how many messages that matched no tag were seen, as each of the\n"
    "    operations can say.\n\n"
    "Raises VerbsError (ENOMEM) when the list is full or too many operations are under way;\n"
    "LookupError for a handle that no receive has.\n\n"
    "Wraps ibv_post_srq_ops(3).";

CQN_RARE static PyObject *srq_post_ops(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                       PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_srq *srq = (cqn_srq *)op;
    PyObject *in[NAMES] = {NULL};
    CQN_COPY copy = NULL;
    struct ibv_ops_wr wr = {.wr_id = 0};
    uint64_t wr_id = 0, recv_wr_id = 0;
    if (cqn_open(&srq->base) == NULL ||
        cqn_args("post_ops", op_names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    if (srq->type != IBV_SRQT_TM) {
        PyErr_SetString(PyExc_ValueError, "post_ops() is for an SRQ of type TM");
        return NULL;
    }
    cqn_sg_arrays arrays;
    cqn_sg sg = CQN_SG_IN(arrays);
    if (parse_op(in, &wr, &wr_id, &recv_wr_id) < 0 ||
        (in[SG] != NULL && cqn_freeze(&in[SG], &copy) < 0) ||
        cqn_sg_gather(&sg, srq->base.state, in[SG]) < 0 || cqn_recv_check(&sg) < 0 ||
        cqn_open(&srq->base) == NULL) {
        return NULL;
    }
    if (!cqn_sg_fits(&sg, srq->base.uses[0], srq->max_sge)) {
        cqn_sg_refuse(&sg, &srq->base, srq->base.uses[0], srq->max_sge);
        return NULL;
    }
    wr.tm.add.sg_list = wr.opcode == IBV_WR_TAG_ADD ? sg.sge : NULL;
    wr.tm.add.num_sge = (int)sg.num_sge;
    return post_op(srq, &wr, &sg, wr_id, recv_wr_id);
}

/* ---- queries ---- */

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

/* ---- the type ---- */

static int srq_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_srq *self = (cqn_srq *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
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
    {"post_ops", (PyCFunction)(void (*)(void))srq_post_ops, METH_FASTCALL | METH_KEYWORDS,
     post_ops_doc},
    {"modify", (PyCFunction)(void (*)(void))srq_modify, METH_FASTCALL | METH_KEYWORDS,
     "modify($self, /, *, max_wr=None, srq_limit=None)\n--\n\n"
     "Resize it, or arm its limit.\n\n"
     "max_wr: the new size, from 1 to the device's max_srq_wr; not below what is outstanding.\n"
     "srq_limit: the device reports SRQ_LIMIT_REACHED, once, when fewer receives than this are\n"
     "    left (see Context.get_async_event()); arm it again after each. At most the size; 0\n"
     "    disarms it.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device does not resize.\n\n"
     "Wraps ibv_modify_srq(3)."},
    {"get_srq_num", srq_get_srq_num, METH_NOARGS,
     "get_srq_num($self, /)\n--\n\n"
     "Return its number, which a sender gives as remote_srqn.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where it has none: it is for SRQs of type XRC.\n\n"
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
     "The base of cqnotify.SRQ.\n\n"
     "Wraps ibv_create_srq(3) and ibv_create_srq_ex(3)."},
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
