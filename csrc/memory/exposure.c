/* SPDX-License-Identifier: MIT */
/*
 * Exposure and ExposureTable: exposing memory that is registered already, without a system call.
 *
 * Python does the rest: see cqnotify/memory/_exposure.py, whose classes these are the bases of.
 */

#include "memory/registered.h"
#include <sys/random.h>

/* An Exposure. The objects are NULL, and None to Python, until they are needed.
 *
 * The garbage collector does not know it: while it is open the table holds it, and when it is
 * closed it refers to nothing of the program. So ten thousand of them do not make collections
 * slower. */
typedef struct {
    PyObject_HEAD
    PyObject *table;
    PyObject *memory; /* what is exposed; None after it was revoked */
    PyObject *access; /* an Access */
    PyObject *region; /* in use by this exposure, until a Registration takes the use over */
    PyObject *registrations, *openers, *timer, *expires;
    uint64_t token, start, length;
} exposure;

enum { TOKENS = 256 };

typedef struct {
    PyObject_HEAD
    PyObject *exposures;       /* a dict, by token */
    PyObject *type;            /* of exposures */
    PyObject *read, *accesses; /* Access.READ, and all of them */
    PyObject *registered;      /* a RegisteredTable; None: expose() finds nothing */
    uint64_t tokens[TOKENS];
    size_t tokens_left;
} table;

/* ---- Exposure ---- */

#define EXPOSURE_OBJECTS(DO, self) \
    DO((self)->table);             \
    DO((self)->memory);            \
    DO((self)->access);            \
    DO((self)->registrations);     \
    DO((self)->openers);           \
    DO((self)->timer);             \
    DO((self)->expires)

