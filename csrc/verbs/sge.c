/* SPDX-License-Identifier: MIT */
/*
 * SGE: a part of an MR, which a work request reads or fills.
 *
 * An immutable object that holds its MR. Slicing an MR creates it (mr.c); posting reads its fields
 * (work/sg.c). An unpickled SGE has the numbers of the original, and an MR that was never open.
 */

#include "verbs/verbs.h"

PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length)
{
    PyTypeObject *type = mr->base.state->SGE;
    cqn_sge *self = (cqn_sge *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->mr = (cqn_mr *)Py_NewRef((PyObject *)mr);
        self->addr = addr;
        self->length = length;
        self->lkey = mr->lkey;
        self->changes = mr->base.changes;
    }
    return (PyObject *)self;
}

/* There is no tp_clear: a cycle through an SGE goes through its MR, which has one. `mr` is
 * therefore always set. */
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

/* Another key cannot make the device access memory that the work request does not pin: the address
 * stays within the MR. */
static PyObject *sge_with_lkey(PyObject *op, PyObject *lkey)
{
    cqn_sge *self = (cqn_sge *)op;
    uint32_t other;
    if (cqn_u32(lkey, "lkey", UINT32_MAX, &other) < 0) {
        return NULL;
    }
    cqn_sge *copy = (cqn_sge *)cqn_sge_new(self->mr, self->addr, self->length);
    if (copy != NULL) {
        copy->lkey = other;
        copy->changes = self->changes;
    }
    return (PyObject *)copy;
}

static PyObject *sge_repr(PyObject *op)
{
    cqn_sge *self = (cqn_sge *)op;
    return PyUnicode_FromFormat("<SGE addr=%p length=%u lkey=0x%x>", (void *)(uintptr_t)self->addr,
                                self->length, self->lkey);
}

/* ---- comparison and pickling ---- */

static bool same_mr(const cqn_object *a, const cqn_object *b)
{
    return a == b || (cqn_is_left(a) && cqn_is_left(b));
}

CQN_RARE static PyObject *sge_richcompare(PyObject *op, PyObject *other, int how)
{
    if (!CQN_COMPARABLE(op, other, how)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    const cqn_sge *a = (cqn_sge *)op, *b = (cqn_sge *)other;
    return CQN_COMPARED(a->addr == b->addr && a->length == b->length && a->lkey == b->lkey &&
                            a->changes == b->changes && same_mr(CQN_OBJ(a->mr), CQN_OBJ(b->mr)),
                        how);
}

static Py_hash_t sge_hash(PyObject *op)
{
    const cqn_sge *self = (cqn_sge *)op;
    return cqn_hash((uint64_t[]){self->addr, self->length, self->lkey}, 3);
}

CQN_RARE static PyObject *sge_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const cqn_sge *self = (cqn_sge *)op;
    return cqn_reduce(
        op, Py_BuildValue("(KII)", (unsigned long long)self->addr, self->length, self->lkey));
}

CQN_RARE static PyObject *sge_restore(PyObject *type, PyObject *args)
{
    CQN_LOCKED;
    unsigned long long addr;
    unsigned int length, lkey;
    if (!PyArg_ParseTuple(args, "KII", &addr, &length, &lkey)) {
        return NULL;
    }
    cqn_mr *mr = cqn_new_left(cqn_state_of((PyTypeObject *)type)->MR, &cqn_mr_kind);
    if (mr == NULL) {
        return NULL;
    }
    mr->access = IBV_ACCESS_LOCAL_WRITE; /* so posting refuses it as closed */
    mr->lkey = lkey;
    PyObject *self = cqn_sge_new(mr, addr, length);
    Py_DECREF(mr);
    return self;
}

static PyMethodDef sge_methods[] = {
    {"with_lkey", sge_with_lkey, METH_O,
     "with_lkey($self, lkey, /)\n--\n\n"
     "Return an SGE of the same memory under another local key.\n\n"
     "lkey: the key, 32 bits.\n\n"
     "For tests of errors: only the device checks the key, so a wrong one fails the work\n"
     "request, with LOC_PROT_ERR on most devices."},
    CQN_VALUE_METHODS(cqn_value_copy, sge_reduce, sge_restore),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef sge_members[] = {
    {"mr", T_OBJECT_EX, offsetof(cqn_sge, mr), READONLY, "The MR that it is a part of."},
    {"addr", T_ULONGLONG, offsetof(cqn_sge, addr), READONLY, "Address of its first byte."},
    {"length", T_UINT, offsetof(cqn_sge, length), READONLY, "Its size in bytes."},
    {"lkey", T_UINT, offsetof(cqn_sge, lkey), READONLY,
     "Local key: that of its MR, unless with_lkey() gave it another."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot sge_slots[] = {
    {Py_tp_doc,
     "A scatter/gather element: mr[a:b]. It keeps its MR alive; those of the same memory are "
     "equal."},
    {Py_tp_repr, sge_repr},
    {Py_tp_richcompare, sge_richcompare},
    {Py_tp_hash, sge_hash},
    {Py_tp_traverse, sge_traverse},
    {Py_tp_dealloc, sge_dealloc},
    {Py_tp_methods, sge_methods},
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
