/* SPDX-License-Identifier: MIT */
/*
 * QP: a queue pair.
 *
 * The type, its destruction, query(), probes and ECE. qp_create.c has the arguments of QP(),
 * qp_modify.c modify(), qp_mcast.c the multicast groups. Posting is in work/post_send.c and
 * work/post_recv.c. A queue pair owns two WR queues (work/wr_queue.c) with its requests in
 * flight.
 */

#include "verbs/qp.h"
#include <sys/random.h>

/* ---- retransmissions ---- */

/* Whether the queue pair may still send packets again. rxe destroys a QP only when all its packets
 * have left, and retransmits unacknowledged ones until then. It holds packets for an unresponsive
 * neighbour for up to 3 s, so some always remain; after 50 s it frees the QP anyway, and the kernel
 * crashes. A QP in RESET sends nothing. */
static bool sends_again(const cqn_qp *self)
{
    bool sends = self->state == IBV_QPS_RTS || self->state == IBV_QPS_SQD;
    return self->type == IBV_QPT_RC && sends && self->sq->len > 0;
}

/* Called without the GIL. Returns an errno; a failure has no effect. */
static int stop_sending(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static void qp_before_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    cqn_qp_record_failure(self);
    self->must_stop = sends_again(self);
}

/* Called without the GIL, by the thread that closes the QP. Returns an errno. */
static int destroy_qp(void *handle)
{
    struct ibv_qp *qp = handle;
    cqn_qp *self = qp->qp_context;
    self->stopped |= self->must_stop && stop_sending(qp) == 0;
    return cqn_qp_destroy_in_groups(qp);
}

/* Returns a new reference to the next queue pair to stop, starting at `op`; NULL if there is
 * none. */
static cqn_qp *next_that_sends_again(cqn_object *op)
{
    for (; op != NULL; op = op->next) {
        cqn_qp *qp = (cqn_qp *)op;
        bool idle = op->handle != NULL && op->closing == 0 && op->in_use == 0;
        if (idle && !qp->must_stop && sends_again(qp) && cqn_try_ref(op)) {
            return qp;
        }
    }
    return NULL;
}

/* The state is set before the GIL is released, so no thread posts to a queue pair in RESET. */
static void reset_before_all_close(cqn_qp *self)
{
    struct ibv_qp *qp = self->base.handle;
    const enum ibv_qp_state before = self->state;
    int err;
    cqn_qp_record_failure(self);
    self->must_stop = true; /* it is stopped only once */
    self->state = IBV_QPS_RESET;
    CQN_IN_KERNEL(CQN_OBJ(self), err = stop_sending(qp));
    if (err != 0) {
        self->state = before;
    }
    self->stopped |= err == 0;
}

/* Destroying a queue pair waits until its packets have left, so all are stopped before the first is
 * destroyed. */
void cqn_qps_stop_sending(cqn_context *ctx)
{
    cqn_object *first = ctx->first[CQN_RANK_QP];
    for (cqn_qp *self = next_that_sends_again(first), *next; self != NULL; self = next) {
        reset_before_all_close(self);
        const cqn_object *op = CQN_OBJ(self); /* other threads may have closed it */
        next = next_that_sends_again(op->listed ? op->next : ctx->first[CQN_RANK_QP]);
        Py_DECREF(self);
    }
}

/* ---- destruction ---- */

/* The CQ inherits the WR queue unless it is drained, because completions may still arrive. */
static void drop_queue(const cqn_qp *self, cqn_wr_queue *q, cqn_cq *cq, bool is_drained,
                       cqn_object **deferred)
{
    if (q == NULL) {
        return;
    }
    cqn_wr_queue_forget(q, deferred);
    if (is_drained) {
        cqn_wr_queue_drop(self->base.state, q);
    }
    else {
        cqn_cq_inherit(cq, q);
    }
}

static void drop_queues(cqn_qp *self, cqn_drained known, cqn_object **deferred)
{
    cqn_wr_queue *sq = self->sq, *rq = self->rq;
    self->sq = self->rq = NULL;
    drop_queue(self, sq, self->send_cq, known.send, deferred);
    drop_queue(self, rq, self->recv_cq, known.recv, deferred);
}

