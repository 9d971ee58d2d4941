/* SPDX-License-Identifier: MIT */
/*
 * CompletionChannel: the channel on which the events of its CQs arrive.
 *
 * This file has only the type. notify/events.c reads and counts the events; base/wait_queue.c lets
 * threads wait for them, and await/ lets tasks. A thread calls get_event(), the callback of an
 * event loop _on_event(). read(2) never blocks.
 */

#include "verbs/context.h"

#define EVENTS_AT_ONCE 32      /* then other tasks of the loop run */
#define CALLBACKS_UNTIL_MORE 8 /* each reads one event; the next reads more */

static int destroy_channel(void *handle)
{
    return ibv_destroy_comp_channel(handle);
}

static void channel_after_destroy(cqn_object *op)
{
    cqn_wait_queue_shut(&((cqn_channel *)op)->wait_queue, cqn_forked(op));
}

static int channel_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cqn_channel *self = (cqn_channel *)op;
    Py_VISIT(self->loop);
    Py_VISIT(self->raw_loop);
    Py_VISIT(self->done);
    Py_VISIT(self->on_fail);
    int rc = cqn_engine_busy_traverse(self, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

static int channel_clear(PyObject *op)
{
    cqn_channel_forget_loop((cqn_channel *)op);
    if (CQN_OBJ(op)->handle == NULL) {
        cqn_wait_queue_clear(&((cqn_channel *)op)->wait_queue);
    }
    return cqn_clear(op);
}

static const cqn_kind channel_kind = {
    .name = "CompletionChannel",
    .destroy_verb = "ibv_destroy_comp_channel",
    .rank = CQN_RANK_PD,
    .destroy = destroy_channel,
    .after_destroy = channel_after_destroy,
    .clear = channel_clear,
};

/* A channel whose descriptor cannot be made non-blocking is closed again: read(2) would block while
 * holding the GIL. */
CQN_RARE static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "transient_errors", NULL};
    PyObject *context;
    int transient_errors = 0;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p:CompletionChannel", names, &context,
                                     &transient_errors) ||
        cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_channel *self = cqn_new(type, &channel_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->transient_errors = transient_errors;
    if (cqn_wait_queue_open(&self->wait_queue) < 0 ||
        cqn_async_catch_up((cqn_context *)used, &self->seen_serial) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_comp_channel *channel;
    int err;
    CQN_CREATING(CQN_OBJ(self), channel = ibv_create_comp_channel(handle); err = errno);
    if (channel == NULL) {
        cqn_verbs_error(st, err, "ibv_create_comp_channel", "");
        Py_DECREF(self);
        return NULL;
    }
    self->until_more = CALLBACKS_UNTIL_MORE;
    cqn_adopt(CQN_OBJ(self), channel);
    if (cqn_set_nonblocking(channel->fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        cqn_close(CQN_OBJ(self), false);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *next_event(cqn_object *op)
{
    return cqn_channel_read_event((cqn_channel *)op, op->handle);
}

static int check_failures(cqn_object *op, uint64_t *seen_serial)
{
    return cqn_async_check((cqn_channel *)op, seen_serial);
}

static int channel_fd(const cqn_object *op)
{
    return ((struct ibv_comp_channel *)op->handle)->fd;
}

static bool is_channel_quiet(const cqn_object *op, uint64_t seen_serial)
{
    const cqn_channel *self = (const cqn_channel *)op;
    return self->late == NULL && self->failure_serial <= seen_serial;
}

static void no_event(cqn_object *op)
{
    PyObject *why = cqn_channel_why_silent((cqn_channel *)op);
    if (why != NULL) {
        PyErr_Format(PyExc_TimeoutError, "no completion event within the timeout; %U", why);
        Py_DECREF(why);
    }
}

static const cqn_wait_kind event_wait = {
    .pop = next_event,
    .check = check_failures,
    .fd = channel_fd,
    .is_quiet = is_channel_quiet,
    .drain = cqn_async_drain,
    .verb = "ibv_get_cq_event",
    .time_out = no_event,
};

/* Returns a new reference to the context: its counters are updated after arbitrary code may have
 * closed the channel. */
static cqn_device_context *hold_context(const cqn_channel *self)
{
    return (cqn_device_context *)Py_NewRef((PyObject *)self->base.context);
}

/* Counts the wakeup of a thread that slept and now holds the GIL and an event of this CQ. */
static void count_woken(cqn_cq *cq, const cqn_sleep *sleep)
{
    cq->stats.thread_wakeups++;
    if (sleep->woke_at != 0) {
        cqn_histogram_add(&cq->histograms[CQN_THREAD_LATENCY],
                          (uint64_t)(cqn_now_ns() - sleep->woke_at));
    }
}

/* Returns a new reference to a CQ; NULL with an exception. After a timeout all CQs of the channel
 * count as unarmed, because the event may have been lost. */
static PyObject *wait_event(cqn_channel *self, PyObject *timeout)
{
    cqn_sleep sleep = {.timed = self->base.context->measure_latency};
    cqn_device_context *ctx = hold_context(self);
    PyObject *cq = cqn_wait_queue_wait(&self->base, &self->wait_queue, &event_wait, timeout,
                                       self->seen_serial, &sleep);
    if (cq != NULL && sleep.slept) {
        count_woken((cqn_cq *)cq, &sleep);
        ctx->channels.thread_wakeups++;
    }
    if (cq == NULL && PyErr_ExceptionMatches(PyExc_TimeoutError)) {
        self->timeouts++;
        CQN_STEP(timed_out, self, 0, 0, 0);
        ctx->channels.timeouts++;
    }
    Py_DECREF(ctx);
    return cq;
}

static PyObject *channel_get_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("get_event", names, 1, 0, args, nargs, kwnames, &timeout) < 0) {
        return NULL;
    }
    return wait_event((cqn_channel *)op, timeout);
}

static PyObject *channel_try_get_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_comp_channel *channel = cqn_open(CQN_OBJ(op));
    if (channel == NULL) {
        return NULL;
    }
    PyObject *cq = cqn_channel_read_event((cqn_channel *)op, channel);
    return cq != NULL || PyErr_Occurred() ? cq : Py_NewRef(Py_None);
}

/* Reads an event and passes it to the engine of its CQ. Returns 1, 0 if there is no event, or -1
 * with an exception. */
static int dispatch_event(cqn_channel *self)
{
    struct ibv_comp_channel *channel = cqn_open(&self->base);
    PyObject *cq = channel == NULL ? NULL : cqn_channel_read_event(self, channel);
    if (cq == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int rc = cqn_engine_dispatch((cqn_cq *)cq);
    Py_DECREF(cq);
    return rc < 0 ? -1 : 1;
}

/* Reading an empty channel costs as much as reading an event, so most calls read a single event;
 * the loop calls again if more are pending. Events of several CQs would then take one iteration of
 * the loop each. Every CALLBACKS_UNTIL_MORE calls it therefore reads up to EVENTS_AT_ONCE, and
 * keeps doing so while there are many. */
static int dispatch_some(cqn_channel *self)
{
    if (cqn_open(&self->base) == NULL) {
        return -1;
    }
    cqn_device_context *ctx = hold_context(self);
    int n = 0, rc = dispatch_event(self);
    unsigned int events = rc > 0;
    if (rc >= 0 && --self->until_more <= 0) {
        /* A task may have closed the last AsyncCQ; later events are not for engines. */
        while (++n < EVENTS_AT_ONCE && rc > 0 && self->loop != NULL) {
            rc = dispatch_event(self);
            events += rc > 0;
        }
        self->until_more = n > 2 ? 1 : CALLBACKS_UNTIL_MORE;
    }
    cqn_histogram_add(&ctx->channels.per_wake, events);
    Py_DECREF(ctx);
    return rc;
}

/* A failure of the channel must not raise here: the loop would call again at once, forever. An
 * exception by which a task ends the loop is passed on, and loses no event. */
static PyObject *channel_on_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_channel *self = (cqn_channel *)op;
    cqn_iteration_dispatched(self);
    if (dispatch_some(self) >= 0) {
        Py_RETURN_NONE;
    }
    if (self->on_fail == NULL || !PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL;
    }
    PyObject *error = cqn_take_exception(), *on_fail = Py_NewRef(self->on_fail), *result;
    CQN_UNLOCKED(result = PyObject_CallOneArg(on_fail, error));
    Py_DECREF(on_fail);
    Py_DECREF(error);
    return result;
}

static PyObject *channel_iter(PyObject *op)
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) == NULL ? NULL : Py_NewRef(op);
}

