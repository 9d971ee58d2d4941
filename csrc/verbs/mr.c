/* SPDX-License-Identifier: MIT */
/*
 * MR: a registered memory region, and access to its bytes.
 *
 * The type: MRs of the process's own memory, implicit ones, the buffer protocol, reading, writing
 * and slicing. mr_memory.c has the memory, its registration and rereg(); mr_foreign.c has MRs of
 * other memory.
 */

#include "verbs/mr.h"
#include <unistd.h>

/* ---- creation ---- */

/* Sets the address that the device uses, if it differs from the memory's. The offset in the page
 * must agree; the kernel's error would be a bare EINVAL. Returns -1 with an exception. */
static int choose_iova(cqn_mr *self, PyObject *value)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (cqn_uint(value, "iova", UINT64_MAX - self->memory.length, &self->iova) < 0 ||
        cqn_open(self->base.uses[0]) == NULL) { /* the PD holds the context */
        return -1;
    }
    if (self->base.context->attr.vendor_id == CQN_SIW_VENDOR) { /* siw would ignore it */
        cqn_verbs_error(self->base.state, EOPNOTSUPP, "ibv_reg_mr", "iova: siw has none");
        return -1;
    }
    if ((self->iova ^ (uintptr_t)self->memory.addr) % page != 0) {
        PyErr_Format(PyExc_ValueError,
                     "iova is %llu: its place in a page of %llu bytes must be that of the "
                     "buffer, which is at %p",
                     (unsigned long long)self->iova, (unsigned long long)page, self->memory.addr);
        return -1;
    }
    return 0;
}

