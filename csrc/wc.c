/* SPDX-License-Identifier: MIT */
/*
 * WorkCompletion: a small object without GC around a copy of the ibv_wc. The
 * four fields that programs look at are boxed once, in slots that the
 * interpreter reads without a call; the others are made when asked for.
 */

#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *wr_id, *status, *opcode, *byte_len;
    struct ibv_wc raw;
    cqn_wc_extra *extra;   /* own, or NULL */
    uint32_t extra_fields; /* which of it are valid */
} work_completion;

/* The member of the enum for it; what it does not know stays an int. */
static PyObject *member(PyObject *const *table, size_t n, uint32_t value)
{
    return value < n && table[value] != NULL ? Py_NewRef(table[value])
                                             : PyLong_FromUnsignedLong(value);
}

static bool is_ok(const struct ibv_wc *raw)
{
    return raw->status == IBV_WC_SUCCESS;
}

/* Which fields are valid, as WCExFlags. Those that tell of the sender are there
 * for a received datagram. */
uint32_t cqn_wc_fields(const struct ibv_wc *raw)
{
    uint32_t fields = IBV_WC_EX_WITH_QP_NUM;
    if (!is_ok(raw)) {
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

static PyObject *number_or_none(bool valid, uint32_t value)
{
    return valid ? PyLong_FromUnsignedLong(value) : Py_NewRef(Py_None);
}

static int set_extra(work_completion *self, const cqn_wc_extra *extra, uint32_t fields)
{
    self->extra = NULL;
    self->extra_fields = 0;
    if (extra != NULL && is_ok(&self->raw)) {
        self->extra = PyMem_Malloc(sizeof(*extra));
        if (self->extra == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        *self->extra = *extra;
        self->extra_fields = fields & CQN_WC_EX_EXTRA;
    }
    return 0;
}

PyObject *cqn_wc_new(cqn_state *st, const struct ibv_wc *raw, const cqn_wc_extra *extra,
                     uint32_t extra_fields)
{
    work_completion *self = PyObject_New(work_completion, st->WorkCompletion);
    if (self == NULL) {
        return NULL;
    }
    bool ok = is_ok(raw);
    bool sized = ok && !(raw->wc_flags & CQN_WC_LACKS(IBV_WC_EX_WITH_BYTE_LEN));
    self->raw = *raw;
    self->wr_id = PyLong_FromUnsignedLongLong(raw->wr_id);
    self->status = member(st->wc_status, CQN_WC_STATUSES, raw->status);
    self->opcode = ok ? member(st->wc_opcode, CQN_WC_OPCODES, raw->opcode) : Py_NewRef(Py_None);
    self->byte_len = number_or_none(sized, raw->byte_len);
    if (set_extra(self, extra, extra_fields) < 0 || !self->wr_id || !self->status ||
        !self->opcode || !self->byte_len) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void wc_dealloc(PyObject *op)
{
    work_completion *self = (work_completion *)op;
    PyTypeObject *type = Py_TYPE(op);
    Py_XDECREF(self->wr_id);
    Py_XDECREF(self->status);
    Py_XDECREF(self->opcode);
    Py_XDECREF(self->byte_len);
    if (self->extra != NULL) {
        PyMem_Free(self->extra);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static const struct ibv_wc *raw_of(PyObject *op)
{
    return &((work_completion *)op)->raw;
}

/* Or NULL, with TypeError: it is none. */
const struct ibv_wc *cqn_wc_raw(const cqn_state *st, PyObject *wc, const char *name)
{
    if (!Py_IS_TYPE(wc, st->WorkCompletion)) {
        PyErr_Format(PyExc_TypeError, "%s must be a WorkCompletion, not %s", name,
                     Py_TYPE(wc)->tp_name);
        return NULL;
    }
    return raw_of(wc);
}

static bool has(PyObject *op, uint32_t field)
{
    return cqn_wc_fields(raw_of(op)) & field;
}

static PyObject *wc_get_qp_num(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLong(raw_of(op)->qp_num);
}

static PyObject *wc_get_vendor_err(PyObject *op, void *Py_UNUSED(unused))
{
    /* Devices set it for errors only. */
    const struct ibv_wc *raw = raw_of(op);
    return PyLong_FromUnsignedLong(is_ok(raw) ? 0 : raw->vendor_err);
}

static PyObject *wc_get_wc_flags(PyObject *op, void *Py_UNUSED(unused))
{
    const struct ibv_wc *raw = raw_of(op);
    if (!is_ok(raw)) {
        Py_RETURN_NONE;
    }
    cqn_state *st = cqn_state_of(Py_TYPE(op));
    uint32_t flags = raw->wc_flags & ~CQN_WC_OURS;
    return cqn_flags(st->wc_flags, flags);
}

static PyObject *wc_get_imm_data(PyObject *op, void *Py_UNUSED(unused))
{
    const struct ibv_wc *raw = raw_of(op);
    return number_or_none(has(op, IBV_WC_EX_WITH_IMM) && (raw->wc_flags & IBV_WC_WITH_IMM),
                          raw->imm_data);
}

static PyObject *wc_get_invalidated_rkey(PyObject *op, void *Py_UNUSED(unused))
{
    const struct ibv_wc *raw = raw_of(op);
    return number_or_none(has(op, IBV_WC_EX_WITH_IMM) && (raw->wc_flags & IBV_WC_WITH_INV),
                          raw->invalidated_rkey);
}

static PyObject *wc_get_src_qp(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(has(op, IBV_WC_EX_WITH_SRC_QP), raw_of(op)->src_qp);
}

/* Extended completions don't have it. */
static PyObject *wc_get_pkey_index(PyObject *op, void *Py_UNUSED(unused))
{
    const uint32_t datagram = IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID;
    bool valid = (cqn_wc_fields(raw_of(op)) & datagram) == datagram;
    return number_or_none(valid, raw_of(op)->pkey_index);
}

static PyObject *wc_get_slid(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(has(op, IBV_WC_EX_WITH_SLID), raw_of(op)->slid);
}

static PyObject *wc_get_sl(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(has(op, IBV_WC_EX_WITH_SL), raw_of(op)->sl);
}

static PyObject *wc_get_dlid_path_bits(PyObject *op, void *Py_UNUSED(unused))
{
    return number_or_none(has(op, IBV_WC_EX_WITH_DLID_PATH_BITS), raw_of(op)->dlid_path_bits);
}

/* The field of cqn_wc_extra that `flag` stands for, or NULL. */
static const cqn_wc_extra *extra_of(PyObject *op, uint32_t flag)
{
    const work_completion *self = (work_completion *)op;
    return self->extra_fields & flag ? self->extra : NULL;
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

static PyObject *wc_get_ok(PyObject *op, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(is_ok(raw_of(op)));
}

static PyObject *wc_raise_for_status(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (!is_ok(raw_of(op))) {
        cqn_completion_error(cqn_state_of(Py_TYPE(op)), op, raw_of(op));
        return NULL;
    }
    Py_RETURN_NONE;
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

static PyMethodDef wc_methods[] = {
    {"raise_for_status", wc_raise_for_status, METH_NOARGS,
     "raise_for_status($self, /)\n--\n\n"
     "CompletionError if the work request failed; nothing otherwise."},
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
