/* SPDX-License-Identifier: MIT */
/*
 * RwqIndTable: the WQs among which a queue pair distributes incoming packets, by their hash.
 *
 * A table can have more WQs than `uses` has elements, so it holds them in a tuple, and pins each of
 * them once to keep it open.
 */

#include "verbs/wq.h"

typedef struct {
    cqn_object base;
    PyObject *wqs; /* a tuple; NULL once closed */
    uint32_t ind_tbl_num;
} cqn_rwq_ind_table;

static int destroy_table(void *handle)
{
    return ibv_destroy_rwq_ind_table(handle);
}

static cqn_object *wq_at(PyObject *wqs, Py_ssize_t i)
{
    return CQN_OBJ(PyTuple_GET_ITEM(wqs, i));
}

static bool is_first(PyObject *wqs, Py_ssize_t i)
{
    Py_ssize_t first = 0;
    while (wq_at(wqs, first) != wq_at(wqs, i)) {
        first++;
    }
    return first == i;
}

static void pin(PyObject *wqs, size_t n)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wqs); i++) {
        wq_at(wqs, i)->pins += is_first(wqs, i) ? n : 0;
    }
}

static void table_after_destroy(cqn_object *op)
{
    PyObject *wqs = ((cqn_rwq_ind_table *)op)->wqs;
    ((cqn_rwq_ind_table *)op)->wqs = NULL;
    pin(wqs, (size_t)-1);
    Py_DECREF(wqs);
}

static int table_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((cqn_rwq_ind_table *)op)->wqs);
    return cqn_traverse(op, visit, arg);
}

/* A table that is still open, because close() failed, keeps its WQs. */
static int table_clear(PyObject *op)
{
    if (CQN_OBJ(op)->handle == NULL) {
        Py_CLEAR(((cqn_rwq_ind_table *)op)->wqs);
    }
    return cqn_clear(op);
}

static const cqn_kind table_kind = {
    .name = "RwqIndTable",
    .destroy_verb = "ibv_destroy_rwq_ind_table",
    .rank = CQN_RANK_SRQ, /* created after its WQs, closed before them */
    .destroy = destroy_table,
    .after_destroy = table_after_destroy,
    .clear = table_clear,
};

/* The size must be a power of two within the device's limit. Returns -1 with an exception. */
static int check_size(cqn_object *context, Py_ssize_t n)
{
    struct ibv_device_attr_ex attr;
    if (cqn_device_attr_ex(context, &attr) < 0 || cqn_open(context) == NULL) {
        return -1;
    }
    const uint32_t max = attr.rss_caps.max_rwq_indirection_table_size;
    if (max == 0) {
        cqn_verbs_error(context->state, EOPNOTSUPP, "ibv_create_rwq_ind_table",
                        "%s spreads no packets (query_device_ex().rss_caps)",
                        cqn_device_name(context));
        return -1;
    }
    if (n < 1 || (n & (n - 1)) != 0 || n > (Py_ssize_t)max) {
        PyErr_Format(PyExc_ValueError,
                     "wqs has %zd WQs: it must have a power of two of them, at most %u", n,
                     (unsigned)max);
        return -1;
    }
    return 0;
}

static int check_wqs(cqn_state *st, PyObject *context, PyObject *wqs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wqs); i++) {
        if (cqn_expect_beside(PyTuple_GET_ITEM(wqs, i), st->WQ, "wqs", context, "context") < 0) {
            return -1;
        }
    }
    return 0;
}

/* The WQs are pinned, so they stay open during the call. Returns the handle; NULL with an
 * exception. */
static struct ibv_rwq_ind_table *create_table(cqn_rwq_ind_table *self)
{
    PyObject *wqs = self->wqs;
    const size_t n = (size_t)PyTuple_GET_SIZE(wqs);
    struct ibv_wq **handles = PyMem_New(struct ibv_wq *, n);
    if (handles == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    struct ibv_rwq_ind_table_init_attr attr = {.ind_tbl = handles};
    while ((size_t)1 << attr.log_ind_tbl_size < n) {
        attr.log_ind_tbl_size++;
    }
    for (size_t i = 0; i < n; i++) {
        handles[i] = wq_at(wqs, (Py_ssize_t)i)->handle;
        cqn_enter(wq_at(wqs, (Py_ssize_t)i));
    }
    struct ibv_context *device = self->base.uses[0]->handle;
    struct ibv_rwq_ind_table *table;
    int err;
    CQN_CREATING(CQN_OBJ(self), table = ibv_create_rwq_ind_table(device, &attr); err = errno);
    for (size_t i = 0; i < n; i++) {
        cqn_leave(wq_at(wqs, (Py_ssize_t)i));
    }
    PyMem_Free(handles);
    if (table == NULL) {
        cqn_verbs_error(self->base.state, err, "ibv_create_rwq_ind_table", "of %zu WQs", n);
    }
    return table;
}

static PyObject *new_table(PyTypeObject *type, cqn_state *st, PyObject *context, PyObject *wqs)
{
    cqn_object *used = CQN_OBJ(context);
    if (check_wqs(st, context, wqs) < 0 || check_size(used, PyTuple_GET_SIZE(wqs)) < 0) {
        return NULL;
    }
    cqn_rwq_ind_table *self = cqn_new(type, &table_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->wqs = Py_NewRef(wqs);
    struct ibv_rwq_ind_table *table = check_wqs(st, context, wqs) < 0 ? NULL : create_table(self);
    if (table == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->ind_tbl_num = (uint32_t)table->ind_tbl_num;
    pin(wqs, 1);
    cqn_adopt(CQN_OBJ(self), table);
    return (PyObject *)self;
}

CQN_RARE static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "wqs", NULL};
    cqn_state *st = cqn_state_of(type);
    PyObject *context, *value;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO:RwqIndTable", names, &context, &value) ||
        cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    PyObject *wqs = PySequence_Tuple(value); /* can run arbitrary code */
    PyObject *self = wqs == NULL || cqn_open(CQN_OBJ(context)) == NULL
                         ? NULL
                         : new_table(type, st, context, wqs);
    Py_XDECREF(wqs);
    return self;
}

static PyObject *table_get_wqs(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef(((cqn_rwq_ind_table *)op)->wqs) : NULL;
}

static PyMethodDef table_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef table_getset[] = {
    {"wqs", table_get_wqs, NULL, "Its WQs, a tuple.", NULL},
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"ind_tbl_num", cqn_get_u32, NULL, "Its number.",
     (void *)offsetof(cqn_rwq_ind_table, ind_tbl_num)},
    CQN_POINTER("struct ibv_rwq_ind_table"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef table_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot table_slots[] = {
    {Py_tp_doc,
     "RwqIndTable(context, wqs)\n--\n\n"
     "A table of WQs: QP(..., rwq_ind_tbl=...) spreads its packets over them, by a hash of\n"
     "what their headers say.\n\n"
     "context: the Context.\n"
     "wqs: the WQs, a power of two of them, up to the device's\n"
     "    rss_caps.max_rwq_indirection_table_size; some can be the same.\n\n"
     "BusyError at close() while queue pairs use it. Raises VerbsError (EOPNOTSUPP) where the\n"
     "device has none.\n\n"
     "Wraps ibv_create_rwq_ind_table(3)."},
    {Py_tp_new, table_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_getset, table_getset},
    {Py_tp_members, table_members},
    {0, NULL},
};

PyType_Spec cqn_rwq_ind_table_spec = {
    .name = "cqnotify.hw.RwqIndTable",
    .basicsize = sizeof(cqn_rwq_ind_table),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
