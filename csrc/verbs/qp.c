/* SPDX-License-Identifier: MIT */
/*
 * QP: the type of a queue pair.
 *
 * Its parts are in qp_create.c, qp_modify.c, qp_transitions.c and qp_close.c; posting is in
 * work/post_send.c and work/post_recv.c, and what is in flight in work/wr_queue.c. A queue pair
 * owns the books of its two queues.
 */

#include "verbs/qp.h"

static int qp_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_qp *self = (cqn_qp *)op;
    Py_VISIT(self->user_data);
    int rc = cqn_wr_queue_traverse(self->sq, visit, arg);
    rc = rc ? rc : cqn_wr_queue_traverse(self->rq, visit, arg);
    return rc ? rc : cqn_traverse(op, visit, arg);
}

/* The closure is the offset of the pointer; some types of queue pair have none. */
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

/* The same, or None. */
static PyObject *qp_get_optional(PyObject *op, void *offset)
{
    CQN_LOCKED;
    PyObject *part = *(PyObject *const *)((const char *)op + (uintptr_t)offset);
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(part ? part : Py_None) : NULL;
}

/* A probe is no work request of the program's. */
static Py_ssize_t probes(const cqn_qp *self)
{
    return self->sq->probe == CQN_PROBE_POSTED;
}

static PyObject *qp_get_outstanding(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    return Py_BuildValue("(nn)", (Py_ssize_t)self->sq->requests - probes(self),
                         (Py_ssize_t)self->rq->requests);
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
    {"check", (PyCFunction)(void (*)(void))cqn_qp_check, METH_VARARGS | METH_KEYWORDS,
     "check($self, /, **attrs)\n--\n\n"
     "Refuse the attributes that modify_qp() would refuse by itself; change nothing."},
    {"query", cqn_qp_query, METH_NOARGS,
     "query($self, /)\n--\n\n"
     "All attributes, as the device has them now.\n\nWraps ibv_query_qp(3)."},
    {"_query_state", cqn_qp_query_state, METH_NOARGS, cqn_qp_query_state_doc},
    {"_fail", cqn_qp_fail, METH_NOARGS, cqn_qp_fail_doc},
    {"_probe", cqn_qp_probe, METH_NOARGS, cqn_qp_probe_doc},
    {"open", (PyCFunction)(void (*)(void))cqn_qp_open, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     cqn_qp_open_doc},
    {"query_ece", cqn_qp_query_ece, METH_NOARGS, cqn_qp_query_ece_doc},
    {"set_ece", (PyCFunction)(void (*)(void))cqn_qp_set_ece, METH_FASTCALL | METH_KEYWORDS,
     cqn_qp_set_ece_doc},
    {"query_data_in_order", (PyCFunction)(void (*)(void))cqn_qp_query_data_in_order,
     METH_FASTCALL | METH_KEYWORDS, cqn_qp_query_data_in_order_doc},
    {"attach_mcast", (PyCFunction)(void (*)(void))cqn_qp_attach_mcast,
     METH_FASTCALL | METH_KEYWORDS, cqn_qp_attach_mcast_doc},
    {"detach_mcast", (PyCFunction)(void (*)(void))cqn_qp_detach_mcast,
     METH_FASTCALL | METH_KEYWORDS, cqn_qp_detach_mcast_doc},
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
    {"outstanding", qp_get_outstanding, NULL,
     "(sends, receives): work requests whose completion was not polled yet. The receives of an SRQ "
     "are not among them.",
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
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot qp_slots[] = {
    {Py_tp_doc,
     "QP(pd, qp_type, *, send_cq=None, recv_cq=None, srq=None, max_send_wr=16, max_recv_wr=16, "
     "max_send_sge=1, max_recv_sge=1, max_inline_data=0, sq_sig_all=False, atomic_write=False, "
     "flush=False, create_flags=0, source_qpn=None, max_tso_header=0, xrcd=None, rwq_ind_tbl=None, "
     "rx_hash_conf=None, user_data=None)\n--\n\n"
     "A queue pair in state RESET.\n\n"
     "Without `recv_cq` both its sides complete on `send_cq`. The device may grant more than was "
     "asked for: see its attributes of the same names. With `srq` it has no receive queue, and its "
     "messages go to what is posted to that SRQ. With `atomic_write`, for RC, it takes "
     "ATOMIC_WRITE, too, and with `flush` FLUSH; VerbsError (EOPNOTSUPP) where the device does "
     "not.\n\n"
     "One of type XRC_RECV has a domain, `xrcd`, but no PD, queues or CQs; one of type XRC_SEND "
     "has "
     "no receive queue. With `rwq_ind_tbl` and `rx_hash_conf`, a tuple of rx_hash_function, "
     "rx_hash_key and rx_hash_fields_mask, one of type RAW_PACKET or UD has no queues and CQs "
     "either. `create_flags` are QPCreateFlags, and `source_qpn` is the number that its packets "
     "say they come from. With `max_tso_header` bytes for the headers of TSO, one of type "
     "RAW_PACKET or UD takes that opcode, too.\n\n"
     "Wraps ibv_create_qp(3), and for what that lacks ibv_create_qp_ex(3)."},
    {Py_tp_new, cqn_qp_new},
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
