/* SPDX-License-Identifier: MIT */
/*
 * CQ: a completion queue, its events and its completions.
 *
 * A completion goes from the device into the stash, and from there to Python.
 * The stash is what makes poll() safe: a batch leaves it only when all its
 * objects have been made. When a queue pair is made or reset, all that the
 * device still has goes to the stash, so that old completions are never taken
 * for those of new work requests, whatever their numbers.
 */

#include "core.h"

#define BATCH 64

static int destroy_cq(void *handle)
{
    return ibv_destroy_cq(handle);
}

/* Destroying waits until every event that was got is acked. */
static void cq_before_destroy(cqn_object *op)
{
    cqn_cq *self = (cqn_cq *)op;
    if (self->unacked > 0) {
        ibv_ack_cq_events(op->handle, self->unacked);
        self->stats.acked += self->unacked;
        self->unacked = 0;
    }
}

static int cq_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((cqn_cq *)op)->user_data);
    return cqn_traverse(op, visit, arg);
}

static int cq_clear(PyObject *op)
{
    cqn_cq *self = (cqn_cq *)op;
    if (self->base.handle == NULL) {
        PyMem_Free(self->stash);
        self->stash = NULL;
        self->stash_head = self->stash_len = self->stash_room = 0;
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
    .clear = cq_clear,
};

typedef struct {
    PyObject *context, *channel, *user_data;
    uint32_t cqe, comp_vector;
} cq_args;

static int check_cqe(const cqn_context *ctx, PyObject *value, uint32_t *out)
{
    uint64_t n;
    if (cqn_range(value, "cqe", 1, (uint64_t)ctx->attr.max_cqe, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

static int parse_new(cqn_state *st, PyObject *args, PyObject *kwargs, cq_args *a)
{
    static char *names[] = {"context", "cqe", "channel", "comp_vector", "user_data", NULL};
    PyObject *cqe, *vector = NULL;
    *a = (cq_args){.channel = Py_None, .user_data = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOO:CQ", names, &a->context, &cqe,
                                     &a->channel, &vector, &a->user_data) ||
        cqn_expect(a->context, st->Context, "context") < 0) {
        return -1;
    }
    struct ibv_context *ctx = CQN_OBJ(a->context)->handle;
    uint32_t last_vector = (uint32_t)ctx->num_comp_vectors - 1;
    if (check_cqe((cqn_context *)a->context, cqe, &a->cqe) < 0 ||
        (vector != NULL && cqn_u32(vector, "comp_vector", last_vector, &a->comp_vector) < 0)) {
        return -1;
    }
    if (a->channel == Py_None) {
        a->channel = NULL;
    }
    else if (cqn_expect(a->channel, st->CompletionChannel, "channel") < 0) {
        return -1;
    }
    else if (CQN_OBJ(a->channel)->context != CQN_OBJ(a->context)->context) {
        PyErr_SetString(PyExc_ValueError, "channel belongs to another Context");
        return -1;
    }
    return 0;
}

static PyObject *cq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    cqn_state *st = cqn_state_of(type);
    cq_args a;
    if (parse_new(st, args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_object *used[2] = {CQN_OBJ(a.context), CQN_OBJ(a.channel)};
    cqn_cq *self = cqn_new(type, &cq_kind, used, a.channel ? 2 : 1);
    if (self == NULL) {
        return NULL;
    }
    self->user_data = Py_NewRef(a.user_data);
    self->channel = (cqn_channel *)a.channel;
    self->comp_vector = (int)a.comp_vector;
    struct ibv_cq *cq = ibv_create_cq(used[0]->handle, (int)a.cqe, self,
                                      a.channel ? used[1]->handle : NULL, self->comp_vector);
    if (cq == NULL) {
        cqn_verbs_error(st, errno, "ibv_create_cq", "%u entries, comp_vector %u", a.cqe,
                        a.comp_vector);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), cq);
    return (PyObject *)self;
}

/* An event of this CQ was read from the channel. */
void cqn_cq_event(cqn_cq *self)
{
    self->unacked++;
    self->stats.events++;
    self->event_unpolled = true;
}

static int stash_reserve(cqn_cq *self, size_t n)
{
    if (self->stash_len == 0) {
        self->stash_head = 0;
    }
    size_t end = self->stash_head + self->stash_len;
    if (end + n <= self->stash_room) {
        return 0;
    }
    if (self->stash_len + n <= self->stash_room) {
        memmove(self->stash, self->stash + self->stash_head,
                self->stash_len * sizeof(*self->stash));
        self->stash_head = 0;
        return 0;
    }
    size_t room = self->stash_room ? self->stash_room : BATCH;
    while (room < end + n) {
        room *= 2;
    }
    struct ibv_wc *stash = PyMem_Realloc(self->stash, room * sizeof(*stash));
    if (stash == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->stash = stash;
    self->stash_room = room;
    return 0;
}

/* The QP of a completion. One of that number which does not use this CQ is a
 * newer one: the completion's own is gone. */
static cqn_qp *find_qp(cqn_cq *self, uint32_t qp_num)
{
    if (self->last_qp == NULL || self->last_qp->qp_num != qp_num) {
        cqn_qp *qp = cqn_qp_table_find(self->base.context, qp_num);
        bool ours = qp != NULL && (qp->send_cq == self || qp->recv_cq == self);
        self->last_qp = ours ? qp : NULL;
    }
    return self->last_qp;
}

/* Takes up to n completions from the device into the stash, and lets go of what
 * their work requests kept alive. What goes with that is collected in `trash`:
 * dropping it here could run code that comes back to this CQ. Returns how many
 * came, or -1. */
static int fetch_batch(cqn_cq *self, size_t n, cqn_object **trash)
{
    if (stash_reserve(self, n) < 0) {
        return -1;
    }
    struct ibv_wc *wc = self->stash + self->stash_head + self->stash_len;
    int got = ibv_poll_cq(self->base.handle, (int)n, wc);
    if (got < 0) {
        cqn_verbs_error(self->base.state, EIO, "ibv_poll_cq", "it returned %d", got);
        return -1;
    }
    self->stash_len += (size_t)got;
    for (int i = 0; i < got; i++) {
        wc[i].wc_flags &= ~CQN_WC_DATAGRAM;
        cqn_qp *qp = find_qp(self, wc[i].qp_num);
        if (qp != NULL) {
            wc[i].wc_flags |= qp->type == IBV_QPT_UD ? CQN_WC_DATAGRAM : 0;
            cqn_qp_completed(qp, self, &wc[i], trash);
        }
    }
    return got;
}

/* Until the stash holds `want`, or the device has no more. */
static int fetch(cqn_cq *self, size_t want, cqn_object **trash)
{
    while (self->stash_len < want) {
        size_t n = want - self->stash_len;
        n = n < BATCH ? n : BATCH;
        int got = fetch_batch(self, n, trash);
        if (got < 0) {
            return -1;
        }
        if ((size_t)got < n) {
            break;
        }
    }
    return 0;
}

/* Takes everything that the device has for this CQ into the stash. */
int cqn_cq_settle(cqn_cq *self, cqn_object **trash)
{
    return fetch(self, SIZE_MAX, trash);
}

/* A list for what the stash holds, at most `max`. Making it can run the garbage
 * collector, and so code that polls this CQ: then there is less. */
static PyObject *new_list(const cqn_cq *self, size_t max)
{
    for (;;) {
        size_t n = self->stash_len < max ? self->stash_len : max;
        PyObject *list = PyList_New((Py_ssize_t)n);
        if (list == NULL || n <= self->stash_len) {
            return list;
        }
        Py_DECREF(list);
    }
}

/* Hands out up to `max` completions of the stash. */
static PyObject *hand_out(cqn_cq *self, size_t max)
{
    PyObject *list = new_list(self, max);
    size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *wc = cqn_wc_new(self->base.state, &self->stash[self->stash_head + i]);
        if (wc == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, wc);
    }
    if (list != NULL) {
        self->stash_head += n;
        self->stash_len -= n;
        self->stats.completions += n;
    }
    return list;
}

static PyObject *cq_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"max_entries", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *value = NULL;
    uint64_t max = 16;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("poll", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        (value != NULL && cqn_range(value, "max_entries", 1, INT32_MAX, &max) < 0)) {
        return NULL;
    }

    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    cqn_object *trash = NULL;
    PyObject *list = NULL;
    self->stats.polls++;
    int rc = fetch(self, max, &trash);
    if (rc < 0 && self->stash_len > 0) {
        PyErr_Clear(); /* first what there is; the next call says what is wrong */
        rc = 0;
    }
    if (rc == 0) {
        list = hand_out(self, max);
    }
    if (list != NULL && self->event_unpolled) {
        self->event_unpolled = false;
        self->stats.spurious += PyList_GET_SIZE(list) == 0;
    }
    cqn_trash_empty(trash);
    return list;
}

static PyObject *cq_req_notify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames)
{
    static const char *const names[] = {"solicited_only", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *value = NULL;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("req_notify", names, 1, 0, args, nargs, kwnames, &value) < 0) {
        return NULL;
    }
    int solicited_only = value == NULL ? 0 : PyObject_IsTrue(value);
    if (solicited_only < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->channel == NULL) {
        PyErr_SetString(PyExc_ValueError, "this CQ was made without a channel, so no event can "
                                          "reach you: CQ(context, cqe, channel=...)");
        return NULL;
    }
    int err = ibv_req_notify_cq(self->base.handle, solicited_only);
    if (err != 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_req_notify_cq", "");
    }
    self->stats.arms++;
    Py_RETURN_NONE;
}

static PyObject *cq_ack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"n", NULL};
    cqn_cq *self = (cqn_cq *)op;
    PyObject *value = NULL;
    uint32_t n = 1;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("ack", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        (value != NULL && cqn_u32(value, "n", UINT32_MAX, &n) < 0) ||
        cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (n > self->unacked) {
        PyErr_Format(PyExc_ValueError,
                     "n is %u: this CQ has %u unacked event%s (acking more would make its "
                     "closing hang)",
                     n, self->unacked, self->unacked == 1 ? "" : "s");
        return NULL;
    }
    if (n > 0) {
        ibv_ack_cq_events(self->base.handle, n);
        self->unacked -= n;
        self->stats.acked += n;
    }
    Py_RETURN_NONE;
}