static void qp_after_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    cqn_object *deferred = NULL;
    /* If the device cannot be polled, code can run that closes all objects used by this one. */
    cqn_context *ctx = (cqn_context *)Py_NewRef((PyObject *)op->uses[0]->context);
    const cqn_drained known = cqn_qp_drain(self, &deferred);
    cqn_async_forget(ctx, op);
    Py_DECREF(ctx);
    drop_queues(self, known, &deferred);
    cqn_decref_deferred(deferred);
    PyMem_Free(self->groups);
    self->groups = NULL;
    self->groups_len = 0;
}

/* The queue pair stays open. If it was reset, its requests are lost. */
static void qp_destroy_failed(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    bool stopped = self->stopped;
    self->must_stop = self->stopped = false;
    if (stopped) {
        self->state = IBV_QPS_RESET;
        cqn_qp_forget_requests(self);
    }
}

/* Engines are notified of a close after the queue pair has left all lists and before its callbacks
 * run. */
static void qp_notify_engines(cqn_object *op, PyObject **interrupt)
{
    cqn_engines_notify((cqn_qp *)op, interrupt);
}

static int qp_clear(PyObject *op)
{
    cqn_qp *self = (cqn_qp *)op;
    if (self->base.handle == NULL) {
        cqn_object *deferred = NULL;
        drop_queues(self, (cqn_drained){.send = true, .recv = true}, &deferred);
        cqn_decref_deferred(deferred);
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

static const cqn_kind qp_kind = {
    .name = "QP",
    .destroy_verb = "ibv_destroy_qp",
    .rank = CQN_RANK_QP,
    .before_destroy = qp_before_destroy,
    .destroy = destroy_qp,
    .destroy_failed = qp_destroy_failed,
    .after_destroy = qp_after_destroy,
    .notify_closed = qp_notify_engines,
    .clear = qp_clear,
};

/* ---- creation ---- */

static PyObject *qp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    return cqn_qp_create(type, &qp_kind, args, kwargs);
}

static PyObject *qp_open(PyObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    return cqn_qp_open((PyTypeObject *)type, &qp_kind, args, kwargs);
}

/* ---- query() ---- */

static int add_to_dict(PyObject *dict, const char *name, PyObject *value)
{
    int rc = value == NULL ? -1 : PyDict_SetItemString(dict, name, value);
    Py_XDECREF(value);
    return rc;
}

static int query(PyObject *op, struct ibv_qp_attr *attr, int mask)
{
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return -1;
    }
    struct ibv_qp_init_attr init;
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_qp(qp, attr, mask, &init));
    if (err != 0) {
        cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_qp", "QP %u", ((cqn_qp *)op)->qp_num);
        return -1;
    }
    return 0;
}

static PyObject *qp_query_state(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    return query(op, &attr, IBV_QP_STATE) < 0 ? NULL : PyLong_FromLong(attr.qp_state);
}

static PyObject *qp_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    if (query(op, &attr, (IBV_QP_DEST_QPN << 1) - 1) < 0) { /* the library refuses unknown bits */
        return NULL;
    }
    PyObject *dict = cqn_struct_to_dict(&attr, cqn_qp_fields);
    if (dict != NULL &&
        (add_to_dict(dict, "ah_attr", cqn_ah_attr_to_dict(&attr.ah_attr)) < 0 ||
         add_to_dict(dict, "alt_ah_attr", cqn_ah_attr_to_dict(&attr.alt_ah_attr)) < 0 ||
         add_to_dict(dict, "cap", cqn_struct_to_dict(&attr.cap, cqn_cap_fields)) < 0)) {
        Py_CLEAR(dict);
    }
    return dict;
}

/* ---- probes ----
 *
 * A probe tests whether an idle peer is alive: an RDMA write of zero bytes, whose completion is
 * hidden from the program. cqnotify/cm/_keepalive.py decides when to probe and when a silent peer
 * has failed. */

/* Fetches all completions of the CQ and wakes their tasks. Runs Python code. Returns -1 with an
 * exception. */
