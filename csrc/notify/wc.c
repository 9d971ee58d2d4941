/* SPDX-License-Identifier: MIT */
/*
 * WorkCompletion: a small object without GC around a copy of the ibv_wc. The four fields that
 * programs read most are boxed once, in slots that the interpreter reads without a call; the others
 * are boxed on each access.
 *
 * A program that drains a CQ drops as many WorkCompletions as it creates. Each interpreter keeps
 * the memory of some of them in a freelist.
 */

#include "notify/cq.h"

/* Size of the freelist. The GIL guards it; without a GIL it is empty, because objects are
 * deallocated under no lock there. */
#ifdef Py_GIL_DISABLED
#define FREE_WCS 0
#else
#define FREE_WCS CQN_FREE_WCS
#endif

/* AddressSanitizer reports accesses to an object on the freelist. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#endif

/* ---- as a row: for WCArray, comparison and pickle ---- */

/* Fields about the sender are valid for a received datagram only. */
uint32_t cqn_wc_fields(const struct ibv_wc *raw)
{
    uint32_t fields = IBV_WC_EX_WITH_QP_NUM;
    if (raw->status != IBV_WC_SUCCESS) {
        return fields;
    }
    fields |= IBV_WC_EX_WITH_BYTE_LEN;
    if (raw->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) {
        fields |= IBV_WC_EX_WITH_IMM;
    }
    if ((raw->opcode & IBV_WC_RECV) && (raw->wc_flags & CQN_WC_DATAGRAM)) {
        fields |= IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                  IBV_WC_EX_WITH_DLID_PATH_BITS;
    }
    return fields & ~(raw->wc_flags >> 24);
}

