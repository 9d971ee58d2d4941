/* SPDX-License-Identifier: MIT */
/*
 * CQ: a completion queue.
 *
 * notify/cq.h lists the files that handle its events and turn its completions into Python objects;
 * cq_poll.c has the methods that poll. The completions of a CQ with an AsyncCQ go to the engine
 * (await/); the CQ does not own it.
 */

#include "verbs/verbs.h"

/* ---- destruction ---- */

static int destroy_cq(void *handle)
{
    return ibv_destroy_cq(handle);
}

/* ibv_destroy_cq() waits until every event that was read has been acknowledged. */
static void cq_before_destroy(cqn_object *op)
{
    cqn_cq *self = (cqn_cq *)op;
    cqn_cq_ack(self, self->unacked);
    CQN_STEP(closing, self, 1, 0, 0);
    if (self->channel != NULL) {
        cqn_channel_drop_late(self->channel, self);
    }
}

/* Events that arrived during the attempt are delivered to threads now. An engine polls even without
 * an event: a task may have begun to wait while the CQ had no handle to arm. */
static void cq_destroy_failed(cqn_object *op)
{
    cqn_cq *self = (cqn_cq *)op;
    const bool late = self->late > 0;
    CQN_STEP(closing, self, 0, 0, 0);
    if (late) {
        cqn_cq_forget_arming(self);
    }
    if (cqn_engine_poll_again(self)) {
        self->late = 0;
    }
    else if (late) {
        cqn_channel_add_late(self->channel, self);
    }
}

static void cq_after_destroy(cqn_object *op)
{
    cqn_async_forget((cqn_context *)op->uses[0], op);
    cqn_closed_counters_add((cqn_cq *)op);
}

