/* SPDX-License-Identifier: MIT */
/*
 * CMID: an identifier of rdma_cm, which is a connection, a listener, or the request of a peer.
 *
 * The type: its creation and its end; its calls are in calls.c. It belongs to its queue pair:
 * closing that, or the context, closes the CMID as well. Destroying it never waits for the
 * network.
 */

#include "cm/conn_state.h"
#include <errno.h>

/* The peer gets a REJECTED if the request was not accepted, and a DISCONNECTED if it was. */
static int destroy_cm_id(void *handle)
{
    cqn_cm_id *self = ((struct rdma_cm_id *)handle)->context;
    if (self->joined) {
        self->joined = false;
        (void)CQN_CM_CALLED(cqn_cm.leave_multicast(handle, (struct sockaddr *)self->group));
    }
    return CQN_CM(destroy_id, handle) == 0 ? 0 : errno;
}

/* Frees its events while it still owns the channel, and again after other threads have run. */
static void cm_id_forget_events(cqn_object *op)
{
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (!cqn_forked(op) && op->uses[0] != NULL) {
        cqn_cm_forget_events((cqn_cm_channel *)op->uses[0], self);
    }
}

static void cm_id_before_destroy(cqn_object *op)
{
    const struct rdma_cm_id *id = op->handle;
    ((cqn_cm_id *)op)->peer = id->route.addr.dst_sin6;
    cm_id_forget_events(op);
}

/* Ends the waits of its CMConn. */
static void notify_conn(cqn_object *op, PyObject **interrupt)
{
    cqn_cm_conn *conn = cqn_forked(op) ? NULL : cqn_cm_conn_of((cqn_cm_id *)op);
    if (conn != NULL) {
        cqn_cm_conn_closed(conn, interrupt);
        Py_DECREF(conn);
    }
}

static int cm_id_clear(PyObject *op)
{
    cqn_cm_id *self = (cqn_cm_id *)op;
    if (self->base.handle == NULL) {
        PyMem_Free(self->group);
        PyMem_Free(self->params);
        self->group = NULL;
        self->params = NULL;
    }
    return cqn_clear(op);
}

static const cqn_kind cm_id_kind = {
    .name = "connection",
    .destroy_verb = "rdma_destroy_id",
    .rank = CQN_RANK_QP,
    .closes_with_parent = true,
    .destroy = destroy_cm_id,
    .before_destroy = cm_id_before_destroy,
    .after_destroy = cm_id_forget_events,
    .notify_closed = notify_conn,
    .clear = cm_id_clear,
};

CQN_RARE static PyObject *cm_id_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"channel", "datagrams", NULL};
    PyObject *channel;
    int datagrams = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:CMID", names, &channel, &datagrams) ||
        cqn_expect(channel, cqn_state_of(type)->CMChannel, "channel") < 0) {
        return NULL;
    }
    return cqn_cm_id_create(type, CQN_OBJ(channel), datagrams);
}

PyObject *cqn_cm_id_create(PyTypeObject *type, cqn_object *channel, bool datagrams)
{
    cqn_cm_id *self = cqn_new(type, &cm_id_kind, &channel, 1);
    if (self == NULL) {
        return NULL;
    }
    struct rdma_event_channel *events = channel->handle;
    const enum rdma_port_space space = datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
    struct rdma_cm_id *id = NULL;
    int rc, err;
    CQN_CREATING(&self->base, rc = CQN_CM(create_id, events, &id, self, space); err = errno);
    if (rc != 0) {
        cqn_verbs_error(self->base.state, err, "rdma_create_id", "");
        Py_DECREF(self);
        return NULL;
    }
    self->datagrams = datagrams;
    cqn_adopt(&self->base, id);
    return (PyObject *)self;
}

cqn_cm_id *cqn_cm_id_of_request(cqn_cm_channel *channel, struct rdma_cm_id *request)
{
    cqn_object *used = &channel->root.base;
    cqn_cm_id *self = cqn_new(used->state->CMID, &cm_id_kind, &used, 1);
    if (self != NULL) {
        request->context = self;
        self->state = CQN_CM_REQUESTED;
        self->datagrams = request->ps == RDMA_PS_UDP;
        cqn_adopt(&self->base, request);
    }
    return self;
}

static PyObject *cm_id_get_state(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cm_id *self = (cqn_cm_id *)op;
    return PyUnicode_FromString(cqn_is_open(&self->base) ? cqn_cm_state_names[self->state]
                                                         : "CLOSED");
}

