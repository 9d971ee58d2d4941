/* SPDX-License-Identifier: MIT */
/*
 * The queue pair of a CMID, and the steps that connect it.
 *
 * The order of the steps is fixed: the route is resolved after the address, the peer gets the
 * request after that, and the queue pair is connected when the peer has accepted. So the core takes
 * these steps as it reads the events, up to the target state that the program set, and Python sees
 * the end.
 */

#include "cm/calls.h"

#define ROUTE_MS 4000 /* RoCE knows it at once; InfiniBand queries its subnet manager */

static cqn_qp *qp_of(const cqn_cm_id *self)
{
    return (cqn_qp *)self->base.uses[1];
}

PyObject *cqn_cm_id_bind_qp(PyObject *op, PyObject *qp)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (cqn_expect(qp, self->base.state->QP, "qp") < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (qp_of(self) != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this CMID has a QP");
        return NULL;
    }
    /* No other type uses a QP. */
    if (!self->datagrams && CQN_OBJ(qp)->latest[CQN_RANK_QP] != NULL) {
        PyErr_SetString(PyExc_ValueError, "this QP belongs to another connection already");
        return NULL;
    }
    cqn_object *deferred = NULL;
    cqn_use(&self->base, 1, CQN_OBJ(qp), &deferred);
    cqn_decref_deferred(deferred);
    Py_RETURN_NONE;
}

/* Returns true even if the address was not resolved: then the device is unknown. */
static bool leads_to_device_of(const cqn_cm_id *self, const cqn_qp *qp)
{
    const struct rdma_cm_id *id = self->base.handle;
    const struct ibv_context *own = qp->base.context->base.handle;
    return own == NULL || id == NULL || id->verbs == NULL ||
           strcmp(ibv_get_device_name(id->verbs->device), ibv_get_device_name(own->device)) == 0;
}

PyObject *cqn_cm_id_is_for(PyObject *op, PyObject *qp)
{
    CQN_LOCKED;
    const cqn_cm_id *self = (cqn_cm_id *)op;
    return cqn_expect(qp, self->base.state->QP, "qp") < 0 || cqn_open(&self->base) == NULL ||
                   cqn_open(CQN_OBJ(qp)) == NULL
               ? NULL
               : PyBool_FromLong(leads_to_device_of(self, (cqn_qp *)qp));
}

/* The packets of a connection have the MTU of the connecting peer's port, which no message of
 * rdma_cm changes. If our port only takes shorter ones, none would arrive. Returns -1 with an
 * exception. */
static int check_mtu(cqn_cm_id *self)
{
    const struct rdma_cm_id *id = cqn_open(&self->base);
    if (id == NULL || self->datagrams || id->verbs == NULL || cqn_cm_is_iwarp(self) ||
        id->route.num_paths < 1) {
        return id == NULL ? -1 : 0;
    }
    const int asked = id->route.path_rec->mtu;
    struct ibv_context *device = id->verbs;
    const uint8_t port_num = id->port_num;
    struct ibv_port_attr port = {.flags = 0};
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_query_port(device, port_num, &port));
    if (err != 0 || asked <= (int)port.active_mtu) {
        return 0;
    }
    cqn_verbs_error(self->base.state, EMSGSIZE, "rdma_accept",
                    "the peer's port sends packets of %d bytes (its MTU), and port %d of %s takes "
                    "%d: give both network interfaces the same MTU, or let this end connect",
                    128 << asked, port_num, ibv_get_device_name(device->device),
                    128 << port.active_mtu);
    return -1;
}

PyObject *cqn_cm_id_check_mtu(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(check_mtu((cqn_cm_id *)op));
}

/* ---- connection parameters ---- */

int cqn_cm_set_option(cqn_cm_id *self, int option, int value)
{
    struct rdma_cm_id *id =
        cqn_cm_in_state(self, "rdma_set_option", ~(CQN_CM_IN(DISCONNECTED) | CQN_CM_IN(FAILED)));
    if (id == NULL) {
        return -1;
    }
    const bool is_byte = option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT;
    uint8_t byte = (uint8_t)value;
    void *at = is_byte ? (void *)&byte : (void *)&value;
    const size_t size = is_byte ? sizeof(byte) : sizeof(value);
    int rc;
    CQN_CM_CALL(rc, self, "rdma_set_option", self->state,
                CQN_CM(set_option, id, RDMA_OPTION_ID, option, at, size), "option %d, value %d",
                option, value);
    return rc;
}

