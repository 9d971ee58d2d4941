/* SPDX-License-Identifier: MIT */
/* WCArray: memory for many completions that CQ.poll_into() fills again and again; a buffer that
 * numpy, for example, reads without copying. */

#include "notify/cq.h"

#define SAME_PLACE(field)                                                         \
    _Static_assert(offsetof(cqn_wc_row, field) == offsetof(struct ibv_wc, field), \
                   "see "                                                         \
                   "set_plain_field()")
SAME_PLACE(wr_id);
SAME_PLACE(status);
SAME_PLACE(opcode);
SAME_PLACE(vendor_err);
SAME_PLACE(byte_len);
SAME_PLACE(imm_data);

/* PEP 3118; = is native byte order without alignment. */
static char row_format[] = "T{=Q:wr_id:=I:status:=I:opcode:=I:vendor_err:=I:byte_len:=I:imm_data:"
                           "=I:qp_num:=I:src_qp:=I:wc_flags:=H:pkey_index:=H:slid:=B:sl:"
                           "=B:dlid_path_bits:=H:fields:}";

typedef struct {
    PyObject_HEAD
    cqn_wc_row *rows;
    Py_ssize_t capacity, len;
#ifdef Py_GIL_DISABLED
    atomic_bool is_filled; /* by a thread with half of the lock */
#endif
} wc_array;

#ifdef Py_GIL_DISABLED
bool cqn_wc_array_enter(PyObject *op)
{
    return !atomic_exchange(&((wc_array *)op)->is_filled, true);
}

void cqn_wc_array_leave(PyObject *op)
{
    atomic_store(&((wc_array *)op)->is_filled, false);
}
#endif

size_t cqn_wc_array_free_rows(PyObject *op)
{
    return (size_t)((wc_array *)op)->capacity;
}

/* Most completions succeeded and differ only in their lengths; rxe sets GRH for every receive. */
static inline bool is_plain_field(const struct ibv_wc *wc)
{
    return wc->status == IBV_WC_SUCCESS && (wc->wc_flags & ~(unsigned)IBV_WC_GRH) == 0;
}

static inline void set_plain_field(cqn_wc_row *r, const struct ibv_wc *wc)
{
    *r = (cqn_wc_row){
        .qp_num = wc->qp_num,
        .wc_flags = wc->wc_flags,
        .fields = IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN,
    };
    memcpy(r, wc, offsetof(cqn_wc_row, imm_data)); /* from wr_id to byte_len */
}

void cqn_wc_array_set(PyObject *op, const struct ibv_wc *wcs, size_t n)
{
    wc_array *self = (wc_array *)op;
    cqn_wc_row *rows = self->rows;
    for (size_t i = 0; i < n; i++) {
        if (is_plain_field(&wcs[i])) {
            set_plain_field(&rows[i], &wcs[i]);
        }
        else {
            rows[i] = cqn_wc_row_of(&wcs[i]);
        }
    }
    self->len = (Py_ssize_t)n;
}

/* Returns a new array with the first `len` of `rows`; NULL with MemoryError. */
CQN_RARE static PyObject *make_array(PyTypeObject *type, Py_ssize_t capacity, const void *rows,
                                     Py_ssize_t len)
{
    wc_array *self = (wc_array *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->rows = PyMem_Calloc((size_t)capacity, sizeof(cqn_wc_row));
    if (self->rows == NULL) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_MemoryError, "no memory for %zd completions", capacity);
    }
    self->capacity = capacity;
    self->len = len;
    memcpy(self->rows, rows, (size_t)len * sizeof(cqn_wc_row));
    return (PyObject *)self;
}

CQN_RARE static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacity", NULL};
    PyObject *value;
    uint64_t capacity;
    CQN_COPY copy = NULL;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O:WCArray", names, &value) ||
        cqn_range(value, "capacity", 1, INT32_MAX, &capacity) < 0) {
        return NULL;
    }
    return make_array(type, (Py_ssize_t)capacity, "", 0);
}

static void array_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyMem_Free(((wc_array *)op)->rows);
    type->tp_free(op);
    Py_DECREF(type);
}

static Py_ssize_t array_length(PyObject *op)
{
    CQN_LOCKED;
    return ((wc_array *)op)->len;
}

static PyObject *array_item(PyObject *op, Py_ssize_t i)
{
    CQN_LOCKED;
    const wc_array *self = (wc_array *)op;
    if (i < 0 || i >= self->len) {
        return PyErr_Format(PyExc_IndexError, "the last poll_into() brought %zd completions",
                            self->len);
    }
    const struct ibv_wc wc = cqn_wc_of_row(&self->rows[i]);
    return cqn_wc_new(cqn_state_of(Py_TYPE(op)), &wc, NULL, 0);
}

CQN_RARE static PyObject *slice_of(PyObject *op, PyObject *slice)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) {
        return NULL;
    }
    const Py_ssize_t n = PySlice_AdjustIndices(array_length(op), &start, &stop, step);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        PyObject *item = array_item(op, start + i * step);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}

/* Any integer is allowed; one beyond all indices is an IndexError, too. */
static PyObject *array_subscript(PyObject *op, PyObject *key)
{
    if (PySlice_Check(key)) {
        return slice_of(op, key);
    }
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return array_item(op, i < 0 ? i + ((wc_array *)op)->len : i);
}

