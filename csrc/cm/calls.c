/* SPDX-License-Identifier: MIT */
/*
 * The calls of an identifier. Each one checks the state first, because librdmacm crashes in a state
 * that the function is not meant for. Resolving is in resolve.c, and everything about the queue
 * pair in connect.c.
 */

#include "cm/calls.h"

/* CQN_CM_CALL() for functions that return an object. */
#define CALL(...)                         \
    do {                                  \
        int called;                       \
        CQN_CM_CALL(called, __VA_ARGS__); \
        if (called < 0) {                 \
            return NULL;                  \
        }                                 \
    } while (0)

static PyObject *cm_id_bind_addr(PyObject *op, PyObject *address)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct sockaddr_storage at;
    struct rdma_cm_id *id = cqn_cm_sockaddr_from(address, &at) < 0
                                ? NULL
                                : cqn_cm_in_state(self, "rdma_bind_addr", CQN_CM_IN(NEW));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_bind_addr", CQN_CM_BOUND, CQN_CM(bind_addr, id, (struct sockaddr *)&at),
         "address %R", address);
    Py_RETURN_NONE;
}

static PyObject *cm_id_listen(PyObject *op, PyObject *backlog)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    uint64_t n;
    struct rdma_cm_id *id = cqn_uint(backlog, "backlog", INT32_MAX, &n) < 0
                                ? NULL
                                : cqn_cm_in_state(self, "rdma_listen", CQN_CM_IN(BOUND));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_listen", CQN_CM_LISTENING, CQN_CM(listen, id, (int)n), "");
    Py_RETURN_NONE;
}

/* ---- replies, and the end ---- */

static PyObject *reject_connection(cqn_cm_id *self, const Py_buffer *data)
{
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_reject", CQN_CM_IN(REQUESTED));
    if (id == NULL) {
        return NULL;
    }
    if (data->len > UINT8_MAX) {
        return PyErr_Format(PyExc_ValueError, "private_data has %zd bytes: at most 255", data->len);
    }
    CALL(self, "rdma_reject", CQN_CM_FAILED, CQN_CM(reject, id, data->buf, (uint8_t)data->len),
         "private data of %zd bytes", data->len);
    Py_RETURN_NONE;
}

static PyObject *cm_id_reject(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:reject", &data)) {
        return NULL;
    }
    PyObject *result = reject_connection((cqn_cm_id *)op, &data);
    PyBuffer_Release(&data);
    return result;
}

/* The reply to a peer that has disconnected leaves the state as it is. */
PyObject *cqn_cm_id_disconnect(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct rdma_cm_id *id =
        cqn_cm_in_state(self, "rdma_disconnect", CQN_CM_CONNECTED | CQN_CM_IN(ACCEPTING));
    if (id == NULL) {
        return NULL;
    }
    const uint8_t next =
        self->state == CQN_CM_DISCONNECTED ? CQN_CM_DISCONNECTED : CQN_CM_DISCONNECTING;
    CALL(self, "rdma_disconnect", next, CQN_CM(disconnect, id), "");
    Py_RETURN_NONE;
}

/* An identifier joins one group, and leaves it when it is destroyed. The library refers to the
 * group by its address. */
static PyObject *cm_id_join_multicast(PyObject *op, PyObject *address)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct sockaddr_storage at;
    struct rdma_cm_id *id =
        cqn_cm_sockaddr_from(address, &at) < 0
            ? NULL
            : cqn_cm_in_state(self, "rdma_join_multicast", CQN_CM_IN(ADDR_RESOLVED));
    if (id == NULL) {
        return NULL;
    }
    if (self->group == NULL && (self->group = PyMem_Malloc(sizeof(at))) == NULL) {
        return PyErr_NoMemory();
    }
    *self->group = at;
    CALL(self, "rdma_join_multicast", CQN_CM_JOINING,
         CQN_CM(join_multicast, id, (struct sockaddr *)&at, NULL),
         "group %R (on RoCE, the kernel joins only groups of IPv4)", address);
    self->joined = true;
    Py_RETURN_NONE;
}

/* ---- options ---- */