/* The buffer is pinned before the registration, which can block. */
CQN_RARE static PyObject *mr_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static const char *const names[] = {"pd", "buffer", "access", "iova", NULL};
    PyObject *in[4] = {NULL};
    unsigned int access;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        cqn_sort_new("MR", names, 2, 2, args, kwargs, in) < 0 ||
        cqn_expect(in[0], st->PD, "pd") < 0 || cqn_mr_access(in[2], &access) < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(in[0]);
    cqn_mr *self = cqn_new(type, &cqn_mr_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->access = access;
    /* Acquiring the user's buffer can run Python code, which can close the PD. */
    if (cqn_mr_acquire_memory(self, in[1]) < 0 || choose_iova(self, in[3]) < 0 ||
        cqn_open(used) == NULL ||
        (access & IBV_ACCESS_ON_DEMAND && cqn_check_odp(used, IBV_ODP_SUPPORT) < 0) ||
        cqn_mr_register(self, used) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* ---- implicit MRs: all memory, on devices with on-demand paging ----
 *
 * An implicit MR keeps no memory alive. Sends and receives use an MR of a buffer, which has the
 * keys of the implicit one: nothing is registered for it, and it pins its buffer and is pinned by
 * work requests like any other. */

static PyObject *mr_implicit(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "access", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *pd, *access_value = NULL;
    unsigned int access;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:implicit", names, &pd, &access_value) ||
        cqn_expect(pd, cqn_state_of(type)->PD, "pd") < 0 ||
        cqn_mr_access(access_value, &access) < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mr *self = cqn_new(type, &cqn_mr_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->access = access | IBV_ACCESS_ON_DEMAND;
    self->memory.length = SIZE_MAX;
    self->implicit = true;
    if (cqn_check_odp(used, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT) < 0 ||
        cqn_mr_register(self, used) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int nothing_to_deregister(void *Py_UNUSED(handle))
{
    return 0;
}

/* Has the handle of the implicit MR, and keeps the implicit MR open. */
static const cqn_kind part_kind = {
    .name = "MR",
    .destroy_verb = "ibv_dereg_mr",
    .rank = CQN_RANK_OTHER,
    .destroy = nothing_to_deregister,
    .after_destroy = cqn_mr_after_destroy,
    .clear = cqn_mr_clear,
};

/* The part uses the whole, has its keys, and keeps it open. */
static PyObject *mr_sub_mr(PyObject *op, PyObject *buffer)
{
    CQN_LOCKED;
    cqn_mr *whole = (cqn_mr *)op;
    if (cqn_open(&whole->base) == NULL) {
        return NULL;
    }
    if (!whole->implicit) {
        PyErr_SetString(PyExc_ValueError, "sub_mr() is for what MR.implicit() returned");
        return NULL;
    }
    cqn_object *used[2] = {whole->base.uses[0], CQN_OBJ(op)};
    cqn_mr *self = cqn_new(whole->base.state->MR, &part_kind, used, 2);
    if (self == NULL) {
        return NULL;
    }
    self->access = whole->access;
    self->lkey = whole->lkey;
    self->rkey = whole->rkey;
    /* Acquiring the user's buffer can run Python code, which can close the whole. */
    if (cqn_mr_acquire_memory(self, buffer) < 0 || cqn_open(&whole->base) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->registered = true;
    cqn_adopt(CQN_OBJ(self), whole->base.handle);
    return (PyObject *)self;
}

/* ---- contents ---- */

/* Like cqn_open(); an implicit MR is refused, because it has no bytes to slice. */
static bool open_whole(cqn_mr *self)
{
    if (cqn_open(&self->base) == NULL) {
        return false;
    }
    if (self->implicit) {
        PyErr_SetString(PyExc_ValueError,
                        "an implicit MR has no bytes of its own: take sub_mr(buffer) of it");
        return false;
    }
    return true;
}

/* Like the previous one; the bytes must be in this process. */
static bool open_bytes(cqn_mr *self)
{
    if (!open_whole(self)) {
        return false;
    }
    if (self->memory.addr == NULL) {
        PyErr_SetString(PyExc_ValueError, "the bytes of this MR are not in this process's memory");
        return false;
    }
    return true;
}

/* Each memoryview keeps the memory, even after the MR is closed: cqn_mr_release_memory() waits for
 * the last. */
static int mr_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    CQN_LOCKED;
    cqn_mr *self = (cqn_mr *)op;
    view->obj = NULL;
    if (!open_bytes(self)) {
        return -1;
    }
    bool readonly = self->memory.view.obj != NULL && self->memory.view.readonly;
    if (PyBuffer_FillInfo(view, op, self->memory.addr, (Py_ssize_t)self->memory.length, readonly,
                          flags) < 0) {
        return -1;
    }
    self->exports++;
    return 0;
}

static void mr_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    CQN_LOCKED;
    cqn_mr *self = (cqn_mr *)op;
    self->exports--;
    cqn_mr_release_memory(self);
}

/* Converts a number of bytes; check_range() checks it. Returns -1 with an exception. */
static int size_from(PyObject *value, const char *name, Py_ssize_t *out)
{
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be an integer, not %s", name,
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    *out = PyNumber_AsSsize_t(value, NULL); /* clamped: still out of range */
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Returns -1 with IndexError unless the range lies within the region. */
static int check_range(const cqn_mr *self, Py_ssize_t offset, Py_ssize_t length)
{
    Py_ssize_t size = (Py_ssize_t)self->memory.length;
    if (offset < 0 || length < 0 || offset > size || length > size - offset) {
        PyErr_Format(PyExc_IndexError, "%zd bytes at offset %zd: this MR has %zd bytes", length,
                     offset, size);
        return -1;
    }
    return 0;
}

/* Copies the bytes under the GIL, so no write() of another thread changes them in between; the
 * device can. */
static PyObject *mr_read(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"length", "offset", NULL};
    cqn_mr *self = (cqn_mr *)op;
    PyObject *in[2] = {NULL, NULL};
    Py_ssize_t length = 0, offset = 0;
    if (!open_bytes(self) || cqn_args("read", names, 2, 0, args, nargs, kwnames, in) < 0 ||
        (in[1] && size_from(in[1], "offset", &offset) < 0)) {
        return NULL;
    }
    bool rest = in[0] == NULL || in[0] == Py_None;
    if (!rest && size_from(in[0], "length", &length) < 0) {
        return NULL;
    }
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (rest && offset >= 0 && offset <= (Py_ssize_t)self->memory.length) {
        length = (Py_ssize_t)self->memory.length - offset;
    }
    if (check_range(self, offset, length) < 0) {
        return NULL;
    }
    return PyBytes_FromStringAndSize((char *)self->memory.addr + offset, length);
}

/* The buffer of the data, possibly of this MR itself, is held while it is copied. */
static PyObject *mr_write(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"data", "offset", NULL};
    cqn_mr *self = (cqn_mr *)op;
    PyObject *in[2] = {NULL, NULL};
    Py_ssize_t offset = 0;
    Py_buffer data;
    if (!open_bytes(self) || cqn_args("write", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        (in[1] && size_from(in[1], "offset", &offset) < 0) ||
        (PyObject_CheckBuffer(in[0]) && cqn_refuse_objects(in[0], "data") < 0) ||
        PyObject_GetBuffer(in[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (cqn_open(&self->base) == NULL) {
    }
    else if (self->memory.view.obj != NULL && self->memory.view.readonly) {
        PyErr_SetString(PyExc_TypeError, "this MR is over a read-only buffer");
    }
    else if (check_range(self, offset, data.len) == 0) {
        memmove((char *)self->memory.addr + offset, data.buf, (size_t)data.len);
        result = PyLong_FromSsize_t(data.len);
    }
    PyBuffer_Release(&data);
    return result;
}

static Py_ssize_t mr_length(PyObject *op)
{
    CQN_LOCKED;
    cqn_mr *self = (cqn_mr *)op;
    return open_whole(self) ? (Py_ssize_t)self->memory.length : -1;
}

/* Converts one end of a slice. A negative index counts from the end; an index is never clamped,
 * because a send shorter than the slice would go unnoticed. */
static int slice_end(PyObject *value, Py_ssize_t fallback, Py_ssize_t length, Py_ssize_t *out)
{
    if (value == Py_None) {
        *out = fallback;
        return 0;
    }
    Py_ssize_t n = PyNumber_AsSsize_t(value, PyExc_IndexError);
    if (n == -1 && PyErr_Occurred()) {
        return -1;
    }
    *out = n < 0 ? n + length : n;
    if (*out < 0 || *out > length) {
        PyErr_Format(PyExc_IndexError, "slice end %zd is out of bounds: this MR has %zd bytes", n,
                     length);
        return -1;
    }
    return 0;
}

static PyObject *mr_subscript(PyObject *op, PyObject *key)
{
    CQN_LOCKED;
    cqn_mr *self = (cqn_mr *)op;
    if (!open_whole(self)) {
        return NULL;
    }
    if (!PySlice_Check(key)) {
        PyErr_Format(PyExc_TypeError,
                     "an MR is sliced, mr[a:b], for a scatter/gather element, not indexed by %s; "
                     "memoryview(mr) gives its bytes",
                     Py_TYPE(key)->tp_name);
        return NULL;
    }
    PySliceObject *slice = (PySliceObject *)key;
    Py_ssize_t start, stop, step = 1, length = (Py_ssize_t)self->memory.length;
    if (slice_end(slice->start, 0, length, &start) < 0 ||
        slice_end(slice->stop, length, length, &stop) < 0) {
        return NULL;
    }
    if (slice->step != Py_None) {
        step = PyNumber_AsSsize_t(slice->step, PyExc_IndexError);
        if (step == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (step != 1 || stop < start) {
        PyErr_Format(PyExc_ValueError,
                     "mr[%zd:%zd:%zd]: the step must be 1, and the end not before the start", start,
                     stop, step);
        return NULL;
    }
    if (stop - start > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "an SGE of %zd bytes: it can have at most %u", stop - start,
                     UINT32_MAX);
        return NULL;
    }
    /* Converting the ends may have run code that registered other memory. */
    if (cqn_open(&self->base) == NULL || check_range(self, start, stop - start) < 0) {
        return NULL;
    }
    return cqn_sge_new(self, self->iova + (uint64_t)start, (uint32_t)(stop - start));
}

/* ---- the type ---- */

static PyObject *mr_get_addr(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromUnsignedLongLong(((cqn_mr *)op)->iova) : NULL;
}

static PyObject *mr_get_length(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyLong_FromSize_t(((cqn_mr *)op)->memory.length) : NULL;
}

static PyObject *mr_get_handle(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct ibv_mr *mr = cqn_open(CQN_OBJ(op));
    return mr == NULL ? NULL : PyLong_FromUnsignedLong(mr->handle);
}

static int mr_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((cqn_mr *)op)->memory.view.obj);
    return cqn_traverse(op, visit, arg);
}

static PyObject *mr_repr(PyObject *op)
{
    CQN_LOCKED;
    cqn_mr *self = (cqn_mr *)op;
    if (self->base.handle != NULL && self->implicit) {
        return PyUnicode_FromFormat("<MR on %s, implicit, lkey=0x%x>", cqn_device_name(&self->base),
                                    (unsigned)self->lkey);
    }
    return self->base.handle == NULL
               ? cqn_short_repr(op)
               : PyUnicode_FromFormat("<MR on %s, %zu bytes at %p, lkey=0x%x>",
                                      cqn_device_name(&self->base), self->memory.length,
                                      (void *)(uintptr_t)self->iova, (unsigned)self->lkey);
}

static PyMethodDef mr_methods[] = {
    {"read", (PyCFunction)(void (*)(void))mr_read, METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, length=None, offset=0)\n--\n\n"
     "Return a copy of the content, as bytes.\n\n"
     "length: how many bytes; None: up to the end.\n"
     "offset: where the first byte is.\n\n"
     "Raises IndexError beyond the end."},
    {"write", (PyCFunction)(void (*)(void))mr_write, METH_FASTCALL | METH_KEYWORDS,
     "write($self, /, data, offset=0)\n--\n\n"
     "Copy data into the memory, and return the number of bytes.\n\n"
     "data: any buffer.\n"
     "offset: where the first byte goes.\n\n"
     "Raises IndexError beyond the end."},
    {"implicit", (PyCFunction)(void (*)(void))mr_implicit,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "implicit($type, /, pd, *, access=1)\n--\n\n"
     "Register all memory of this process, paged on demand: no buffer needs to be registered.\n\n"
     "pd: the PD.\n"
     "access: AccessFlags, by default LOCAL_WRITE. With remote access its rkey exposes all\n"
     "    memory of the process: never share it.\n\n"
     "Work requests take `implicit.sub_mr(buffer)`. Raises VerbsError (EOPNOTSUPP) where the\n"
     "device has no implicit on-demand paging.\n\n"
     "Wraps ibv_reg_mr(3)."},
    {"sub_mr", mr_sub_mr, METH_O,
     "sub_mr($self, buffer, /)\n--\n\n"
     "Return an MR over a buffer, with the keys of this implicit MR, for work requests.\n\n"
     "buffer: a buffer, or a length in bytes, as for MR().\n\n"
     "Nothing is registered for it. Close it before this one."},
    {"from_dm", (PyCFunction)(void (*)(void))cqn_mr_from_dm,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "from_dm($type, /, pd, dm, length=None, *, offset=0, access=1)\n--\n\n"
     "Register memory of the device, a DM.\n\n"
     "pd: the PD.\n"
     "dm: the hw.DM, to be closed after the MR.\n"
     "length: bytes; None: up to the end.\n"
     "offset: where its first byte is in the DM.\n"
     "access: AccessFlags, by default LOCAL_WRITE.\n\n"
     "Its addresses begin at 0, and its bytes are read and written by the DM. Raises\n"
     "VerbsError (EOPNOTSUPP) where the device has no memory for programs.\n\n"
     "Wraps ibv_reg_dm_mr(3)."},
    {"from_dmabuf", (PyCFunction)(void (*)(void))cqn_mr_from_dmabuf,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "from_dmabuf($type, /, pd, fd, length, *, offset=0, iova=None, access=1)\n--\n\n"
     "Register a dma-buf, such as memory of a GPU.\n\n"
     "pd: the PD.\n"
     "fd: its descriptor, or an object with fileno(); it may be closed afterwards.\n"
     "length: bytes.\n"
     "offset: where the first byte is in the dma-buf.\n"
     "iova: the address by which work requests and peers name that byte, whose place in a page\n"
     "    it must have; None: `offset`.\n"
     "access: AccessFlags: LOCAL_WRITE, the default, those of peers, and RELAXED_ORDERING.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device's provider takes no dma-buf.\n\n"
     "Wraps ibv_reg_dmabuf_mr(3)."},
    {"from_handle", (PyCFunction)(void (*)(void))cqn_mr_from_handle,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "from_handle($type, /, pd, handle, *, addr=0, access=1)\n--\n\n"
     "Return the MR of another process, on a PD of a context from Context.from_fd().\n\n"
     "pd: from PD.from_handle().\n"
     "handle: the MR's attribute in that process.\n"
     "addr: the same, from which slices count.\n"
     "access: the same, by default LOCAL_WRITE.\n\n"
     "The kernel reports the rest. close() forgets it and leaves it registered: the other\n"
     "process must keep it registered until then. Raises VerbsError (EOPNOTSUPP) where the\n"
     "device's provider imports no objects.\n\n"
     "Wraps ibv_import_mr(3) and ibv_unimport_mr(3)."},
    {"null", cqn_mr_null, METH_CLASS | METH_O,
     "null($type, pd, /)\n--\n\n"
     "Return an MR of no memory: what is received into it is dropped, and what is sent from it\n"
     "is 0.\n\n"
     "pd: the PD.\n\n"
     "Its addresses begin at 0, for as many bytes as a slice can have; peers have no access.\n"
     "Raises VerbsError (EOPNOTSUPP) where the device has no such MR.\n\n"
     "Wraps ibv_alloc_null_mr(3)."},
    {"rereg", (PyCFunction)(void (*)(void))cqn_mr_rereg, METH_FASTCALL | METH_KEYWORDS,
     "rereg($self, /, buffer=None, *, pd=None, access=None)\n--\n\n"
     "Change the registration; a parameter that is not given keeps its value.\n\n"
     "buffer: the new memory, a buffer or a length in bytes, as for MR(). It is pinned, and\n"
     "    the old one released once the device is done with it.\n"
     "pd: the PD that it is to belong to.\n"
     "access: its new AccessFlags.\n\n"
     "The keys may be others afterwards, and what was sliced before, or built as a SendWR or\n"
     "RecvWR, is refused: slice it again.\n\n"
     "Raises BusyError while a work request in flight or a bound window needs the MR;\n"
     "BufferError for a new buffer while there are memoryviews; and VerbsError, whose text\n"
     "says whether the MR is as before (as it always is after EOPNOTSUPP: the device has no\n"
     "such verb), or was closed, since nothing is known of it then.\n\n"
     "Wraps ibv_rereg_mr(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyObject *mr_get_access(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_mr *self = (cqn_mr *)op;
    return cqn_open(CQN_OBJ(op)) == NULL
               ? NULL
               : cqn_flags("AccessFlags", &self->base.state->access_flags, self->access);
}

static PyGetSetDef mr_getset[] = {
    {"pd", cqn_get_used, NULL, "The PD that it belongs to.", (void *)0},
    {"addr", mr_get_addr, NULL, "Address of its first byte, as a peer names it.", NULL},
    {"handle", mr_get_handle, NULL, "The kernel's number of it, for MR.from_handle().", NULL},
    CQN_POINTER("struct ibv_mr"),
    {"length", mr_get_length, NULL, "Its size in bytes.", NULL},
    {"lkey", cqn_get_u32, NULL, "Key for local use.", (void *)offsetof(cqn_mr, lkey)},
    {"rkey", cqn_get_u32, NULL, "Key for a peer's RDMA operations.",
     (void *)offsetof(cqn_mr, rkey)},
    {"access", mr_get_access, NULL, "What may be done with it: AccessFlags.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef mr_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot mr_slots[] = {
    {Py_tp_doc,
     "MR(pd, buffer, *, access=AccessFlags.LOCAL_WRITE, iova=None)\n--\n\n"
     "Memory that the device may work with.\n\n"
     "pd: the PD.\n"
     "buffer: any writable buffer (bytearray, mmap, array, numpy), contiguous, which stays\n"
     "    pinned; or a length in bytes, from 1 on, for page-aligned memory of its own, zeroed.\n"
     "access: AccessFlags: what the device and peers may do with it. With 0 the buffer may be\n"
     "    read-only, such as bytes: it can then only be sent from.\n"
     "iova: the address by which peers and work requests name its first byte, `addr`, which\n"
     "    must be as far from the begin of a page as the buffer is; None: that of the buffer.\n\n"
     "`mr[a:b]` is a scatter/gather element, an SGE; its ends are never clamped, IndexError\n"
     "refuses them. len(mr) is its size, and memoryview(mr) its bytes. BusyError at close()\n"
     "while a work request in flight needs it. implicit() needs no buffer.\n\n"
     "Raises VerbsError: ENOMEM beyond the limit of locked memory; EOPNOTSUPP for ON_DEMAND on\n"
     "a device that can't page; EFAULT, before Linux 6.2, for a read-only mmap that is not\n"
     "private, MAP_PRIVATE.\n\n"
     "Wraps ibv_reg_mr(3)."},
    {Py_tp_new, mr_new},
    {Py_tp_repr, mr_repr},
    {Py_tp_traverse, mr_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, mr_methods},
    {Py_tp_getset, mr_getset},
    {Py_tp_members, mr_members},
    {Py_bf_getbuffer, mr_getbuffer},
    {Py_bf_releasebuffer, mr_releasebuffer},
    {Py_mp_length, mr_length},
    {Py_mp_subscript, mr_subscript},
    {0, NULL},
};

PyType_Spec cqn_mr_spec = {
    .name = "cqnotify.MR",
    .basicsize = sizeof(cqn_mr),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mr_slots,
};