/* Like the one of collections.abc.Sequence. */
CQN_RARE static PyObject *array_index(PyObject *op, PyObject *args)
{
    PyObject *value;
    Py_ssize_t start = 0, stop = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "O|nn:index", &value, &start, &stop)) {
        return NULL;
    }
    PySlice_AdjustIndices(array_length(op), &start, &stop, 1);
    for (Py_ssize_t i = start; i < stop && i < array_length(op); i++) {
        PyObject *item = array_item(op, i);
        const int same = item == NULL ? -1 : PyObject_RichCompareBool(item, value, Py_EQ);
        Py_XDECREF(item);
        if (same != 0) {
            return same < 0 ? NULL : PyLong_FromSsize_t(i);
        }
    }
    PyErr_SetString(PyExc_ValueError, "the last poll_into() brought no such completion");
    return NULL;
}

CQN_RARE static PyObject *array_count(PyObject *op, PyObject *value)
{
    const Py_ssize_t n = PySequence_Count(op, value);
    return n < 0 ? NULL : PyLong_FromSsize_t(n);
}

/* ---- copies ---- */

CQN_RARE static PyObject *array_copy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const wc_array *self = (wc_array *)op;
    return make_array(Py_TYPE(op), self->capacity, self->rows, self->len);
}

CQN_RARE static PyObject *array_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const wc_array *self = (wc_array *)op;
    return cqn_reduce(op, Py_BuildValue("(ny#)", self->capacity, self->rows,
                                        self->len * (Py_ssize_t)sizeof(cqn_wc_row)));
}

CQN_RARE static PyObject *array_restore(PyObject *type, PyObject *args)
{
    CQN_LOCKED;
    Py_ssize_t capacity, n;
    const char *rows;
    if (cqn_wc_prepare(cqn_state_of((PyTypeObject *)type)) < 0 ||
        !PyArg_ParseTuple(args, "ny#", &capacity, &rows, &n)) {
        return NULL;
    }
    const Py_ssize_t len = n / (Py_ssize_t)sizeof(cqn_wc_row);
    if (n % (Py_ssize_t)sizeof(cqn_wc_row) != 0 || len > capacity || capacity > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "this was pickled by another version of cqnotify");
        return NULL;
    }
    return make_array((PyTypeObject *)type, capacity, rows, len);
}

static int array_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    wc_array *self = (wc_array *)op;
    if (PyBuffer_FillInfo(view, op, self->rows, self->capacity * (Py_ssize_t)sizeof(cqn_wc_row), 1,
                          flags) < 0) {
        return -1;
    }
    view->itemsize = sizeof(cqn_wc_row);
    if (flags & PyBUF_FORMAT) {
        view->format = row_format;
    }
    if (flags & PyBUF_ND) {
        view->shape = &self->capacity;
    }
    return 0;
}

static PyObject *array_repr(PyObject *op)
{
    CQN_LOCKED;
    const wc_array *self = (wc_array *)op;
    return PyUnicode_FromFormat("<WCArray with %zd of %zd completions>", self->len, self->capacity);
}

static PyMethodDef array_methods[] = {
    {"index", array_index, METH_VARARGS,
     "index($self, value, start=0, stop=9223372036854775807, /)\n--\n\n"
     "Return where the first completion is that equals a value, with all its fields.\n\n"
     "value: what each is compared with, such as a WorkCompletion.\n"
     "start, stop: search only there, as in a slice.\n\n"
     "Raises ValueError if there is none."},
    {"count", array_count, METH_O,
     "count($self, value, /)\n--\n\n"
     "Return how many completions equal a value, with all their fields.\n\n"
     "value: what each is compared with, such as a WorkCompletion."},
    CQN_VALUE_METHODS(array_copy, array_reduce, array_restore),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef array_members[] = {
    {"capacity", T_PYSSIZET, offsetof(wc_array, capacity), READONLY,
     "How many completions fit in it."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "WCArray(capacity)\n--\n\n"
     "An array of completions, which CQ.poll_into() fills.\n\n"
     "capacity: how many, from 1 on.\n\n"
     "As a sequence it has the completions of the last call, as WorkCompletions; a slice is a\n"
     "list of them. As a read-only buffer it has `capacity` rows with the fields of ibv_wc,\n"
     "which numpy.asarray() shows without copying; imm_data is in host order, and `fields`\n"
     "says, in WCExFlags, which of the others are valid; the other fields are 0."},
    {Py_tp_new, array_new},
    {Py_tp_repr, array_repr},
    {Py_tp_dealloc, array_dealloc},
    {Py_tp_iter, PySeqIter_New},
    {Py_tp_methods, array_methods},
    {Py_tp_members, array_members},
    {Py_sq_length, array_length},
    {Py_sq_item, array_item},
    {Py_mp_subscript, array_subscript},
    {Py_bf_getbuffer, array_getbuffer},
    {0, NULL},
};

PyType_Spec cqn_wc_array_spec = {
    .name = "cqnotify.WCArray",
    .basicsize = sizeof(wc_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_SEQUENCE,
    .slots = array_slots,
};

/* For isinstance(); the flag Py_TPFLAGS_SEQUENCE above is for pattern matching. */
CQN_RARE int cqn_wc_array_init(cqn_state *st)
{
    PyObject *abc = PyImport_ImportModule("_collections_abc");
    PyObject *sequence = abc == NULL ? NULL : PyObject_GetAttrString(abc, "Sequence");
    PyObject *type =
        sequence == NULL ? NULL : PyObject_CallMethod(sequence, "register", "O", st->WCArray);
    Py_XDECREF(abc);
    Py_XDECREF(sequence);
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
