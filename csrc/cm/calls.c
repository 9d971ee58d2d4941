/* SPDX-License-Identifier: MIT */
/*
 * What is asked of an identifier: each call checks its state first, since librdmacm crashes where
 * it is not the one that the function is for.
 *
 * A call changes the state before it releases the lock: the event that follows it can be read by
 * another thread before the call returns.
 */

#include "cm/cm.h"
#include <errno.h>

const char *const cqn_cm_state_names[CQN_CM_STATES] = {
    "NEW",           "BOUND",           "LISTENING",      "RESOLVING_ADDR",
    "ADDR_RESOLVED", "RESOLVING_ROUTE", "ROUTE_RESOLVED", "CONNECTING",
    "RESPONDED",     "REQUESTED",       "ACCEPTING",      "JOINING",
    "ESTABLISHED",   "DISCONNECTING",   "DISCONNECTED",   "FAILED",
};

#define IN(state) (1u << CQN_CM_##state)
#define CONNECTED (IN(ESTABLISHED) | IN(DISCONNECTING) | IN(DISCONNECTED))

/* The open handle in one of these states, or NULL with an exception. */
static struct rdma_cm_id *in_state(const cqn_cm_id *self, const char *verb, unsigned int states)
{
    struct rdma_cm_id *id = cqn_open(&self->base);
    if (id != NULL && !(states & (1u << self->state))) {
        PyErr_Format(PyExc_RuntimeError, "%s(): the state of this CMID is %s", verb,
                     cqn_cm_state_names[self->state]);
        return NULL;
    }
    return id;
}

/* Runs the statement, which sets `rc`, without the GIL. Fails with the state that was before,
 * unless an event has changed it. */
#define CALL(self, verb, leads_to, call, ...)                                     \
    do {                                                                          \
        const uint8_t before = (self)->state;                                     \
        int rc, err;                                                              \
        (self)->state = (leads_to);                                               \
        CQN_IN_KERNEL(&(self)->base, rc = (call); err = errno);                   \
        if (rc != 0) {                                                            \
            (self)->state = (self)->state == (leads_to) ? before : (self)->state; \
            return cqn_verbs_error((self)->base.state, err, verb, __VA_ARGS__);   \
        }                                                                         \
    } while (0)

static int milliseconds(PyObject *value, int *out)
{
    uint64_t n;
    if (cqn_uint(value, "timeout_ms", INT32_MAX, &n) < 0) {
        return -1;
    }
    *out = (int)n;
    return 0;
}

/* On iWARP an address is refused as it is resolved, else as the route is. */
#define LOOPBACK \
    "a loopback address has no RDMA device: use an address of an interface that has one"

static PyObject *cm_id_bind_addr(PyObject *op, PyObject *address)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct sockaddr_storage at;
    struct rdma_cm_id *id =
        cqn_cm_sockaddr_from(address, &at) < 0 ? NULL : in_state(self, "rdma_bind_addr", IN(NEW));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_bind_addr", CQN_CM_BOUND, CQN_CM(bind_addr, id, (struct sockaddr *)&at),
         "address %R", address);
    Py_RETURN_NONE;
}

/* (source or None, destination, milliseconds). */
static PyObject *cm_id_resolve_addr(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    PyObject *source, *destination, *timeout;
    struct sockaddr_storage from, to;
    int ms;
    if (!PyArg_ParseTuple(args, "OOO:resolve_addr", &source, &destination, &timeout) ||
        (source != Py_None && cqn_cm_sockaddr_from(source, &from) < 0) ||
        cqn_cm_sockaddr_from(destination, &to) < 0 || milliseconds(timeout, &ms) < 0) {
        return NULL;
    }
    struct sockaddr *own = source == Py_None ? NULL : (struct sockaddr *)&from;
    struct rdma_cm_id *id = in_state(self, "rdma_resolve_addr", IN(NEW) | IN(BOUND));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_resolve_addr", CQN_CM_RESOLVING_ADDR,
         CQN_CM(resolve_addr, id, own, (struct sockaddr *)&to, ms), "to %R%s", destination,
         err == EINVAL ? "; " LOOPBACK : "");
    Py_RETURN_NONE;
}