/* Arguments: (option, value). */
static PyObject *cm_id_set_option(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    int option, value;
    return PyArg_ParseTuple(args, "ii:set_option", &option, &value)
               ? cqn_cm_done(cqn_cm_set_option((cqn_cm_id *)op, option, value))
               : NULL;
}

PyMethodDef cqn_cm_id_methods[] = {
    {"bind_addr", cm_id_bind_addr, METH_O,
     "bind_addr($self, address, /)\n--\n\nWraps rdma_bind_addr(3)."},
    {"resolve_addr", cqn_cm_id_resolve_addr, METH_VARARGS,
     "resolve_addr($self, source, destination, timeout_ms, target, /)\n--\n\n"
     "Ask for the way to an address. `target`: the state up to which the core itself goes on as "
     "events arrive: ADDR_RESOLVED, ROUTE_RESOLVED, RESPONDED or ESTABLISHED. Only the event that "
     "leads there is read from the channel, or one that ends the way. The time is that of all "
     "tries, of 500 ms each.\n\n"
     "Wraps rdma_resolve_addr(3)."},
    {"resolve_route", cqn_cm_id_resolve_route, METH_O,
     "resolve_route($self, timeout_ms, /)\n--\n\nWraps rdma_resolve_route(3)."},
    {"listen", cm_id_listen, METH_O, "listen($self, backlog, /)\n--\n\nWraps rdma_listen(3)."},
    {"bind_qp", cqn_cm_id_bind_qp, METH_O,
     "bind_qp($self, qp, /)\n--\n\n"
     "From now on it goes along with that QP: it is closed before the QP is."},
    {"check_mtu", cqn_cm_id_check_mtu, METH_NOARGS,
     "check_mtu($self, /)\n--\n\nVerbsError (EMSGSIZE) where a request asks for longer packets "
     "than "
     "our port takes."},
    {"is_for", cqn_cm_id_is_for, METH_O,
     "is_for($self, qp, /)\n--\n\nWhether its address leads to the device of that QP."},
    {"prepare", cqn_cm_id_prepare, METH_O,
     "prepare($self, options, /)\n--\n\n"
     "Say how its QP is to be connected, by connect() or accept(): a tuple that begins with "
     "private_data, access, responder_resources, initiator_depth, retry_count, rnr_retry_count, "
     "and ack_timeout and tos or None.\n\n"
     "Wraps rdma_set_option(3)."},
    {"modify_qp", cqn_cm_id_modify_qp, METH_VARARGS,
     "modify_qp($self, qp_state, access, /)\n--\n\n"
     "The transition of its QP to that state, in INIT with that access.\n\n"
     "Wraps rdma_init_qp_attr(3) and ibv_modify_qp(3)."},
    {"connect", cqn_cm_id_connect, METH_O,
     "connect($self, target, /)\n--\n\n"
     "Ask the peer, as prepare() has said. `target`: see resolve_addr(). A UD QP, and one of an "
     "iWARP "
     "device, is brought up first.\n\n"
     "Wraps rdma_connect(3)."},
    {"accept", cqn_cm_id_accept, METH_NOARGS,
     "accept($self, /)\n--\n\n"
     "Bring up the QP, and accept, as prepare() has said.\n\n"
     "Wraps rdma_init_qp_attr(3), ibv_modify_qp(3) and rdma_accept(3)."},
    {"reject", cm_id_reject, METH_VARARGS,
     "reject($self, private_data, /)\n--\n\nWraps rdma_reject(3)."},
    {"establish", cqn_cm_id_establish, METH_NOARGS,
     "establish($self, /)\n--\n\n"
     "Bring up the QP, and establish the connection that the peer has accepted.\n\n"
     "Wraps rdma_init_qp_attr(3), ibv_modify_qp(3) and rdma_establish(3)."},
    {"disconnect", cqn_cm_id_disconnect, METH_NOARGS,
     "disconnect($self, /)\n--\n\nWraps rdma_disconnect(3)."},
    {"join_multicast", cm_id_join_multicast, METH_O,
     "join_multicast($self, address, /)\n--\n\n"
     "It leaves the group as it is closed.\n\n"
     "Wraps rdma_join_multicast(3) and rdma_leave_multicast(3)."},
    {"set_option", cm_id_set_option, METH_VARARGS,
     "set_option($self, option, value, /)\n--\n\nWraps rdma_set_option(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};
