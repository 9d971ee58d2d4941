/* SPDX-License-Identifier: MIT */
/*
 * Making and destroying a CQ: the arguments of CQ(), and its handle. The type is in cq.c.
 */

#include "verbs/verbs.h"

/* ---- its kind ---- */

static int destroy_cq(void *handle)
{
    return ibv_destroy_cq(handle);
}

/* Destroying waits until every event that was got is acked. */
static void cq_before_destroy(cqn_object *op)
{
    cqn_cq *self = (cqn_cq *)op;
    cqn_cq_ack(self, self->unacked);
    if (self->channel != NULL) {
        cqn_channel_drop_late(self->channel, self);
    }
}

/* Events that came meanwhile are handed out later, to threads. An engine looks itself, and for more
 * than these: a task can have gone to sleep while the CQ had no handle to arm. */
static void cq_destroy_failed(cqn_object *op)
{
    cqn_cq *self = (cqn_cq *)op;
    const bool late = self->late > 0;
    if (late) {
        self->armed = CQN_UNARMED;
    }
    if (cqn_engine_look_again(self)) {
        self->late = 0;
    }
    else if (late) {
        cqn_channel_add_late(self->channel, self);
    }
}

static void cq_after_destroy(cqn_object *op)
{
    cqn_async_forget((cqn_context *)op->uses[0], op);
    cqn_tally_close((cqn_cq *)op);
}

