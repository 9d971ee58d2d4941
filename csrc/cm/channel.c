/* SPDX-License-Identifier: MIT */
/*
 * CMChannel: the channel on which the events of its identifiers arrive.
 *
 * It belongs to no device, so it takes the place of a Context for the identifiers: it lists them,
 * and closes them when it is closed. Its descriptor never blocks; Python decides which thread or
 * loop sleeps on it.
 */

#include "await/loop.h"
#include "cm/conn_state.h"
#include <errno.h>

#define EVENTS_AT_ONCE 8 /* read before they are handled */

/* Reading the clock can take as long as handling an event. If the last events took less than QUICK
 * (seconds), several are handled between two readings, otherwise one. */
#define EVENTS_BETWEEN_CHECKS 4
#define QUICK (CQN_CM_BUDGET / 8)

static int destroy_cm_channel(void *handle)
{
    cqn_cm.destroy_event_channel(handle);
    return 0;
}

static void cm_channel_after_destroy(cqn_object *op)
{
    cqn_cm_forget_events((cqn_cm_channel *)op, NULL);
}

static int cm_channel_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cqn_cm_channel *self = (cqn_cm_channel *)op;
    Py_VISIT(self->event_type);
    Py_VISIT(self->loop);
    Py_VISIT(self->raw_loop);
    Py_VISIT(self->done);
    return cqn_traverse(op, visit, arg);
}

static int cm_channel_clear(PyObject *op)
{
    cqn_cm_channel *self = (cqn_cm_channel *)op;
    Py_CLEAR(self->event_type);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->raw_loop);
    Py_CLEAR(self->done);
    return cqn_clear(op);
}

static const cqn_kind cm_channel_kind = {
    .name = "CMChannel",
    .destroy_verb = "rdma_destroy_event_channel",
    .rank = CQN_RANK_PD,
    .closes_with_parent = true, /* the program's last connection closes it */
    .destroy = destroy_cm_channel,
    .after_destroy = cm_channel_after_destroy,
    .clear = cm_channel_clear,
};