static PyObject *cm_id_resolve_route(PyObject *op, PyObject *timeout)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    int ms;
    struct rdma_cm_id *id = milliseconds(timeout, &ms) < 0
                                ? NULL
                                : in_state(self, "rdma_resolve_route", IN(ADDR_RESOLVED));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_resolve_route", CQN_CM_RESOLVING_ROUTE, CQN_CM(resolve_route, id, ms),
         LOOPBACK);
    Py_RETURN_NONE;
}

static PyObject *cm_id_listen(PyObject *op, PyObject *backlog)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    uint64_t n;
    struct rdma_cm_id *id = cqn_uint(backlog, "backlog", INT32_MAX, &n) < 0
                                ? NULL
                                : in_state(self, "rdma_listen", IN(BOUND));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_listen", CQN_CM_LISTENING, CQN_CM(listen, id, (int)n), "");
    Py_RETURN_NONE;
}

/* ---- a connection, from both sides ---- */

typedef struct {
    struct rdma_conn_param param;
    Py_buffer data;
} conn_args;

/* (private data, number of the QP, has an SRQ, responder resources, initiator depth, retry count,
 * RNR retry count). -1 with an exception; else the caller releases the buffer. */
static int parse_conn(PyObject *args, conn_args *out)
{
    unsigned int qp_num;
    int srq;
    unsigned char responder, initiator, retry, rnr_retry;
    if (!PyArg_ParseTuple(args, "y*Ipbbbb", &out->data, &qp_num, &srq, &responder, &initiator,
                          &retry, &rnr_retry)) {
        return -1;
    }
    if (out->data.len > UINT8_MAX) {
        PyErr_Format(PyExc_ValueError, "private_data has %zd bytes: at most 255", out->data.len);
        PyBuffer_Release(&out->data);
        return -1;
    }
    out->param = (struct rdma_conn_param){
        .private_data = out->data.buf,
        .private_data_len = (uint8_t)out->data.len,
        .responder_resources = responder,
        .initiator_depth = initiator,
        .retry_count = retry,
        .rnr_retry_count = rnr_retry,
        .srq = (uint8_t)srq,
        .qp_num = qp_num,
    };
    return 0;
}

static PyObject *ask_for_connection(cqn_cm_id *self, conn_args *args)
{
    struct rdma_cm_id *id = in_state(self, "rdma_connect", IN(ROUTE_RESOLVED));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_connect", CQN_CM_CONNECTING, CQN_CM(connect, id, &args->param),
         "private data of %d bytes", (int)args->param.private_data_len);
    Py_RETURN_NONE;
}

static PyObject *cm_id_connect(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    conn_args parsed;
    if (parse_conn(args, &parsed) < 0) {
        return NULL;
    }
    PyObject *result = ask_for_connection((cqn_cm_id *)op, &parsed);
    PyBuffer_Release(&parsed.data);
    return result;
}

/* A datagram's request is answered by this; a connection waits for the peer. */
static PyObject *accept_connection(cqn_cm_id *self, conn_args *args)
{
    struct rdma_cm_id *id = in_state(self, "rdma_accept", IN(REQUESTED));
    if (id == NULL) {
        return NULL;
    }
    const uint8_t next = self->datagrams ? CQN_CM_ESTABLISHED : CQN_CM_ACCEPTING;
    CALL(self, "rdma_accept", next, CQN_CM(accept, id, &args->param),
         "the peer may have gone, or given up; private data of %d bytes",
         (int)args->param.private_data_len);
    Py_RETURN_NONE;
}

static PyObject *cm_id_accept(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    conn_args parsed;
    if (parse_conn(args, &parsed) < 0) {
        return NULL;
    }
    PyObject *result = accept_connection((cqn_cm_id *)op, &parsed);
    PyBuffer_Release(&parsed.data);
    return result;
}

