/* SPDX-License-Identifier: MIT */
/*
 * MRs of memory outside this process: on the device, in a dma-buf, in another process, or none.
 *
 * Work requests use slices of them like slices of any other MR. They pin no buffer: the kernel
 * keeps a dma-buf, and a DM stays open while it has MRs.
 */

#include "verbs/mr.h"

static const unsigned int DMABUF_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                          IBV_ACCESS_RELAXED_ORDERING;

/* Returns a new MR that has an address for the device and none in this process; NULL with an
 * exception. */
static cqn_mr *new_mr(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *used, size_t n,
                      uint64_t iova, uint64_t length, unsigned int access)
{
    cqn_mr *self = cqn_new(type, kind, used, n);
    if (self != NULL) {
        self->iova = iova;
        self->memory.length = length;
        self->access = access;
    }
    return self;
}

/* Sets the handle of the MR, and returns the MR. If `mr` is NULL, releases the MR; an exception is
 * set. */
static PyObject *finish(cqn_mr *self, struct ibv_mr *mr)
{
    if (mr == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return cqn_mr_adopt(self, mr);
}

/* ---- device memory ---- */

/* Converts a range of a DM: from `offset`, to the end unless a length is given. Returns -1 with an
 * exception. */
static int parse_part(const cqn_dm *dm, PyObject *length_value, PyObject *offset_value,
                      uint64_t *offset, uint64_t *length)
{
    *offset = 0;
    if (offset_value != NULL && cqn_uint(offset_value, "offset", dm->length - 1, offset) < 0) {
        return -1;
    }
    *length = dm->length - *offset;
    return length_value == NULL || length_value == Py_None
               ? 0
               : cqn_range(length_value, "length", 1, dm->length - *offset, length);
}

/* Such an MR is always zero-based; the verb requires the flag. */
CQN_RARE PyObject *cqn_mr_from_dm(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "dm", "length", "offset", "access", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    cqn_state *st = cqn_state_of(type);
    PyObject *pd, *dm, *length_value = NULL, *offset_value = NULL, *access_value = NULL;
    uint64_t offset, length;
    unsigned int access;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O$OO:from_dm", names, &pd, &dm,
                                     &length_value, &offset_value, &access_value) ||
        cqn_expect(pd, st->PD, "pd") < 0 || cqn_expect(dm, st->DM, "dm") < 0 ||
        cqn_mr_access(access_value, &access) < 0 ||
        parse_part((cqn_dm *)dm, length_value, offset_value, &offset, &length) < 0) {
        return NULL;
    }
    if (cqn_open(CQN_OBJ(pd)) == NULL || cqn_expect_beside(dm, st->DM, "dm", pd, "pd") < 0) {
        return NULL;
    }
    cqn_object *used[2] = {CQN_OBJ(pd), CQN_OBJ(dm)};
    cqn_mr *self = new_mr(type, &cqn_mr_kind, used, 2, 0, length, access | IBV_ACCESS_ZERO_BASED);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_pd *pd_handle = used[0]->handle;
    struct ibv_dm *dm_handle = used[1]->handle;
    struct ibv_mr *mr;
    int err;
    CQN_CREATING(CQN_OBJ(self),
                 mr = ibv_reg_dm_mr(pd_handle, dm_handle, offset, length, self->access);
                 err = errno);
    if (mr == NULL) {
        cqn_verbs_error(st, err, "ibv_reg_dm_mr", "%llu bytes of device memory, access 0x%x",
                        (unsigned long long)length, self->access);
    }
    return finish(self, mr);
}

/* ---- dma-bufs ---- */

static int parse_dmabuf(PyObject *length_value, PyObject *offset_value, PyObject *iova_value,
                        uint64_t *length, uint64_t *offset, uint64_t *iova)
{
    *offset = 0;
    if (cqn_range(length_value, "length", 1, SSIZE_MAX, length) < 0 ||
        (offset_value != NULL && cqn_uint(offset_value, "offset", SSIZE_MAX, offset) < 0)) {
        return -1;
    }
    *iova = *offset;
    return iova_value == NULL || iova_value == Py_None
               ? 0
               : cqn_uint(iova_value, "iova", UINT64_MAX - *length, iova);
}

