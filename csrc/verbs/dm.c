/* SPDX-License-Identifier: MIT */
/*
 * DM: memory on the device.
 *
 * The type, and copying into and out of the memory. Work requests use an MR of it, see
 * mr_foreign.c.
 */

#include "verbs/verbs.h"

static int free_dm(void *handle)
{
    return ibv_free_dm(handle);
}

static const cqn_kind dm_kind = {
    .name = "DM",
    .destroy_verb = "ibv_free_dm",
    .rank = CQN_RANK_PD, /* its MRs are closed first */
    .destroy = free_dm,
    .clear = cqn_clear,
};

CQN_RARE static PyObject *dm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "length", "log_align_req", NULL};
    PyObject *context, *length_value, *align_value = NULL;
    uint64_t length;
    struct ibv_alloc_dm_attr attr = {.comp_mask = 0};
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$O:DM", names, &context, &length_value,
                                     &align_value) ||
        cqn_expect(context, st->Context, "context") < 0 ||
        cqn_range(length_value, "length", 1, SSIZE_MAX, &length) < 0 ||
        (align_value != NULL &&
         cqn_u32(align_value, "log_align_req", 63, &attr.log_align_req) < 0) ||
        cqn_open(CQN_OBJ(context)) == NULL) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_dm *self = cqn_new(type, &dm_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_dm *dm;
    int err;
    self->length = attr.length = length;
    CQN_CREATING(CQN_OBJ(self), dm = ibv_alloc_dm(handle, &attr); err = errno);
    if (dm == NULL) {
        cqn_verbs_error(st, err, "ibv_alloc_dm",
                        "%zu bytes of device memory, see query_device_ex().max_dm_size",
                        self->length);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), dm);
    return (PyObject *)self;
}

/* ---- memory of another process ---- */

static int unimport_dm(void *handle)
{
    ibv_unimport_dm(handle);
    return 0;
}

static const cqn_kind imported_kind = {
    .name = "DM",
    .destroy_verb = "ibv_unimport_dm",
    .rank = CQN_RANK_PD,
    .destroy = unimport_dm,
    .clear = cqn_clear,
};

/* The program passes the length: the device does not report it. */
CQN_RARE static PyObject *dm_from_handle(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "handle", "length", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *context, *number_value, *length_value;
    uint32_t number;
    uint64_t length;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:from_handle", names, &context,
                                     &number_value, &length_value) ||
        cqn_expect(context, st->Context, "context") < 0 ||
        cqn_u32(number_value, "handle", UINT32_MAX, &number) < 0 ||
        cqn_range(length_value, "length", 1, SSIZE_MAX, &length) < 0 ||
        cqn_open(CQN_OBJ(context)) == NULL) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_dm *self = cqn_new(type, &imported_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_dm *dm;
    int err;
    CQN_CREATING(CQN_OBJ(self), dm = ibv_import_dm(handle, number); err = errno);
    if (dm == NULL) {
        cqn_verbs_error(st, err, "ibv_import_dm", "handle %u", number);
        Py_DECREF(self);
        return NULL;
    }
    self->length = length;
    cqn_adopt(CQN_OBJ(self), dm);
    return (PyObject *)self;
}

/* ---- contents ---- */

static int check_range(const cqn_dm *self, uint64_t offset, uint64_t length)
{
    if (offset > self->length || length > self->length - offset) {
        PyErr_Format(PyExc_IndexError, "%llu bytes at offset %llu: this DM has %zu bytes",
                     (unsigned long long)length, (unsigned long long)offset, self->length);
        return -1;
    }
    return 0;
}

/* Releases the GIL: each word is fetched over the bus. */
CQN_RARE static PyObject *dm_read(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"length", "offset", NULL};
    cqn_dm *self = (cqn_dm *)op;
    PyObject *in[2] = {NULL, NULL};
    uint64_t length = 0, offset = 0;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("read", names, 2, 0, args, nargs, kwnames, in) < 0 ||
        (in[1] != NULL && cqn_uint(in[1], "offset", SSIZE_MAX, &offset) < 0)) {
        return NULL;
    }
    const bool rest = in[0] == NULL || in[0] == Py_None;
    if (!rest && cqn_uint(in[0], "length", SSIZE_MAX, &length) < 0) {
        return NULL;
    }
    if (rest && offset <= self->length) {
        length = self->length - offset;
    }
    if (check_range(self, offset, length) < 0) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    struct ibv_dm *handle = bytes == NULL ? NULL : cqn_open(&self->base);
    if (handle == NULL) {
        Py_XDECREF(bytes);
        return NULL;
    }
    char *to = PyBytes_AS_STRING(bytes);
    int err;
    CQN_IN_KERNEL(&self->base, err = cqn_errno_of(ibv_memcpy_from_dm(to, handle, offset, length)));
    if (err != 0) {
        Py_DECREF(bytes);
        return cqn_verbs_error(self->base.state, err, "ibv_memcpy_from_dm",
                               "%llu bytes at offset %llu", (unsigned long long)length,
                               (unsigned long long)offset);
    }
    return bytes;
}

