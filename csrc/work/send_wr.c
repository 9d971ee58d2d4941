/* SPDX-License-Identifier: MIT */
/*
 * SendWR: a send request that is built once and posted any number of times.
 *
 * It owns its arrays and holds the MRs and the address handle or window; posting copies the struct.
 * These objects stay in their process: an unpickled SendWR has only its wr_id, opcode and length,
 * and cannot be posted.
 */

#include "work/wr.h"

static int build_send(PyObject *const *in, cqn_state *st, cqn_send *out)
{
    cqn_sg_arrays arrays;
    out->sg = (cqn_sg)CQN_SG_IN(arrays);
    if (cqn_send_gather(in, st, out) < 0 || cqn_send_check_window(out) < 0 ||
        cqn_sg_keep(&out->sg) < 0) {
        cqn_sg_drop_bytes(&out->sg);
        return -1;
    }
    out->wr.sg_list = out->sg.sge;
    return 0;
}

/* The new object takes ownership of the arrays and references of `send`, even on failure. */
static PyObject *make_send_wr(PyTypeObject *type, cqn_send *send)
{
    cqn_send_wr *self = (cqn_send_wr *)type->tp_alloc(type, 0);
    if (self == NULL) {
        cqn_sg_free(&send->sg);
        return NULL;
    }
    self->send = *send;
    Py_XINCREF(send->header);
    return (PyObject *)self;
}

/* The memory is gathered on the stack, and copied to the heap after all checks. */
static PyObject *send_wr_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    PyObject *in[CQN_SEND_NAMES] = {NULL};
    CQN_COPY copy = NULL;
    CQN_COPY list = NULL;
    cqn_send send;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        cqn_sort_new("SendWR", cqn_send_names, 1, 0, args, kwargs, in) < 0 ||
        cqn_freeze(&in[CQN_SG], &list) < 0 || cqn_send_parse(in, NULL, IBV_WR_SEND, &send) < 0) {
        return NULL;
    }
    /* The object is created last: getting a buffer can run code, which must not find it incomplete.
     */
    return build_send(in, cqn_state_of(type), &send) < 0 ? NULL : make_send_wr(type, &send);
}

/* There is no tp_clear, as for RecvWR. */
static int send_wr_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((cqn_send_wr *)op)->send.header);
    return cqn_sg_traverse(&((cqn_send_wr *)op)->send.sg, visit, arg);
}

static void send_wr_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    cqn_sg_free(&((cqn_send_wr *)op)->send.sg);
    Py_XDECREF(((cqn_send_wr *)op)->send.header);
    type->tp_free(op);
    Py_DECREF(type);
}

static bool binds(const cqn_send *send)
{
    return send->opcode->does == CQN_WR_BINDS;
}

static unsigned long long length_of(const cqn_send *send)
{
    return binds(send) ? send->wr.bind_mw.bind_info.length : send->sg.length;
}

static PyObject *send_wr_repr(PyObject *op)
{
    const cqn_send *send = &((cqn_send_wr *)op)->send;
    return PyUnicode_FromFormat("<SendWR wr_id=%llu, %s, %llu bytes>",
                                (unsigned long long)send->wr_id, send->opcode->name,
                                length_of(send));
}

CQN_RARE static PyObject *send_wr_copy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_send send = ((cqn_send_wr *)op)->send;
    if (cqn_sg_copy(&send.sg) < 0) {
        return NULL;
    }
    send.wr.sg_list = send.sg.sge;
    return make_send_wr(Py_TYPE(op), &send);
}

CQN_RARE static PyObject *send_wr_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_send *send = &((cqn_send_wr *)op)->send;
    return cqn_reduce(op, Py_BuildValue("(IKK)", (unsigned int)send->wr.opcode,
                                        (unsigned long long)send->wr_id, length_of(send)));
}

CQN_RARE static PyObject *send_wr_restore(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyTypeObject *type = (PyTypeObject *)op;
    const cqn_state *st = cqn_state_of(type);
    unsigned int opcode;
    unsigned long long wr_id, length;
    cqn_send send = {.qp_types =
                         UINT32_MAX}; /* each queue pair then raises why it cannot be posted */
    if (!PyArg_ParseTuple(args, "IKK", &opcode, &wr_id, &length) ||
        (send.opcode = cqn_opcode_of(opcode)) == NULL ||
        cqn_sg_restore(&send.sg, binds(&send) ? st->MW : st->MR, length) < 0) {
        return NULL;
    }
    send.wr_id = wr_id;
    send.wr.opcode = opcode;
    if (binds(&send)) {
        send.wr.bind_mw.bind_info.length = length;
    }
    return make_send_wr(type, &send);
}

static PyMethodDef send_wr_methods[] = {
    CQN_VALUE_METHODS(send_wr_copy, send_wr_reduce, send_wr_restore),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef send_wr_getset[] = {
    {"wr_id", cqn_wr_get_id, cqn_wr_set_id, "Comes back in the completion; can be set.",
     (void *)offsetof(cqn_send_wr, send.wr_id)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot send_wr_slots[] = {
    {Py_tp_doc,
     "SendWR(sg=None, *, wr_id=0, opcode=2, send_flags=2, imm_data=None, remote_addr=None, "
     "rkey=None, compare_add=None, swap=None, invalidate_rkey=None, mw=None, access=None, ah=None, "
     "remote_qpn=None, remote_qkey=None, remote_srqn=None, tso_header=None, mss=None, length=None, "
     "placement=None, level=None)\n--\n\n"
     "A send work request that is built once and posted any number of times, by post_send().\n\n"
     "The parameters are those of `cqnotify.QP.post_send`. It holds its MRs, AH, MW or buffer.\n"
     "All except the buffer can be closed: then posting it raises ClosedError, as it does\n"
     "where it was unpickled. Each post copies the bytes of the buffer.\n\n"
     "Wraps struct ibv_send_wr."},
    {Py_tp_new, send_wr_new},
    {Py_tp_repr, send_wr_repr},
    {Py_tp_traverse, send_wr_traverse},
    {Py_tp_dealloc, send_wr_dealloc},
    {Py_tp_methods, send_wr_methods},
    {Py_tp_getset, send_wr_getset},
    {0, NULL},
};

PyType_Spec cqn_send_wr_spec = {
    .name = "cqnotify.SendWR",
    .basicsize = sizeof(cqn_send_wr),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = send_wr_slots,
};
