/* SPDX-License-Identifier: MIT */
/*
 * The queue pair of a CMID, and the steps that connect it.
 *
 * What follows from what is fixed: a route is asked for once the address is known, the peer once
 * the route is, and when the peer has accepted the queue pair is brought up. So the core takes
 * these steps as it reads the events, up to the goal that the program has set, and Python sees the
 * end.
 */

#include "cm/calls.h"

#define ROUTE_MS 4000 /* RoCE knows it at once; InfiniBand asks its subnet manager */

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

/* ---- how it is to be connected ---- */

static int plan_from(PyObject *args, Py_buffer *data, cqn_cm_plan *plan, unsigned int *access)
{
    unsigned char responder, initiator, retry, rnr_retry;
    if (!PyArg_ParseTuple(args, "y*Ibbbb:prepare", data, access, &responder, &initiator, &retry,
                          &rnr_retry)) {
        return -1;
    }
    if (data->len > UINT8_MAX) {
        PyErr_Format(PyExc_ValueError, "private_data has %zd bytes: at most 255", data->len);
        PyBuffer_Release(data);
        return -1;
    }
    memcpy(plan->private_data, data->buf, (size_t)data->len);
    plan->param = (struct rdma_conn_param){
        .private_data_len = (uint8_t)data->len,
        .responder_resources = responder,
        .initiator_depth = initiator,
        .retry_count = retry,
        .rnr_retry_count = rnr_retry,
    };
    PyBuffer_Release(data);
    return 0;
}

/* (private data, access flags, responder resources, initiator depth, retry count, RNR retry
 * count). */
PyObject *cqn_cm_id_prepare(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    cqn_cm_plan plan;
    unsigned int access;
    Py_buffer data;
    if (plan_from(args, &data, &plan, &access) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    const cqn_qp *qp = qp_of(self);
    if (qp == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "prepare(): this CMID has no QP");
    }
    if (self->plan == NULL && (self->plan = PyMem_Malloc(sizeof(plan))) == NULL) {
        return PyErr_NoMemory();
    }
    *self->plan = plan;
    self->plan->param.private_data = self->plan->private_data;
    self->plan->param.qp_num = qp->qp_num;
    self->plan->param.srq = qp->srq != NULL;
    self->access = access;
    self->prepared = true;
    Py_RETURN_NONE;
}

/* ---- the transitions ---- */

/* What librdmacm says of a transition. Of datagrams it knows no more than how to get to INIT: they
 * have no path. The mask, or -1 with an exception. */
