/* SPDX-License-Identifier: MIT */
/*
 * Notification of failures: the waits for completions that may never arrive, and the watches of
 * event loops.
 *
 * Each failure has a serial number. A channel, a waiter and a watch each remember the latest
 * failure that they have seen (reports.c), so each sees a failure once.
 *
 * FailureWatch notifies an event loop of failures without popping the reports. A loop cannot sleep
 * in get_event(), where a thread would see failures, and must not call get_async_event(), which
 * returns each report once, perhaps to the wrong caller. A watch has a descriptor instead, and the
 * serial number of the latest failure that it has seen, as a channel has.
 *
 * The descriptor is readable while the device has unread reports, and while this watch has not seen
 * a failure that was read. Reports that only wait for get_async_event() do not make it readable, or
 * the loop would spin.
 */

#include "notify/reports.h"
#include <poll.h>

/* ---- waiters ---- */

/* Raises AsyncEventError. Returns -1. */
static int raise_failure(cqn_state *st, const cqn_report *report)
{
    const char *name = ibv_event_type_str(report->type);
    PyObject *event = cqn_async_event_new(st, report, cqn_report_own_element(report));
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

/* Returns the oldest failure after `seen_serial` that affects the channel, or NULL; borrowed. */
static const cqn_report *next_failure(const cqn_channel *channel, uint64_t seen_serial)
{
    const cqn_report *found = NULL;
    for (const cqn_report *r = channel->base.context->reports->failures; r != NULL; r = r->next) {
        if (r->serial > seen_serial && (found == NULL || r->serial < found->serial) &&
            cqn_report_affects(r, channel)) {
            found = r;
        }
    }
    return found;
}

/* Advances the serials of a waiter and its channel. */
static void advance_seen(cqn_channel *channel, uint64_t *seen_serial, uint64_t serial)
{
    *seen_serial = serial;
    channel->seen_serial = channel->seen_serial > serial ? channel->seen_serial : serial;
}

int cqn_async_check(cqn_channel *channel, uint64_t *seen_serial)
{
    const uint64_t all = channel->failure_serial;
    const cqn_report *failure;
    while (*seen_serial < all && (failure = next_failure(channel, *seen_serial)) != NULL) {
        const cqn_report copy = *failure;
        if (copy.read_by != PyThread_get_thread_ident()) {
            cqn_state *st = channel->base.state;
            raise_failure(st, &copy);
            if (PyErr_ExceptionMatches(st->AsyncEventError)) {
                advance_seen(channel, seen_serial, copy.serial);
            }
            return -1;
        }
        advance_seen(channel, seen_serial, copy.serial);
    }
    if (*seen_serial < all) {
        advance_seen(channel, seen_serial, all);
    }
    return 0;
}

/* ---- watches ---- */

/* Returns whether a watch has to return this failure. Failures of an object that is being
 * deallocated are skipped, since it cannot be referenced any more. An object that is being closed
 * may stay open. */
static bool is_due(const cqn_report *failure, uint64_t seen_serial)
{
    const cqn_object *element = failure->element;
    return failure->serial > seen_serial &&
           (element == NULL || cqn_refs_may_live(&element->refs, (PyObject *)element));
}

/* Counts the failures to return: all of their pairs are created before the first one is filled
 * in. */
static Py_ssize_t count_due(const cqn_context *ctx, uint64_t seen_serial)
{
    Py_ssize_t n = 0;
    for (const cqn_report *r = ctx->reports->failures; r != NULL; r = r->next) {
        n += is_due(r, seen_serial);
    }
    return n;
}

/* Returns a new pair of an empty AsyncEvent and an empty list. */
static PyObject *new_pair(cqn_state *st)
{
    const cqn_report nothing = {.next = NULL};
    PyObject *event = cqn_async_event_new(st, &nothing, NULL);
    PyObject *cqs = event == NULL ? NULL : PyList_New(0);
    PyObject *pair = cqs == NULL ? NULL : PyTuple_Pack(2, event, cqs);
    Py_XDECREF(cqs);
    Py_XDECREF(event);
    return pair;
}

/* Steals the reference to the element. Returns -1 with an exception. */
static int fill_pair(PyObject *pair, const cqn_context *ctx, const cqn_report *failure,
                     PyObject *element)
{
    cqn_async_event *event = (cqn_async_event *)PyTuple_GET_ITEM(pair, 0);
    PyObject *cqs = PyTuple_GET_ITEM(pair, 1);
    event->type = failure->type;
    event->port_num = failure->port_num;
    event->element = element;
    const int rc = cqn_report_add_cqs(ctx, failure, cqs);
    if (rc == 0) {
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(Py_None));
        Py_DECREF(cqs);
    }
    return rc < 0 ? -1 : 0;
}