/* The items of prepare()'s argument, in this order; further items are for Python. */
enum {
    PRIVATE_DATA,
    ACCESS,
    RESPONDER_RESOURCES,
    INITIATOR_DEPTH,
    RETRY_COUNT,
    RNR_RETRY_COUNT,
    ACK_TIMEOUT,
    TOS,
    OPTIONS
};

/* Converts a number up to `most`. Returns -1 with an exception. */
static int64_t number_from(PyObject *options, Py_ssize_t i, int64_t most)
{
    const int64_t n = PyLong_AsLongLong(PyTuple_GET_ITEM(options, i));
    if (n >= 0 && n <= most) {
        return n;
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "option %zd is %lld: it must be 0 to %lld", i, (long long)n,
                     (long long)most);
    }
    return -1;
}

static int params_from(PyObject *options, cqn_cm_conn_params *params, int64_t *access)
{
    if (!PyTuple_Check(options) || PyTuple_GET_SIZE(options) < OPTIONS ||
        !PyBytes_Check(PyTuple_GET_ITEM(options, PRIVATE_DATA))) {
        PyErr_SetString(PyExc_TypeError, "prepare() takes a tuple that begins with bytes");
        return -1;
    }
    PyObject *data = PyTuple_GET_ITEM(options, PRIVATE_DATA);
    const Py_ssize_t len = PyBytes_GET_SIZE(data);
    if (len > UINT8_MAX) {
        PyErr_Format(PyExc_ValueError, "private_data has %zd bytes: at most 255", len);
        return -1;
    }
    int64_t bytes[ACK_TIMEOUT] = {0};
    *access = number_from(options, ACCESS, UINT32_MAX);
    for (Py_ssize_t i = RESPONDER_RESOURCES; *access >= 0 && i <= RNR_RETRY_COUNT; i++) {
        if ((bytes[i] = number_from(options, i, UINT8_MAX)) < 0) {
            return -1;
        }
    }
    memcpy(params->private_data, PyBytes_AS_STRING(data), (size_t)len);
    params->param = (struct rdma_conn_param){
        .private_data_len = (uint8_t)len,
        .responder_resources = (uint8_t)bytes[RESPONDER_RESOURCES],
        .initiator_depth = (uint8_t)bytes[INITIATOR_DEPTH],
        .retry_count = (uint8_t)bytes[RETRY_COUNT],
        .rnr_retry_count = (uint8_t)bytes[RNR_RETRY_COUNT],
    };
    return *access < 0 ? -1 : 0;
}

/* None leaves an option as it is. */
static int set_option_from(cqn_cm_id *self, PyObject *options, Py_ssize_t i, int option)
{
    if (PyTuple_GET_ITEM(options, i) == Py_None) {
        return 0;
    }
    const int64_t value = number_from(options, i, UINT8_MAX);
    return value < 0 ? -1 : cqn_cm_set_option(self, option, (int)value);
}

CQN_RARE PyObject *cqn_cm_id_prepare(PyObject *op, PyObject *options)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    cqn_cm_conn_params params;
    int64_t access;
    if (params_from(options, &params, &access) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (set_option_from(self, options, ACK_TIMEOUT, RDMA_OPTION_ID_ACK_TIMEOUT) < 0 ||
        set_option_from(self, options, TOS, RDMA_OPTION_ID_TOS) < 0) {
        return NULL;
    }
    const cqn_qp *qp = qp_of(self); /* another thread can have closed it meanwhile */
    if (qp == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "prepare(): this CMID has no QP");
    }
    if (self->params == NULL && (self->params = PyMem_Malloc(sizeof(params))) == NULL) {
        return PyErr_NoMemory();
    }
    *self->params = params;
    self->params->param.private_data = self->params->private_data;
    self->params->param.qp_num = qp->qp_num;
    self->params->param.srq = qp->srq != NULL;
    self->access = (unsigned int)access;
    self->depth = params.param.initiator_depth;
    self->prepared = true;
    Py_RETURN_NONE;
}