static PyObject *reject_connection(cqn_cm_id *self, const Py_buffer *data)
{
    struct rdma_cm_id *id = in_state(self, "rdma_reject", IN(REQUESTED));
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

static PyObject *cm_id_establish(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct rdma_cm_id *id = in_state(self, "rdma_establish", IN(RESPONDED));
    if (id == NULL) {
        return NULL;
    }
    CALL(self, "rdma_establish", CQN_CM_ESTABLISHED, CQN_CM(establish, id), "");
    Py_RETURN_NONE;
}

/* The answer to a peer that has disconnected leaves the state as it is. */
static PyObject *cm_id_disconnect(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct rdma_cm_id *id = in_state(self, "rdma_disconnect", CONNECTED | IN(ACCEPTING));
    if (id == NULL) {
        return NULL;
    }
    const uint8_t next =
        self->state == CQN_CM_DISCONNECTED ? CQN_CM_DISCONNECTED : CQN_CM_DISCONNECTING;
    CALL(self, "rdma_disconnect", next, CQN_CM(disconnect, id), "");
    Py_RETURN_NONE;
}

/* An identifier joins one group, and leaves it as it is destroyed. The library refers to the group
 * by its address. */
static PyObject *cm_id_join_multicast(PyObject *op, PyObject *address)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    struct sockaddr_storage at;
    struct rdma_cm_id *id = cqn_cm_sockaddr_from(address, &at) < 0
                                ? NULL
                                : in_state(self, "rdma_join_multicast", IN(ADDR_RESOLVED));
    if (id == NULL) {
        return NULL;
    }
    if (self->group == NULL && (self->group = PyMem_Malloc(sizeof(at))) == NULL) {
        return PyErr_NoMemory();
    }
    *self->group = at;
    CALL(self, "rdma_join_multicast", CQN_CM_JOINING,
         CQN_CM(join_multicast, id, (struct sockaddr *)&at, NULL),
         "group %R (on RoCE, kernels join groups of IPv4 alone)", address);
    self->joined = true;
    Py_RETURN_NONE;
}

/* ---- the queue pair ---- */

static PyObject *cm_id_bind_qp(PyObject *op, PyObject *qp)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (cqn_expect(qp, self->base.state->QP, "qp") < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->base.uses[1] != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this CMID has a QP");
        return NULL;
    }
    /* Of the types that use a QP, this is the only one. */
    if (!self->datagrams && CQN_OBJ(qp)->latest[CQN_RANK_QP] != NULL) {
        PyErr_SetString(PyExc_ValueError, "this QP belongs to another connection already");
        return NULL;
    }
    cqn_object *trash = NULL;
    cqn_use(&self->base, 1, CQN_OBJ(qp), &trash);
    cqn_trash_empty(trash);
    Py_RETURN_NONE;
}

/* What librdmacm says of a transition. Of datagrams it knows no more than how to get to INIT: they
 * have no path. -1 with an exception. */
static int ask_for_attributes(cqn_cm_id *self, struct rdma_cm_id *id, const cqn_qp *qp,
                              struct ibv_qp_attr *attr)
{
    if (self->datagrams && attr->qp_state != IBV_QPS_INIT) {
        attr->sq_psn = qp->sq_psn;
        return IBV_QP_STATE | (attr->qp_state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0);
    }
    int rc, err, mask = 0;
    CQN_IN_KERNEL(&self->base, rc = CQN_CM(init_qp_attr, id, attr, &mask); err = errno);
    if (rc != 0) {
        cqn_verbs_error(self->base.state, err, "rdma_init_qp_attr", "");
        return -1;
    }
    return mask;
}

static int modify_qp(cqn_cm_id *self, struct rdma_cm_id *id, cqn_qp *qp, unsigned int state,
                     unsigned int access)
{
    struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)state};
    const int mask = ask_for_attributes(self, id, qp, &attr);
    if (mask < 0) {
        return -1;
    }
    if (mask & IBV_QP_ACCESS_FLAGS) {
        attr.qp_access_flags = access;
    }
    return cqn_qp_carry_out(qp, &attr, mask);
}