static int cq_clear(PyObject *op)
{
    cqn_cq *self = (cqn_cq *)op;
    if (self->base.handle == NULL) {
        cqn_cq_forget_completions(self);
        Py_CLEAR(self->name); /* an open one may still be handed out */
        for (size_t i = 0; i < CQN_HISTOGRAMS; i++) {
            PyMem_Free(self->histograms[i]);
            self->histograms[i] = NULL;
        }
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

static const cqn_kind cq_kind = {
    .name = "CQ",
    .destroy_verb = "ibv_destroy_cq",
    .rank = CQN_RANK_CQ,
    .destroy = destroy_cq,
    .before_destroy = cq_before_destroy,
    .destroy_failed = cq_destroy_failed,
    .after_destroy = cq_after_destroy,
    .clear = cq_clear,
};

/* ---- arguments ---- */

typedef struct {
    PyObject *context, *channel, *user_data, *parent_domain, *name;
    uint32_t cqe, comp_vector, wc_flags, create_flags;
    bool extended;
} cq_args;

/* The device's limit is known since it was opened. */
int cqn_check_cqe(const cqn_context *ctx, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "cqe", 1, (uint64_t)ctx->attr.max_cqe, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* Without the argument the CQ is a plain one, whose completions have the fields of ibv_wc. */
static int parse_wc_flags(PyObject *value, cq_args *a)
{
    a->extended = value != Py_None;
    if (!a->extended) {
        return 0;
    }
    if (cqn_member32(value, "wc_flags", "WCExFlags such as WCExFlags.BYTE_LEN", UINT32_MAX,
                     &a->wc_flags) < 0) {
        return -1;
    }
    if (a->wc_flags & ~(uint32_t)CQN_WC_EX_KNOWN) {
        PyErr_Format(PyExc_ValueError, "wc_flags is 0x%x: 0x%x is no flag of WCExFlags",
                     a->wc_flags, a->wc_flags & ~(uint32_t)CQN_WC_EX_KNOWN);
        return -1;
    }
    return 0;
}

static int parse_create_flags(PyObject *value, cq_args *a)
{
    const uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if (cqn_member32(value, "create_flags", "CQCreateFlags such as CQCreateFlags.IGNORE_OVERRUN",
                     UINT32_MAX, &a->create_flags) < 0) {
        return -1;
    }
    if (a->create_flags & ~known) {
        PyErr_Format(PyExc_ValueError, "create_flags is 0x%x: 0x%x is no flag of CQCreateFlags",
                     a->create_flags, a->create_flags & ~known);
        return -1;
    }
    return 0;
}

/* An object of the same context; None becomes NULL. */
static int parse_part(PyObject **part, PyTypeObject *type, const char *name, const cq_args *a)
{
    if (*part == Py_None) {
        *part = NULL;
        return 0;
    }
    return cqn_expect_beside(*part, type, name, a->context, "context");
}

static int parse_new_cq(cqn_state *st, PyObject *args, PyObject *kwargs, cq_args *a)
{
    static const char *const names[] = {"context",       "cqe",      "channel",     "user_data",
                                        "parent_domain", "wc_flags", "comp_vector", "name",
                                        "create_flags",  NULL};
    PyObject *in[Py_ARRAY_LENGTH(names) - 1] = {NULL};
    if (cqn_sort_new("CQ", names, 2, 2, args, kwargs, in) < 0 ||
        cqn_expect(in[0], st->Context, "context") < 0) {
        return -1;
    }
    *a = (cq_args){.context = in[0],
                   .channel = cqn_given(in[2]),
                   .user_data = cqn_given(in[3]),
                   .parent_domain = cqn_given(in[4]),
                   .name = in[7]};
    PyObject *const vector = in[6];
    struct ibv_context *ctx = CQN_OBJ(a->context)->handle;
    uint32_t last_vector = (uint32_t)ctx->num_comp_vectors - 1;
    if (cqn_check_cqe((cqn_context *)a->context, in[1], &a->cqe) < 0 ||
        (vector != NULL && cqn_u32(vector, "comp_vector", last_vector, &a->comp_vector) < 0) ||
        parse_wc_flags(cqn_given(in[5]), a) < 0 ||
        (in[8] != NULL && parse_create_flags(in[8], a) < 0)) {
        return -1;
    }
    if (a->name != NULL && !PyUnicode_Check(a->name)) {
        PyErr_Format(PyExc_TypeError, "name must be str, not %s", Py_TYPE(a->name)->tp_name);
        return -1;
    }
    return parse_part(&a->channel, st->CompletionChannel, "channel", a) < 0 ||
                   parse_part(&a->parent_domain, st->ParentDomain, "parent_domain", a) < 0
               ? -1
               : 0;
}

/* ---- making ---- */

/* Under this name it is counted, also when it is closed. The name goes to exporters, as UTF-8. */
static int set_name(cqn_cq *self, const cq_args *a)
{
    self->name = a->name != NULL ? PyUnicode_FromObject(a->name) : PyUnicode_FromString("");
    if (self->name != NULL && PyUnicode_AsUTF8(self->name) != NULL) {
        self->tally = cqn_tally_for((cqn_context *)a->context, self->name);
    }
    return self->tally != NULL ? 0 : -1;
}

/* The CQ object is the cookie of its events, by which notify/events.c finds it. */
static struct ibv_cq *create_plain(cqn_cq *self, const cq_args *a)
{
    struct ibv_context *context = CQN_OBJ(a->context)->handle;
    struct ibv_comp_channel *channel = a->channel ? CQN_OBJ(a->channel)->handle : NULL;
    struct ibv_cq *cq;
    int err;
    CQN_CREATING(CQN_OBJ(self),
                 cq = ibv_create_cq(context, (int)a->cqe, self, channel, (int)a->comp_vector);
                 err = errno);
    if (cq == NULL) {
        cqn_verbs_error(self->base.state, err, "ibv_create_cq", "%u entries, comp_vector %u",
                        a->cqe, a->comp_vector);
    }
    return cq;
}

/* The number of the QP is always asked for: each completion has it. So is the immediate
 * data, which may be the key of a window that the peer took back; a program that did not
 * ask does not see it. */
static struct ibv_cq *create_extended(cqn_cq *self, const cq_args *a)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = a->cqe,
        .cq_context = self,
        .channel = a->channel ? CQN_OBJ(a->channel)->handle : NULL,
        .comp_vector = a->comp_vector,
        .wc_flags = a->wc_flags | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_IMM,
        .comp_mask = (a->parent_domain ? IBV_CQ_INIT_ATTR_MASK_PD : 0u) |
                     (a->create_flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0u),
        .flags = a->create_flags,
        .parent_domain = a->parent_domain ? CQN_OBJ(a->parent_domain)->handle : NULL,
    };
    struct ibv_context *context = CQN_OBJ(a->context)->handle;
    struct ibv_cq_ex *cq;
    int err;
    CQN_CREATING(CQN_OBJ(self), cq = ibv_create_cq_ex(context, &attr); err = errno);
    if (cq == NULL) {
        bool too_much =
            a->create_flags == 0 && (err == EOPNOTSUPP || err == ENOSYS ||
                                     (err == EINVAL && (a->wc_flags & CQN_WC_EX_EXTRA)));
        cqn_verbs_error(self->base.state, err, "ibv_create_cq_ex",
                        "%u entries, comp_vector %u, wc_flags 0x%x%s%s", a->cqe, a->comp_vector,
                        a->wc_flags, a->create_flags ? ", with these create_flags" : "",
                        too_much ? ": this device does not report all of these fields" : "");
        return NULL;
    }
    self->ex = cq;
    self->wc_flags = a->wc_flags | IBV_WC_EX_WITH_QP_NUM;
    return ibv_cq_ex_to_cq(cq);
}

CQN_RARE PyObject *cqn_cq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    cqn_state *st = cqn_state_of(type);
    cq_args a;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 || cqn_wc_prepare(st) < 0 ||
        parse_new_cq(st, args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_object *used[3] = {CQN_OBJ(a.context)};
    size_t n = 1;
    if (a.channel != NULL) {
        used[n++] = CQN_OBJ(a.channel);
    }
    if (a.parent_domain != NULL) {
        used[n++] = CQN_OBJ(a.parent_domain);
    }
    if ((a.parent_domain != NULL || a.create_flags != 0) && !a.extended) {
        a.extended = true; /* which only such a one can have: with the fields of a plain one */
        a.wc_flags = IBV_WC_STANDARD_FLAGS;
    }
    cqn_cq *self = cqn_new(type, &cq_kind, used, n);
    if (self == NULL) {
        return NULL;
    }
    self->user_data = Py_NewRef(a.user_data);
    self->channel = (cqn_channel *)a.channel;
    self->comp_vector = (int)a.comp_vector;
    struct ibv_cq *cq = set_name(self, &a) < 0 ? NULL
                        : a.extended           ? create_extended(self, &a)
                                               : create_plain(self, &a);
    if (cq == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), cq);
    return (PyObject *)self;
}