static int cq_clear(PyObject *op)
{
    cqn_cq *self = (cqn_cq *)op;
    if (self->base.handle == NULL) {
        cqn_cq_forget_completions(self);
        Py_CLEAR(self->name); /* an open CQ may still be returned by get_event() */
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

/* Converts the argument `cqe`, limited by the device. Returns -1 with an exception. */
static int check_cqe(const cqn_context *ctx, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "cqe", 1, (uint64_t)ctx->attr.max_cqe, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* Without this argument the CQ is not extended: its completions have the fields of ibv_wc. */
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

/* Checks that the argument is an object of the same context; None becomes NULL. Returns -1 with an
 * exception. */
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
    if (check_cqe((cqn_context *)a->context, in[1], &a->cqe) < 0 ||
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

/* ---- creation ---- */

/* The CQ is counted under this name even after it is closed. Exporters read the name as UTF-8. */
static int set_name(cqn_cq *self, const cq_args *a)
{
    self->name = a->name != NULL ? PyUnicode_FromObject(a->name) : PyUnicode_FromString("");
    if (self->name != NULL && PyUnicode_AsUTF8(self->name) != NULL) {
        self->closed_counters = cqn_closed_counters_of((cqn_context *)a->context, self->name);
    }
    return self->closed_counters != NULL ? 0 : -1;
}

/* The CQ object is the cookie by which notify/events.c finds the CQ of an event. */
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

/* Every completion has the number of the QP, and the immediate data, which may be the key of a
 * window that the peer invalidated. A program that did not request the immediate data does not see
 * it. */
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

CQN_RARE static PyObject *cq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
        a.extended = true; /* with the fields of a CQ that is not extended */
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
    CQN_STEP(new_cq, self, self->channel, 0, 0);
    return (PyObject *)self;
}

/* ---- arming and acknowledging ---- */

/* Converts the argument of the arming methods. Returns 1, 0, or -1 with an exception. */
static int parse_solicited_only(cqn_cq *self, const char *function, PyObject *const *args,
                                Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"solicited_only", NULL};
    PyObject *value = NULL;
    if (cqn_open(&self->base) == NULL ||
        cqn_args(function, names, 1, 0, args, nargs, kwnames, &value) < 0) {
        return -1;
    }
    int solicited_only = value == NULL ? 0 : PyObject_IsTrue(value);
    if (solicited_only < 0 || !cqn_still_open(&self->base, value != NULL)) {
        return -1;
    }
    if (self->channel == NULL) {
        PyErr_SetString(PyExc_ValueError, "this CQ was made without a channel, so no event can "
                                          "reach you: CQ(context, cqe, channel=...)");
        return -1;
    }
    return solicited_only;
}

static PyObject *cq_req_notify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_cq *self = (cqn_cq *)op;
    int solicited_only = parse_solicited_only(self, "req_notify", args, nargs, kwnames);
    if (solicited_only < 0 || cqn_cq_arm(self, solicited_only) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* A CQ stays armed until its event is read, and is not armed twice. It must be polled after it was
 * armed and before the caller sleeps. Returns 1, 0, or -1 with an exception. */
static int arm_if_empty(cqn_cq *self, bool solicited_only)
{
    cqn_object *deferred = NULL;
    int rc = cqn_cq_poll_few(self, &deferred);
    if (rc == 0 && self->stash_len == 0 && !cqn_cq_is_armed(self, solicited_only)) {
        rc = cqn_cq_arm(self, solicited_only) < 0 ? -1 : cqn_cq_poll_few(self, &deferred);
    }
    bool safe = self->stash_len == 0;
    cqn_decref_deferred(deferred);
    return rc < 0 || cqn_wake_after_routing(self) < 0 ? -1 : safe;
}

static PyObject *cq_arm_if_empty(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_cq *self = (cqn_cq *)op;
    int solicited_only = parse_solicited_only(self, "arm_if_empty", args, nargs, kwnames);
    if (solicited_only < 0) {
        return NULL;
    }
    if (self->engine != NULL && !CQN_LOCK_ALL(op)) {
        return NULL;
    }
    int safe = arm_if_empty(self, solicited_only);
    return safe < 0 ? NULL : PyBool_FromLong(safe);
}

/* Refuses more events than were counted: ibv_destroy_cq() would wait forever. */
static PyObject *cq_ack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    static const char *const names[] = {"n", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *value = NULL;
    uint32_t n = 1;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("ack", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        (value != NULL && cqn_u32(value, "n", UINT32_MAX, &n) < 0) ||
        !cqn_still_open(&self->base, value != NULL)) {
        return NULL;
    }
    if (n > self->unacked) {
        PyErr_Format(PyExc_ValueError,
                     "n is %u: this CQ has %u unacked event%s (acking more would make its "
                     "closing hang)",
                     n, self->unacked, self->unacked == 1 ? "" : "s");
        return NULL;
    }
    cqn_cq_ack(self, n);
    Py_RETURN_NONE;
}

/* ---- modification ---- */

/* Some devices disarm a CQ when they resize it, while a thread may wait for its event. A completion
 * that arrived before the CQ is armed again raises no event; the core then adds its own event to
 * the channel, and also if the CQ cannot be polled. An engine polls by itself. */
static int arm_again(cqn_cq *self)
{
    const cqn_armed armed = self->armed;
    cqn_cq_forget_arming(self);
    if (armed == CQN_UNARMED || cqn_engine_poll_again(self)) {
        return 0;
    }
    cqn_object *deferred = NULL;
    int rc = cqn_cq_arm(self, armed == CQN_ARMED_SOLICITED);
    if (rc == 0) {
        rc = cqn_cq_drain(self, &deferred);
    }
    /* Creating an exception can run code that closes the CQ. */
    const bool raise = (rc < 0 || self->stash_len > 0) && self->base.handle != NULL;
    if (raise) {
        cqn_cq_add_event(self);
    }
    CQN_STEP(resized, self, raise, 0, 0);
    cqn_decref_deferred(deferred);
    return rc;
}

CQN_RARE static PyObject *cq_resize(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"cqe", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *value = NULL;
    uint32_t cqe;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("resize", names, 1, 1, args, nargs, kwnames, &value) < 0 ||
        check_cqe(self->base.context, value, &cqe) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    struct ibv_cq *cq = self->base.handle;
    int err;
    CQN_IN_KERNEL(&self->base, err = cqn_errno_of(ibv_resize_cq(cq, (int)cqe)));
    if (err != 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_resize_cq",
                               err == EINVAL ? "from %d to %u entries: does it hold more "
                                               "completions than that? poll them first"
                                             : "from %d to %u entries",
                               cq->cqe, cqe);
    }
    return arm_again(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The moderation is kept only by the device. */
CQN_RARE static PyObject *cq_modify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"cq_count", "cq_period", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *in[2] = {NULL, NULL};
    uint32_t count, period;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("modify", names, 2, 2, args, nargs, kwnames, in) < 0 ||
        cqn_u32(in[0], "cq_count", UINT16_MAX, &count) < 0 ||
        cqn_u32(in[1], "cq_period", UINT16_MAX, &period) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    struct ibv_modify_cq_attr attr = {
        .attr_mask = IBV_CQ_ATTR_MODERATE,
        .moderate = {.cq_count = (uint16_t)count, .cq_period = (uint16_t)period},
    };
    struct ibv_cq *cq = self->base.handle;
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_modify_cq(cq, &attr));
    if (err != 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_modify_cq",
                               "moderation of events by cq_count %u, cq_period %u; "
                               "query_device_ex().cq_mod_caps has the limits",
                               count, period);
    }
    Py_RETURN_NONE;
}

/* ---- attributes ---- */

static PyObject *cq_get_channel(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return NULL;
    }
    cqn_channel *channel = ((cqn_cq *)op)->channel;
    return Py_NewRef(channel ? (PyObject *)channel : Py_None);
}