CQN_RARE static PyObject *dm_write(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"data", "offset", NULL};
    cqn_dm *self = (cqn_dm *)op;
    PyObject *in[2] = {NULL, NULL}, *result = NULL;
    uint64_t offset = 0;
    Py_buffer data;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("write", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        (in[1] != NULL && cqn_uint(in[1], "offset", SSIZE_MAX, &offset) < 0) ||
        PyObject_GetBuffer(in[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    struct ibv_dm *handle = cqn_open(&self->base);
    if (handle != NULL && check_range(self, offset, (uint64_t)data.len) == 0) {
        int err;
        CQN_IN_KERNEL(&self->base, err = cqn_errno_of(ibv_memcpy_to_dm(handle, offset, data.buf,
                                                                       (size_t)data.len)));
        result = err == 0 ? PyLong_FromSsize_t(data.len)
                          : cqn_verbs_error(self->base.state, err, "ibv_memcpy_to_dm",
                                            "%zd bytes at offset %llu", data.len,
                                            (unsigned long long)offset);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *dm_get_length(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromSize_t(((cqn_dm *)op)->length) : NULL;
}

static PyObject *dm_get_handle(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct ibv_dm *dm = cqn_open(CQN_OBJ(op));
    return dm == NULL ? NULL : PyLong_FromUnsignedLong(dm->handle);
}

static PyObject *dm_repr(PyObject *op)
{
    CQN_LOCKED;
    const cqn_dm *self = (cqn_dm *)op;
    return self->base.handle == NULL
               ? cqn_short_repr(op)
               : PyUnicode_FromFormat("<DM on %s, %zu bytes>", cqn_device_name(&self->base),
                                      self->length);
}

static PyMethodDef dm_methods[] = {
    {"from_handle", (PyCFunction)(void (*)(void))dm_from_handle,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "from_handle($type, /, context, handle, length)\n--\n\n"
     "Return the DM of another process, on a context from Context.from_fd().\n\n"
     "context: that context.\n"
     "handle, length: its attributes in that process.\n\n"
     "close() forgets it and frees nothing. Raises VerbsError (EOPNOTSUPP) where the device's\n"
     "provider imports no objects.\n\n"
     "Wraps ibv_import_dm(3) and ibv_unimport_dm(3)."},
    {"read", (PyCFunction)(void (*)(void))dm_read, METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, length=None, offset=0)\n--\n\n"
     "Return a copy of the content, as bytes.\n\n"
     "length: how many bytes; None: up to the end.\n"
     "offset: where the first byte is.\n\n"
     "Raises IndexError beyond the end, and VerbsError for what the device can't copy, such as\n"
     "parts of words.\n\n"
     "Wraps ibv_memcpy_from_dm(3)."},
    {"write", (PyCFunction)(void (*)(void))dm_write, METH_FASTCALL | METH_KEYWORDS,
     "write($self, /, data, offset=0)\n--\n\n"
     "Copy data into the memory, and return the number of bytes.\n\n"
     "data: any buffer.\n"
     "offset: where the first byte goes.\n\n"
     "Raises IndexError beyond the end, and VerbsError for what the device can't copy, such as\n"
     "parts of words.\n\n"
     "Wraps ibv_memcpy_to_dm(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef dm_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"length", dm_get_length, NULL, "Its size in bytes.", NULL},
    {"handle", dm_get_handle, NULL, "The kernel's number of it, for DM.from_handle().", NULL},
    CQN_POINTER("struct ibv_dm"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef dm_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot dm_slots[] = {
    {Py_tp_doc,
     "DM(context, length, *, log_align_req=0)\n--\n\n"
     "Memory on the device.\n\n"
     "context: the Context.\n"
     "length: bytes, up to the max_dm_size of Context.query_device_ex(); if that is 0, the\n"
     "    device has no memory for programs.\n"
     "log_align_req: the address is a multiple of 2 to the power of this, as atomics may need\n"
     "    it.\n\n"
     "Work requests and peers use it as an MR, see MR.from_dm(). Raises VerbsError\n"
     "(EOPNOTSUPP) where the device has no memory for programs.\n\n"
     "Wraps ibv_alloc_dm(3)."},
    {Py_tp_new, dm_new},
    {Py_tp_repr, dm_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, dm_methods},
    {Py_tp_getset, dm_getset},
    {Py_tp_members, dm_members},
    {0, NULL},
};

PyType_Spec cqn_dm_spec = {
    .name = "cqnotify.hw.DM",
    .basicsize = sizeof(cqn_dm),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = dm_slots,
};