/* ---- transitions ---- */

/* The identifier of a queue pair, and the attributes that librdmacm does not know. */
typedef struct {
    struct rdma_cm_id *id;
    unsigned int access;
    uint32_t psn;  /* of datagrams */
    uint8_t depth; /* the limit; when accepting, the kernel does not know it yet */
    bool datagrams;
} asked_of;

/* Gets the attributes of a transition from librdmacm. For datagrams it knows only those of INIT,
 * because they have no path. */
static int ask_for_attributes(const void *of, struct ibv_qp_attr *attr)
{
    const asked_of *whose = of;
    if (whose->datagrams && attr->qp_state != IBV_QPS_INIT) {
        attr->sq_psn = whose->psn;
        return IBV_QP_STATE | (attr->qp_state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0);
    }
    int mask = 0;
    if (CQN_CM(init_qp_attr, whose->id, attr, &mask) != 0) {
        return -1;
    }
    if (mask & IBV_QP_ACCESS_FLAGS) {
        attr->qp_access_flags = whose->access;
    }
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > whose->depth) {
        attr->max_rd_atomic = whose->depth;
    }
    return mask;
}

#define KNOWS_ATTRIBUTES                                                            \
    (CQN_CM_IN(ADDR_RESOLVED) | CQN_CM_IN(ROUTE_RESOLVED) | CQN_CM_IN(CONNECTING) | \
     CQN_CM_IN(RESPONDED) | CQN_CM_IN(REQUESTED) | CQN_CM_CONNECTED)

/* Returns -1 with an exception. */
static int climb(cqn_cm_id *self, enum ibv_qp_state from, enum ibv_qp_state to, unsigned int access)
{
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_init_qp_attr", KNOWS_ATTRIBUTES);
    if (id == NULL) {
        return -1;
    }
    if (qp_of(self) == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "modify_qp(): this CMID has no QP");
        return -1;
    }
    cqn_qp *qp = (cqn_qp *)Py_NewRef((PyObject *)qp_of(self));
    const asked_of whose = {.id = id,
                            .access = access,
                            .psn = self->datagrams ? cqn_qp_psn(qp) : 0,
                            .depth = self->prepared ? self->depth : UINT8_MAX,
                            .datagrams = self->datagrams};
    const cqn_qp_source source = {ask_for_attributes, &whose, "rdma_init_qp_attr",
                                  .depth_granted = self->depth > 0};
    cqn_enter(&self->base); /* another thread can close both after this */
    const int rc = cqn_qp_climb(qp, from, to, &source);
    cqn_leave(&self->base);
    Py_DECREF(qp);
    return rc;
}

/* Arguments: (state, access flags). */
PyObject *cqn_cm_id_modify_qp(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned int state, access;
    return !PyArg_ParseTuple(args, "II:modify_qp", &state, &access)
               ? NULL
               : cqn_cm_done(climb((cqn_cm_id *)op, state - 1, state, access));
}

/* Makes the remaining transitions up to RTS. For an iWARP device the kernel itself makes those
 * after INIT. A UD QP may be in RTS already, because it has other peers. Returns -1 with an
 * exception. */
static int bring_up(cqn_cm_id *self)
{
    if (!self->prepared) {
        PyErr_SetString(PyExc_RuntimeError, "how this CMID is to be connected was not said");
        return -1;
    }
    const bool iwarp = cqn_cm_is_iwarp(self);
    const enum ibv_qp_state from = iwarp ? IBV_QPS_RESET : qp_of(self)->state;
    const enum ibv_qp_state to = iwarp ? IBV_QPS_INIT : IBV_QPS_RTS;
    return from < to ? climb(self, from, to, self->access) : 0;
}

/* ---- steps ---- */

/* Removes and returns the connection parameters, since they are sent once; the caller frees them.
 * NULL with an exception. */
static cqn_cm_conn_params *pop_params(cqn_cm_id *self)
{
    cqn_cm_conn_params *params = self->params;
    self->params = NULL;
    if (params == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "how this CMID is to be connected was not said");
    }
    return params;
}