static PyObject *cm_id_get_device(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_cm_id *id = cqn_open(CQN_OBJ(op));
    return id == NULL          ? NULL
           : id->verbs == NULL ? Py_NewRef(Py_None)
                               : PyUnicode_FromString(ibv_get_device_name(id->verbs->device));
}

static PyObject *cm_id_get_is_iwarp(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(cqn_is_open(CQN_OBJ(op)) && cqn_cm_is_iwarp((cqn_cm_id *)op));
}

static PyObject *cm_id_get_port_num(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_cm_id *id = cqn_open(CQN_OBJ(op));
    return id == NULL ? NULL : PyLong_FromLong(id->port_num);
}

static PyObject *cm_id_get_local(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_cm_id *id = cqn_open(CQN_OBJ(op));
    return id == NULL ? NULL : cqn_cm_sockaddr_to(&id->route.addr.src_addr);
}

static PyObject *cm_id_get_peer(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct rdma_cm_id *id = cqn_open(CQN_OBJ(op));
    return id == NULL ? NULL : cqn_cm_sockaddr_to(&id->route.addr.dst_addr);
}

/* For later error messages. */
static PyObject *cm_id_get_last_peer(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cm_id *self = (cqn_cm_id *)op;
    const struct rdma_cm_id *id = self->base.handle;
    return cqn_cm_sockaddr_to(id != NULL ? &id->route.addr.dst_addr
                                         : (const struct sockaddr *)&self->peer);
}

static PyObject *cm_id_get_qp(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_object *self = CQN_OBJ(op);
    PyObject *qp = (PyObject *)self->uses[1];
    return cqn_open(self) == NULL ? NULL : Py_NewRef(qp != NULL ? qp : Py_None);
}

static PyObject *cm_id_repr(PyObject *op)
{
    CQN_LOCKED;
    const cqn_cm_id *self = (cqn_cm_id *)op;
    return PyUnicode_FromFormat(
        "<CMID %s>", cqn_is_open(&self->base) ? cqn_cm_state_names[self->state] : "closed");
}

/* The collector finalizes its CMConn as well, perhaps later. */
static void cm_id_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_cm_conn *conn = cqn_forked(CQN_OBJ(op)) ? NULL : cqn_cm_conn_of((cqn_cm_id *)op);
    if (conn != NULL) {
        PyObject *pending = cqn_take_exception();
        if (cqn_cm_conn_shut_down(conn) < 0) {
            PyErr_WriteUnraisable(op);
        }
        Py_DECREF(conn);
        cqn_put_exception(pending);
    }
    cqn_finalize(op);
}

static PyGetSetDef cm_id_getset[] = {
    {"channel", cqn_get_used, NULL, "The CMChannel that brings its events.", (void *)0},
    {"qp", cm_id_get_qp, NULL, "The QP that goes with it, or None; see bind_qp().", NULL},
    {"state", cm_id_get_state, NULL, "The name of its state; CLOSED once it was closed.", NULL},
    {"device", cm_id_get_device, NULL,
     "The name of the device that its address leads to; None before it was resolved.", NULL},
    {"is_iwarp", cm_id_get_is_iwarp, NULL,
     "Whether that is an iWARP device; False once it was closed.", NULL},
    {"port_num", cm_id_get_port_num, NULL, "The port of that device, or 0.", NULL},
    {"local", cm_id_get_local, NULL, "Its own address, (address, port), or None.", NULL},
    {"peer", cm_id_get_peer, NULL, "The peer's address, (address, port), or None.", NULL},
    {"last_peer", cm_id_get_last_peer, NULL, "The same, also once it was closed.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef cm_id_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot cm_id_slots[] = {
    {Py_tp_doc,
     "CMID(channel, datagrams=False)\n--\n\n"
     "An identifier of rdma_cm, see cqnotify.cm. With `datagrams` it is of RDMA_PS_UDP.\n\n"
     "Wraps rdma_create_id(3)."},
    {Py_tp_new, cm_id_new},
    {Py_tp_repr, cm_id_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cm_id_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, cqn_cm_id_methods},
    {Py_tp_getset, cm_id_getset},
    {Py_tp_members, cm_id_members},
    {0, NULL},
};

PyType_Spec cqn_cm_id_spec = {
    .name = "cqnotify._core.CMID",
    .basicsize = sizeof(cqn_cm_id),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cm_id_slots,
};