static PyObject *cq_get_cqe(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_cq *cq = cqn_open(CQN_OBJ(op));
    return cq == NULL ? NULL : PyLong_FromLong(cq->cqe);
}

static PyObject *cq_get_name(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(((cqn_cq *)op)->name) : NULL;
}

/* The requested flags, and the number of the QP. */
static PyObject *cq_get_wc_flags(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cq *self = (cqn_cq *)op;
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return NULL;
    }
    return self->ex ? cqn_flags("WCExFlags", &self->base.state->wc_ex_flags, self->wc_flags)
                    : Py_NewRef(Py_None);
}

/* The state since the latest event, even if a wait has timed out. */
CQN_RARE static PyObject *cq_get_armed(PyObject *op, void *Py_UNUSED(unused))
{
    static const char *const names[] = {
        [CQN_UNARMED] = "no",
        [CQN_ARMED_SOLICITED] = "solicited",
        [CQN_ARMED] = "any",
    };
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyUnicode_FromString(names[((cqn_cq *)op)->armed]) : NULL;
}

static PyObject *cq_get_held(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromSize_t(cqn_stash_len((cqn_cq *)op)) : NULL;
}

CQN_RARE static PyObject *cq_get_engine(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return NULL;
    }
    PyObject *engine = (PyObject *)cqn_engine_of((cqn_cq *)op);
    return engine != NULL ? engine : Py_NewRef(Py_None);
}

static PyStructSequence_Field stats_fields[] = {
    {"events", "completion events that were read"},
    {"acked", "events that were acknowledged"},
    {"arms", "how often it was armed"},
    {"polls", "how often it was polled"},
    {"completions", "completions that were delivered"},
    {"spurious", "events after which the first poll found nothing"},
    {NULL, NULL},
};

PyStructSequence_Desc cqn_cq_stats_desc = {
    .name = "cqnotify.CQStats",
    .doc = "What a CQ counted since it was made.",
    .fields = stats_fields,
    .n_in_sequence = 6,
};

/* Works on a closed CQ, because programs report statistics then. */
static PyObject *cq_get_stats(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    const uint64_t values[] = {self->stats.events, self->stats.acked,       self->stats.arms,
                               self->stats.polls,  self->stats.completions, self->stats.spurious};
    PyObject *stats = PyStructSequence_New(self->base.state->CQStats);
    for (size_t i = 0; stats != NULL && i < Py_ARRAY_LENGTH(values); i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(values[i]);
        if (n == NULL) {
            Py_CLEAR(stats);
            break;
        }
        PyStructSequence_SetItem(stats, (Py_ssize_t)i, n);
    }
    return stats;
}

static int cq_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((cqn_cq *)op)->user_data);
    return cqn_traverse(op, visit, arg);
}

static PyObject *cq_repr(PyObject *op)
{
    CQN_LOCKED;
    const cqn_cq *self = (cqn_cq *)op;
    const bool named = self->name != NULL && PyUnicode_GET_LENGTH(self->name) > 0;
    PyObject *name = named ? PyUnicode_FromFormat(" %R", self->name) : PyUnicode_FromString("");
    if (name == NULL) {
        return NULL;
    }
    const struct ibv_cq *cq = self->base.handle;
    PyObject *repr = cq == NULL
                         ? PyUnicode_FromFormat("<CQ%U closed>", name)
                         : PyUnicode_FromFormat("<CQ%U on %s, handle %u, %d entries, %u unacked>",
                                                name, cqn_device_name(&self->base), cq->handle,
                                                cq->cqe, self->unacked);
    Py_DECREF(name);
    return repr;
}

