/* SPDX-License-Identifier: MIT */
/* CMConn: the type. Its behaviour is in conn_state.c, waiting for it in event_wait.c. */

#include "cm/calls.h"
#include "cm/conn_state.h"

/* Attributes that Python's Link sets; None at first. */
#define ATTRIBUTES(F) F(qp) F(reason) F(reader) F(end) F(phase) F(address) F(answer) F(group)

/* Everything that can fail comes before the allocation. Steals `id`. */
static PyObject *make_conn(PyTypeObject *type, PyObject *reader, cqn_cm_channel *channel,
                           PyObject *notifier, cqn_cm_id *id)
{
    cqn_cm_conn *self = (cqn_cm_conn *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_DECREF(id);
        return NULL;
    }
#define BE_NONE(name) self->name = Py_NewRef(Py_None);
    ATTRIBUTES(BE_NONE)
    Py_SETREF(self->reader, Py_NewRef(reader));
    self->state = cqn_state_of(type);
    self->datagrams = (char)id->datagrams;
    self->channel = Py_NewRef((PyObject *)channel);
    self->notifier = notifier == Py_None ? NULL : Py_NewRef(notifier);
    self->id = (PyObject *)id;
    id->conn = self;
    cqn_cm_conn_join(self);
    return (PyObject *)self;
}

/* Arguments: (reader, channel, notifier, id, datagrams). */
static PyObject *conn_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    CQN_LOCKED;
    const cqn_state *state = cqn_state_of(type);
    PyObject *reader, *channel, *notifier, *id;
    int datagrams;
    if (!PyArg_ParseTuple(args, "OOOOp:CMConn", &reader, &channel, &notifier, &id, &datagrams) ||
        cqn_expect(channel, state->CMChannel, "channel") < 0 ||
        (id != Py_None && cqn_expect(id, state->CMID, "id") < 0)) {
        return NULL;
    }
    if (id == Py_None) {
        id = cqn_cm_id_create(state->CMID, CQN_OBJ(channel), datagrams);
    }
    else if (((cqn_cm_id *)id)->conn == NULL) {
        Py_INCREF(id);
    }
    else {
        id = PyErr_Format(PyExc_RuntimeError, "this CMID has a CMConn");
    }
    return id == NULL
               ? NULL
               : make_conn(type, reader, (cqn_cm_channel *)channel, notifier, (cqn_cm_id *)id);
}

/* Closes a connection without references. */
static void conn_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_cm_conn *self = (cqn_cm_conn *)op;
    if (!self->registered) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    PyObject *closed;
    CQN_UNLOCKED(closed = cqn_cm_conn_close(op, NULL));
    if (closed == NULL) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    Py_XDECREF(closed);
    if (self->has_keepalive && cqn_cm_conn_call(self, "_end_keepalive") < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    if (cqn_cm_conn_leave(self) && cqn_cm_conn_call(self, "_was_last") < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    cqn_put_exception(pending);
}

static PyObject *conn_wake_all(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_conn_wake_all((cqn_cm_conn *)op, false, false));
}

static PyObject *conn_notify(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_conn_notify((cqn_cm_conn *)op));
}

static PyObject *conn_shut_down(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_conn_shut_down((cqn_cm_conn *)op));
}

static PyObject *conn_deliver(PyObject *op, PyObject *event)
{
    CQN_LOCKED;
    cqn_cm_conn *self = (cqn_cm_conn *)op;
    PyObject *request = PyTuple_Check(event) && PyTuple_GET_SIZE(event) == CQN_CM_EVENT_FIELDS
                            ? PyTuple_GET_ITEM(event, CQN_CM_EVENT_REQUEST)
                            : NULL;
    if (request != Py_None && (request == NULL || !Py_IS_TYPE(request, self->state->CMID))) {
        return PyErr_Format(PyExc_TypeError, "deliver() takes an event as read_event() returns it");
    }
    return cqn_cm_done(cqn_cm_conn_deliver(self, event));
}

static PyObject *conn_get_asleep(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromSize_t(((cqn_cm_conn *)op)->asleep);
}

