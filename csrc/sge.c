/* SPDX-License-Identifier: MIT */
/* SGE: a part of an MR, what a work request reads or fills. */

#include "core.h"

PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length)
{
    PyTypeObject *type = mr->base.state->SGE;
    cqn_sge *self = (cqn_sge *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->mr = (cqn_mr *)Py_NewRef((PyObject *)mr);
        self->addr = addr;
        self->length = length;
    }
    return (PyObject *)self;
}

/* No tp_clear: a cycle through here goes through the MR as well, which has one,
 * so that `mr` is always there. */
static int sge_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((cqn_sge *)op)->mr);
    return 0;
}

static void sge_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_DECREF(((cqn_sge *)op)->mr);
    type->tp_free(op);
    Py_DECREF(type);
}

static Py_ssize_t sge_length(PyObject *op)
{
    return ((cqn_sge *)op)->length;
}

static PyObject *sge_get_lkey(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(((cqn_sge *)op)->mr->lkey);
}

static PyObject *sge_repr(PyObject *op)
{
    cqn_sge *self = (cqn_sge *)op;
    return PyUnicode_FromFormat("<SGE addr=%p length=%u lkey=0x%x>", (void *)(uintptr_t)self->addr,
                                self->length, self->mr->lkey);
}

static PyGetSetDef sge_getset[] = {
    {"lkey", sge_get_lkey, NULL, "Local key of its MR.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef sge_members[] = {
    {"mr", T_OBJECT_EX, offsetof(cqn_sge, mr), READONLY, "The MR that it is a part of."},
    {"addr", T_ULONGLONG, offsetof(cqn_sge, addr), READONLY, "Address of its first byte."},
    {"length", T_UINT, offsetof(cqn_sge, length), READONLY, "Its size in bytes."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot sge_slots[] = {
    {Py_tp_doc, "A scatter/gather element: mr[a:b]. It keeps its MR alive."},
    {Py_tp_repr, sge_repr},
    {Py_tp_traverse, sge_traverse},
    {Py_tp_dealloc, sge_dealloc},
    {Py_tp_getset, sge_getset},
    {Py_tp_members, sge_members},
    {Py_mp_length, sge_length},
    {0, NULL},
};

PyType_Spec cqn_sge_spec = {
    .name = "cqnotify.SGE",
    .basicsize = sizeof(cqn_sge),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sge_slots,
};
