/* SPDX-License-Identifier: MIT */
/*
 * AsyncEvent: what a device reports besides completions, and which waiters get to know.
 *
 * A report is read, acknowledged and queued on its context under one hold of
 * the GIL, so no destroy ever waits for it. Any thread that sleeps, in
 * get_async_event() or for completions in get_event(), does the reading. From
 * the queue get_async_event() hands reports out, once each.
 *
 * Those that tell of a failure also end the waits for completions that may now
 * never come: of each channel that the failure concerns when it is read, all
 * waits that are going on, or else the next one, once. For that the latest
 * report of each failure is kept as long as the failed object lives, with a
 * serial number that channels and waiters compare to what they were told. Only
 * the thread that got a report from get_async_event() is not told of it again.
 * Event loops, which do not sleep in any of these, have a FailureWatch.
 *
 * Queued reports hold no reference to the object that they are about: when it
 * is closed they go, as they do in the kernel.
 */

#include "base/core.h"

#define DRAIN_AT_MOST 64 /* then look what else there is to do */
#define QUEUE_ROOM 1024  /* beyond, no more of a kind are added */

typedef enum { NOTHING, OF_CQ, OF_QP, OF_SRQ, OF_PORT, OF_DEVICE } scope;

struct cqn_report {
    cqn_report *next;
    uint64_t serial;        /* rises with time */
    unsigned long taken_by; /* which thread was handed a failure, or 0 */
    enum ibv_event_type type;
    cqn_object *element; /* the CQ, QP or SRQ, borrowed, or NULL */
    int port_num;        /* or 0 */
};

typedef struct {
    PyObject_HEAD
    PyObject *element; /* the CQ, QP or SRQ, or NULL */
    enum ibv_event_type type;
    int port_num;
} async_event;

/* What an event is about, and whether completions may be missing after it. */
static scope scope_of(enum ibv_event_type type, bool *failure)
{
    *failure = false;
    switch (type) {
    case IBV_EVENT_CQ_ERR:
        *failure = true;
        return OF_CQ;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        *failure = true;
        return OF_QP;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return OF_QP;
    case IBV_EVENT_SRQ_ERR:
        *failure = true;
        return OF_SRQ;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return OF_SRQ;
    case IBV_EVENT_PORT_ERR:
        *failure = true;
        return OF_PORT;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
        return OF_PORT;
    case IBV_EVENT_DEVICE_FATAL:
        *failure = true;
        return OF_DEVICE;
    default:
        return NOTHING;
    }
}

static bool qp_uses(const cqn_qp *qp, const cqn_channel *channel)
{
    return qp->send_cq->channel == channel || qp->recv_cq->channel == channel;
}

/* Only queue pairs have that rank. */
static const cqn_qp *first_qp(const cqn_context *ctx)
{
    return (const cqn_qp *)ctx->first[CQN_RANK_QP];
}

static const cqn_qp *next_qp(const cqn_qp *qp)
{
    return (const cqn_qp *)qp->base.next;
}

static bool port_serves(const cqn_channel *channel, int port_num)
{
    for (const cqn_qp *qp = first_qp(channel->base.context); qp != NULL; qp = next_qp(qp)) {
        if (qp->port_num == port_num && qp_uses(qp, channel)) {
            return true;
        }
    }
    return false;
}

static bool srq_serves(const cqn_channel *channel, const cqn_object *srq)
{
    for (const cqn_qp *qp = first_qp(channel->base.context); qp != NULL; qp = next_qp(qp)) {
        if (CQN_OBJ(qp->srq) == srq && qp->recv_cq->channel == channel) {
            return true;
        }
    }
    return false;
}

/* Whether a failure that would keep completions off this channel. */
static bool concerns(const cqn_report *report, const cqn_channel *channel)
{
    bool failure;
    scope what = scope_of(report->type, &failure);
    const cqn_object *element = report->element;
    if (!failure) {
        return false;
    }
    switch (what) {
    case OF_CQ:
        return element != NULL && ((const cqn_cq *)element)->channel == channel;
    case OF_QP:
        return element != NULL && qp_uses((const cqn_qp *)element, channel);
    case OF_SRQ:
        return element != NULL && srq_serves(channel, element);
    case OF_PORT:
        return port_serves(channel, report->port_num);
    default:
        return what == OF_DEVICE;
    }
}

