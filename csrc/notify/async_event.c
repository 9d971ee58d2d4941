/* SPDX-License-Identifier: MIT */
/*
 * AsyncEvent: the type of a device's asynchronous events; and the methods of Context that return
 * them, each once.
 *
 * An AsyncEvent is immutable. It is created from a report (reports.c) when that is popped, and
 * holds the object that the report is about. That object stays in its process: a pickled AsyncEvent
 * has the object's repr() instead.
 *
 * Waiting is done by a wait queue (base/wait_queue.c); reports.c keeps the reports.
 */

#include "notify/reports.h"

PyObject *cqn_async_event_new(cqn_state *st, const cqn_report *report, PyObject *element)
{
    cqn_async_event *self = (cqn_async_event *)st->AsyncEvent->tp_alloc(st->AsyncEvent, 0);
    if (self == NULL) {
        Py_XDECREF(element);
        return NULL;
    }
    self->type = report->type;
    self->port_num = report->port_num;
    self->element = element;
    return (PyObject *)self;
}

static PyObject *event_get_event_type(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    uint32_t type = ((cqn_async_event *)op)->type;
    PyObject **members = cqn_state_of(Py_TYPE(op))->event_type;
    if (cqn_know_members("AsyncEventType", members, CQN_EVENT_TYPES) < 0) {
        return NULL;
    }
    return type < CQN_EVENT_TYPES && members[type] != NULL ? Py_NewRef(members[type])
                                                           : PyLong_FromUnsignedLong(type);
}

/* The closure is the kind of element that the attribute is for. */
static PyObject *event_get_element(PyObject *op, void *wanted)
{
    const cqn_async_event *self = (cqn_async_event *)op;
    bool failure;
    bool it_is = self->element != NULL && !PyUnicode_Check(self->element) &&
                 (uintptr_t)wanted == cqn_report_scope_of(self->type, &failure);
    return Py_NewRef(it_is ? self->element : Py_None);
}

static PyObject *event_get_port_num(PyObject *op, void *Py_UNUSED(unused))
{
    int port_num = ((cqn_async_event *)op)->port_num;
    return port_num > 0 ? PyLong_FromLong(port_num) : Py_NewRef(Py_None);
}

static PyObject *event_get_transient(PyObject *op, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(cqn_report_is_transient(((cqn_async_event *)op)->type));
}

/* Returns a new reference; NULL without an exception if the event has no element. */
CQN_RARE static PyObject *text_of_element(const cqn_async_event *self)
{
    return self->element == NULL            ? NULL
           : PyUnicode_Check(self->element) ? Py_NewRef(self->element)
                                            : PyObject_Repr(self->element);
}

CQN_RARE static PyObject *event_repr(PyObject *op)
{
    const cqn_async_event *self = (cqn_async_event *)op;
    PyObject *type = event_get_event_type(op, NULL);
    PyObject *name = type == NULL ? NULL : PyObject_GetAttrString(type, "name");
    if (type != NULL && name == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        name = Py_NewRef(type);
    }
    PyObject *repr = NULL, *element = name != NULL ? text_of_element(self) : NULL;
    if (name != NULL && !PyErr_Occurred()) {
        repr = element ? PyUnicode_FromFormat("<AsyncEvent %S, %U>", name, element)
               : self->port_num > 0
                   ? PyUnicode_FromFormat("<AsyncEvent %S, port %d>", name, self->port_num)
                   : PyUnicode_FromFormat("<AsyncEvent %S>", name);
    }
    Py_XDECREF(element);
    Py_XDECREF(name);
    Py_XDECREF(type);
    return repr;
}

CQN_RARE static PyObject *event_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const cqn_async_event *self = (cqn_async_event *)op;
    PyObject *element = text_of_element(self);
    PyObject *args = PyErr_Occurred() ? NULL
                                      : Py_BuildValue("(iiO)", (int)self->type, self->port_num,
                                                      element != NULL ? element : Py_None);
    Py_XDECREF(element);
    return cqn_reduce(op, args);
}

CQN_RARE static PyObject *event_restore(PyObject *type, PyObject *args)
{
    CQN_LOCKED;
    cqn_report report = {.element = NULL};
    int event_type;
    PyObject *element;
    if (!PyArg_ParseTuple(args, "iiO", &event_type, &report.port_num, &element)) {
        return NULL;
    }
    report.type = (enum ibv_event_type)event_type;
    return cqn_async_event_new(cqn_state_of((PyTypeObject *)type), &report,
                               PyUnicode_Check(element) ? Py_NewRef(element) : NULL);
}