/* Makes the list one pair longer, or truncates it to the wanted size. */
static int adjust_pairs(cqn_state *st, PyObject *pairs, Py_ssize_t wanted)
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

/* Fills in one pair for each failure that is to be returned. */
static int fill_pairs(PyObject *pairs, const cqn_context *ctx, uint64_t seen_serial)
{
    int rc = 0;
    Py_ssize_t i = 0;
    for (const cqn_report *r = ctx->reports->failures; rc == 0 && r != NULL; r = r->next) {
        if (!is_due(r, seen_serial)) {
            continue;
        }
        PyObject *element = cqn_report_own_element(r);
        if (element != NULL || r->element == NULL) {
            rc = fill_pair(PyList_GET_ITEM(pairs, i++), ctx, r, element);
        }
    }
    /* Without a GIL an element can be deallocated after the failures were counted. */
    const Py_ssize_t size = PyList_GET_SIZE(pairs);
    return rc < 0 || i == size ? rc : PyList_SetSlice(pairs, i, size, NULL);
}

/* Returns the failures after *seen_serial, which is advanced, for FailureWatch.read(): a new list
 * of pairs of an AsyncEvent and the affected CQs. NULL with an exception; then no failure counts as
 * seen. Creating an object can run arbitrary code, which can close the watch or queue another
 * failure. So all objects are created before the first one is filled in; from there on nothing
 * changes. */
CQN_RARE static PyObject *new_failures(cqn_object *self, uint64_t *seen_serial)
{
    cqn_state *st = self->state;
    PyObject *pairs = PyList_New(0);
    int rc = pairs == NULL ? -1 : 0;
    while (rc == 0 && cqn_open(self) != NULL) {
        const cqn_context *ctx = self->context;
        Py_ssize_t wanted = count_due(ctx, *seen_serial);
        if (PyList_GET_SIZE(pairs) != wanted) {
            rc = adjust_pairs(st, pairs, wanted);
        }
        else if ((rc = fill_pairs(pairs, ctx, *seen_serial)) == 0) {
            *seen_serial = ctx->reports->serial;
            return pairs;
        }
    }
    Py_XDECREF(pairs);
    return NULL;
}

/* ---- FailureWatch ---- */

static int destroy_nothing(void *Py_UNUSED(handle))
{
    return 0;
}

static void watch_after_destroy(cqn_object *op)
{
    cqn_pollable_flag_close(&((cqn_failure_watch *)op)->flag);
}

static int watch_clear(PyObject *op)
{
    if (CQN_OBJ(op)->handle == NULL) {
        cqn_pollable_flag_close(&((cqn_failure_watch *)op)->flag);
    }
    return cqn_clear(op);
}

static const cqn_kind watch_kind = {
    .name = "FailureWatch",
    .destroy_verb = "close",
    .rank = CQN_RANK_PD,
    .destroy = destroy_nothing,
    .after_destroy = watch_after_destroy,
    .clear = watch_clear,
};