static PyObject *cq_get_channel(PyObject *op, void *Py_UNUSED(unused))
{
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return NULL;
    }
    cqn_channel *channel = ((cqn_cq *)op)->channel;
    return Py_NewRef(channel ? (PyObject *)channel : Py_None);
}

static PyObject *cq_get_cqe(PyObject *op, void *Py_UNUSED(unused))
{
    struct ibv_cq *cq = cqn_open(CQN_OBJ(op));
    return cq == NULL ? NULL : PyLong_FromLong(cq->cqe);
}

static PyObject *cq_get_comp_vector(PyObject *op, void *Py_UNUSED(unused))
{
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromLong(((cqn_cq *)op)->comp_vector) : NULL;
}

static PyObject *cq_get_unacked(PyObject *op, void *Py_UNUSED(unused))
{
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromUnsignedLong(((cqn_cq *)op)->unacked) : NULL;
}

static PyStructSequence_Field stats_fields[] = {
    {"events", "completion events that were got"},
    {"acked", "events that were acked"},
    {"arms", "calls of req_notify()"},
    {"polls", "calls of poll()"},
    {"completions", "completions that poll() returned"},
    {"spurious", "events after which the first poll() found nothing"},
    {NULL, NULL},
};

PyStructSequence_Desc cqn_cq_stats_desc = {
    .name = "cqnotify.CQStats",
    .doc = "What a CQ counted since it was made.",
    .fields = stats_fields,
    .n_in_sequence = 6,
};