/* ---- the reports of a context ---- */

int cqn_async_open(cqn_context *ctx)
{
    struct ibv_context *device = ctx->base.handle;
    if (cqn_flag_open(&ctx->async, device) < 0) {
        return -1;
    }
    if (cqn_set_nonblocking(device->async_fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return cqn_gate_open(&ctx->gate);
}

static void tell_by_fd(cqn_context *ctx)
{
    cqn_flag_set(&ctx->async, CQN_OBJ(ctx), ctx->queued != NULL);
}

static void append(cqn_report **list, cqn_report *report)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    *list = report;
}

static bool same(const cqn_report *a, const cqn_report *b)
{
    return a->type == b->type && a->element == b->element && a->port_num == b->port_num;
}

static cqn_report *find_same(cqn_report *list, const cqn_report *report)
{
    while (list != NULL && !same(list, report)) {
        list = list->next;
    }
    return list;
}

static void drop_same(cqn_report **list, const cqn_report *report)
{
    while (*list != NULL && !same(*list, report)) {
        list = &(*list)->next;
    }
    if (*list != NULL) {
        cqn_report *found = *list;
        *list = found->next;
        PyMem_Free(found);
    }
}

/* Frees the reports about `element`, or all. */
static size_t drop(cqn_report **list, const cqn_object *element)
{
    size_t dropped = 0;
    while (*list != NULL) {
        cqn_report *report = *list;
        if (element == NULL || report->element == element) {
            *list = report->next;
            PyMem_Free(report);
            dropped++;
        }
        else {
            list = &report->next;
        }
    }
    return dropped;
}

/* The object is closed: nobody needs to know any more. */
void cqn_async_forget(cqn_context *ctx, const cqn_object *element)
{
    ctx->queued_len -= drop(&ctx->queued, element);
    drop(&ctx->failures, element);
    tell_by_fd(ctx);
}

void cqn_async_clear(cqn_context *ctx)
{
    cqn_async_forget(ctx, NULL);
    cqn_flag_close(&ctx->async);
}

/* Notes for each channel that a failure concerns it, and wakes the waiters. */
static void tell_channels(const cqn_context *ctx, const cqn_report *report)
{
    for (cqn_object *o = ctx->first[CQN_RANK_PD]; o != NULL; o = o->next) {
        cqn_channel *channel = (cqn_channel *)o;
        if (PyObject_TypeCheck(o, ctx->base.state->CompletionChannel) &&
            concerns(report, channel)) {
            channel->concerned = report->serial;
            cqn_gate_wake(&channel->gate);
        }
    }
}

/* Both copies of the report are ours. */
static void enter(cqn_context *ctx, cqn_report *report, cqn_report *copy)
{
    report->serial = ++ctx->async_serial;
    bool failure;
    scope_of(report->type, &failure);
    if (failure) {
        drop_same(&ctx->failures, report);
        *copy = *report;
        append(&ctx->failures, copy);
        tell_channels(ctx, report);
        cqn_failure_watch_signal(ctx);
    }
    else {
        PyMem_Free(copy);
    }
    if (ctx->queued_len >= QUEUE_ROOM && find_same(ctx->queued, report) != NULL) {
        PyMem_Free(report);
        return;
    }
    append(&ctx->queued, report);
    ctx->queued_len++;
    tell_by_fd(ctx);
}

/* Its element is alive, since destroying waits for our ack. */
static void fill(cqn_report *report, const struct ibv_async_event *raw)
{
    bool failure;
    report->type = raw->event_type;
    switch (scope_of(raw->event_type, &failure)) {
    case OF_CQ:
        report->element = raw->element.cq->cq_context;
        break;
    case OF_QP:
        report->element = raw->element.qp->qp_context;
        break;
    case OF_SRQ:
        report->element = raw->element.srq->srq_context;
        break;
    case OF_PORT:
        report->port_num = raw->element.port_num;
        break;
    default:
        break;
    }
}

/* 1: one was read, 0: there is none, -1: an exception. What a report needs is
 * there before it is read, so none is lost; and no Python code runs in here. */
static int read_report(cqn_context *ctx)
{
    cqn_report *report = PyMem_Calloc(1, sizeof(*report));
    cqn_report *copy = PyMem_Calloc(1, sizeof(*copy));
    struct ibv_async_event raw;
    int err = 0;
    errno = 0;
    if (report == NULL || copy == NULL) {
        err = ENOMEM;
        PyErr_NoMemory();
    }
    else if (ibv_get_async_event(ctx->base.handle, &raw) != 0) {
        /* A read of nothing at all means the same as EIO: the device left. */
        err = errno == 0 ? EIO : errno == EINTR ? EAGAIN : errno;
        if (err != EAGAIN) {
            cqn_verbs_error(ctx->base.state, err, "ibv_get_async_event",
                            "no more events will come");
        }
    }
    if (err != 0) {
        PyMem_Free(report);
        PyMem_Free(copy);
        return err == EAGAIN ? 0 : -1;
    }
    fill(report, &raw);
    ibv_ack_async_event(&raw);
    enter(ctx, report, copy);
    return 1;
}

/* Takes the reports that the device has into the context's queue. */
int cqn_async_drain(cqn_context *ctx)
{
    int rc = 1;
    for (int i = 0; rc > 0 && i < DRAIN_AT_MOST; i++) {
        rc = read_report(ctx);
    }
    return rc < 0 ? -1 : 0;
}

/* ---- handing out ---- */

/* Steals the reference to the element. */
static PyObject *new_event(cqn_state *st, const cqn_report *report, PyObject *element)
{
    async_event *self = (async_event *)st->AsyncEvent->tp_alloc(st->AsyncEvent, 0);
    if (self == NULL) {
        Py_XDECREF(element);
        return NULL;
    }
    self->type = report->type;
    self->port_num = report->port_num;
    self->element = element;
    return (PyObject *)self;
}

/* One that is in the midst of being deallocated is past saving. */
static PyObject *own_element(const cqn_report *report)
{
    cqn_object *element = report->element;
    return element != NULL && cqn_try_ref(element) ? (PyObject *)element : NULL;
}

static PyObject *take(cqn_object *self)
{
    cqn_context *ctx = (cqn_context *)self;
    if (ctx->queued == NULL && cqn_async_drain(ctx) < 0) {
        return NULL;
    }
    cqn_report *report = ctx->queued;
    if (report == NULL) {
        return NULL;
    }
    /* The object first: to make it can run code that takes, or drops, this one. */
    const cqn_report copy = *report;
    PyObject *event = new_event(self->state, &copy, own_element(&copy));
    if (event == NULL) {
        return NULL;
    }
    report = ctx->queued;
    if (report == NULL || report->serial != copy.serial) {
        Py_DECREF(event);
        return cqn_open(self) == NULL ? NULL : take(self);
    }
    cqn_report *failure = find_same(ctx->failures, report);
    if (failure != NULL && failure->serial == report->serial) {
        failure->taken_by = PyThread_get_thread_ident();
    }
    ctx->queued = report->next;
    ctx->queued_len--;
    PyMem_Free(report);
    tell_by_fd(ctx);
    return event;
}

/* What was read and not handed out, and the failures, for whoever looks on: a list of AsyncEvents;
 * nothing is taken. To make an event can run code that drops reports, so all are copied first. */
PyObject *cqn_async_known(cqn_context *ctx)
{
    cqn_report known[16];
    size_t n = 0;
    for (const cqn_report *r = ctx->failures; r != NULL && n < Py_ARRAY_LENGTH(known);
         r = r->next) {
        known[n++] = *r;
    }
    for (const cqn_report *r = ctx->queued; r != NULL && n < Py_ARRAY_LENGTH(known); r = r->next) {
        if (find_same(ctx->failures, r) == NULL) {
            known[n++] = *r;
        }
    }
    PyObject *elements[Py_ARRAY_LENGTH(known)];
    for (size_t i = 0; i < n; i++) {
        elements[i] = own_element(&known[i]);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < n; i++) {
        PyObject *event = new_event(ctx->base.state, &known[i], elements[i]);
        if (list != NULL && (event == NULL || PyList_Append(list, event) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(event);
    }
    return list;
}

/* Raises AsyncEventError; -1, as whoever raises. */
static int raise_failure(cqn_state *st, const cqn_report *report)
{
    const char *name = ibv_event_type_str(report->type);
    PyObject *event = new_event(st, report, own_element(report));
    PyObject *exc = event == NULL
                        ? NULL
                        : PyObject_CallFunction(
                              st->AsyncEventError, "N",
                              PyUnicode_FromFormat("the device reports \"%s\": completions that "
                                                   "are awaited here may never come; see the "
                                                   "attribute event",
                                                   name));
    if (exc != NULL && PyObject_SetAttrString(exc, "event", event) == 0) {
        PyErr_SetObject(st->AsyncEventError, exc);
    }
    Py_XDECREF(exc);
    Py_XDECREF(event);
    return -1;
}

/* The oldest failure after `told` that concerns the channel. */
static const cqn_report *next_failure(const cqn_channel *channel, uint64_t told)
{
    const cqn_report *found = NULL;
    for (const cqn_report *r = channel->base.context->failures; r != NULL; r = r->next) {
        if (r->serial > told && (found == NULL || r->serial < found->serial) &&
            concerns(r, channel)) {
            found = r;
        }
    }
    return found;
}

static void advance(cqn_channel *channel, uint64_t *told, uint64_t serial)
{
    *told = serial;
    channel->told = channel->told > serial ? channel->told : serial;
}

/* -1 with AsyncEventError if a failure concerns this channel of which a waiter,
 * which was `told` of all up to there, does not know. */
int cqn_async_check(cqn_channel *channel, uint64_t *told)
{
    const uint64_t all = channel->concerned;
    const cqn_report *failure;
    while (*told < all && (failure = next_failure(channel, *told)) != NULL) {
        const cqn_report copy = *failure;
        if (copy.taken_by != PyThread_get_thread_ident()) {
            cqn_state *st = channel->base.state;
            raise_failure(st, &copy);
            if (PyErr_ExceptionMatches(st->AsyncEventError)) {
                advance(channel, told, copy.serial);
            }
            return -1;
        }
        advance(channel, told, copy.serial);
    }
    if (*told < all) {
        advance(channel, told, all);
    }
    return 0;
}

/* ---- telling those that watch ---- */

/* What is being closed, or deallocated, is past saving. */
static bool is_due(const cqn_report *failure, uint64_t told)
{
    const cqn_object *element = failure->element;
    return failure->serial > told &&
           (element == NULL ||
            (element->handle != NULL && !element->dying && cqn_has_refs((PyObject *)element)));
}

static Py_ssize_t count_due(const cqn_context *ctx, uint64_t told)
{
    Py_ssize_t n = 0;
    for (const cqn_report *r = ctx->failures; r != NULL; r = r->next) {
        n += is_due(r, told);
    }
    return n;
}

static void mark_cqs_of(const cqn_qp *qp)
{
    qp->send_cq->marked = qp->recv_cq->marked = true;
}

static void mark_cqs_of_port(const cqn_context *ctx, int port_num)
{
    for (const cqn_qp *qp = first_qp(ctx); qp != NULL; qp = next_qp(qp)) {
        if (qp->base.handle != NULL && qp->port_num == port_num) {
            mark_cqs_of(qp);
        }
    }
}

static void mark_cqs_of_srq(const cqn_context *ctx, const cqn_object *srq)
{
    for (const cqn_qp *qp = first_qp(ctx); qp != NULL; qp = next_qp(qp)) {
        if (qp->base.handle != NULL && CQN_OBJ(qp->srq) == srq) {
            qp->recv_cq->marked = true;
        }
    }
}

/* Appends the CQs that were marked, and leaves no mark. */
static int append_marked(const cqn_context *ctx, PyObject *cqs)
{
    int rc = 0;
    cqn_object *refused = NULL;
    for (cqn_object *o = ctx->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        if (!PyObject_TypeCheck(o, ctx->base.state->CQ) || !((cqn_cq *)o)->marked) {
            continue;
        }
        ((cqn_cq *)o)->marked = false;
        if (rc == 0 && o->handle != NULL && cqn_try_ref(o)) {
            rc = PyList_Append(cqs, (PyObject *)o);
            if (rc < 0) {
                refused = o; /* to drop it can change the list that we walk */
            }
            else {
                Py_DECREF(o);
            }
        }
    }
    Py_XDECREF(refused);
    return rc;
}

/* An AsyncEvent of nothing and an empty list, to be filled in. */
static PyObject *new_pair(cqn_state *st)
{
    const cqn_report nothing = {.next = NULL};
    PyObject *event = new_event(st, &nothing, NULL);
    PyObject *cqs = event == NULL ? NULL : PyList_New(0);
    PyObject *pair = cqs == NULL ? NULL : PyTuple_Pack(2, event, cqs);
    Py_XDECREF(cqs);
    Py_XDECREF(event);
    return pair;
}

/* Steals the reference to the element. */
static int fill_pair(PyObject *pair, const cqn_context *ctx, const cqn_report *failure,
                     PyObject *element)
{
    async_event *event = (async_event *)PyTuple_GET_ITEM(pair, 0);
    PyObject *cqs = PyTuple_GET_ITEM(pair, 1);
    event->type = failure->type;
    event->port_num = failure->port_num;
    event->element = element;
    bool is_failure;
    switch (scope_of(failure->type, &is_failure)) {
    case OF_CQ:
        ((cqn_cq *)failure->element)->marked = true;
        break;
    case OF_QP:
        mark_cqs_of((cqn_qp *)failure->element);
        break;
    case OF_SRQ:
        mark_cqs_of_srq(ctx, failure->element);
        break;
    case OF_PORT:
        mark_cqs_of_port(ctx, failure->port_num);
        break;
    default:
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(Py_None));
        Py_DECREF(cqs);
        return 0;
    }
    return append_marked(ctx, cqs);
}

/* Makes the list one pair longer, or as short as it should be. */
static int adjust(cqn_state *st, PyObject *pairs, Py_ssize_t wanted)
{
    Py_ssize_t size = PyList_GET_SIZE(pairs);
    if (size > wanted) {
        return PyList_SetSlice(pairs, wanted, size, NULL);
    }
    PyObject *pair = new_pair(st);
    int rc = pair == NULL ? -1 : PyList_Append(pairs, pair);
    Py_XDECREF(pair);
    return rc;
}

static int fill_pairs(PyObject *pairs, const cqn_context *ctx, uint64_t told)
{
    int rc = 0;
    Py_ssize_t i = 0;
    for (const cqn_report *r = ctx->failures; rc == 0 && r != NULL; r = r->next) {
        if (!is_due(r, told)) {
            continue;
        }
        PyObject *element = own_element(r);
        if (element != NULL || r->element == NULL) {
            rc = fill_pair(PyList_GET_ITEM(pairs, i++), ctx, r, element);
        }
    }
    /* Without a GIL an element can have gone since they were counted. */
    const Py_ssize_t size = PyList_GET_SIZE(pairs);
    return rc < 0 || i == size ? rc : PyList_SetSlice(pairs, i, size, NULL);
}

/* The failures after *told, which is advanced; for FailureWatch.read(), `self`
 * is the watch. To make an object can run any code, which can close this one or
 * enter another failure: so all are made before the first is filled in, and
 * from there to the end nothing changes. Without memory nothing is told. */
PyObject *cqn_async_failures(cqn_object *self, uint64_t *told)
{
    cqn_state *st = self->state;
    PyObject *pairs = PyList_New(0);
    int rc = pairs == NULL ? -1 : 0;
    while (rc == 0 && cqn_open(self) != NULL) {
        const cqn_context *ctx = self->context;
        Py_ssize_t wanted = count_due(ctx, *told);
        if (PyList_GET_SIZE(pairs) != wanted) {
            rc = adjust(st, pairs, wanted);
        }
        else if ((rc = fill_pairs(pairs, ctx, *told)) == 0) {
            *told = ctx->async_serial;
            return pairs;
        }
    }
    Py_XDECREF(pairs);
    return NULL;
}

/* A waiter for reports gets the failures as such. */
static int check_nothing(cqn_object *Py_UNUSED(self), uint64_t *Py_UNUSED(told))
{
    return 0;
}

static int queued_fd(const cqn_object *self)
{
    return ((const cqn_context *)self)->async.raised_fd;
}

static const cqn_wait_kind async_wait = {
    .take = take,
    .check = check_nothing,
    .fd = queued_fd,
    .verb = "ibv_get_async_event",
    .timed_out = "no asynchronous event within the timeout",
};

const char cqn_get_async_event_doc[] =
    "get_async_event($self, /, timeout=None)\n--\n\n"
    "Sleep until the device reports something besides completions, and return the AsyncEvent.\n\n"
    "It is acknowledged already. `timeout` is in seconds, None waits for ever; TimeoutError at "
    "its end, ClosedError if the context is closed meanwhile, DeviceRemovedError when the device "
    "has gone. Events that were there before the call count, each comes once.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_get_async_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("get_async_event", names, 1, 0, args, nargs, kwnames, &timeout) < 0) {
        return NULL;
    }
    return cqn_gate_wait(CQN_OBJ(op), &((cqn_context *)op)->gate, &async_wait, timeout, 0);
}