static void exposure_dealloc(PyObject *op)
{
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    exposure *self = (exposure *)op;
    PyObject *region = self->region;
    self->region = NULL;
    if (region != NULL && region != Py_None) {
        cqn_registered_release((cqn_region *)region);
    }
    EXPOSURE_OBJECTS(Py_CLEAR, self);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *exposure_take_region(PyObject *op, PyObject *Py_UNUSED(none))
{
    CQN_LOCKED;
    exposure *self = (exposure *)op;
    PyObject *region = self->region;
    self->region = NULL;
    return region == NULL ? Py_NewRef(Py_None) : region;
}

static PyMethodDef exposure_methods[] = {
    {"_take_region", exposure_take_region, METH_NOARGS,
     "_take_region($self, /)\n--\n\n"
     "Return the region, whose use goes over to the caller; None if there is none."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef exposure_members[] = {
    {"_table", T_OBJECT, offsetof(exposure, table), READONLY, "Its ExposureTable."},
    {"_memory", T_OBJECT, offsetof(exposure, memory), 0, "What is exposed; None: nothing more."},
    {"_registrations", T_OBJECT, offsetof(exposure, registrations), 0, "A dict, by device."},
    {"_openers", T_OBJECT, offsetof(exposure, openers), 0, "A set of connections."},
    {"_timer", T_OBJECT, offsetof(exposure, timer), 0, "A TimerHandle."},
    {"_start", T_ULONGLONG, offsetof(exposure, start), READONLY, "Where it begins in the region."},
    {"access", T_OBJECT, offsetof(exposure, access), READONLY, "The rights of peers, an Access."},
    {"expires", T_OBJECT, offsetof(exposure, expires), READONLY,
     "The time at which the access ends, in seconds since 1970; None: never."},
    {"length", T_ULONGLONG, offsetof(exposure, length), READONLY, "In bytes."},
    {"token", T_ULONGLONG, offsetof(exposure, token), READONLY,
     "By which the process finds the memory, 64 bits."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot exposure_slots[] = {
    {Py_tp_doc, "The base of cqnotify.memory.Exposure."},
    {Py_tp_dealloc, exposure_dealloc},
    {Py_tp_methods, exposure_methods},
    {Py_tp_members, exposure_members},
    {0, NULL},
};

PyType_Spec cqn_exposure_spec = {
    .name = "cqnotify.Exposure",
    .basicsize = sizeof(exposure),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = exposure_slots,
};

/* ---- ExposureTable ---- */

/* Returns -1 with an exception. Tokens are secrets, so they come from the kernel. */
static int new_token(table *self, uint64_t *token)
{
    if (self->tokens_left == 0) {
        const ssize_t got = getrandom(self->tokens, sizeof(self->tokens), 0);
        if (got < (ssize_t)sizeof(self->tokens[0])) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        self->tokens_left = (size_t)got / sizeof(self->tokens[0]);
    }
    *token = self->tokens[--self->tokens_left];
    self->tokens[self->tokens_left] = 0;
    return 0;
}

static exposure *new_exposure(table *self, PyObject *memory, PyObject *access, uint64_t length)
{
    PyTypeObject *type = (PyTypeObject *)self->type;
    uint64_t token;
    exposure *one = new_token(self, &token) < 0 ? NULL : (exposure *)type->tp_alloc(type, 0);
    if (one != NULL) {
        one->table = Py_NewRef((PyObject *)self);
        one->memory = Py_NewRef(memory);
        one->access = Py_NewRef(access);
        one->token = token;
        one->length = length;
    }
    return one;
}

static int list(table *self, exposure *one)
{
    PyObject *token = PyLong_FromUnsignedLongLong(one->token);
    const int rc = token == NULL ? -1 : PyDict_SetItem(self->exposures, token, (PyObject *)one);
    Py_XDECREF(token);
    return rc;
}

/* Returns the region that has a buffer registered, with one more user; NULL without an exception if
 * there is none, or the buffer is none. */
static cqn_region *find(const table *self, PyObject *memory, unsigned int access, uint64_t *start,
                        uint64_t *length)
{
    cqn_registered *registered = (cqn_registered *)Py_NewRef(self->registered);
    cqn_region *region = cqn_registered_acquire(registered, memory, access, start, length);
    if (region != NULL && *length == 0) {
        cqn_registered_release(region);
        region = NULL;
    }
    PyErr_Clear(); /* the caller does it in another way, which raises it */
    Py_DECREF(registered);
    return region;
}

static PyObject *table_expose(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    table *self = (table *)op;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "_expose() takes memory and access");
        return NULL;
    }
    PyObject *memory = args[0], *access = args[1];
    const bool writes = access != self->read;
    const int is_known = writes ? PySequence_Contains(self->accesses, access) : 1;
    if (is_known < 1 || self->registered == NULL || self->registered == Py_None) {
        return is_known < 0 ? NULL : Py_NewRef(Py_None);
    }
    uint64_t start, length;
    const unsigned int needed = IBV_ACCESS_MW_BIND | (writes ? IBV_ACCESS_LOCAL_WRITE : 0);
    cqn_region *region = find(self, memory, needed, &start, &length);
    if (region == NULL) {
        return Py_NewRef(Py_None);
    }
    exposure *one = new_exposure(self, memory, access, length);
    if (one == NULL) {
        cqn_registered_release(region);
        return NULL;
    }
    one->region = (PyObject *)region;
    one->start = start;
    if (list(self, one) < 0) {
        Py_CLEAR(one);
    }
    return (PyObject *)one;
}

static PyObject *table_create(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyObject *memory, *access, *expires;
    unsigned long long length;
    if (!PyArg_ParseTuple(args, "OOKO:_new_exposure", &memory, &access, &length, &expires)) {
        return NULL;
    }
    exposure *one = new_exposure((table *)op, memory, access, length);
    if (one != NULL) {
        one->expires = Py_NewRef(expires);
    }
    return (PyObject *)one;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    (void)args;
    (void)kwargs;
    table *self = (table *)type->tp_alloc(type, 0);
    if (self != NULL && (self->exposures = PyDict_New()) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Says once of what type exposures are; the Access members are compared by identity. */
static PyObject *table_set_types(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    table *self = (table *)op;
    const cqn_state *st = cqn_state_of(Py_TYPE(op));
    PyObject *type, *read, *accesses;
    if (!PyArg_ParseTuple(args, "O!OO!:_set_types", &PyType_Type, &type, &read, &PyTuple_Type,
                          &accesses)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, st->Exposure)) {
        PyErr_SetString(PyExc_TypeError, "the type of exposures must be a subclass of Exposure");
        return NULL;
    }
    PyObject *old[] = {self->type, self->read, self->accesses};
    self->type = Py_NewRef(type);
    self->read = Py_NewRef(read);
    self->accesses = Py_NewRef(accesses);
    for (size_t i = 0; i < 3; i++) {
        Py_XDECREF(old[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *table_set_registered(PyObject *op, PyObject *registered)
{
    CQN_LOCKED;
    table *self = (table *)op;
    const cqn_state *st = cqn_state_of(Py_TYPE(op));
    if (registered != Py_None && !PyObject_TypeCheck(registered, st->RegisteredTable)) {
        PyErr_SetString(PyExc_TypeError, "registered must be a RegisteredTable or None");
        return NULL;
    }
    PyObject *old = self->registered;
    self->registered = Py_NewRef(registered);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

#define TABLE_OBJECTS(DO, self) \
    DO((self)->exposures);      \
    DO((self)->type);           \
    DO((self)->read);           \
    DO((self)->accesses);       \
    DO((self)->registered)

static int table_traverse(PyObject *op, visitproc visit, void *arg)
{
    table *self = (table *)op;
    Py_VISIT(Py_TYPE(op));
    TABLE_OBJECTS(Py_VISIT, self);
    return 0;
}

static int exposures_clear(PyObject *op)
{
    CQN_LOCKED;
    table *self = (table *)op;
    TABLE_OBJECTS(Py_CLEAR, self);
    return 0;
}

static void table_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    exposures_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"_expose", (PyCFunction)(void (*)(void))table_expose, METH_FASTCALL,
     "_expose($self, memory, access, /)\n--\n\n"
     "Expose memory that is registered already; return None if it must be done in another way."},
    {"_new_exposure", table_create, METH_VARARGS,
     "_new_exposure($self, memory, access, length, expires, /)\n--\n\n"
     "Return an exposure with a token, which is not in the table yet."},
    {"_set_types", table_set_types, METH_VARARGS,
     "_set_types($self, type, read, accesses, /)\n--\n\n"
     "Say of what type exposures are, and which access they can have."},
    {"_set_registered", table_set_registered, METH_O,
     "_set_registered($self, registered, /)\n--\n\n"
     "Say where _expose() looks for registered memory; None: nowhere."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef table_members[] = {
    {"_exposures", T_OBJECT, offsetof(table, exposures), READONLY, "A dict, by token."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "ExposureTable(*args, **kwargs)\n--\n\nThe base of the table of cqnotify.memory."},
    {Py_tp_new, table_new},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, exposures_clear},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_members, table_members},
    {0, NULL},
};

PyType_Spec cqn_exposure_table_spec = {
    .name = "cqnotify.ExposureTable",
    .basicsize = sizeof(table),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