/* Also of a closed CQ: that is when a program wants to report them. */
static PyObject *cq_get_stats(PyObject *op, void *Py_UNUSED(unused))
{
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

static PyObject *cq_repr(PyObject *op)
{
    struct ibv_cq *cq = CQN_OBJ(op)->handle;
    return cq == NULL ? cqn_repr(op)
                      : PyUnicode_FromFormat("<CQ on %s, %d entries, %u unacked>",
                                             cqn_device_name(CQN_OBJ(op)), cq->cqe,
                                             ((cqn_cq *)op)->unacked);
}

static PyMethodDef cq_methods[] = {
    {"req_notify", (PyCFunction)(void (*)(void))cq_req_notify, METH_FASTCALL | METH_KEYWORDS,
     "req_notify($self, /, solicited_only=False)\n--\n\n"
     "Arm the CQ: the next completion that is added raises one event on its channel.\n\n"
     "With `solicited_only`, only a receive whose sender set SOLICITED does, and by the man page "
     "an unsuccessful completion (not every device does that). Completions that are already "
     "queued raise none: arm, then poll again, and sleep only if that found nothing.\n\n"
     "Wraps ibv_req_notify_cq(3)."},
    {"poll", (PyCFunction)(void (*)(void))cq_poll, METH_FASTCALL | METH_KEYWORDS,
     "poll($self, /, max_entries=16)\n--\n\n"
     "Up to `max_entries` completions, oldest first; fewer mean that the CQ was emptied.\n\n"
     "Never sleeps. A failed work request is a WorkCompletion too: see its status.\n\n"
     "Wraps ibv_poll_cq(3)."},
    {"ack", (PyCFunction)(void (*)(void))cq_ack, METH_FASTCALL | METH_KEYWORDS,
     "ack($self, /, n=1)\n--\n\n"
     "Acknowledge `n` events that get_event() returned for this CQ.\n\n"
     "It takes a lock, so many at once are cheaper. ValueError beyond `unacked`; close() acks "
     "the rest.\n\nWraps ibv_ack_cq_events(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef cq_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"channel", cq_get_channel, NULL, "Its CompletionChannel, or None.", NULL},
    {"cqe", cq_get_cqe, NULL, "How many entries it has: at least what was asked for.", NULL},
    {"comp_vector", cq_get_comp_vector, NULL, "The completion vector that signals its events.",
     NULL},
    {"unacked", cq_get_unacked, NULL, "Events that were got and not yet acked.", NULL},
    {"stats", cq_get_stats, NULL, "What it counted since it was made; also after close().", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef cq_members[] = {
    {"user_data", T_OBJECT, offsetof(cqn_cq, user_data), 0, "Any object of the user's."},
    CQN_OBJECT_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot cq_slots[] = {
    {Py_tp_doc,
     "CQ(context, cqe, *, channel=None, comp_vector=0, user_data=None)\n--\n\n"
     "A completion queue with room for at least `cqe` completions.\n\n"
     "With a `channel` it can raise events there: see req_notify(). BusyError at close() while "
     "queue pairs use it.\n\nWraps ibv_create_cq(3)."},
    {Py_tp_new, cq_new},
    {Py_tp_repr, cq_repr},
    {Py_tp_traverse, cq_traverse},
    {Py_tp_clear, cq_clear},
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