static int drain_sends(const cqn_qp *self)
{
    cqn_cq *cq = (cqn_cq *)Py_NewRef((PyObject *)self->send_cq);
    cqn_object *deferred = NULL;
    int rc = cq->base.handle == NULL ? 0 : cqn_cq_drain(cq, &deferred);
    if (rc == 0) {
        rc = cqn_wake_after_routing(cq);
    }
    cqn_decref_deferred(deferred);
    Py_DECREF(cq);
    return rc;
}

static const char *known_of(const cqn_wr_queue *sq)
{
    return sq->probe == CQN_PROBE_POSTED   ? "unanswered"
           : sq->probe == CQN_PROBE_FAILED ? "failed"
           : sq->requests > 0              ? "busy"
                                           : NULL;
}

static PyObject *qp_probe(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    if (cqn_open(&self->base) == NULL || (self->sq->requests > 0 && drain_sends(self) < 0) ||
        cqn_open(&self->base) == NULL) {
        return NULL;
    }
    const char *known = known_of(self->sq);
    if (known == NULL && cqn_post_probe(self) < 0) {
        return NULL;
    }
    return PyUnicode_FromString(known != NULL ? known : "posted");
}

/* ---- ECE: vendors' extensions of the connection ---- */

static PyObject *qp_query_ece(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    struct ibv_ece ece = {.vendor_id = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_ece(qp, &ece));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_ece",
                                 "enhanced connection establishment")
               : Py_BuildValue("(III)", ece.vendor_id, ece.options, ece.comp_mask);
}

static PyObject *qp_set_ece(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"vendor_id", "options", "comp_mask", NULL};
    PyObject *in[3] = {NULL};
    struct ibv_ece ece = {.vendor_id = 0};
    uint64_t vendor_id;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("set_ece", names, 3, 1, args, nargs, kwnames, in) < 0 ||
        cqn_range(in[0], "vendor_id", 1, UINT32_MAX, &vendor_id) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "options", UINT32_MAX, &ece.options) < 0) ||
        (in[2] != NULL && cqn_u32(in[2], "comp_mask", UINT32_MAX, &ece.comp_mask) < 0)) {
        return NULL;
    }
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    ece.vendor_id = (uint32_t)vendor_id;
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_set_ece(qp, &ece));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_set_ece",
                                 "enhanced connection establishment, vendor_id 0x%x, options 0x%x",
                                 ece.vendor_id, ece.options)
               : Py_NewRef(Py_None);
}

/* The library answers without asking the kernel. */
static PyObject *qp_query_data_in_order(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                        PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"opcode", "flags", NULL};
    PyObject *in[2] = {NULL};
    uint32_t opcode, flags = 0;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("query_data_in_order", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        cqn_member32(in[0], "opcode", "a WROpcode such as WROpcode.RDMA_WRITE", UINT8_MAX,
                     &opcode) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "flags", UINT32_MAX, &flags) < 0)) {
        return NULL;
    }
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    int rc = ibv_query_qp_data_in_order(qp, (enum ibv_wr_opcode)opcode, flags);
    return rc < 0 ? cqn_verbs_error(CQN_OBJ(op)->state, -rc, "ibv_query_qp_data_in_order", "")
                  : PyLong_FromLong(rc);
}

/* ---- attributes ---- */

/* Drawn on first use: rdma_cm uses its own, and the system call takes time. */
uint32_t cqn_qp_psn(cqn_qp *self)
{
    if (self->sq_psn == 0) {
        uint32_t n = 0;
        ssize_t got = getrandom(&n, sizeof(n), GRND_NONBLOCK);
        (void)got; /* any number is a valid PSN */
        self->sq_psn = n % 0xffffff + 1;
    }
    return self->sq_psn;
}

/* The closure is the offset of the pointer. Some types of queue pair lack the part. */
static PyObject *qp_get_part(PyObject *op, void *offset)
{
    CQN_LOCKED;
    const cqn_qp *self = (cqn_qp *)op;
    PyObject *part = *(PyObject *const *)((const char *)op + (uintptr_t)offset);
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    return part != NULL ? Py_NewRef(part)
                        : PyErr_Format(PyExc_AttributeError, "QP %u, of type %s, has none",
                                       self->qp_num, cqn_qp_type_name(self->type));
}