/* Closing the channel ends an iteration over its events. */
static PyObject *channel_next(PyObject *op)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    PyObject *cq = cqn_open(self) == NULL ? NULL : wait_event((cqn_channel *)op, NULL);
    if (cq == NULL && !cqn_is_open(self) && PyErr_ExceptionMatches(self->state->ClosedError)) {
        PyErr_Clear();
    }
    return cq;
}

static PyObject *channel_interrupt(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return NULL;
    }
    cqn_wait_queue_interrupt(&((cqn_channel *)op)->wait_queue);
    Py_RETURN_NONE;
}

static PyObject *channel_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_comp_channel *channel = cqn_open(CQN_OBJ(op));
    return channel == NULL ? NULL : PyLong_FromLong(channel->fd);
}

static PyObject *channel_dup(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_comp_channel *channel = cqn_open(CQN_OBJ(op));
    return channel == NULL ? NULL : cqn_dup(channel->fd);
}

static PyMethodDef channel_methods[] = {
    {"get_event", (PyCFunction)(void (*)(void))channel_get_event, METH_FASTCALL | METH_KEYWORDS,
     "get_event($self, /, timeout=None)\n--\n\n"
     "Sleep until a CQ of this channel has an event, and return that CQ.\n\n"
     "timeout: seconds, 0 or more; None waits for ever.\n\n"
     "The event is counted on the CQ: acknowledge it there with ack(). When it comes, the CQ can\n"
     "be empty. Handlers of signals run, and the wait goes on. A loop over the channel does the\n"
     "same, and ends when the channel is closed. If interrupt() is called during a wait that\n"
     "ends for another reason, the interrupt goes to the next call of get_event(), not to a\n"
     "thread that began to sleep meanwhile.\n\n"
     "Raises TimeoutError, which names the likely cause; InterruptedError after interrupt();\n"
     "ClosedError if the channel is closed meanwhile; DeviceRemovedError when the device is\n"
     "gone; and AsyncEventError if the device reports a failure of itself, of a CQ of this\n"
     "channel, or of a QP of such a CQ or its SRQ, and with `transient_errors` of its port,\n"
     "too. Each failure is raised once, even if it was reported before the call, unless this\n"
     "thread already has it from get_async_event().\n\n"
     "Wraps ibv_get_cq_event(3)."},
    {"try_get_event", channel_try_get_event, METH_NOARGS,
     "try_get_event($self, /)\n--\n\n"
     "The CQ of an event that has arrived, or None; never sleeps.\n\n"
     "Wraps ibv_get_cq_event(3)."},
    {"_on_event", channel_on_event, METH_NOARGS,
     "_on_event($self, /)\n--\n\n"
     "Read some events that have arrived, and wake those for whom completions came.\n\n"
     "For the callback of an event loop: one task goes on in here, the others soon. It "
     "raises an exception that ends the loop, such as KeyboardInterrupt in a task. Wraps "
     "ibv_get_cq_event(3)."},
    {"_set_loop", cqn_channel_set_loop, METH_VARARGS,
     "_set_loop($self, loop, on_fail, /)\n--\n\n"
     "The loop that reads its events, or None; `on_fail(error)` is called when that ends."},
    {"interrupt", channel_interrupt, METH_NOARGS,
     "interrupt($self, /)\n--\n\n"
     "End every get_event() that is waiting with InterruptedError; if there is none, the next."},
    {"fileno", channel_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "The file descriptor, readable while events wait, for select, poll and event loops.\n\n"
     "It never blocks: after it was readable, call try_get_event() until it returns None."},
    {"_dup", channel_dup, METH_NOARGS, cqn_dup_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyObject *channel_get_transient_errors(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_channel *self = (cqn_channel *)op;
    return cqn_open(&self->base) == NULL ? NULL : PyBool_FromLong(self->transient_errors);
}

static PyObject *channel_get_waiting(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_channel *self = (cqn_channel *)op;
    return cqn_open(&self->base) == NULL ? NULL
                                         : PyLong_FromSize_t(cqn_wait_queue_len(&self->wait_queue));
}

static PyGetSetDef channel_getset[] = {
    {"_waiting", channel_get_waiting, NULL, "How many threads are in get_event().", NULL},
    {"transient_errors", channel_get_transient_errors, NULL,
     "Whether its waits raise AsyncEventError for failures that may pass.", NULL},
    CQN_POINTER("struct ibv_comp_channel"),
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef channel_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot channel_slots[] = {
    {Py_tp_doc, "CompletionChannel(context, *, transient_errors=False)\n--\n\n"
                "Where the completion events of any number of CQs arrive.\n\n"
                "context: the Context.\n"
                "transient_errors: whether waits, those of an AsyncCQ as well, raise\n"
                "    AsyncEventError also for failures after which QPs may go on: PORT_ERR,\n"
                "    PATH_MIG_ERR.\n\n"
                "Wraps ibv_create_comp_channel(3)."},
    {Py_tp_new, channel_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_iter, channel_iter},
    {Py_tp_iternext, channel_next},
    {Py_tp_traverse, channel_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, channel_methods},
    {Py_tp_getset, channel_getset},
    {Py_tp_members, channel_members},
    {0, NULL},
};

PyType_Spec cqn_channel_spec = {
    .name = "cqnotify.CompletionChannel",
    .basicsize = sizeof(cqn_channel),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = channel_slots,
};
