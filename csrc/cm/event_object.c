/* SPDX-License-Identifier: MIT */
/* Events as Python objects. */

#include "cm/cm.h"

#define PARAMETERS 6 /* fields of struct rdma_conn_param */

static bool has_parameters(enum rdma_cm_event_type type)
{
    return type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_CONNECT_RESPONSE ||
           type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_MULTICAST_JOIN;
}

/* Returns a new tuple, which the collector need not visit; NULL with an exception. */
static PyObject *numbers(const unsigned int of_peer[static PARAMETERS])
{
    PyObject *tuple = PyTuple_New(PARAMETERS);
    for (Py_ssize_t i = 0; tuple != NULL && i < PARAMETERS; i++) {
        PyObject *number = PyLong_FromUnsignedLong(of_peer[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
        }
        else {
            PyTuple_SET_ITEM(tuple, i, number);
        }
    }
    if (tuple != NULL) {
        PyObject_GC_UnTrack(tuple);
    }
    return tuple;
}

/* Returns the peer's parameters of a connection, or the destination of its datagrams; None if the
 * event has none. Few programs read the former, so only Python names their fields. */
static PyObject *parameters(const cqn_cm_event *event)
{
    if (!has_parameters(event->type)) {
        Py_RETURN_NONE;
    }
    if (!event->datagrams) {
        const struct rdma_conn_param *p = &event->conn;
        return numbers((const unsigned int[]){p->qp_num, p->responder_resources, p->initiator_depth,
                                              p->retry_count, p->rnr_retry_count, p->srq});
    }
    PyObject *ah_attr = cqn_ah_attr_to_dict(&event->ud.ah_attr);
    return ah_attr == NULL ? NULL
                           : Py_BuildValue("{sIsIsN}", "qp_num", event->ud.qp_num, "qkey",
                                           event->ud.qkey, "ah_attr", ah_attr);
}

/* Returns a new tuple of that type, to be filled in. */
static PyObject *new_event(PyTypeObject *type)
{
    return type == &PyTuple_Type ? PyTuple_New(CQN_CM_EVENT_FIELDS)
                                 : type->tp_alloc(type, CQN_CM_EVENT_FIELDS);
}

/* Returns a new tuple (CMID, event, status, private data, parameters, request, error); NULL with an
 * exception. The request's CMID takes ownership of the event's identifier. */
static PyObject *make_cm_event(cqn_cm_channel *self, cqn_cm_event *event, PyObject *owner,
                               PyObject *error)
{
    PyObject *said = parameters(event);
    PyObject *data =
        PyBytes_FromStringAndSize((const char *)event->private_data, event->private_len);
    PyObject *tuple = said == NULL || data == NULL ? NULL : new_event(self->event_type);
    PyObject *type = tuple == NULL ? NULL : PyLong_FromLong(event->type);
    PyObject *status = type == NULL ? NULL : PyLong_FromLong(event->status);
    PyObject *request = status == NULL ? NULL
                        : event->request == NULL
                            ? Py_NewRef(Py_None)
                            : (PyObject *)cqn_cm_id_of_request(self, event->request);
    if (request == NULL) {
        Py_XDECREF(said);
        Py_XDECREF(data);
        Py_XDECREF(tuple);
        Py_XDECREF(type);
        Py_XDECREF(status);
        return NULL;
    }
    event->request = NULL;
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_ID, Py_NewRef(owner));
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_TYPE, type);
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_STATUS, status);
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_DATA, data);
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_SAID, said);
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_REQUEST, request);
    PyTuple_SET_ITEM(tuple, CQN_CM_EVENT_ERROR, Py_NewRef(error != NULL ? error : Py_None));
    return tuple;
}

/* Takes the next step, or returns the event, with the error of a failed step. Returns a new tuple,
 * which is empty after a step; NULL with an exception. */
static PyObject *handle_event(cqn_cm_channel *self, cqn_cm_event *event, cqn_cm_id *owner)
{
    const int rc = cqn_cm_advance(owner, event->type, event->status);
    if (rc > 0) {
        return PyTuple_New(0);
    }
    PyObject *error = rc < 0 ? cqn_take_exception() : NULL;
    PyObject *tuple = make_cm_event(self, event, (PyObject *)owner, error);
    Py_XDECREF(error);
    return tuple;
}

/* While the event is handled, which can run arbitrary code, it is not in the list. If its objects
 * could not be created it goes back to the front, unless its owner was closed meanwhile. */
PyObject *cqn_cm_next_event(cqn_cm_channel *self)
{
    cqn_cm_event *event = self->first;
    while (event != NULL) {
        self->first = event->next;
        self->last = self->first == NULL ? NULL : self->last;
        cqn_cm_id *owner = event->owner;
        PyObject *tuple = NULL;
        const bool is_alive = cqn_try_ref(&owner->base);
        if (is_alive) {
            tuple = handle_event(self, event, owner);
        }
        if (is_alive && tuple == NULL && owner->base.handle != NULL) {
            event->next = self->first;
            self->first = event;
            self->last = self->last == NULL ? event : self->last;
        }
        else {
            cqn_cm_drop_event(event);
        }
        if (is_alive) {
            Py_DECREF(owner);
        }
        if (tuple != NULL || PyErr_Occurred()) {
            return tuple;
        }
        event = self->first;
    }
    return NULL;
}
