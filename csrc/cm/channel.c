/* SPDX-License-Identifier: MIT */
/*
 * CMChannel: where the events of its identifiers arrive.
 *
 * It belongs to no device, so it takes the place of a Context for them: it lists them, and closes
 * them as it is closed. Its descriptor never blocks; who sleeps on it is Python's matter.
 */

#include "cm/cm.h"
#include <errno.h>

#define EVENTS_AT_ONCE 8 /* then the event loop gets its turn */

static int destroy_cm_channel(void *handle)
{
    cqn_cm.destroy_event_channel(handle);
    return 0;
}

static void cm_channel_after_destroy(cqn_object *op)
{
    cqn_cm_forget_events((cqn_cm_channel *)op, NULL);
}

static const cqn_kind cm_channel_kind = {
    .name = "CMChannel",
    .destroy_verb = "rdma_destroy_event_channel",
    .rank = CQN_RANK_PD,
    .goes_along = true, /* with the program's last connection */
    .destroy = destroy_cm_channel,
    .after_destroy = cm_channel_after_destroy,
    .clear = cqn_clear,
};

static PyObject *cm_channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":CMChannel", names) || cqn_cm_load() == NULL) {
        return NULL;
    }
    cqn_cm_channel *self = cqn_new(type, &cm_channel_kind, NULL, 0);
    if (self == NULL) {
        return NULL;
    }
    struct rdma_event_channel *channel;
    int err;
    self->root.base.context = &self->root;
    CQN_CREATING(&self->root.base, channel = CQN_CM_OR_NULL(create_event_channel); err = errno);
    if (channel == NULL) {
        cqn_verbs_error(self->root.base.state, err, "rdma_create_event_channel",
                        "is the module rdma_ucm loaded, and may this user open "
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
     "took a step towards the goal of a CMID, and there may be more.\n\n"
     "A peer says the fields of struct rdma_conn_param: the number of its QP, responder_resources, "
     "initiator_depth, retry_count, rnr_retry_count, srq; of datagrams it is a dict of those of "
     "struct rdma_ud_param; of other events None.\n\n"
     "Wraps rdma_get_cm_event(3) and rdma_ack_cm_event(3)."},
    {"fileno", cm_channel_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "The file descriptor, readable while the kernel has events; see read_event()."},
    {"_dup", cm_channel_dup, METH_NOARGS, cqn_dup_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef cm_channel_getset[] = {
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef cm_channel_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot cm_channel_slots[] = {
    {Py_tp_doc, "CMChannel()\n--\n\n"
                "Where the events of connections arrive, see cqnotify.cm.\n\n"
                "Wraps rdma_create_event_channel(3)."},
    {Py_tp_new, cm_channel_new},
    {Py_tp_repr, cm_channel_repr},
    {Py_tp_traverse, cqn_traverse},
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