const char cqn_try_get_async_event_doc[] =
    "try_get_async_event($self, /)\n--\n\n"
    "The next AsyncEvent if there is one, or None; never sleeps.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_try_get_async_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *event = cqn_open(CQN_OBJ(op)) == NULL ? NULL : take(CQN_OBJ(op));
    return event != NULL || PyErr_Occurred() ? event : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static PyObject *event_get_event_type(PyObject *op, void *Py_UNUSED(unused))
{
    uint32_t type = ((async_event *)op)->type;
    PyObject *const *members = cqn_state_of(Py_TYPE(op))->event_type;
    return type < CQN_EVENT_TYPES && members[type] != NULL ? Py_NewRef(members[type])
                                                           : PyLong_FromUnsignedLong(type);
}

/* The closure tells which attribute asks. */
static PyObject *event_get_element(PyObject *op, void *wanted)
{
    const async_event *self = (async_event *)op;
    bool failure;
    bool it_is = self->element != NULL && (uintptr_t)wanted == scope_of(self->type, &failure);
    return Py_NewRef(it_is ? self->element : Py_None);
}

static PyObject *event_get_port_num(PyObject *op, void *Py_UNUSED(unused))
{
    int port_num = ((async_event *)op)->port_num;
    return port_num > 0 ? PyLong_FromLong(port_num) : Py_NewRef(Py_None);
}