CQN_RARE static PyObject *cm_channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"event", NULL};
    PyTypeObject *event = &PyTuple_Type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O!:CMChannel", names, &PyType_Type, &event) ||
        cqn_cm_load(cqn_state_of(type)) < 0) {
        return NULL;
    }
    if (!PyType_IsSubtype(event, &PyTuple_Type)) {
        return PyErr_Format(PyExc_TypeError, "event must be a subclass of tuple, not %s",
                            event->tp_name);
    }
    cqn_cm_channel *self = cqn_new(type, &cm_channel_kind, NULL, 0);
    if (self == NULL) {
        return NULL;
    }
    struct rdma_event_channel *channel;
    int err;
    self->event_type = (PyTypeObject *)Py_NewRef((PyObject *)event);
    self->root.base.context = &self->root;
    CQN_CREATING(&self->root.base, channel = CQN_CM_OR_NULL(create_event_channel); err = errno);
    if (channel == NULL) {
        const bool lacks = err == EMFILE || err == ENFILE || err == ENOMEM;
        cqn_verbs_error(self->root.base.state, err, "rdma_create_event_channel", "%s",
                        lacks ? ""
                              : "is the module rdma_ucm loaded, and may this user open "
                                "/dev/infiniband/rdma_cm?");
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(&self->root.base, channel);
    if (cqn_set_nonblocking(channel->fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        cqn_close(&self->root.base, true);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *cm_channel_read(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_channel *self = (cqn_cm_channel *)op;
    if (cqn_open(&self->root.base) == NULL ||
        (self->first == NULL && cqn_cm_drain(self, EVENTS_AT_ONCE) < 0)) {
        return NULL;
    }
    PyObject *event = cqn_cm_next_event(self);
    return event != NULL || PyErr_Occurred() ? event : Py_NewRef(Py_None);
}

/* ---- the loop ---- */

/* Sets the loop that reads the events, as cqnotify knows it. */
static PyObject *cm_channel_set_loop(PyObject *op, PyObject *loop)
{
    CQN_LOCKED;
    cqn_cm_channel *self = (cqn_cm_channel *)op;
    PyObject *raw, *done;
    if (cqn_loop_parts(self->root.base.state, loop, &raw, &done) < 0) {
        return NULL;
    }
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_XSETREF(self->raw_loop, raw);
    Py_XSETREF(self->done, done);
    Py_RETURN_NONE;
}

/* An event that cannot be delivered, for lack of memory for example, ends only its own connection.
 * Returns -1 with an exception that must end the loop. */
static int fail_conn(cqn_cm_conn *conn)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyObject *error = cqn_take_exception();
    const int rc = cqn_do_method((PyObject *)conn, "fail", error);
    Py_DECREF(error);
    return rc;
}

/* A request whose listener is gone is rejected. */
static int handle_event(PyObject *event)
{
    if (PyTuple_GET_SIZE(event) == 0) { /* the core took a step */
        return 0;
    }
    cqn_cm_conn *conn = cqn_cm_conn_of((cqn_cm_id *)PyTuple_GET_ITEM(event, CQN_CM_EVENT_ID));
    if (conn == NULL) {
        return cqn_cm_reject(event);
    }
    int rc = cqn_cm_conn_deliver(conn, event);
    rc = rc < 0 ? fail_conn(conn) : 0;
    Py_DECREF(conn);
    return rc;
}

/* Handles the events that have arrived, within the budget of an iteration of the loop. Returns 1 if
 * there may be more, -1 with an exception. */
static int handle_some(cqn_cm_channel *self)
{
    const double began = cqn_cm_now();
    double checked = began;
    int between = 1, left = 1;
    while (cqn_is_open(&self->root.base)) { /* else it was closed, by a task that was woken */
        if (self->first == NULL && cqn_cm_drain(self, EVENTS_AT_ONCE) < 0) {
            return -1;
        }
        PyObject *event = cqn_cm_next_event(self);
        if (event == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        self->timed = CQN_CM_CALLS_OF_AN_EVENT;
        const int rc = handle_event(event);
        Py_DECREF(event);
        if (rc < 0) {
            return -1;
        }
        if (--left > 0) {
            continue;
        }
        const double now = cqn_cm_now();
        if (now - began >= CQN_CM_BUDGET) {
            return 1;
        }
        between = now - checked < QUICK ? Py_MIN(2 * between, EVENTS_BETWEEN_CHECKS) : 1;
        left = between;
        checked = now;
    }
    return 0;
}

static PyObject *cm_channel_handle_events(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_channel *self = (cqn_cm_channel *)op;
    const int rc = handle_some(self);
    self->timed = 0;
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *cm_channel_get_conns(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_conns((cqn_cm_channel *)op);
}

static PyObject *cm_channel_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_event_channel *channel = cqn_open(CQN_OBJ(op));
    return channel == NULL ? NULL : PyLong_FromLong(channel->fd);
}

static PyObject *cm_channel_dup(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_event_channel *channel = cqn_open(CQN_OBJ(op));
    return channel == NULL ? NULL : cqn_dup(channel->fd);
}

static PyObject *cm_channel_repr(PyObject *op)
{
    CQN_LOCKED;
    return PyUnicode_FromString(cqn_is_open(CQN_OBJ(op)) ? "<CMChannel>" : "<CMChannel closed>");
}

static PyMethodDef cm_channel_methods[] = {
    {"read_event", cm_channel_read, METH_NOARGS,
     "read_event($self, /)\n--\n\n"
     "The oldest event that has arrived, acknowledged already, or None; never sleeps.\n\n"
     "A tuple: the CMID that it is of, the event's number, its status, the private data, what the "
     "peer said of itself, of a CONNECT_REQUEST the CMID of the new connection, else None, and the "
     "exception of the step that the core took and that failed, or None. An empty tuple: the core "
     "took a step towards the target of a CMID, and there may be more.\n\n"
     "A peer says the fields of struct rdma_conn_param: the number of its QP, responder_resources, "
     "initiator_depth, retry_count, rnr_retry_count, srq; of datagrams it is a dict of those of "
     "struct rdma_ud_param; of other events None.\n\n"
     "Wraps rdma_get_cm_event(3) and rdma_ack_cm_event(3)."},
    {"_set_loop", cm_channel_set_loop, METH_O,
     "_set_loop($self, loop, /)\n--\n\nWhich loop reads its events."},
    {"handle_events", cm_channel_handle_events, METH_NOARGS,
     "handle_events($self, /)\n--\n\n"
     "Hand what has arrived to the CMConns of its CMIDs, for some ms; returns whether there may be "
     "more. In a callback of the loop, where no task runs; or in a thread that reads for all."},
    {"throttled", cqn_cm_throttled, METH_O, cqn_cm_throttled_doc},
    {"_run_throttled", cqn_cm_run_throttled, METH_NOARGS,
     "_run_throttled($self, /)\n--\n\nFor the loop: make some of the calls that wait."},
    {"fileno", cm_channel_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "The file descriptor, readable while the kernel has events; see read_event()."},
    {"_dup", cm_channel_dup, METH_NOARGS, cqn_dup_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef cm_channel_getset[] = {
    {"conns", cm_channel_get_conns, NULL, "A list of the CMConns whose events it brings.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef cm_channel_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot cm_channel_slots[] = {
    {Py_tp_doc, "CMChannel(event=tuple)\n--\n\n"
                "Where the events of connections arrive, see cqnotify.cm. `event` is what they are "
                "made as: a subclass of tuple.\n\n"
                "Wraps rdma_create_event_channel(3)."},
    {Py_tp_new, cm_channel_new},
    {Py_tp_repr, cm_channel_repr},
    {Py_tp_traverse, cm_channel_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, cm_channel_methods},
    {Py_tp_getset, cm_channel_getset},
    {Py_tp_members, cm_channel_members},
    {0, NULL},
};

PyType_Spec cqn_cm_channel_spec = {
    .name = "cqnotify._core.CMChannel",
    .basicsize = sizeof(cqn_cm_channel),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cm_channel_slots,
};