static PyMethodDef event_methods[] = {
    CQN_VALUE_METHODS(cqn_value_copy, event_reduce, event_restore),
    {NULL, NULL, 0, NULL},
};

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
    {"cq", event_get_element, NULL, "The CQ that it is about, or None.", (void *)CQN_OF_CQ},
    {"qp", event_get_element, NULL, "The QP that it is about, or None.", (void *)CQN_OF_QP},
    {"srq", event_get_element, NULL, "The SRQ that it is about, or None.", (void *)CQN_OF_SRQ},
    {"port_num", event_get_port_num, NULL, "The port that it is about, or None.", NULL},
    {"transient", event_get_transient, NULL,
     "Whether it is a failure after which QPs may go on: PORT_ERR, PATH_MIG_ERR.", NULL},
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
    {Py_tp_methods, event_methods},
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

/* ---- get_async_event() ---- */

static PyObject *pop_report(cqn_object *self)
{
    cqn_context *ctx = (cqn_context *)self;
    if (ctx->reports->queued == NULL && cqn_async_drain(ctx) < 0) {
        return NULL;
    }
    cqn_report *report = ctx->reports->queued;
    if (report == NULL) {
        return NULL;
    }
    /* The AsyncEvent is created first, since that can run code that pops or drops this report. */
    const cqn_report copy = *report;
    PyObject *event = cqn_async_event_new(self->state, &copy, cqn_report_own_element(&copy));
    if (event == NULL) {
        return NULL;
    }
    report = ctx->reports->queued;
    if (report == NULL || report->serial != copy.serial) {
        Py_DECREF(event);
        return cqn_open(self) == NULL ? NULL : pop_report(self);
    }
    cqn_report *failure = cqn_report_find_same(ctx->reports->failures, report);
    if (failure != NULL && failure->serial == report->serial) {
        failure->read_by = PyThread_get_thread_ident();
    }
    ctx->reports->queued = report->next;
    ctx->reports->queued_len--;
    PyMem_Free(report);
    cqn_reports_show(ctx);
    return event;
}

/* Returns a new list of AsyncEvents: the failures and the reports not popped yet, for an observer.
 * Creating an event can run code that drops reports, so all are copied first. */
CQN_RARE PyObject *cqn_async_known(cqn_context *ctx)
{
    cqn_report known[16];
    size_t n = 0;
    for (const cqn_report *r = ctx->reports->failures; r != NULL && n < Py_ARRAY_LENGTH(known);
         r = r->next) {
        known[n++] = *r;
    }
    for (const cqn_report *r = ctx->reports->queued; r != NULL && n < Py_ARRAY_LENGTH(known);
         r = r->next) {
        if (cqn_report_find_same(ctx->reports->failures, r) == NULL) {
            known[n++] = *r;
        }
    }
    PyObject *elements[Py_ARRAY_LENGTH(known)];
    for (size_t i = 0; i < n; i++) {
        elements[i] = cqn_report_own_element(&known[i]);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < n; i++) {
        PyObject *event = cqn_async_event_new(ctx->base.state, &known[i], elements[i]);
        if (list != NULL && (event == NULL || PyList_Append(list, event) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(event);
    }
    return list;
}

/* Failures reach this waiter as reports, so they do not end its wait. */
static int check_nothing(cqn_object *Py_UNUSED(self), uint64_t *Py_UNUSED(seen_serial))
{
    return 0;
}

static int queued_fd(const cqn_object *self)
{
    return ((const cqn_context *)self)->reports->flag.raised_fd;
}

static void no_async_event(cqn_object *Py_UNUSED(self))
{
    PyErr_SetString(PyExc_TimeoutError, "no asynchronous event within the timeout");
}

static const cqn_wait_kind async_wait = {
    .pop = pop_report,
    .check = check_nothing,
    .fd = queued_fd,
    .drain = cqn_async_drain,
    .verb = "ibv_get_async_event",
    .time_out = no_async_event,
};

const char cqn_get_async_event_doc[] =
    "get_async_event($self, /, timeout=None)\n--\n\n"
    "Sleep until the device reports something besides completions, and return the AsyncEvent.\n\n"
    "timeout: seconds, 0 or more; None waits for ever.\n\n"
    "The event is acknowledged already. Events from before the call count, and each comes\n"
    "once. Raises TimeoutError, ClosedError if the context is closed meanwhile, and\n"
    "DeviceRemovedError when the device is gone.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_get_async_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    cqn_sleep sleep = {.timed = false};
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("get_async_event", names, 1, 0, args, nargs, kwnames, &timeout) < 0) {
        return NULL;
    }
    return cqn_wait_queue_wait(CQN_OBJ(op), &((cqn_context *)op)->reports->wait_queue, &async_wait,
                               timeout, 0, &sleep);
}

const char cqn_try_get_async_event_doc[] =
    "try_get_async_event($self, /)\n--\n\n"
    "The next AsyncEvent if there is one, or None; never sleeps.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_try_get_async_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *event = cqn_open(CQN_OBJ(op)) == NULL ? NULL : pop_report(CQN_OBJ(op));
    return event != NULL || PyErr_Occurred() ? event : Py_NewRef(Py_None);
}
