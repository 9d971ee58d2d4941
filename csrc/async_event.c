/* SPDX-License-Identifier: MIT */
/*
 * AsyncEvent: what a device reports besides completions, and who gets to know.
 *
 * An event is read, acknowledged and queued on its context under one hold of
 * the GIL, so no destroy ever waits for it. Anybody who sleeps, in
 * get_async_event() or for completions in get_event(), does the reading. From
 * the queue get_async_event() hands events out, once each. Those that tell of a
 * failure also end every get_event() on a channel to which completions of the
 * failed object would come: they may never come. Each channel is told once,
 * whether it is asleep when the event is read or goes to sleep while the event
 * still waits in the queue.
 */

#include "core.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DRAIN_AT_MOST 64 /* then look what else there is to do */
#define QUEUE_ROOM 1024  /* beyond, no more of a kind are added */

typedef enum { NOTHING, OF_CQ, OF_QP, OF_PORT, OF_DEVICE } scope;

struct cqn_async_event {
    PyObject_HEAD
    cqn_async_event *next; /* in the queue, which holds it strongly */
    uint64_t serial;       /* rises with time */
    PyObject *element;     /* the CQ or QP, or NULL */
    enum ibv_event_type type;
    int port_num; /* or 0 */
};

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

static bool port_serves(const cqn_channel *channel, int port_num)
{
    const cqn_context *ctx = channel->base.context;
    for (size_t i = 0; ctx->qps != NULL && i <= ctx->qps_mask; i++) {
        const cqn_qp *qp = ctx->qps[i];
        if (qp != NULL && qp->port_num == port_num && qp_uses(qp, channel)) {
            return true;
        }
    }
    return false;
}

/* Whether a failure that would keep completions off this channel. */
static bool concerns(const cqn_async_event *event, const cqn_channel *channel)
{
    bool failure;
    scope what = scope_of(event->type, &failure);
    const cqn_object *element = CQN_OBJ(event->element);
    if (!failure || (element != NULL && element->handle == NULL)) {
        return false; /* a closed object has no completions to come */
    }
    switch (what) {
    case OF_CQ:
        return element != NULL && ((const cqn_cq *)element)->channel == channel;
    case OF_QP:
        return element != NULL && qp_uses((const cqn_qp *)element, channel);
    case OF_PORT:
        return port_serves(channel, event->port_num);
    default:
        return what == OF_DEVICE;
    }
}

/* ---- the queue of a context ---- */