static PyObject *event_repr(PyObject *op)
{
    const async_event *self = (async_event *)op;
    PyObject *type = event_get_event_type(op, NULL);
    PyObject *name = type == NULL ? NULL : PyObject_GetAttrString(type, "name");
    if (type != NULL && name == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        name = Py_NewRef(type);
    }
    PyObject *repr = NULL;
    if (name != NULL) {
        repr = self->element ? PyUnicode_FromFormat("<AsyncEvent %S, %R>", name, self->element)
               : self->port_num > 0
                   ? PyUnicode_FromFormat("<AsyncEvent %S, port %d>", name, self->port_num)
                   : PyUnicode_FromFormat("<AsyncEvent %S>", name);
    }
    Py_XDECREF(name);
    Py_XDECREF(type);
    return repr;
}

static int event_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((async_event *)op)->element);
    return 0;
}

static int event_clear(PyObject *op)
{
    Py_CLEAR(((async_event *)op)->element);
    return 0;
}

static void event_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    event_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyGetSetDef event_getset[] = {
    {"event_type", event_get_event_type, NULL, "AsyncEventType; a plain int if it is unknown.",
     NULL},
    {"cq", event_get_element, NULL, "The CQ that it is about, or None.", (void *)OF_CQ},
    {"qp", event_get_element, NULL, "The QP that it is about, or None.", (void *)OF_QP},
    {"srq", event_get_element, NULL, "The SRQ that it is about, or None.", (void *)OF_SRQ},
    {"port_num", event_get_port_num, NULL, "The port that it is about, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_doc, "What a device reports besides completions, see Context.get_async_event().\n\n"
                "It is about a CQ, a QP, an SRQ, a port, or the whole device.\n\n"
                "Wraps struct ibv_async_event, see ibv_get_async_event(3)."},
    {Py_tp_repr, event_repr},
    {Py_tp_traverse, event_traverse},
    {Py_tp_clear, event_clear},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_getset, event_getset},
    {0, NULL},
};

PyType_Spec cqn_async_event_spec = {
    .name = "cqnotify.AsyncEvent",
    .basicsize = sizeof(async_event),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = event_slots,
};