/* (state, access flags). Another thread can close both meanwhile. */
static PyObject *cm_id_modify_qp(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    unsigned int state, access;
    struct rdma_cm_id *id = !PyArg_ParseTuple(args, "II:modify_qp", &state, &access)
                                ? NULL
                                : in_state(self, "rdma_init_qp_attr",
                                           IN(ADDR_RESOLVED) | IN(ROUTE_RESOLVED) | IN(CONNECTING) |
                                               IN(RESPONDED) | IN(REQUESTED) | CONNECTED);
    if (id == NULL) {
        return NULL;
    }
    if (self->base.uses[1] == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "modify_qp(): this CMID has no QP");
    }
    PyObject *qp = Py_NewRef((PyObject *)self->base.uses[1]);
    const int rc = modify_qp(self, id, (cqn_qp *)qp, state, access);
    Py_DECREF(qp);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- options ---- */

/* (option, value); its size is that of the option. */
static PyObject *cm_id_set_option(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    int option, value;
    struct rdma_cm_id *id =
        !PyArg_ParseTuple(args, "ii:set_option", &option, &value)
            ? NULL
            : in_state(self, "rdma_set_option", ~(IN(DISCONNECTED) | IN(FAILED)));
    if (id == NULL) {
        return NULL;
    }
    const bool is_byte = option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT;
    uint8_t byte = (uint8_t)value;
    void *at = is_byte ? (void *)&byte : (void *)&value;
    const size_t size = is_byte ? sizeof(byte) : sizeof(value);
    CALL(self, "rdma_set_option", self->state,
         CQN_CM(set_option, id, RDMA_OPTION_ID, option, at, size), "option %d, value %d", option,
         value);
    Py_RETURN_NONE;
}

PyMethodDef cqn_cm_id_methods[] = {
    {"bind_addr", cm_id_bind_addr, METH_O,
     "bind_addr($self, address, /)\n--\n\nWraps rdma_bind_addr(3)."},
    {"resolve_addr", cm_id_resolve_addr, METH_VARARGS,
     "resolve_addr($self, source, destination, timeout_ms, /)\n--\n\nWraps rdma_resolve_addr(3)."},
    {"resolve_route", cm_id_resolve_route, METH_O,
     "resolve_route($self, timeout_ms, /)\n--\n\nWraps rdma_resolve_route(3)."},
    {"listen", cm_id_listen, METH_O, "listen($self, backlog, /)\n--\n\nWraps rdma_listen(3)."},
    {"connect", cm_id_connect, METH_VARARGS,
     "connect($self, private_data, qp_num, srq, responder_resources, initiator_depth, retry_count, "
     "rnr_retry_count, /)\n--\n\nWraps rdma_connect(3)."},
    {"accept", cm_id_accept, METH_VARARGS,
     "accept($self, private_data, qp_num, srq, responder_resources, initiator_depth, retry_count, "
     "rnr_retry_count, /)\n--\n\nWraps rdma_accept(3)."},
    {"reject", cm_id_reject, METH_VARARGS,
     "reject($self, private_data, /)\n--\n\nWraps rdma_reject(3)."},
    {"establish", cm_id_establish, METH_NOARGS,
     "establish($self, /)\n--\n\nWraps rdma_establish(3)."},
    {"disconnect", cm_id_disconnect, METH_NOARGS,
     "disconnect($self, /)\n--\n\nWraps rdma_disconnect(3)."},
    {"join_multicast", cm_id_join_multicast, METH_O,
     "join_multicast($self, address, /)\n--\n\n"
     "It leaves the group as it is closed.\n\n"
     "Wraps rdma_join_multicast(3) and rdma_leave_multicast(3)."},
    {"bind_qp", cm_id_bind_qp, METH_O,
     "bind_qp($self, qp, /)\n--\n\n"
     "From now on it goes along with that QP: it is closed before the QP is."},
    {"modify_qp", cm_id_modify_qp, METH_VARARGS,
     "modify_qp($self, qp_state, access, /)\n--\n\n"
     "The transition of its QP to that state, in INIT with that access.\n\n"
     "Wraps rdma_init_qp_attr(3) and ibv_modify_qp(3)."},
    {"set_option", cm_id_set_option, METH_VARARGS,
     "set_option($self, option, value, /)\n--\n\nWraps rdma_set_option(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};
