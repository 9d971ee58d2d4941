/* SPDX-License-Identifier: MIT */
/* CMLink: the type; what it does is in conn_state.c, how it is waited for in event_wait.c. */

#include "cm/calls.h"
#include "cm/conn_state.h"

/* Attributes that Python's Link sets; None at first. */
#define ATTRIBUTES(F) F(qp) F(why) F(reader) F(end) F(doing) F(address) F(answer) F(group)

/* All that can fail comes before there is a link. `id` is stolen. */
static PyObject *make_link(PyTypeObject *type, PyObject *reader, cqn_cm_channel *channel,
                           PyObject *bell, cqn_cm_id *id)
{
    cqn_cm_link *self = (cqn_cm_link *)type->tp_alloc(type, 0);
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
    self->bell = bell == Py_None ? NULL : Py_NewRef(bell);
    self->id = (PyObject *)id;
    id->link = self;
    cqn_cm_link_join(self);
    return (PyObject *)self;
}

/* (reader, channel, bell, id, datagrams). */
static PyObject *link_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    CQN_LOCKED;
    const cqn_state *state = cqn_state_of(type);
    PyObject *reader, *channel, *bell, *id;
    int datagrams;
    if (!PyArg_ParseTuple(args, "OOOOp:CMLink", &reader, &channel, &bell, &id, &datagrams) ||
        cqn_expect(channel, state->CMChannel, "channel") < 0 ||
        (id != Py_None && cqn_expect(id, state->CMID, "id") < 0)) {
        return NULL;
    }
    if (id == Py_None) {
        id = cqn_cm_id_create(state->CMID, CQN_OBJ(channel), datagrams);
    }
    else if (((cqn_cm_id *)id)->link == NULL) {
        Py_INCREF(id);
    }
    else {
        id = PyErr_Format(PyExc_RuntimeError, "this CMID has a link");
    }
    return id == NULL ? NULL
                      : make_link(type, reader, (cqn_cm_channel *)channel, bell, (cqn_cm_id *)id);
}

/* Nobody refers to it any more. */
static void link_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_cm_link *self = (cqn_cm_link *)op;
    if (!self->whole) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    PyObject *closed;
    CQN_UNLOCKED(closed = cqn_cm_link_close(op, NULL));
    if (closed == NULL) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    Py_XDECREF(closed);
    if (self->kept_alive && cqn_cm_link_tell(self, "_end_keepalive") < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    if (cqn_cm_link_leave(self) && cqn_cm_link_tell(self, "_was_last") < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
    }
    cqn_put_exception(pending);
}

static PyObject *link_wake_all(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_link_wake_all((cqn_cm_link *)op, false, false));
}

static PyObject *link_ring(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_link_ring((cqn_cm_link *)op));
}

static PyObject *link_hang_up(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(cqn_cm_link_hang_up((cqn_cm_link *)op));
}

static PyObject *link_deliver(PyObject *op, PyObject *event)
{
    CQN_LOCKED;
    cqn_cm_link *self = (cqn_cm_link *)op;
    PyObject *request = PyTuple_Check(event) && PyTuple_GET_SIZE(event) == CQN_CM_EVENT_FIELDS
                            ? PyTuple_GET_ITEM(event, CQN_CM_EVENT_REQUEST)
                            : NULL;
    if (request != Py_None && (request == NULL || !Py_IS_TYPE(request, self->state->CMID))) {
        return PyErr_Format(PyExc_TypeError, "deliver() takes an event as read_event() returns it");
    }
    return cqn_cm_done(cqn_cm_link_deliver(self, event));
}

static PyObject *link_get_asleep(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromSize_t(((cqn_cm_link *)op)->asleep);
}