/* Like the previous one; None if the queue pair lacks the part. */
static PyObject *qp_get_optional(PyObject *op, void *offset)
{
    CQN_LOCKED;
    PyObject *part = *(PyObject *const *)((const char *)op + (uintptr_t)offset);
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(part ? part : Py_None) : NULL;
}

/* Returns the number of probes in flight, which are not requests of the program. */
static Py_ssize_t probes(const cqn_qp *self)
{
    return self->sq->probe == CQN_PROBE_POSTED;
}

static PyObject *qp_get_outstanding_sends(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? PyLong_FromSsize_t((Py_ssize_t)self->sq->requests - probes(self))
                                 : NULL;
}

static PyObject *qp_get_outstanding_recvs(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? PyLong_FromSsize_t((Py_ssize_t)self->rq->requests) : NULL;
}

static PyObject *qp_get_own_state(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? PyLong_FromLong(self->state) : NULL;
}

static PyObject *qp_get_sq_psn(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromUnsignedLong(cqn_qp_psn((cqn_qp *)op)) : NULL;
}

static PyObject *qp_get_outstanding_signaled(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return cqn_open(&self->base) ? PyLong_FromSsize_t((Py_ssize_t)self->sq->signaled - probes(self))
                                 : NULL;
}

static int qp_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_qp *self = (cqn_qp *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->sq, visit, arg);
    rc = rc ? rc : cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

static PyObject *qp_repr(PyObject *op)
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    return self->base.handle == NULL
               ? PyUnicode_FromFormat("<QP %u closed>", (unsigned)self->qp_num)
               : PyUnicode_FromFormat("<QP %u on %s, %s, %s>", (unsigned)self->qp_num,
                                      cqn_device_name(&self->base), cqn_qp_type_name(self->type),
                                      cqn_qp_state_name(self->state));
}