CQN_RARE PyObject *cqn_mr_from_dmabuf(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "fd", "length", "offset", "iova", "access", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    cqn_state *st = cqn_state_of(type);
    PyObject *pd, *file, *length_value, *offset_value = NULL, *iova_value = NULL;
    PyObject *access_value = NULL;
    uint64_t length, offset, iova;
    unsigned int access;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$OOO:from_dmabuf", names, &pd, &file,
                                     &length_value, &offset_value, &iova_value, &access_value) ||
        cqn_expect(pd, st->PD, "pd") < 0 || cqn_mr_access(access_value, &access) < 0 ||
        parse_dmabuf(length_value, offset_value, iova_value, &length, &offset, &iova) < 0) {
        return NULL;
    }
    if (access & ~DMABUF_ACCESS) {
        return PyErr_Format(PyExc_ValueError,
                            "access is 0x%x: a dma-buf can have LOCAL_WRITE, REMOTE_WRITE, "
                            "REMOTE_READ, REMOTE_ATOMIC and RELAXED_ORDERING",
                            access);
    }
    const int fd = PyObject_AsFileDescriptor(file); /* can run arbitrary code */
    if (fd < 0 || cqn_open(CQN_OBJ(pd)) == NULL) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mr *self = new_mr(type, &cqn_mr_kind, &used, 1, iova, length, access);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_pd *handle = used->handle;
    struct ibv_mr *mr;
    int err;
    CQN_CREATING(CQN_OBJ(self),
                 mr = ibv_reg_dmabuf_mr(handle, offset, length, iova, fd, (int)access);
                 err = errno);
    if (mr == NULL) {
        cqn_verbs_error(st, err, "ibv_reg_dmabuf_mr",
                        "%llu bytes at offset %llu of descriptor %d, access 0x%x",
                        (unsigned long long)length, (unsigned long long)offset, fd, access);
    }
    return finish(self, mr);
}

/* ---- null MRs ---- */

PyObject *cqn_mr_null(PyObject *cls, PyObject *pd)
{
    CQN_LOCKED;
    PyTypeObject *type = (PyTypeObject *)cls;
    cqn_state *st = cqn_state_of(type);
    if (cqn_expect(pd, st->PD, "pd") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mr *self = new_mr(type, &cqn_mr_kind, &used, 1, 0, SSIZE_MAX, IBV_ACCESS_LOCAL_WRITE);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_pd *handle = used->handle;
    struct ibv_mr *mr;
    int err;
    CQN_CREATING(CQN_OBJ(self), mr = ibv_alloc_null_mr(handle); err = errno);
    if (mr == NULL) {
        cqn_verbs_error(st, err, "ibv_alloc_null_mr", "null MRs");
    }
    return finish(self, mr);
}

/* ---- MRs of another process ---- */

static int unimport_mr(void *handle)
{
    ibv_unimport_mr(handle);
    return 0;
}

/* The other process owns the registration; closing only releases the import. */
static const cqn_kind imported_kind = {
    .name = "MR",
    .destroy_verb = "ibv_unimport_mr",
    .rank = CQN_RANK_OTHER,
    .destroy = unimport_mr,
    .after_destroy = cqn_mr_after_destroy,
    .clear = cqn_mr_clear,
};

CQN_RARE PyObject *cqn_mr_from_handle(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "handle", "addr", "access", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    cqn_state *st = cqn_state_of(type);
    PyObject *pd, *number_value, *addr_value = NULL, *access_value = NULL;
    uint32_t number;
    uint64_t addr = 0;
    unsigned int access;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:from_handle", names, &pd, &number_value,
                                     &addr_value, &access_value) ||
        cqn_expect(pd, st->PD, "pd") < 0 ||
        cqn_u32(number_value, "handle", UINT32_MAX, &number) < 0 ||
        (addr_value != NULL && cqn_uint(addr_value, "addr", UINT64_MAX, &addr) < 0) ||
        cqn_mr_access(access_value, &access) < 0 || cqn_open(CQN_OBJ(pd)) == NULL) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mr *self = new_mr(type, &imported_kind, &used, 1, addr, 0, access);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_pd *handle = used->handle;
    struct ibv_mr *mr;
    int err;
    CQN_CREATING(CQN_OBJ(self), mr = ibv_import_mr(handle, number); err = errno);
    if (mr == NULL) {
        cqn_verbs_error(st, err, "ibv_import_mr", "handle %u", number);
        return finish(self, NULL);
    }
    self->memory.length = mr->length < SSIZE_MAX ? mr->length : SSIZE_MAX;
    return finish(self, mr);
}