int cqn_async_open(cqn_context *ctx)
{
    struct ibv_context *device = ctx->base.handle;
    struct epoll_event readable = {.events = EPOLLIN};
    ctx->queued_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ctx->async_fd = epoll_create1(EPOLL_CLOEXEC);
    ctx->has_async = true;
    if (ctx->queued_fd < 0 || ctx->async_fd < 0 ||
        epoll_ctl(ctx->async_fd, EPOLL_CTL_ADD, ctx->queued_fd, &readable) < 0 ||
        epoll_ctl(ctx->async_fd, EPOLL_CTL_ADD, device->async_fd, &readable) < 0 ||
        cqn_set_nonblocking(device->async_fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return cqn_gate_open(&ctx->gate);
}

static void enqueue(cqn_context *ctx, cqn_async_event *event)
{
    *(ctx->async_last ? &ctx->async_last->next : &ctx->async_first) = event;
    ctx->async_last = event;
    if (ctx->async_len++ == 0) {
        uint64_t one = 1;
        ssize_t n = write(ctx->queued_fd, &one, sizeof(one));
        (void)n; /* an eventfd takes it */
    }
}

static PyObject *dequeue(cqn_context *ctx)
{
    cqn_async_event *event = ctx->async_first;
    if (event == NULL) {
        return NULL;
    }
    ctx->async_first = event->next;
    event->next = NULL;
    if (--ctx->async_len == 0) {
        uint64_t count;
        ctx->async_last = NULL;
        ssize_t n = read(ctx->queued_fd, &count, sizeof(count));
        (void)n;
    }
    return (PyObject *)event;
}

void cqn_async_clear(cqn_context *ctx)
{
    while (ctx->async_first != NULL) {
        Py_DECREF(dequeue(ctx));
    }
    if (ctx->has_async) {
        ctx->has_async = false;
        close(ctx->async_fd);
        close(ctx->queued_fd);
    }
}

int cqn_async_traverse(const cqn_context *ctx, visitproc visit, void *arg)
{
    for (cqn_async_event *event = ctx->async_first; event != NULL; event = event->next) {
        Py_VISIT(event);
    }
    return 0;
}

static bool same(const cqn_async_event *a, const cqn_async_event *b)
{
    return a->type == b->type && a->element == b->element && a->port_num == b->port_num;
}

/* Instead of one more of a kind, the queue has that one anew. */
static bool refresh(const cqn_context *ctx, const cqn_async_event *event)
{
    cqn_async_event *e = ctx->async_first;
    while (e != NULL && !same(e, event)) {
        e = e->next;
    }
    if (e != NULL) {
        e->serial = event->serial;
    }
    return e != NULL;
}

/* Wakes those who wait on channels that it concerns. Runs no Python code. */
static void tell_waiters(const cqn_context *ctx, cqn_async_event *event)
{
    for (cqn_object *o = ctx->first; o != NULL; o = o->next) {
        cqn_channel *channel = (cqn_channel *)o;
        if (PyObject_TypeCheck(o, ctx->base.state->CompletionChannel) &&
            channel->gate.waiters > 0 && concerns(event, channel)) {
            cqn_gate_interrupt(&channel->gate, (PyObject *)event);
        }
    }
}

/* An event that the queue has while this channel has not been told of it; of
 * several in a row that say the same, the latest. */
PyObject *cqn_async_untold(const cqn_channel *channel)
{
    cqn_async_event *found = NULL;
    for (cqn_async_event *e = channel->base.context->async_first; e != NULL; e = e->next) {
        if (e->serial > channel->gate.told && concerns(e, channel)) {
            if (found != NULL && !same(found, e)) {
                break;
            }
            found = found != NULL && found->serial > e->serial ? found : e;
        }
    }
    return (PyObject *)found;
}

/* Its element is alive, since destroying waits for our ack, but may be past
 * saving: in the midst of being deallocated. */
static void fill(cqn_async_event *event, const struct ibv_async_event *raw)
{
    bool failure;
    void *element = NULL;
    event->type = raw->event_type;
    switch (scope_of(raw->event_type, &failure)) {
    case OF_CQ:
        element = raw->element.cq->cq_context;
        break;
    case OF_QP:
        element = raw->element.qp->qp_context;
        break;
    case OF_PORT:
        event->port_num = raw->element.port_num;
        break;
    default:
        break;
    }
    event->element = element != NULL && Py_REFCNT(element) > 0 ? Py_NewRef(element) : NULL;
}

/* 1: one event was read and queued, 0: there is none, -1: an exception. What
 * an event needs is there before it is read, so none is lost. */
static int read_event(cqn_context *ctx)
{
    PyTypeObject *type = ctx->base.state->AsyncEvent;
    cqn_async_event *event = (cqn_async_event *)type->tp_alloc(type, 0);
    if (event == NULL) {
        return -1;
    }
    struct ibv_async_event raw;
    struct ibv_context *device = ctx->base.handle; /* the allocation can run code */
    errno = 0;
    if (device == NULL || ibv_get_async_event(device, &raw) != 0) {
        int err = device == NULL || errno == EINTR ? EAGAIN : errno;
        Py_DECREF(event);
        if (err == EAGAIN) {
            return 0;
        }
        /* A read of nothing at all means the same as EIO: the device left. */
        cqn_verbs_error(ctx->base.state, err ? err : EIO, "ibv_get_async_event",
                        "no more events will come");
        return -1;
    }
    fill(event, &raw);
    ibv_ack_async_event(&raw);
    event->serial = ++ctx->async_serial;
    tell_waiters(ctx, event);
    if (ctx->async_len >= QUEUE_ROOM && refresh(ctx, event)) {
        Py_DECREF(event);
    }
    else {
        enqueue(ctx, event);
    }
    return 1;
}

/* Takes the events that the device has into the context's queue. */
int cqn_async_drain(cqn_context *ctx)
{
    int rc = 1;
    for (int i = 0; rc > 0 && i < DRAIN_AT_MOST; i++) {
        rc = read_event(ctx);
    }
    return rc < 0 ? -1 : 0;
}

static PyObject *take(cqn_object *self)
{
    cqn_context *ctx = (cqn_context *)self;
    return ctx->async_first == NULL && cqn_async_drain(ctx) < 0 ? NULL : dequeue(ctx);
}

static int queued_fd(const cqn_object *self)
{
    return ((const cqn_context *)self)->queued_fd;
}

static const cqn_wait_kind async_wait = {
    .take = take,
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
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("get_async_event", names, 1, 0, args, nargs, kwnames, &timeout) < 0) {
        return NULL;
    }
    return cqn_gate_wait(CQN_OBJ(op), &((cqn_context *)op)->gate, &async_wait, timeout);
}

const char cqn_try_get_async_event_doc[] =
    "try_get_async_event($self, /)\n--\n\n"
    "The next AsyncEvent if there is one, or None; never sleeps.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_try_get_async_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PyObject *event = cqn_open(CQN_OBJ(op)) == NULL ? NULL : take(CQN_OBJ(op));
    return event != NULL || PyErr_Occurred() ? event : Py_NewRef(Py_None);
}

