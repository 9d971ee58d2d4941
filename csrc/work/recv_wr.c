/* SPDX-License-Identifier: MIT */
/*
 * RecvWR: a receive request that is built once and posted any number of times.
 *
 * It owns its arrays and holds the MRs. Posting copies the struct, so a list can contain it more
 * than once. Its MRs stay in their process: an unpickled RecvWR has only its wr_id and length, and
 * cannot be posted.
 */

#include "work/wr.h"

int cqn_recv_check(const cqn_sg *sg)
{
    if (!sg->writable) {
        PyErr_SetString(PyExc_ValueError, "sg: to receive, an MR needs access LOCAL_WRITE");
        return -1;
    }
    return 0;
}

/* The new object takes ownership of the arrays and references of `sg`, even on failure. */
static PyObject *make_recv_wr(PyTypeObject *type, uint64_t wr_id, cqn_sg *sg)
{
    cqn_recv_wr *self = (cqn_recv_wr *)type->tp_alloc(type, 0);
    if (self == NULL) {
        cqn_sg_free(sg);
        return NULL;
    }
    self->sg = *sg;
    self->wr_id = wr_id;
    self->wr = (struct ibv_recv_wr){.sg_list = sg->sge, .num_sge = (int)sg->num_sge};
    return (PyObject *)self;
}

/* The memory is gathered on the stack, and copied to the heap after all checks. */
static PyObject *recv_wr_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"sg", "wr_id", NULL};
    PyObject *memory = NULL, *id = NULL;
    CQN_COPY copy = NULL;
    CQN_COPY list = NULL;
    uint64_t wr_id = 0;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:RecvWR", names, &memory, &id) ||
        cqn_freeze(&memory, &list) < 0 ||
        (id != NULL && cqn_uint(id, "wr_id", UINT64_MAX, &wr_id) < 0)) {
        return NULL;
    }
    cqn_sg_arrays arrays;
    cqn_sg sg = CQN_SG_IN(arrays);
    return cqn_sg_gather(&sg, cqn_state_of(type), memory) < 0 || cqn_recv_check(&sg) < 0 ||
                   cqn_sg_keep(&sg) < 0
               ? NULL
               : make_recv_wr(type, wr_id, &sg);
}

/* There is no tp_clear, as for SGE: its references are older than itself, so a cycle contains an
 * object that has one. */
static int recv_wr_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return cqn_sg_traverse(&((cqn_recv_wr *)op)->sg, visit, arg);
}

static void recv_wr_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    cqn_sg_free(&((cqn_recv_wr *)op)->sg);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *recv_wr_repr(PyObject *op)
{
    const cqn_recv_wr *self = (cqn_recv_wr *)op;
    return PyUnicode_FromFormat("<RecvWR wr_id=%llu, %llu bytes>", (unsigned long long)self->wr_id,
                                (unsigned long long)self->sg.length);
}

CQN_RARE static PyObject *recv_wr_copy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_sg sg = ((cqn_recv_wr *)op)->sg;
    return cqn_sg_copy(&sg) < 0 ? NULL : make_recv_wr(Py_TYPE(op), ((cqn_recv_wr *)op)->wr_id, &sg);
}

CQN_RARE static PyObject *recv_wr_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_recv_wr *self = (cqn_recv_wr *)op;
    return cqn_reduce(op, Py_BuildValue("(KK)", (unsigned long long)self->wr_id,
                                        (unsigned long long)self->sg.length));
}

CQN_RARE static PyObject *recv_wr_restore(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyTypeObject *type = (PyTypeObject *)op;
    unsigned long long wr_id, length;
    cqn_sg sg;
    return !PyArg_ParseTuple(args, "KK", &wr_id, &length) ||
                   cqn_sg_restore(&sg, cqn_state_of(type)->MR, length) < 0
               ? NULL
               : make_recv_wr(type, wr_id, &sg);
}

static PyMethodDef recv_wr_methods[] = {
    CQN_VALUE_METHODS(recv_wr_copy, recv_wr_reduce, recv_wr_restore),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef recv_wr_getset[] = {
    {"wr_id", cqn_wr_get_id, cqn_wr_set_id, "Comes back in the completion; can be set.",
     (void *)offsetof(cqn_recv_wr, wr_id)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot recv_wr_slots[] = {
    {Py_tp_doc,
     "RecvWR(sg=None, *, wr_id=0)\n--\n\n"
     "A receive that is built once and posted any number of times, by post_recv().\n\n"
     "The parameters are those of `cqnotify.QP.post_recv`. It holds its MRs, which can\n"
     "be closed: then posting it raises ClosedError, as it does where it was unpickled.\n\n"
     "Wraps struct ibv_recv_wr."},
    {Py_tp_new, recv_wr_new},
    {Py_tp_repr, recv_wr_repr},
    {Py_tp_traverse, recv_wr_traverse},
    {Py_tp_dealloc, recv_wr_dealloc},
    {Py_tp_methods, recv_wr_methods},
    {Py_tp_getset, recv_wr_getset},
    {0, NULL},
};

PyType_Spec cqn_recv_wr_spec = {
    .name = "cqnotify.RecvWR",
    .basicsize = sizeof(cqn_recv_wr),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = recv_wr_slots,
};