static int ask_for_attributes(cqn_cm_id *self, struct rdma_cm_id *id, struct ibv_qp_attr *attr)
{
    if (self->datagrams && attr->qp_state != IBV_QPS_INIT) {
        attr->sq_psn = qp_of(self)->sq_psn;
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

#define KNOWS_ATTRIBUTES                                                            \
    (CQN_CM_IN(ADDR_RESOLVED) | CQN_CM_IN(ROUTE_RESOLVED) | CQN_CM_IN(CONNECTING) | \
     CQN_CM_IN(RESPONDED) | CQN_CM_IN(REQUESTED) | CQN_CM_CONNECTED)

/* Another thread can close both meanwhile. -1 with an exception. */
static int modify_qp(cqn_cm_id *self, enum ibv_qp_state state, unsigned int access)
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
    struct ibv_qp_attr attr = {.qp_state = state};
    const int mask = ask_for_attributes(self, id, &attr);
    if (mask >= 0 && (mask & IBV_QP_ACCESS_FLAGS)) {
        attr.qp_access_flags = access;
    }
    const int rc = mask < 0 ? -1 : cqn_qp_carry_out(qp, &attr, mask);
    Py_DECREF(qp);
    return rc;
}

/* (state, access flags). */
PyObject *cqn_cm_id_modify_qp(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned int state, access;
    return !PyArg_ParseTuple(args, "II:modify_qp", &state, &access)
               ? NULL
               : cqn_cm_done(modify_qp((cqn_cm_id *)op, (enum ibv_qp_state)state, access));
}

/* Makes the transitions that are left up to RTS. Of an iWARP device the kernel makes those behind
 * INIT itself. A UD QP may be in RTS, as it has other peers already. */
static int bring_up(cqn_cm_id *self)
{
    if (!self->prepared) {
        PyErr_SetString(PyExc_RuntimeError, "how this CMID is to be connected was not said");
        return -1;
    }
    const bool iwarp = cqn_cm_is_iwarp(self);
    const enum ibv_qp_state last = iwarp ? IBV_QPS_INIT : IBV_QPS_RTS;
    enum ibv_qp_state state = iwarp ? IBV_QPS_RESET : qp_of(self)->state;
    while (state < last) {
        if (modify_qp(self, ++state, self->access) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the steps ---- */

int cqn_cm_resolve_route(cqn_cm_id *self, int timeout_ms)
{
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_resolve_route", CQN_CM_IN(ADDR_RESOLVED));
    if (id == NULL) {
        return -1;
    }
    int rc;
    CQN_CM_CALL(rc, self, "rdma_resolve_route", CQN_CM_RESOLVING_ROUTE,
                CQN_CM(resolve_route, id, timeout_ms), CQN_CM_LOOPBACK);
    return rc;
}

/* What the peer is to be told: taken from the CMID, since it is told once. NULL with an exception;
 * else the caller frees it. */
static cqn_cm_plan *take_plan(cqn_cm_id *self)
{
    cqn_cm_plan *plan = self->plan;
    self->plan = NULL;
    if (plan == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "how this CMID is to be connected was not said");
    }
    return plan;
}

/* Asks the peer. Its answer finds the queue pair of datagrams, and of iWARP, ready. */
static int ask_peer(cqn_cm_id *self)
{
    const unsigned int states = CQN_CM_IN(ROUTE_RESOLVED);
    if (cqn_cm_in_state(self, "rdma_connect", states) == NULL ||
        ((self->datagrams || cqn_cm_is_iwarp(self)) && bring_up(self) < 0)) {
        return -1;
    }
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_connect", states);
    cqn_cm_plan *plan = id == NULL ? NULL : take_plan(self);
    if (plan == NULL) {
        return -1;
    }
    int rc;
    CQN_CM_CALL(rc, self, "rdma_connect", CQN_CM_CONNECTING, CQN_CM(connect, id, &plan->param),
                "private data of %d bytes", (int)plan->param.private_data_len);
    PyMem_Free(plan);
    return rc;
}

PyObject *cqn_cm_id_connect(PyObject *op, PyObject *goal)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    return cqn_cm_goal_from(goal, &self->goal) < 0 ? NULL : cqn_cm_done(ask_peer(self));
}

/* A datagram's request is answered by this; a connection waits for the peer. */
PyObject *cqn_cm_id_accept(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (cqn_cm_in_state(self, "rdma_accept", CQN_CM_IN(REQUESTED)) == NULL || bring_up(self) < 0) {
        return NULL;
    }
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_accept", CQN_CM_IN(REQUESTED));
    cqn_cm_plan *plan = id == NULL ? NULL : take_plan(self);
    if (plan == NULL) {
        return NULL;
    }
    const uint8_t next = self->datagrams ? CQN_CM_ESTABLISHED : CQN_CM_ACCEPTING;
    int rc;
    CQN_CM_CALL(rc, self, "rdma_accept", next, CQN_CM(accept, id, &plan->param),
                "the peer may have gone, or given up; private data of %d bytes",
                (int)plan->param.private_data_len);
    PyMem_Free(plan);
    return cqn_cm_done(rc);
}

/* The peer has accepted. */
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

/* Whether the address leads to another device than that of the queue pair, which Python refuses. */
static bool leads_elsewhere(const cqn_cm_id *self)
{
    const struct rdma_cm_id *id = self->base.handle;
    const struct ibv_context *own =
        qp_of(self) == NULL ? NULL : qp_of(self)->base.context->base.handle;
    return own != NULL && id != NULL && id->verbs != NULL &&
           strcmp(ibv_get_device_name(id->verbs->device), ibv_get_device_name(own->device)) != 0;
}

int cqn_cm_go_on(cqn_cm_id *self, enum rdma_cm_event_type type)
{
    if (type == RDMA_CM_EVENT_ADDR_RESOLVED && self->goal > CQN_CM_ADDR_RESOLVED) {
        return leads_elsewhere(self) ? 0 : cqn_cm_resolve_route(self, ROUTE_MS) < 0 ? -1 : 1;
    }
    if (type == RDMA_CM_EVENT_ROUTE_RESOLVED && self->goal > CQN_CM_ROUTE_RESOLVED) {
        return ask_peer(self) < 0 ? -1 : 1;
    }
    if (type == RDMA_CM_EVENT_CONNECT_RESPONSE && self->goal > CQN_CM_RESPONDED) {
        return establish(self); /* what the peer has said with it is for the program */
    }
    return 0;
}
