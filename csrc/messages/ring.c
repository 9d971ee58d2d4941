/* SPDX-License-Identifier: MIT */
/* The ring as a type, for tests without a device. */

#include "messages/ring.h"

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size", NULL};
    unsigned long long size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K:MessageRing", names, &size)) {
        return NULL;
    }
    if (size == 0) {
        PyErr_SetString(PyExc_ValueError, "a ring has a size");
        return NULL;
    }
    cqn_ring *self = (cqn_ring *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->size = size;
    }
    return (PyObject *)self;
}

static PyObject *ring_has_room(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    uint64_t nbytes;
    return cqn_uint(value, "nbytes", UINT32_MAX, &nbytes) < 0
               ? NULL
               : PyBool_FromLong(cqn_ring_has_room((cqn_ring *)op, nbytes));
}

static PyObject *ring_allocate(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    uint64_t nbytes, at;
    if (cqn_uint(value, "nbytes", UINT32_MAX, &nbytes) < 0) {
        return NULL;
    }
    return cqn_ring_allocate((cqn_ring *)op, nbytes, &at) ? PyLong_FromUnsignedLongLong(at)
                                                          : Py_NewRef(Py_None);
}

static PyObject *ring_shorten(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned long long nbytes, to;
    if (!PyArg_ParseTuple(args, "KK:shorten", &nbytes, &to)) {
        return NULL;
    }
    if (to > nbytes) {
        PyErr_SetString(PyExc_ValueError, "that is longer");
        return NULL;
    }
    cqn_ring_shorten((cqn_ring *)op, nbytes, to);
    Py_RETURN_NONE;
}

static PyObject *ring_free_to(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    cqn_ring *self = (cqn_ring *)op;
    uint64_t mark;
    if (cqn_range(value, "mark", self->freed, self->taken, &mark) < 0) {
        return NULL;
    }
    cqn_ring_free_to(self, mark);
    Py_RETURN_NONE;
}

static void ring_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef ring_methods[] = {
    {"has_room", ring_has_room, METH_O,
     "has_room($self, nbytes, /)\n--\n\nWhether so many bytes in one piece are free."},
    {"allocate", ring_allocate, METH_O,
     "allocate($self, nbytes, /)\n--\n\n"
     "Return where `nbytes` in one piece begin; None if they are not free."},
    {"shorten", ring_shorten, METH_VARARGS,
     "shorten($self, nbytes, to, /)\n--\n\nReturn a part of the latest allocation, of `nbytes`."},
    {"free_to", ring_free_to, METH_O,
     "free_to($self, mark, /)\n--\n\nFree what was allocated when that was the mark."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef ring_members[] = {
    {"mark", T_ULONGLONG, offsetof(cqn_ring, taken), READONLY,
     "The argument of free_to() for what was allocated so far."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, "MessageRing(size)\n--\n\n"
                "Memory that is freed in the order in which it was allocated."},
    {Py_tp_new, ring_new},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, ring_methods},
    {Py_tp_members, ring_members},
    {0, NULL},
};

PyType_Spec cqn_message_ring_spec = {
    .name = "cqnotify.MessageRing",
    .basicsize = sizeof(cqn_ring),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ring_slots,
};