cqn_wc_row cqn_wc_row_of(const struct ibv_wc *wc)
{
    const uint32_t fields = cqn_wc_fields(wc);
    cqn_wc_row r = {
        .wr_id = wc->wr_id,
        .status = wc->status,
        .vendor_err = wc->status == IBV_WC_SUCCESS ? 0 : wc->vendor_err,
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

/* The inverse: the completion as poll() would have returned it. Fields that are not valid are
 * None. */
struct ibv_wc cqn_wc_of_row(const cqn_wc_row *r)
{
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
    return wc;
}

/* ---- the object ---- */

typedef struct {
    PyObject_HEAD
    PyObject *wr_id, *status, *opcode, *byte_len;
    cqn_state *state;    /* kept alive by the type, and the type by this object */
    cqn_wc_extra *extra; /* owned by this object, or NULL */
    struct ibv_wc raw;
#ifdef Py_GIL_DISABLED
    bool status_is_lent, opcode_is_lent; /* see enum_member() */
#endif
} work_completion;

/* Returns the enum's member for a value; an int if the enum has none. Without a GIL, threads that
 * count references to one object contend for its cache line, so members are lent: they live as long
 * as the process, see lend_members(). */
#ifdef Py_GIL_DISABLED
static PyObject *enum_member(PyObject *const *table, size_t n, uint32_t value, bool *is_lent)
{
    *is_lent = value < n && table[value] != NULL;
    return *is_lent ? table[value] : PyLong_FromUnsignedLong(value);
}
#define ENUM_MEMBER(wc, field, table, n, value) enum_member(table, n, value, &(wc)->field##_is_lent)
#define DROP_MEMBER(wc, field)        \
    do {                              \
        if (!(wc)->field##_is_lent) { \
            Py_DECREF((wc)->field);   \
        }                             \
    } while (0)
#else
static PyObject *enum_member(PyObject *const *table, size_t n, uint32_t value)
{
    return value < n && table[value] != NULL ? Py_NewRef(table[value])
                                             : PyLong_FromUnsignedLong(value);
}
#define ENUM_MEMBER(wc, field, table, n, value) enum_member(table, n, value)
#define DROP_MEMBER(wc, field) Py_DECREF((wc)->field)
#endif

static bool is_ok(const struct ibv_wc *raw)
{
    return raw->status == IBV_WC_SUCCESS;
}

static PyObject *number_or_none(bool valid, uint32_t value)
{
    return valid ? PyLong_FromUnsignedLong(value) : Py_NewRef(Py_None);
}

/* ---- memory ---- */

/* Memory in the freelist holds no references, not even to its type: the garbage collector does not
 * see it, and has to find that nothing else refers to the module. */
static PyObject *pop_free_wc(cqn_state *st)
{
    PyObject *op = st->free_wcs[--st->free_wcs_len];
    ASAN_UNPOISON_MEMORY_REGION(op, sizeof(work_completion));
    return op;
}

static work_completion *alloc_wc(cqn_state *st)
{
    return st->free_wcs_len == 0
               ? PyObject_New(work_completion, st->WorkCompletion)
               : (work_completion *)PyObject_Init(pop_free_wc(st), st->WorkCompletion);
}

static void free_or_spare(cqn_state *st, PyObject *op)
{
    if (st->free_wcs_len == FREE_WCS) {
        PyObject_Free(op);
        return;
    }
    ASAN_POISON_MEMORY_REGION(op, sizeof(work_completion));
    st->free_wcs[st->free_wcs_len++] = op;
}

/* The module is being deallocated, so no WorkCompletion is left. */
void cqn_wc_clear_freelist(cqn_state *st)
{
    while (st->free_wcs_len > 0) {
        PyObject_Free(pop_free_wc(st));
    }
}

/* None of the four fields is NULL, see cqn_wc_new(). */
static void wc_dealloc(PyObject *op)
{
    work_completion *self = (work_completion *)op;
    PyTypeObject *type = Py_TYPE(op);
    Py_DECREF(self->wr_id);
    DROP_MEMBER(self, status);
    DROP_MEMBER(self, opcode);
    Py_DECREF(self->byte_len);
    if (self->extra != NULL) {
        PyMem_Free(self->extra);
    }
    free_or_spare(self->state, op);
    Py_DECREF(type);
}

/* ---- creation ---- */

/* Without a GIL the members get a reference that is never released, and the interpreter avoids
 * counting its own references to them. */
static void lend_members(PyObject *const *table, size_t n)
{
#ifdef Py_GIL_DISABLED
    for (size_t i = 0; i < n; i++) {
        if (table[i] != NULL) {
            Py_INCREF(table[i]);
            PyUnstable_Object_EnableDeferredRefcount(table[i]);
        }
    }
#else
    (void)table, (void)n;
#endif
}

int cqn_wc_prepare(cqn_state *st)
{
#ifdef Py_GIL_DISABLED
    if (st->wc_status[IBV_WC_SUCCESS] != NULL) { /* already lent */
        return 0;
    }
#endif
    if (cqn_know_members("WCOpcode", st->wc_opcode, CQN_WC_OPCODES) < 0) {
        return -1;
    }
    lend_members(st->wc_opcode, CQN_WC_OPCODES);
    if (cqn_know_members("WCStatus", st->wc_status, CQN_WC_STATUSES) < 0) {
        return -1;
    }
    lend_members(st->wc_status, CQN_WC_STATUSES);
    return 0;
}

static int set_extra(work_completion *self, const cqn_wc_extra *extra, uint32_t fields)
{
    self->extra = PyMem_Malloc(sizeof(*self->extra));
    if (self->extra == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *self->extra = *extra;
    self->extra->valid = fields & CQN_WC_EX_EXTRA;
    return 0;
}

static bool is_sized(const struct ibv_wc *raw)
{
    return is_ok(raw) && !(raw->wc_flags & CQN_WC_LACKS(IBV_WC_EX_WITH_BYTE_LEN));
}

/* Consecutive completions usually have the same length and share its int; not without a GIL, where
 * several threads create them at the same time. */
static PyObject *shared_byte_len(cqn_state *st, uint32_t value)
{
#ifdef Py_GIL_DISABLED
    (void)st;
    return PyLong_FromUnsignedLong(value);
#else
    if (st->byte_len == NULL || st->byte_len_value != value) {
        Py_XSETREF(st->byte_len, PyLong_FromUnsignedLong(value));
        st->byte_len_value = value;
    }
    return Py_XNewRef(st->byte_len);
#endif
}

/* Returns whether the object of a completion differs only in the wr_id from the one of a plain
 * completion. */
static bool is_alike(const struct ibv_wc *raw, const struct ibv_wc *plain)
{
    return is_sized(raw) && raw->byte_len == plain->byte_len && raw->opcode == plain->opcode;
}

/* Returns whether status, opcode and byte_len are existing objects, as for most completions that
 * succeeded. */
static bool is_plain(const cqn_state *st, const struct ibv_wc *raw)
{
    return is_sized(raw) && raw->byte_len == st->byte_len_value && st->byte_len != NULL &&
           raw->opcode < CQN_WC_OPCODES && st->wc_opcode[raw->opcode] != NULL &&
           st->wc_status[IBV_WC_SUCCESS] != NULL;
}

static void set_any(work_completion *self, cqn_state *st, const struct ibv_wc *raw)
{
    const bool ok = is_ok(raw);
    self->status = ENUM_MEMBER(self, status, st->wc_status, CQN_WC_STATUSES, raw->status);
    self->opcode = ok ? ENUM_MEMBER(self, opcode, st->wc_opcode, CQN_WC_OPCODES, raw->opcode)
                      : Py_NewRef(Py_None);
    self->byte_len = is_sized(raw) ? shared_byte_len(st, raw->byte_len) : Py_NewRef(Py_None);
}

/* Replaces a field that could not be allocated by None; the caller then drops the object. */
static int no_null(PyObject **field)
{
    if (*field != NULL) {
        return 0;
    }
    *field = Py_NewRef(Py_None);
    return -1;
}

PyObject *cqn_wc_new(cqn_state *st, const struct ibv_wc *raw, const cqn_wc_extra *extra,
                     uint32_t extra_fields)
{
    work_completion *self = alloc_wc(st);
    if (self == NULL) {
        return NULL;
    }
    self->state = st;
    self->extra = NULL;
    self->raw = *raw;
#ifdef Py_GIL_DISABLED
    self->opcode_is_lent = false;
#endif
    self->wr_id = PyLong_FromUnsignedLongLong(raw->wr_id);
    set_any(self, st, raw);
    if (no_null(&self->wr_id) + no_null(&self->status) + no_null(&self->opcode) +
                no_null(&self->byte_len) <
            0 ||
        (extra != NULL && is_ok(raw) && set_extra(self, extra, extra_fields) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Most completions are like the previous one, and a program that drains a CQ has dropped as many as
 * arrive: these are created here in a row. */
size_t cqn_wc_new_run(cqn_state *st, const struct ibv_wc *wcs, size_t n, PyObject **items)
{
    if (!is_plain(st, wcs)) {
        return 0;
    }
    PyObject *status = st->wc_status[IBV_WC_SUCCESS], *opcode = st->wc_opcode[wcs->opcode];
    size_t i;
    n = n < st->free_wcs_len ? n : st->free_wcs_len;
    for (i = 0; i < n && (i == 0 || is_alike(&wcs[i], wcs)); i++) {
        PyObject *wr_id = PyLong_FromUnsignedLongLong(wcs[i].wr_id);
        if (wr_id == NULL) {
            PyErr_Clear(); /* without memory, cqn_wc_new() raises MemoryError */
            break;
        }
        work_completion *self =
            (work_completion *)PyObject_Init(pop_free_wc(st), st->WorkCompletion);
        self->wr_id = wr_id;
        self->status = status;
        self->opcode = opcode;
        self->byte_len = st->byte_len;
        self->state = st;
        self->extra = NULL;
        self->raw = wcs[i];
        items[i] = (PyObject *)self;
    }
    cqn_refs_add(status, i);
    cqn_refs_add(opcode, i);
    cqn_refs_add(st->byte_len, i);
    return i;
}

static const struct ibv_wc *raw_of(PyObject *op)
{
    return &((work_completion *)op)->raw;
}

const struct ibv_wc *cqn_wc_raw(const cqn_state *st, PyObject *wc, const char *name)
{
    if (!Py_IS_TYPE(wc, st->WorkCompletion)) {
        PyErr_Format(PyExc_TypeError, "%s must be a WorkCompletion, not %s", name,
                     Py_TYPE(wc)->tp_name);
        return NULL;
    }
    return raw_of(wc);
}

static bool wc_has(PyObject *op, uint32_t field)
{
    return cqn_wc_fields(raw_of(op)) & field;
}

static PyObject *wc_get_qp_num(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(raw_of(op)->qp_num);
}

static PyObject *wc_get_vendor_err(PyObject *op, void *Py_UNUSED(unused))
{
    /* devices set this field only for errors */
    const struct ibv_wc *raw = raw_of(op);
    return PyLong_FromUnsignedLong(is_ok(raw) ? 0 : raw->vendor_err);
}

static PyObject *wc_get_wc_flags(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct ibv_wc *raw = raw_of(op);
    if (!is_ok(raw)) {
        Py_RETURN_NONE;
    }
    cqn_state *st = cqn_state_of(Py_TYPE(op));
    uint32_t flags = raw->wc_flags & ~CQN_WC_OURS;
    return cqn_flags("WCFlags", &st->wc_flags, flags);
}

static PyObject *wc_get_imm_data(PyObject *op, void *Py_UNUSED(unused))
{
    const struct ibv_wc *raw = raw_of(op);
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_IMM) && (raw->wc_flags & IBV_WC_WITH_IMM),
                          raw->imm_data);
}

static PyObject *wc_get_invalidated_rkey(PyObject *op, void *Py_UNUSED(unused))
{
    const struct ibv_wc *raw = raw_of(op);
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_IMM) && (raw->wc_flags & IBV_WC_WITH_INV),
                          raw->invalidated_rkey);
}

static PyObject *wc_get_src_qp(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_SRC_QP), raw_of(op)->src_qp);
}

