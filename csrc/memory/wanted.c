/* SPDX-License-Identifier: MIT */
/*
 * WantedMemory: a buffer to be registered, by its addresses: see cqnotify/_registered.
 */

#include "memory/wanted.h"

typedef struct {
    PyObject_HEAD
    PyObject *view;   /* a memoryview */
    PyObject *access; /* the access flags */
    PyObject *array;  /* the numpy array that owns the memory or holds its owner; or None */
    uint64_t start, end;
} wanted;

/* Returns a new reference to numpy.ndarray; NULL, perhaps without an exception, if numpy was not
 * imported. */
static PyTypeObject *array_type(void)
{
    PyObject *name = PyUnicode_FromString("numpy");
    PyObject *numpy = name == NULL ? NULL : PyImport_GetModule(name);
    PyObject *type = numpy == NULL ? NULL : PyObject_GetAttrString(numpy, "ndarray");
    Py_XDECREF(name);
    Py_XDECREF(numpy);
    if (type != NULL && !PyType_Check(type)) {
        Py_CLEAR(type);
    }
    return (PyTypeObject *)type;
}

/* Returns the object behind views of views; borrowed. */
static PyObject *owner_of(PyObject *view)
{
    PyObject *owner = view;
    while (owner != NULL && PyMemoryView_Check(owner)) {
        owner = PyMemoryView_GET_BUFFER(owner)->obj;
    }
    return owner;
}

/* Returns a reference to the last array of a chain in which each is a view of the next; NULL with
 * an exception. */
static PyObject *base_of(PyObject *array, PyTypeObject *type)
{
    PyObject *one = Py_NewRef(array);
    for (;;) {
        PyObject *base = PyObject_GetAttrString(one, "base");
        if (base == NULL) {
            Py_DECREF(one);
            return NULL;
        }
        if (!PyObject_TypeCheck(base, type)) {
            Py_DECREF(base);
            return one;
        }
        Py_SETREF(one, base);
    }
}

static int find(wanted *self)
{
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(self->view);
    PyObject *owner = Py_XNewRef(owner_of(self->view));
    PyTypeObject *type = array_type();
    int rc = PyErr_Occurred() ? -1 : 0;
    if (rc == 0 && owner != NULL && type != NULL && PyObject_TypeCheck(owner, type)) {
        self->array = base_of(owner, type);
        rc = self->array == NULL ? -1 : 0;
    }
    self->start = (uint64_t)(uintptr_t)buffer->buf;
    self->end = self->start + (uint64_t)buffer->len;
    Py_XDECREF(type);
    Py_XDECREF(owner);
    return rc;
}

PyObject *cqn_wanted_new(const cqn_state *st, PyObject *view, PyObject *access)
{
    wanted *self = (wanted *)st->WantedMemory->tp_alloc(st->WantedMemory, 0);
    if (self == NULL) {
        return NULL;
    }
    self->view = Py_NewRef(view);
    self->access = Py_NewRef(access);
    if (find(self) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *wanted_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"view", "access", NULL};
    PyObject *view, *access;
    return cqn_freeze_keywords(&kwargs, &copy) == 0 &&
                   PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:WantedMemory", names,
                                               &PyMemoryView_Type, &view, &access)
               ? cqn_wanted_new(cqn_state_of(type), view, access)
               : NULL;
}

static int wanted_traverse(PyObject *op, visitproc visit, void *arg)
{
    wanted *self = (wanted *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->view);
    Py_VISIT(self->access);
    Py_VISIT(self->array);
    return 0;
}

static int wanted_clear(PyObject *op)
{
    CQN_LOCKED;
    wanted *self = (wanted *)op;
    Py_CLEAR(self->view);
    Py_CLEAR(self->access);
    Py_CLEAR(self->array);
    return 0;
}

static void wanted_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    wanted_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef wanted_members[] = {
    {"view", T_OBJECT, offsetof(wanted, view), READONLY, "A memoryview of it."},
    {"access", T_OBJECT, offsetof(wanted, access), READONLY, "What is granted."},
    {"array", T_OBJECT, offsetof(wanted, array), READONLY,
     "The numpy array that has the memory; None if it is another buffer."},
    {"start", T_ULONGLONG, offsetof(wanted, start), READONLY, "Where it begins."},
    {"end", T_ULONGLONG, offsetof(wanted, end), READONLY, "Where it ends."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot wanted_slots[] = {
    {Py_tp_doc, "WantedMemory(view, access)\n--\n\n"
                "A buffer that is to be registered, from `start` to `end`."},
    {Py_tp_new, wanted_new},
    {Py_tp_traverse, wanted_traverse},
    {Py_tp_clear, wanted_clear},
    {Py_tp_dealloc, wanted_dealloc},
    {Py_tp_members, wanted_members},
    {0, NULL},
};

PyType_Spec cqn_wanted_spec = {
    .name = "cqnotify.WantedMemory",
    .basicsize = sizeof(wanted),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = wanted_slots,
};