/* Raises AsyncEventError; who waits at this gate has been told of the event. */
void *cqn_async_error(cqn_state *st, cqn_gate *gate, PyObject *op)
{
    const cqn_async_event *event = (cqn_async_event *)op;
    if (gate->told < event->serial) {
        gate->told = event->serial;
    }
    PyObject *exc = PyObject_CallFunction(
        st->AsyncEventError, "N",
        PyUnicode_FromFormat("the device reports: %s (%R); completions may never come",
                             ibv_event_type_str(event->type), op));
    if (exc != NULL && PyObject_SetAttrString(exc, "event", op) == 0) {
        PyErr_SetObject(st->AsyncEventError, exc);
    }
    Py_XDECREF(exc);
    return NULL;
}

/* ---- the type ---- */

static PyObject *event_get_event_type(PyObject *op, void *Py_UNUSED(unused))
{
    uint32_t type = ((cqn_async_event *)op)->type;
    PyObject *const *members = cqn_state_of(Py_TYPE(op))->event_type;
    return type < CQN_EVENT_TYPES && members[type] != NULL ? Py_NewRef(members[type])
                                                           : PyLong_FromUnsignedLong(type);
}

/* The closure tells which attribute asks. */
static PyObject *event_get_element(PyObject *op, void *wanted)
{
    const cqn_async_event *self = (cqn_async_event *)op;
    bool failure;
    bool it_is = self->element != NULL && (uintptr_t)wanted == scope_of(self->type, &failure);
    return Py_NewRef(it_is ? self->element : Py_None);
}

static PyObject *event_get_port_num(PyObject *op, void *Py_UNUSED(unused))
{
    int port_num = ((cqn_async_event *)op)->port_num;
    return port_num > 0 ? PyLong_FromLong(port_num) : Py_NewRef(Py_None);
}

static PyObject *event_repr(PyObject *op)
{
    const cqn_async_event *self = (cqn_async_event *)op;
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
    Py_VISIT(((cqn_async_event *)op)->element);
    return 0;
}

static int event_clear(PyObject *op)
{
    Py_CLEAR(((cqn_async_event *)op)->element);
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
    {"port_num", event_get_port_num, NULL, "The port that it is about, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_doc, "What a device reports besides completions, see Context.get_async_event().\n\n"
                "It is about a CQ, a QP, a port, or the whole device.\n\n"
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
    .basicsize = sizeof(cqn_async_event),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = event_slots,
};