/* Extended completions lack this field. */
static PyObject *wc_get_pkey_index(PyObject *op, void *Py_UNUSED(unused))
{
    const uint32_t datagram = IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID;
    bool valid = (cqn_wc_fields(raw_of(op)) & datagram) == datagram;
    return number_or_none(valid, raw_of(op)->pkey_index);
}

static PyObject *wc_get_slid(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_SLID), raw_of(op)->slid);
}

static PyObject *wc_get_sl(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_SL), raw_of(op)->sl);
}

static PyObject *wc_get_dlid_path_bits(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(wc_has(op, IBV_WC_EX_WITH_DLID_PATH_BITS), raw_of(op)->dlid_path_bits);
}

/* Returns the extra fields if the one of `flag` is valid, or NULL; borrowed. */
static const cqn_wc_extra *extra_of(PyObject *op, uint32_t flag)
{
    const work_completion *self = (work_completion *)op;
    return self->extra != NULL && (self->extra->valid & flag) ? self->extra : NULL;
}

static PyObject *wc_get_completion_ts(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    return extra ? PyLong_FromUnsignedLongLong(extra->timestamp) : Py_NewRef(Py_None);
}

static PyObject *wc_get_completion_wallclock_ns(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    return extra ? PyLong_FromUnsignedLongLong(extra->wallclock_ns) : Py_NewRef(Py_None);
}