static PyObject *link_get_events(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cm_link *self = (cqn_cm_link *)op;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < self->waiting; i++) {
        if (PyList_Append(list, self->events[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static int link_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cqn_cm_link *self = (cqn_cm_link *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->channel);
    Py_VISIT(self->id);
    Py_VISIT(self->bell);
#define VISIT(name) Py_VISIT(self->name);
    ATTRIBUTES(VISIT)
    for (size_t i = 0; i < self->waiting; i++) {
        Py_VISIT(self->events[i]);
    }
    for (size_t i = 0; i < self->asleep; i++) {
        Py_VISIT(self->sleepers[i].wakeup);
    }
    return 0;
}

static void let_go(cqn_cm_link *self)
{
    while (self->waiting > 0) {
        Py_DECREF(cqn_cm_link_pop(self));
    }
    while (self->asleep > 0) {
        Py_DECREF(self->sleepers[--self->asleep].wakeup);
    }
    if (self->id != NULL) {
        cqn_cm_link_id(self)->link = NULL;
    }
#define CLEAR(name) Py_CLEAR(self->name);
    ATTRIBUTES(CLEAR)
    Py_CLEAR(self->bell);
    Py_CLEAR(self->id);
}

static int link_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    let_go((cqn_cm_link *)op);
    return 0;
}

static void link_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: while we wait for it the collector can run */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_cm_link *self = (cqn_cm_link *)op;
    self->dying = true;
    cqn_cm_link_leave(self);
    let_go(self);
    PyMem_Free(self->sleepers);
    PyMem_Free(self->events);
    Py_CLEAR(self->channel);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef link_methods[] = {
    {"deliver", link_deliver, METH_O,
     "deliver($self, event, /)\n--\n\nTake in an event, in the thread that reads them."},
    {"hang_up", link_hang_up, METH_NOARGS,
     "hang_up($self, /)\n--\n\n"
     "Tell the peer, and end what was posted: nothing of it can succeed any more. Once."},
    {"close", cqn_cm_link_close, METH_NOARGS,
     "close($self, /)\n--\n\nEnd it, without waiting for anything."},
    {"say_goodbye", cqn_cm_link_say_goodbye, METH_NOARGS,
     "say_goodbye($self, /)\n--\n\nBegin to end it, unless it is over."},
    {"ring", link_ring, METH_NOARGS,
     "ring($self, /)\n--\n\nWake what waits for it; in any thread."},
    {"_wake_all", link_wake_all, METH_NOARGS,
     "_wake_all($self, /)\n--\n\nWake the tasks that wait for it, in the thread of their loop."},
    {"expect", cqn_cm_link_expect, METH_VARARGS,
     "expect($self, wanted, end, /)\n--\n\n"
     "What waits for one of these events, each a bit, and returns it; raises what ends the "
     "attempt, and TimeoutError at `end`, by time.monotonic(), if that is not None. A task awaits "
     "it; `next()` of it lets a thread sleep."},
    {"over", cqn_cm_link_over, METH_O,
     "over($self, end, /)\n--\n\nThe same for the end of what was established."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef link_getset[] = {
    {"bell", cqn_get_object, NULL, "What is rung for threads that wait for it; None for tasks.",
     (void *)offsetof(cqn_cm_link, bell)},
    {"events", link_get_events, NULL, "A list of what has arrived, and nobody has taken: a copy.",
     NULL},
    {"asleep", link_get_asleep, NULL, "How many tasks wait for it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef link_members[] = {
    {"id", T_OBJECT_EX, offsetof(cqn_cm_link, id), READONLY, "The CMID."},
    {"channel", T_OBJECT_EX, offsetof(cqn_cm_link, channel), READONLY,
     "The CMChannel that brings its events."},
    {"qp", T_OBJECT_EX, offsetof(cqn_cm_link, qp), 0, "The QP that goes with it, or None."},
    {"why", T_OBJECT_EX, offsetof(cqn_cm_link, why), 0,
     "Why it is over, or is about to be: an exception, an event or ClosedError; or None."},
    {"reader", T_OBJECT_EX, offsetof(cqn_cm_link, reader), 0, "What reads the channel."},
    {"end", T_OBJECT_EX, offsetof(cqn_cm_link, end), 0,
     "Until when it has time for what it is asked for, by time.monotonic(); or None."},
    {"doing", T_OBJECT_EX, offsetof(cqn_cm_link, doing), 0,
     "What it does, for messages, with the address; or None."},
    {"address", T_OBJECT_EX, offsetof(cqn_cm_link, address), 0, "That of the peer, or None."},
    {"answer", T_OBJECT_EX, offsetof(cqn_cm_link, answer), 0,
     "Of a request: how it was answered, or None."},
    {"group", T_OBJECT_EX, offsetof(cqn_cm_link, group), 0,
     "The GID and the LID of a multicast group that its QP has joined, or None."},
    {"backlog", T_PYSSIZET, offsetof(cqn_cm_link, backlog), 0,
     "Of a listener: how many requests may wait."},
    {"troubles", T_PYSSIZET, offsetof(cqn_cm_link, troubles), READONLY,
     "How often the kernel has reported trouble on the way to the peer."},
    {"datagrams", T_BOOL, offsetof(cqn_cm_link, datagrams), 0, "Whether it is of RDMA_PS_UDP."},
    {"ended", T_BOOL, offsetof(cqn_cm_link, ended), 0,
     "Whether it is over, and its QP has failed."},
    {"kept_alive", T_BOOL, offsetof(cqn_cm_link, kept_alive), 0,
     "Whether its keepalive is to be ended."},
    {"hung_up", T_BOOL, offsetof(cqn_cm_link, hung_up), READONLY, "Whether hang_up() has been."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot link_slots[] = {
    {Py_tp_doc, "CMLink(reader, channel, bell, id, datagrams, /)\n--\n\n"
                "What has happened to a CMID, and what waits for it: the base of cqnotify.cm's "
                "own. `bell`: that of threads, or None; `id`: the CMID of a request, or None for a "
                "new one."},
    {Py_tp_new, link_new},
    {Py_tp_finalize, link_finalize},
    {Py_tp_traverse, link_traverse},
    {Py_tp_clear, link_tp_clear},
    {Py_tp_dealloc, link_dealloc},
    {Py_tp_methods, link_methods},
    {Py_tp_getset, link_getset},
    {Py_tp_members, link_members},
    {0, NULL},
};

PyType_Spec cqn_cm_link_spec = {
    .name = "cqnotify._core.CMLink",
    .basicsize = sizeof(cqn_cm_link),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_BASETYPE,
    .slots = link_slots,
};