static PyMethodDef qp_methods[] = {
    {"modify", (PyCFunction)(void (*)(void))cqn_qp_modify, METH_VARARGS | METH_KEYWORDS,
     "modify($self, /, **attrs)\n--\n\n"
     "Set attributes, named as in struct ibv_qp_attr; the mask follows from what is given.\n\n"
     "qp_state moves it to another state. A reset drops its work requests without completing "
     "them.\n\nWraps ibv_modify_qp(3)."},
    {"check_modify", (PyCFunction)(void (*)(void))cqn_qp_check_modify, METH_VARARGS | METH_KEYWORDS,
     "check_modify($self, /, **attrs)\n--\n\n"
     "Check the attributes as modify() does before it asks the device; change nothing."},
    {"query", qp_query, METH_NOARGS,
     "query($self, /)\n--\n\n"
     "All attributes, as the device has them now.\n\nWraps ibv_query_qp(3)."},
    {"_query_state", qp_query_state, METH_NOARGS,
     "_query_state($self, /)\n--\n\n"
     "The state, as the device has it now, and nothing else."},
    {"_fail", cqn_qp_fail, METH_NOARGS,
     "_fail($self, /)\n--\n\n"
     "Move to ERR, unless it is in RESET: nothing that was posted succeeds any more."},
    {"_probe", qp_probe, METH_NOARGS,
     "_probe($self, /)\n--\n\n"
     "Probe whether the peer is alive, unless sends are outstanding.\n\n"
     "'posted': a probe was posted; all earlier ones were answered. 'unanswered': the last one is "
     "not answered yet. 'busy': sends are outstanding. 'failed': the last one failed."},
    {"open", (PyCFunction)(void (*)(void))qp_open, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "open($type, /, xrcd, qp_num, *, user_data=None)\n--\n\n"
     "Open the XRC_RECV queue pair that another process of the same domain created.\n\n"
     "xrcd: the domain, an hw.XRCD.\n"
     "qp_num: the number of the queue pair, 24 bits.\n"
     "user_data: any object, kept as an attribute.\n\n"
     "Each can be closed by itself: the queue pair is destroyed with the last.\n\n"
     "Wraps ibv_open_qp(3)."},
    {"query_ece", qp_query_ece, METH_NOARGS,
     "query_ece($self, /)\n--\n\n"
     "The options of enhanced connection establishment, as (vendor_id, options, comp_mask): before "
     "the connection what this end can do, and from RTR on what both do.\n\n"
     "VerbsError (EOPNOTSUPP) where the device has none.\n\n"
     "Wraps ibv_query_ece(3)."},
    {"set_ece", (PyCFunction)(void (*)(void))qp_set_ece, METH_FASTCALL | METH_KEYWORDS,
     "set_ece($self, /, vendor_id, options=0, comp_mask=0)\n--\n\n"
     "Set the options that the peer has sent, its hw.ECE, before RTR: `qp.set_ece(*ece)`.\n\n"
     "vendor_id: that of the peer's device, 32 bits, not 0.\n"
     "options, comp_mask: 32 bits each.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device has none.\n\n"
     "Wraps ibv_set_ece(3)."},
    {"query_data_in_order", (PyCFunction)(void (*)(void))qp_query_data_in_order,
     METH_FASTCALL | METH_KEYWORDS,
     "query_data_in_order($self, /, opcode, flags=0)\n--\n\n"
     "Return 1 if the bytes of a message appear in memory in their order, so that a program\n"
     "may poll its last byte, and 0 if that is not certain.\n\n"
     "opcode: the WROpcode of the peer's work request.\n"
     "flags: those of a later rdma-core, by which the answer has more bits.\n\n"
     "Wraps ibv_query_qp_data_in_order(3)."},
    {"attach_mcast", (PyCFunction)(void (*)(void))cqn_qp_attach_mcast,
     METH_FASTCALL | METH_KEYWORDS,
     "attach_mcast($self, /, gid, lid=0)\n--\n\n"
     "Receive what is sent to a multicast group; once, however often it is attached. Only for\n"
     "UD.\n\n"
     "gid: an IPv6 address of ff00::/8, or an IPv4 address of 224.0.0.0/4.\n"
     "lid: the group's, on InfiniBand, where the subnet manager must have let the port join\n"
     "    (see rdma_join_multicast(3)).\n\n"
     "On RoCE the network device must be in the group as well, else the network drops its\n"
     "packets. A socket with IPV6_JOIN_GROUP or IP_ADD_MEMBERSHIP puts it there. To send, make\n"
     "an AH with the group as `dgid`, and post with remote_qpn=0xFFFFFF. Closing the QP\n"
     "detaches it.\n\n"
     "Raises ValueError for another type of QP or an address that is not multicast; VerbsError\n"
     "(ENOMEM) beyond the device's max_mcast_grp and max_mcast_qp_attach.\n\n"
     "Wraps ibv_attach_mcast(3)."},
    {"detach_mcast", (PyCFunction)(void (*)(void))cqn_qp_detach_mcast,
     METH_FASTCALL | METH_KEYWORDS,
     "detach_mcast($self, /, gid, lid=0)\n--\n\n"
     "Leave a multicast group.\n\n"
     "gid, lid: as attach_mcast() had them.\n\n"
     "Raises ValueError if the QP is in no such group.\n\n"
     "Wraps ibv_detach_mcast(3)."},
    {"post_send", (PyCFunction)(void (*)(void))cqn_qp_post_send, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_post_send_doc},
    {"bind_mw", (PyCFunction)(void (*)(void))cqn_qp_bind_mw, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_bind_mw_doc},
    {"post_recv", (PyCFunction)(void (*)(void))cqn_qp_post_recv, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_post_recv_doc},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef qp_getset[] = {
    CQN_USER_DATA(cqn_qp),
    CQN_POINTER("struct ibv_qp"),
    {"pd", qp_get_part, NULL,
     "The PD that it belongs to. AttributeError if it is of type XRC_RECV: that has an xrcd.",
     (void *)offsetof(cqn_qp, pd)},
    {"send_cq", qp_get_part, NULL,
     "CQ of its sends. AttributeError if it is of type XRC_RECV, or has a rwq_ind_tbl.",
     (void *)offsetof(cqn_qp, send_cq)},
    {"recv_cq", qp_get_part, NULL, "CQ of its receives. AttributeError as for `send_cq`.",
     (void *)offsetof(cqn_qp, recv_cq)},
    {"srq", qp_get_optional, NULL, "The SRQ that it receives from, or None.",
     (void *)offsetof(cqn_qp, srq)},
    {"xrcd", qp_get_optional, NULL, "The XRCD of one of type XRC_RECV, or None.",
     (void *)offsetof(cqn_qp, xrcd)},
    {"rwq_ind_tbl", qp_get_optional, NULL, "The RwqIndTable that it spreads packets by, or None.",
     (void *)offsetof(cqn_qp, rwq_ind_tbl)},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"qp_num", cqn_get_u32, NULL, "Its number, by which peers and completions name it.",
     (void *)offsetof(cqn_qp, qp_num)},
    {"qp_type", cqn_get_u32, NULL, "QPType.", (void *)offsetof(cqn_qp, type)},
    {"sq_psn", qp_get_sq_psn, NULL,
     "A packet sequence number to start sending with, drawn at random, once.", NULL},
    {"max_send_wr", cqn_get_u32, NULL,
     "Work requests that the send queue was granted. Some devices take more, rxe among them.",
     (void *)offsetof(cqn_qp, cap.max_send_wr)},
    {"max_recv_wr", cqn_get_u32, NULL,
     "Work requests that the receive queue was granted. Some devices take more, rxe among them.",
     (void *)offsetof(cqn_qp, cap.max_recv_wr)},
    {"max_send_sge", cqn_get_u32, NULL, "Scatter/gather elements that a send can have.",
     (void *)offsetof(cqn_qp, cap.max_send_sge)},
    {"max_recv_sge", cqn_get_u32, NULL, "Scatter/gather elements that a receive can have.",
     (void *)offsetof(cqn_qp, cap.max_recv_sge)},
    {"max_inline_data", cqn_get_u32, NULL, "Bytes that an INLINE send can have.",
     (void *)offsetof(cqn_qp, cap.max_inline_data)},
    {"_own_state", qp_get_own_state, NULL,
     "The state to which this process has brought it, without asking the device, which may have "
     "moved it to ERR since.",
     NULL},
    {"outstanding_sends", qp_get_outstanding_sends, NULL,
     "Work requests in the send queue whose completion was not polled yet.", NULL},
    {"outstanding_recvs", qp_get_outstanding_recvs, NULL,
     "Receives whose completion was not polled yet; 0 with an SRQ, whose `outstanding` has them.",
     NULL},
    {"outstanding_signaled", qp_get_outstanding_signaled, NULL,
     "How many of the outstanding sends give a completion if they succeed. With 0, a send queue "
     "that is full may stay full for ever.",
     NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef qp_members[] = {
    CQN_OBJECT_MEMBERS,
    {"_reserved_sends", T_UINT, offsetof(cqn_qp, reserved_sends), 0,
     "How many slots of the send queue awaited operations leave free, fewer than max_send_wr."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot qp_slots[] = {
    {Py_tp_doc,
     "QP(pd, qp_type, *, send_cq=None, recv_cq=None, srq=None, max_send_wr=16, max_recv_wr=16, "
     "max_send_sge=1, max_recv_sge=1, max_inline_data=0, sq_sig_all=False, atomic_write=False, "
     "flush=False, create_flags=0, source_qpn=None, max_tso_header=0, xrcd=None, rwq_ind_tbl=None, "
     "rx_hash_conf=None, user_data=None)\n--\n\n"
     "The base of cqnotify.QP.\n\n"
     "Wraps ibv_create_qp(3)."},
    {Py_tp_new, qp_new},
    {Py_tp_repr, qp_repr},
    {Py_tp_traverse, qp_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, qp_methods},
    {Py_tp_getset, qp_getset},
    {Py_tp_members, qp_members},
    {0, NULL},
};

PyType_Spec cqn_qp_spec = {
    .name = "cqnotify.QP",
    .basicsize = sizeof(cqn_qp),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = qp_slots,
};