static PyObject *wc_get_cvlan(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_CVLAN);
    return extra ? PyLong_FromUnsignedLong(extra->cvlan) : Py_NewRef(Py_None);
}

static PyObject *wc_get_flow_tag(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_FLOW_TAG);
    return extra ? PyLong_FromUnsignedLong(extra->flow_tag) : Py_NewRef(Py_None);
}

static PyObject *wc_get_tm_tag(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_TM_INFO);
    return extra && cqn_wc_has_tag(raw_of(op)) ? PyLong_FromUnsignedLongLong(extra->tm_tag)
                                               : Py_NewRef(Py_None);
}

static PyObject *wc_get_tm_priv(PyObject *op, void *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = extra_of(op, IBV_WC_EX_WITH_TM_INFO);
    return extra && cqn_wc_has_tag(raw_of(op)) ? PyLong_FromUnsignedLong(extra->tm_priv)
                                               : Py_NewRef(Py_None);
}

static PyObject *wc_get_ok(PyObject *op, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(is_ok(raw_of(op)));
}

static PyObject *wc_raise_for_status(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (!is_ok(raw_of(op))) {
        cqn_completion_error(cqn_state_of(Py_TYPE(op)), op, raw_of(op), NULL);
        return NULL;
    }
    return Py_NewRef(op);
}