/* Sends the connection request. For datagrams and iWARP the queue pair must be ready before the
 * reply. Returns -1 with an exception. */
static int ask_peer(cqn_cm_id *self)
{
    const unsigned int states = CQN_CM_IN(ROUTE_RESOLVED);
    if (cqn_cm_in_state(self, "rdma_connect", states) == NULL ||
        ((self->datagrams || cqn_cm_is_iwarp(self)) && bring_up(self) < 0)) {
        return -1;
    }
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_connect", states);
    cqn_cm_conn_params *params = id == NULL ? NULL : pop_params(self);
    if (params == NULL) {
        return -1;
    }
    int rc;
    CQN_CM_CALL(rc, self, "rdma_connect", CQN_CM_CONNECTING, CQN_CM(connect, id, &params->param),
                "private data of %d bytes, responder_resources %d, initiator_depth %d",
                (int)params->param.private_data_len, (int)params->param.responder_resources,
                (int)params->param.initiator_depth);
    PyMem_Free(params);
    return rc;
}

PyObject *cqn_cm_id_connect(PyObject *op, PyObject *target)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    return cqn_cm_target_from(target, &self->target) < 0 ? NULL : cqn_cm_done(ask_peer(self));
}

/* This is the reply to a datagram's request; a connection then waits for the peer. */
PyObject *cqn_cm_id_accept(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (cqn_cm_in_state(self, "rdma_accept", CQN_CM_IN(REQUESTED)) == NULL || bring_up(self) < 0) {
        return NULL;
    }
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_accept", CQN_CM_IN(REQUESTED));
    cqn_cm_conn_params *params = id == NULL ? NULL : pop_params(self);
    if (params == NULL) {
        return NULL;
    }
    const uint8_t next = self->datagrams ? CQN_CM_ESTABLISHED : CQN_CM_ACCEPTING;
    int rc;
    CQN_CM_CALL(rc, self, "rdma_accept", next, CQN_CM(accept, id, &params->param),
                "private data of %d bytes, responder_resources %d, initiator_depth %d",
                (int)params->param.private_data_len, (int)params->param.responder_resources,
                (int)params->param.initiator_depth);
    PyMem_Free(params);
    return cqn_cm_done(rc);
}

/* Called when the peer has accepted. Returns -1 with an exception. */
static int establish(cqn_cm_id *self)
{
    if (cqn_cm_in_state(self, "rdma_establish", CQN_CM_IN(RESPONDED)) == NULL ||
        bring_up(self) < 0) {
        return -1;
    }
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_establish", CQN_CM_IN(RESPONDED));
    if (id == NULL) {
        return -1;
    }
    int rc;
    CQN_CM_CALL(rc, self, "rdma_establish", CQN_CM_ESTABLISHED, CQN_CM(establish, id), "");
    return rc;
}

PyObject *cqn_cm_id_establish(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_cm_done(establish((cqn_cm_id *)op));
}

int cqn_cm_advance(cqn_cm_id *self, enum rdma_cm_event_type type, int status)
{
    if (type == RDMA_CM_EVENT_ADDR_ERROR && status == -ETIMEDOUT && self->left_ms > 0) {
        return cqn_cm_resolve_again(self) < 0 ? -1 : 1;
    }
    if (type == RDMA_CM_EVENT_ADDR_RESOLVED && self->target > CQN_CM_ADDR_RESOLVED) {
        const bool is_here = qp_of(self) == NULL || leads_to_device_of(self, qp_of(self));
        return !is_here ? 0 : cqn_cm_resolve_route(self, ROUTE_MS) < 0 ? -1 : 1;
    }
    if (type == RDMA_CM_EVENT_ROUTE_RESOLVED && self->target > CQN_CM_ROUTE_RESOLVED) {
        return ask_peer(self) < 0 ? -1 : 1;
    }
    if (type == RDMA_CM_EVENT_CONNECT_RESPONSE && self->target > CQN_CM_RESPONDED) {
        return establish(self); /* the peer's private data is for the program */
    }
    return 0;
}