static PyMethodDef cq_methods[] = {
    {"req_notify", (PyCFunction)(void (*)(void))cq_req_notify, METH_FASTCALL | METH_KEYWORDS,
     "req_notify($self, /, solicited_only=False)\n--\n\n"
     "Arm the CQ: the next completion that is added raises one event on its channel.\n\n"
     "solicited_only: only a receive whose sender set SOLICITED does, and by the man page an\n"
     "    unsuccessful completion (not every device does that). A CQ that is armed for any\n"
     "    completion stays so.\n\n"
     "Completions that are already queued raise no event: arm, then poll again, and sleep only\n"
     "if that found nothing. arm_if_empty() does all of that.\n\n"
     "Wraps ibv_req_notify_cq(3)."},
    {"arm_if_empty", (PyCFunction)(void (*)(void))cq_arm_if_empty, METH_FASTCALL | METH_KEYWORDS,
     "arm_if_empty($self, /, solicited_only=False)\n--\n\n"
     "Arm the CQ, unless it has completions; return whether it is safe to sleep.\n\n"
     "solicited_only: as for req_notify(): True then promises no more than that the next\n"
     "    solicited completion raises an event.\n\n"
     "True: the CQ is armed, and was empty after that, so the next completion raises an event\n"
     "on the channel. Now sleep, in get_event() or on the channel's fd. False: poll() returns\n"
     "what is there; do not sleep. A CQ that is still armed is not armed again, except after a\n"
     "get_event() that timed out, because that event may have been lost. The event of a\n"
     "completion that was already polled may wake you: call this again then.\n\n"
     "Wraps ibv_poll_cq(3) and ibv_req_notify_cq(3)."},
    {"poll", (PyCFunction)(void (*)(void))cqn_cq_poll, METH_FASTCALL | METH_KEYWORDS,
     "poll($self, /, max_entries=16, *, spin=0.0)\n--\n\n"
     "Return a list of completions, oldest first; it never sleeps.\n\n"
     "max_entries: how many at most, from 1 on. Fewer mean that the CQ was emptied.\n"
     "spin: while there is none, look again for up to this number of seconds, 0 to 60, at the\n"
     "    cost of a CPU but not of the GIL. \"auto\" looks again for as long as the latest waits\n"
     "    took, at most 50 us: a wait begins when poll() finds nothing, and lasts until a\n"
     "    completion has come; where such waits are mostly longer, or the thread has one CPU,\n"
     "    it does not look again.\n\n"
     "A failed work request is a WorkCompletion too: see its status. While the CQ has an\n"
     "AsyncCQ this is its poll().\n\n"
     "Wraps ibv_poll_cq(3), or ibv_start_poll(3) where wc_flags were given."},
    {"poll_into", cqn_cq_poll_into, METH_O,
     "poll_into($self, wcs, /)\n--\n\n"
     "Fill a WCArray with completions, oldest first, and return how many there are.\n\n"
     "wcs: the array, whose earlier content is lost.\n\n"
     "For high rates: no objects are made. Never sleeps. Raises ValueError while the CQ has an\n"
     "AsyncCQ.\n\n"
     "Wraps ibv_poll_cq(3)."},
    {"poll_ids", (PyCFunction)(void (*)(void))cqn_cq_poll_ids, METH_FASTCALL | METH_KEYWORDS,
     "poll_ids($self, /, max_entries=16)\n--\n\n"
     "Return the wr_ids of successful completions, oldest first.\n\n"
     "max_entries: how many at most, from 1 on.\n\n"
     "For high rates. A failed completion ends the list; when it is the first, it is raised as\n"
     "CompletionError, and the next call continues after it. Never sleeps. Raises ValueError\n"
     "while the CQ has an AsyncCQ.\n\n"
     "Wraps ibv_poll_cq(3)."},
    {"ack", (PyCFunction)(void (*)(void))cq_ack, METH_FASTCALL | METH_KEYWORDS,
     "ack($self, /, n=1)\n--\n\n"
     "Acknowledge events that get_event() returned for this CQ.\n\n"
     "n: how many, from 0 to `unacked`.\n\n"
     "It takes a lock, so many at once are cheaper. close() acknowledges the rest.\n\n"
     "Wraps ibv_ack_cq_events(3)."},
    {"resize", (PyCFunction)(void (*)(void))cq_resize, METH_FASTCALL | METH_KEYWORDS,
     "resize($self, /, cqe)\n--\n\n"
     "Change the number of entries; the completions in the CQ are kept.\n\n"
     "cqe: how many it must have at least, from 1 to the device's max_cqe.\n\n"
     "Some devices disarm the CQ. So it is armed again if a thread in get_event() or a task of\n"
     "an AsyncCQ waits, which is woken if there are completions; a loop of your own must poll\n"
     "after this call. Raises VerbsError if the CQ holds more completions than that, or the\n"
     "device can't resize it.\n\n"
     "Wraps ibv_resize_cq(3) and ibv_req_notify_cq(3)."},
    {"modify", (PyCFunction)(void (*)(void))cq_modify, METH_FASTCALL | METH_KEYWORDS,
     "modify($self, /, cq_count, cq_period)\n--\n\n"
     "Moderate events: raise one only after a number of completions, or after a time.\n\n"
     "cq_count: that number, 0 to 65535.\n"
     "cq_period: that time in microseconds, 0 to 65535.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device has no moderation.\n\n"
     "Wraps ibv_modify_cq(3)."},
    {"_why_silent", cqn_cq_why_silent, METH_NOARGS,
     "_why_silent($self, /)\n--\n\n"
     "Why a wait for its completions may have found nothing, for the message of an error.\n\n"
     "Wraps ibv_poll_cq(3), whose completions stay to be polled, and ibv_query_qp(3)."},
    {"_counters", cqn_cq_counters, METH_NOARGS,
     "_counters($self, /)\n--\n\nFor cqnotify.metrics: what it counted."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef cq_getset[] = {
    CQN_USER_DATA(cqn_cq),
    {"name", cq_get_name, NULL, "The name under which it is counted, see cqnotify.metrics.", NULL},
    CQN_POINTER("struct ibv_cq"),
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"channel", cq_get_channel, NULL, "Its CompletionChannel, or None.", NULL},
    {"_armed", cq_get_armed, NULL, "For what it is armed, as far as is known: no, solicited, any.",
     NULL},
    {"_spin", cqn_cq_get_spin, NULL,
     "How many ns spin=\"auto\" spins now, for own requests and for a peer, and how often threads "
     "that spun have polled; None before the first of them.",
     NULL},
    {"_held", cq_get_held, NULL, "Completions that were taken from the device and not polled.",
     NULL},
    {"_engine", cq_get_engine, NULL, "Its AsyncCQ, or None.", NULL},
    {"cqe", cq_get_cqe, NULL, "How many entries it has: at least what was asked for.", NULL},
    {"comp_vector", cqn_get_u32, NULL, "The completion vector that signals its events.",
     (void *)offsetof(cqn_cq, comp_vector)},
    {"wc_flags", cq_get_wc_flags, NULL,
     "The fields that its completions have, WCExFlags; None: those of ibv_wc.", NULL},
    {"unacked", cqn_get_u32, NULL, "Events that were read and not yet acknowledged.",
     (void *)offsetof(cqn_cq, unacked)},
    {"stats", cq_get_stats, NULL, "What it counted since it was made; also after close().", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef cq_members[] = {
    CQN_OBJECT_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot cq_slots[] = {
    {Py_tp_doc,
     "CQ(context, cqe, *, channel=None, comp_vector=0, user_data=None, wc_flags=None, "
     "parent_domain=None, name='', create_flags=0)\n--\n\n"
     "A completion queue.\n\n"
     "context: the Context.\n"
     "cqe: how many entries it must have at least, from 1 to the device's max_cqe; the\n"
     "    attribute says how many it has.\n"
     "channel: the CompletionChannel for its events, of the same context: see req_notify().\n"
     "    None: it raises none.\n"
     "comp_vector: the interrupt vector, from 0 to Context.num_comp_vectors - 1.\n"
     "user_data: any object, kept as an attribute.\n"
     "wc_flags: WCExFlags: its completions have these fields, and qp_num, instead of the usual\n"
     "    ones. None: the usual ones.\n"
     "parent_domain: the hw.ParentDomain that it belongs to; only some providers take one.\n"
     "name: cqnotify.metrics adds up what the CQs of one name count.\n"
     "create_flags: CQCreateFlags: SINGLE_THREADED, one thread at a time uses it, so the\n"
     "    provider takes no lock; IGNORE_OVERRUN, the device does not check whether the CQ is\n"
     "    full.\n\n"
     "BusyError at close() while queue pairs use it. Raises VerbsError if the device does not\n"
     "report the fields of `wc_flags`, takes no parent domain, or lacks a flag.\n\n"
     "Wraps ibv_create_cq(3), or ibv_create_cq_ex(3) where wc_flags, parent_domain or\n"
     "create_flags are given."},
    {Py_tp_new, cq_new},
    {Py_tp_repr, cq_repr},
    {Py_tp_traverse, cq_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, cq_methods},
    {Py_tp_getset, cq_getset},
    {Py_tp_members, cq_members},
    {0, NULL},
};

PyType_Spec cqn_cq_spec = {
    .name = "cqnotify.CQ",
    .basicsize = sizeof(cqn_cq),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cq_slots,
};