static PyObject *wc_repr(PyObject *op)
{
    work_completion *self = (work_completion *)op;
    const struct ibv_wc *raw = &self->raw;
    if (!is_ok(raw)) {
        return PyUnicode_FromFormat("<WorkCompletion wr_id=%S qp_num=%u status=%R>", self->wr_id,
                                    (unsigned)raw->qp_num, self->status);
    }
    return PyUnicode_FromFormat("<WorkCompletion wr_id=%S qp_num=%u opcode=%R byte_len=%S>",
                                self->wr_id, (unsigned)raw->qp_num, self->opcode, self->byte_len);
}

/* ---- as a value ---- */

static bool same_extra(const cqn_wc_extra *a, const cqn_wc_extra *b)
{
    return a == NULL || b == NULL ? a == b : memcmp(a, b, sizeof(*a)) == 0;
}

CQN_RARE static PyObject *wc_richcompare(PyObject *op, PyObject *other, int how)
{
    if (!CQN_COMPARABLE(op, other, how)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    const cqn_wc_row a = cqn_wc_row_of(raw_of(op)), b = cqn_wc_row_of(raw_of(other));
    return CQN_COMPARED(
        memcmp(&a, &b, sizeof(a)) == 0 &&
            same_extra(((work_completion *)op)->extra, ((work_completion *)other)->extra),
        how);
}

static Py_hash_t wc_hash(PyObject *op)
{
    const cqn_wc_row row = cqn_wc_row_of(raw_of(op));
    uint64_t words[sizeof(row) / sizeof(uint64_t)];
    memcpy(words, &row, sizeof(row));
    return cqn_hash(words, Py_ARRAY_LENGTH(words));
}

CQN_RARE static PyObject *wc_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const cqn_wc_extra *extra = ((work_completion *)op)->extra;
    const cqn_wc_row row = cqn_wc_row_of(raw_of(op));
    return cqn_reduce(op, Py_BuildValue("(y#y#)", &row, (Py_ssize_t)sizeof(row), extra,
                                        (Py_ssize_t)(extra != NULL ? sizeof(*extra) : 0)));
}

CQN_RARE static PyObject *wc_restore(PyObject *type, PyObject *args)
{
    CQN_LOCKED;
    cqn_wc_row row;
    cqn_wc_extra extra;
    const char *bytes, *others;
    Py_ssize_t n, m;
    cqn_state *st = cqn_state_of((PyTypeObject *)type);
    if (cqn_wc_prepare(st) < 0 || !PyArg_ParseTuple(args, "y#z#", &bytes, &n, &others, &m)) {
        return NULL;
    }
    if (n != sizeof(row) || (others != NULL && m != sizeof(extra))) {
        PyErr_SetString(PyExc_ValueError, "this was pickled by another version of cqnotify");
        return NULL;
    }
    memcpy(&row, bytes, sizeof(row));
    if (others != NULL) {
        memcpy(&extra, others, sizeof(extra));
    }
    const struct ibv_wc wc = cqn_wc_of_row(&row);
    return cqn_wc_new(st, &wc, others != NULL ? &extra : NULL, others != NULL ? extra.valid : 0);
}