static PyObject *conn_get_events(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cm_conn *self = (cqn_cm_conn *)op;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < self->events_len; i++) {
        if (PyList_Append(list, self->events[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static int conn_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cqn_cm_conn *self = (cqn_cm_conn *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->channel);
    Py_VISIT(self->id);
    Py_VISIT(self->notifier);
#define VISIT(name) Py_VISIT(self->name);
    ATTRIBUTES(VISIT)
    for (size_t i = 0; i < self->events_len; i++) {
        Py_VISIT(self->events[i]);
    }
    for (size_t i = 0; i < self->asleep; i++) {
        Py_VISIT(self->sleepers[i].wakeup);
    }
    return 0;
}

static void drop_references(cqn_cm_conn *self)
{
    while (self->events_len > 0) {
        Py_DECREF(cqn_cm_conn_pop(self));
    }
    while (self->asleep > 0) {
        Py_DECREF(self->sleepers[--self->asleep].wakeup);
    }
    if (self->id != NULL) {
        cqn_cm_conn_id(self)->conn = NULL;
    }
#define CLEAR(name) Py_CLEAR(self->name);
    ATTRIBUTES(CLEAR)
    Py_CLEAR(self->notifier);
    Py_CLEAR(self->id);
}

static int conn_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    drop_references((cqn_cm_conn *)op);
    return 0;
}

static void conn_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_cm_conn *self = (cqn_cm_conn *)op;
    self->dying = true;
    cqn_cm_conn_leave(self);
    drop_references(self);
    PyMem_Free(self->sleepers);
    PyMem_Free(self->events);
    Py_CLEAR(self->channel);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef conn_methods[] = {
    {"deliver", conn_deliver, METH_O,
     "deliver($self, event, /)\n--\n\nDeliver an event, in the thread that reads them."},
    {"shut_down", conn_shut_down, METH_NOARGS,
     "shut_down($self, /)\n--\n\n"
     "Disconnect the peer, and end what was posted: nothing of it can succeed any more. Once."},
    {"close", cqn_cm_conn_close, METH_NOARGS,
     "close($self, /)\n--\n\nEnd it, without waiting for anything."},
    {"disconnect", cqn_cm_conn_disconnect, METH_NOARGS,
     "disconnect($self, /)\n--\n\nBegin to end it, unless it is over."},
    {"notify", conn_notify, METH_NOARGS,
     "notify($self, /)\n--\n\nWake what waits for it; in any thread."},
    {"_wake_all", conn_wake_all, METH_NOARGS,
     "_wake_all($self, /)\n--\n\nWake the tasks that wait for it, in the thread of their loop."},
    {"expect", cqn_cm_conn_expect, METH_VARARGS,
     "expect($self, wanted, end, /)\n--\n\n"
     "What waits for one of these events, each a bit, and returns it; raises what ends the "
     "attempt, and TimeoutError at `end`, by time.monotonic(), if that is not None. A task awaits "
     "it; `next()` of it lets a thread sleep."},
    {"over", cqn_cm_conn_over, METH_O,
     "over($self, end, /)\n--\n\nThe same for the end of what was established."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef conn_getset[] = {
    {"notifier", cqn_get_object, NULL,
     "It notifies threads that wait for the connection; None for tasks.",
     (void *)offsetof(cqn_cm_conn, notifier)},
    {"events", conn_get_events, NULL, "A list of the events that nobody has consumed: a copy.",
     NULL},
    {"asleep", conn_get_asleep, NULL, "How many tasks wait for it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef conn_members[] = {
    {"id", T_OBJECT_EX, offsetof(cqn_cm_conn, id), READONLY, "The CMID."},
    {"channel", T_OBJECT_EX, offsetof(cqn_cm_conn, channel), READONLY,
     "The CMChannel that brings its events."},
    {"qp", T_OBJECT_EX, offsetof(cqn_cm_conn, qp), 0, "The QP that goes with it, or None."},
    {"reason", T_OBJECT_EX, offsetof(cqn_cm_conn, reason), 0,
     "Why it is over, or is about to be: an exception, an event or ClosedError; or None."},
    {"reader", T_OBJECT_EX, offsetof(cqn_cm_conn, reader), 0, "The reader of the channel."},
    {"end", T_OBJECT_EX, offsetof(cqn_cm_conn, end), 0,
     "The deadline of the current call, by time.monotonic(); or None."},
    {"phase", T_OBJECT_EX, offsetof(cqn_cm_conn, phase), 0,
     "What it does, for messages, together with the address; or None."},
    {"address", T_OBJECT_EX, offsetof(cqn_cm_conn, address), 0, "That of the peer, or None."},
    {"answer", T_OBJECT_EX, offsetof(cqn_cm_conn, answer), 0,
     "How the request was answered, or None."},
    {"group", T_OBJECT_EX, offsetof(cqn_cm_conn, group), 0,
     "The GID and the LID of a multicast group that its QP has joined, or None."},
    {"backlog", T_PYSSIZET, offsetof(cqn_cm_conn, backlog), 0,
     "How many requests may wait at a listener."},
    {"path_errors", T_PYSSIZET, offsetof(cqn_cm_conn, path_errors), READONLY,
     "How often the kernel has reported an error of the path to the peer."},
    {"datagrams", T_BOOL, offsetof(cqn_cm_conn, datagrams), 0, "Whether it is of RDMA_PS_UDP."},
    {"ended", T_BOOL, offsetof(cqn_cm_conn, ended), 0,
     "Whether it is over, and its QP has failed."},
    {"has_keepalive", T_BOOL, offsetof(cqn_cm_conn, has_keepalive), 0,
     "Whether its keepalive must be ended."},
    {"is_shut_down", T_BOOL, offsetof(cqn_cm_conn, is_shut_down), READONLY,
     "Whether shut_down() was called."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot conn_slots[] = {
    {Py_tp_doc,
     "CMConn(reader, channel, notifier, id, datagrams, /)\n--\n\n"
     "What has happened to a CMID, and what waits for it: the base of cqnotify.cm's "
     "own. `notifier`: that of threads, or None; `id`: the CMID of a request, or None for a "
     "new one."},
    {Py_tp_new, conn_new},
    {Py_tp_finalize, conn_finalize},
    {Py_tp_traverse, conn_traverse},
    {Py_tp_clear, conn_tp_clear},
    {Py_tp_dealloc, conn_dealloc},
    {Py_tp_methods, conn_methods},
    {Py_tp_getset, conn_getset},
    {Py_tp_members, conn_members},
    {0, NULL},
};

PyType_Spec cqn_cm_conn_spec = {
    .name = "cqnotify._core.CMConn",
    .basicsize = sizeof(cqn_cm_conn),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE,
    .slots = conn_slots,
};
