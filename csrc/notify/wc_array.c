/* SPDX-License-Identifier: MIT */
/* WCArray: memory for many completions that CQ.poll_into() fills again and
 * again, readable as a buffer, by numpy for one, without copying. */

#include "notify/cq.h"

typedef struct {
    uint64_t wr_id;
    uint32_t status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
    uint16_t fields; /* which of these are valid, as in WCExFlags */
} row;

_Static_assert(sizeof(row) == 48, "the format below has no gaps");
#define SAME_PLACE(field)                                                         \
    _Static_assert(offsetof(row, field) == offsetof(struct ibv_wc, field), "see " \
                                                                           "set_plain_field()")
SAME_PLACE(wr_id);
SAME_PLACE(status);
SAME_PLACE(opcode);
SAME_PLACE(vendor_err);
SAME_PLACE(byte_len);
SAME_PLACE(imm_data);

/* PEP 3118; = is the machine's byte order, without alignment. */
static char row_format[] = "T{=Q:wr_id:=I:status:=I:opcode:=I:vendor_err:=I:byte_len:=I:imm_data:"
                           "=I:qp_num:=I:src_qp:=I:wc_flags:=H:pkey_index:=H:slid:=B:sl:"
                           "=B:dlid_path_bits:=H:fields:}";

typedef struct {
    PyObject_HEAD
    row *rows;
    Py_ssize_t capacity, len;
} wc_array;

size_t cqn_wc_array_room(PyObject *op)
{
    return (size_t)((wc_array *)op)->capacity;
}

/* Most have succeeded, with nothing to tell of them but their lengths; and rxe says of every
 * receive that it has a GRH. */
static inline bool is_plain_field(const struct ibv_wc *wc)
{
    return wc->status == IBV_WC_SUCCESS && (wc->wc_flags & ~(unsigned)IBV_WC_GRH) == 0;
}

static inline void set_plain_field(row *r, const struct ibv_wc *wc)
{
    *r = (row){
        .qp_num = wc->qp_num,
        .wc_flags = wc->wc_flags,
        .fields = IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN,
    };
    memcpy(r, wc, offsetof(row, imm_data)); /* from wr_id to byte_len */
}

/* Fields that are not valid are 0. */
static row row_of(const struct ibv_wc *wc)
{
    const uint32_t fields = cqn_wc_fields(wc);
    row r = {
        .wr_id = wc->wr_id,
        .status = wc->status,
        .vendor_err = wc->vendor_err,
        .qp_num = wc->qp_num,
        .fields = (uint16_t)fields,
    };
    if (wc->status == IBV_WC_SUCCESS) {
        r.opcode = wc->opcode;
        r.wc_flags = wc->wc_flags & ~CQN_WC_OURS;
    }
    r.byte_len = fields & IBV_WC_EX_WITH_BYTE_LEN ? wc->byte_len : 0;
    r.imm_data = fields & IBV_WC_EX_WITH_IMM ? wc->imm_data : 0;
    if (fields & IBV_WC_EX_WITH_SRC_QP) {
        r.src_qp = wc->src_qp;
        r.pkey_index = wc->pkey_index;
    }
    r.slid = fields & IBV_WC_EX_WITH_SLID ? wc->slid : (uint16_t)0;
    r.sl = fields & IBV_WC_EX_WITH_SL ? wc->sl : (uint8_t)0;
    r.dlid_path_bits = fields & IBV_WC_EX_WITH_DLID_PATH_BITS ? wc->dlid_path_bits : (uint8_t)0;
    return r;
}

void cqn_wc_array_set(PyObject *op, const struct ibv_wc *wcs, size_t n)
{
    wc_array *self = (wc_array *)op;
    row *rows = self->rows;
    for (size_t i = 0; i < n; i++) {
        if (is_plain_field(&wcs[i])) {
            set_plain_field(&rows[i], &wcs[i]);
        }
        else {
            rows[i] = row_of(&wcs[i]);
        }
    }
    self->len = (Py_ssize_t)n;
}

static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
    wc_array *self = (wc_array *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->rows = PyMem_Calloc(capacity, sizeof(row));
    if (self->rows == NULL) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_MemoryError, "no memory for %llu completions",
                            (unsigned long long)capacity);
    }
    self->capacity = (Py_ssize_t)capacity;
    return (PyObject *)self;
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

/* The row as poll() would have returned it: fields that are not valid are None. */
static PyObject *array_item(PyObject *op, Py_ssize_t i)
{
    CQN_LOCKED;
    const wc_array *self = (wc_array *)op;
    if (i < 0 || i >= self->len) {
        return PyErr_Format(PyExc_IndexError, "the last poll_into() brought %zd completions",
                            self->len);
    }
    const row *r = &self->rows[i];
    struct ibv_wc wc = {
        .wr_id = r->wr_id,
        .status = r->status,
        .opcode = r->opcode,
        .vendor_err = r->vendor_err,
        .byte_len = r->byte_len,
        .imm_data = r->imm_data,
        .qp_num = r->qp_num,
        .src_qp = r->src_qp,
        .wc_flags = r->wc_flags,
        .pkey_index = r->pkey_index,
        .slid = r->slid,
        .sl = r->sl,
        .dlid_path_bits = r->dlid_path_bits,
    };
    if (wc.status == IBV_WC_SUCCESS) {
        wc.wc_flags |= CQN_WC_DATAGRAM | CQN_WC_LACKS(IBV_WC_STANDARD_FLAGS & ~r->fields);
    }
    return cqn_wc_new(cqn_state_of(Py_TYPE(op)), &wc, NULL, 0);
}

/* Any integer may be asked for: one that is beyond all indices is an IndexError, too. */
static PyObject *array_subscript(PyObject *op, PyObject *key)
{
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return array_item(op, i < 0 ? i + ((wc_array *)op)->len : i);
}

static int array_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    wc_array *self = (wc_array *)op;
    if (PyBuffer_FillInfo(view, op, self->rows, self->capacity * (Py_ssize_t)sizeof(row), 1,
                          flags) < 0) {
        return -1;
    }
    view->itemsize = sizeof(row);
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

static PyMemberDef array_members[] = {
    {"capacity", T_PYSSIZET, offsetof(wc_array, capacity), READONLY,
     "How many completions fit in it."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "WCArray(capacity)\n--\n\n"
     "Room for `capacity` completions, for CQ.poll_into().\n\n"
     "As a sequence it has the completions that the last call brought, as WorkCompletions. As a "
     "read-only buffer it has `capacity` rows with the fields of ibv_wc, which numpy.asarray() "
     "shows without copying; imm_data is in host order, and `fields` says, in WCExFlags, "
     "which of the others are valid; what is not is 0."},
    {Py_tp_new, array_new},
    {Py_tp_repr, array_repr},
    {Py_tp_dealloc, array_dealloc},
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
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = array_slots,
};