static PyMethodDef wc_methods[] = {
    {"raise_for_status", wc_raise_for_status, METH_NOARGS,
     "raise_for_status($self, /)\n--\n\n"
     "Return this completion, as SuccessfulCompletion.\n\n"
     "Raises CompletionError if the work request failed."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "__class_getitem__($type, item, /)\n--\n\n"
     "For type checkers: see SuccessfulCompletion."},
    CQN_VALUE_METHODS(cqn_value_copy, wc_reduce, wc_restore),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef wc_getset[] = {
    {"qp_num", wc_get_qp_num, NULL, "Number of the QP that it belongs to.", NULL},
    {"vendor_err", wc_get_vendor_err, NULL, "The device's own code for an error.", NULL},
    {"wc_flags", wc_get_wc_flags, NULL, "WCFlags; None if it failed.", NULL},
    {"imm_data", wc_get_imm_data, NULL,
     "The sender's immediate data, in host order; None if there is none.", NULL},
    {"invalidated_rkey", wc_get_invalidated_rkey, NULL,
     "The rkey that a SEND_WITH_INV invalidated, or None.", NULL},
    {"src_qp", wc_get_src_qp, NULL, "The sender's QP number; UD receives only, else None.", NULL},
    {"pkey_index", wc_get_pkey_index, NULL, "P_Key index; UD receives only, else None.", NULL},
    {"slid", wc_get_slid, NULL, "The sender's LID; UD receives only, else None.", NULL},
    {"sl", wc_get_sl, NULL, "Service level; UD receives only, else None.", NULL},
    {"dlid_path_bits", wc_get_dlid_path_bits, NULL, "Path bits; UD receives only, else None.",
     NULL},
    {"completion_ts", wc_get_completion_ts, NULL,
     "The device's clock when it completed, in ticks; None unless the CQ's wc_flags ask for it.",
     NULL},
    {"completion_wallclock_ns", wc_get_completion_wallclock_ns, NULL,
     "When it completed, in nanoseconds since 1970; None unless the CQ's wc_flags ask for it.",
     NULL},
    {"cvlan", wc_get_cvlan, NULL, "Its VLAN; None unless the CQ's wc_flags ask for it.", NULL},
    {"flow_tag", wc_get_flow_tag, NULL, "Its flow tag; None unless the CQ's wc_flags ask for it.",
     NULL},
    {"tm_tag", wc_get_tm_tag, NULL,
     "The tag of a message to an SRQ of type TM; None unless the CQ's wc_flags ask for TM_INFO.",
     NULL},
    {"tm_priv", wc_get_tm_priv, NULL,
     "What the sender's header says besides the tag, as for tm_tag.", NULL},
    {"ok", wc_get_ok, NULL, "True if the work request succeeded.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef wc_members[] = {
    {"wr_id", T_OBJECT_EX, offsetof(work_completion, wr_id), READONLY,
     "The wr_id that was given when it was posted."},
    {"status", T_OBJECT_EX, offsetof(work_completion, status), READONLY,
     "WCStatus; a plain int if it is unknown."},
    {"opcode", T_OBJECT_EX, offsetof(work_completion, opcode), READONLY,
     "WCOpcode, a plain int if it is unknown; None if it failed."},
    {"byte_len", T_OBJECT_EX, offsetof(work_completion, byte_len), READONLY,
     "Bytes that were transferred; None if it failed. A UD receive counts the 40 bytes of its "
     "GRH."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot wc_slots[] = {
    {Py_tp_doc, "A completed work request, as CQ.poll() returns it.\n\n"
                "Fields that its status, opcode, QP or CQ does not define are None.\n\n"
                "Wraps struct ibv_wc, see ibv_poll_cq(3)."},
    {Py_tp_repr, wc_repr},
    {Py_tp_richcompare, wc_richcompare},
    {Py_tp_hash, wc_hash},
    {Py_tp_dealloc, wc_dealloc},
    {Py_tp_methods, wc_methods},
    {Py_tp_getset, wc_getset},
    {Py_tp_members, wc_members},
    {0, NULL},
};

PyType_Spec cqn_wc_spec = {
    .name = "cqnotify.WorkCompletion",
    .basicsize = sizeof(work_completion),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = wc_slots,
};