/* A new watch counts all earlier failures as seen. */
CQN_RARE static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", NULL};
    PyObject *context;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O:FailureWatch", names, &context) ||
        cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_failure_watch *self = cqn_new(type, &watch_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    if (cqn_pollable_flag_open(&self->flag, used->handle) < 0 ||
        cqn_async_catch_up((cqn_context *)used, &self->seen_serial) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->latest = self->seen_serial;
    cqn_adopt(CQN_OBJ(self), self);
    return (PyObject *)self;
}

static PyObject *watch_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromLong(((cqn_failure_watch *)op)->flag.fd) : NULL;
}

static PyObject *watch_dup(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? cqn_dup(((cqn_failure_watch *)op)->flag.fd) : NULL;
}

/* A removed device signals POLLERR or POLLHUP. A read without sleeping may only find that there is
 * nothing yet, so the descriptor is polled. */
static bool device_has_gone(const struct ibv_context *device)
{
    struct pollfd fd = {device->async_fd, POLLIN, 0};
    return poll(&fd, 1, 0) > 0 && (fd.revents & (POLLERR | POLLHUP)) && !(fd.revents & POLLIN);
}

/* Queues the device's reports. The removal of the device is raised after all earlier failures were
 * returned. */
static int drain_for_watch(cqn_failure_watch *self)
{
    cqn_state *st = self->base.state;
    cqn_context *ctx = self->base.context;
    int rc = cqn_async_drain(ctx);
    if (rc == 0 && device_has_gone(ctx->base.handle)) {
        cqn_verbs_error(st, EIO, "ibv_get_async_event", "no more events will come");
        rc = -1;
    }
    if (rc < 0 && self->latest > self->seen_serial &&
        PyErr_ExceptionMatches(st->DeviceRemovedError)) {
        PyErr_Clear();
        rc = 0;
    }
    return rc;
}

static PyObject *watch_read(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_failure_watch *self = (cqn_failure_watch *)op;
    if (cqn_open(CQN_OBJ(op)) == NULL || drain_for_watch(self) < 0) {
        return NULL;
    }
    PyObject *failures = new_failures(CQN_OBJ(op), &self->seen_serial);
    if (failures != NULL) {
        cqn_failure_watch_show(self);
    }
    return failures;
}

static PyMethodDef watch_methods[] = {
    {"read", watch_read, METH_NOARGS,
     "read($self, /)\n--\n\n"
     "The failures since the last read(), or since the watch was made, oldest first.\n\n"
     "A list of pairs: the AsyncEvent (CQ_ERR, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, PATH_MIG_ERR, "
     "SRQ_ERR, PORT_ERR, DEVICE_FATAL), and a list of the CQs in which completions may now be "
     "missing, or late (PORT_ERR); None stands for all CQs of the device. A failure that happens "
     "several times may be returned once. A failure of an object that was closed meanwhile is not "
     "returned; while close() runs it is, because close() may fail. Never sleeps. "
     "get_async_event() still returns each report, and "
     "get_event() still raises it. Raises DeviceRemovedError when the device has gone, after all "
     "earlier failures were returned; stop watching then, because fileno() stays readable.\n\n"
     "Wraps ibv_get_async_event(3)."},
    {"fileno", watch_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "The file descriptor, readable when read() has something to do, for select, poll and event "
     "loops.\n\n"
     "It is readable while the device has unread reports, or if a failure was read, by any call, "
     "since the last read() of this watch; not because reports wait for get_async_event(). It is "
     "not the device's own: do not read from it."},
    {"_dup", watch_dup, METH_NOARGS, cqn_dup_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef watch_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef watch_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, "FailureWatch(context)\n--\n\n"
                "Notifies an event loop of the device's failures, without consuming them.\n\n"
                "context: the Context of the device.\n\n"
                "Wait until fileno() is readable, then call read(). A context can have any\n"
                "number of watches: each returns all failures since it was created, whichever\n"
                "call read them from the device."},
    {Py_tp_new, watch_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, watch_methods},
    {Py_tp_getset, watch_getset},
    {Py_tp_members, watch_members},
    {0, NULL},
};

PyType_Spec cqn_failure_watch_spec = {
    .name = "cqnotify.FailureWatch",
    .basicsize = sizeof(cqn_failure_watch),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = watch_slots,
};
