/* SPDX-License-Identifier: MIT */
/*
 * The memory of an MR, and its registration.
 *
 * An MR owns the view of the user's buffer, or pages of its own, until the device and the last
 * memoryview of it have let go. This is below mr.c and implicit_mr.c, which make two kinds of MR of
 * it.
 */

#include "verbs/verbs.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

void cqn_memory_drop(cqn_memory *memory)
{
    if (memory->own_length != 0) {
        munmap(memory->addr, memory->own_length);
        memory->own_length = 0;
    }
    else if (memory->view.obj != NULL) {
        Py_buffer view = memory->view;
        memory->view.obj = NULL;
        PyBuffer_Release(&view);
    }
}

/* It is released when both the registration and the last memoryview of this object are gone.
 * `registered` says more than `handle`: while another thread is inside ibv_dereg_mr() the device
 * may still use the memory. */
void cqn_mr_release(cqn_mr *self)
{
    if (self->exports == 0 && !self->registered) {
        cqn_memory_drop(&self->memory);
    }
}

static int dereg_mr(void *handle)
{
    return ibv_dereg_mr(handle);
}

void cqn_mr_after_destroy(cqn_object *self)
{
    ((cqn_mr *)self)->registered = false;
    cqn_mr_release((cqn_mr *)self);
}

int cqn_mr_clear(PyObject *op)
{
    cqn_mr *self = (cqn_mr *)op;
    cqn_mr_release(self);
    return cqn_clear(op);
}

const cqn_kind cqn_mr_kind = {
    .name = "MR",
    .destroy_verb = "ibv_dereg_mr",
    .rank = CQN_RANK_OTHER,
    .destroy = dereg_mr,
    .after_destroy = cqn_mr_after_destroy,
    .clear = cqn_mr_clear,
};

/* Pages of its own are mapped, not allocated: they begin at a page, and can go back to the system
 * at once. */
static int map_own(cqn_memory *self, uint64_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (length > SSIZE_MAX - page) {
        PyErr_Format(PyExc_ValueError, "length is %llu: it must be at most %zd",
                     (unsigned long long)length, SSIZE_MAX - (Py_ssize_t)page);
        return -1;
    }
    size_t whole = (length + page - 1) / page * page;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        PyErr_Format(PyExc_MemoryError, "no memory for an MR of %llu bytes",
                     (unsigned long long)length);
        return -1;
    }
    self->addr = p;
    self->length = length;
    self->own_length = whole;
    return 0;
}

static const unsigned int USUAL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND;

/* Whether a format of PEP 3118 has a reference to an object; names of fields are between colons. */
CQN_RARE static bool has_references(const char *format)
{
    bool in_name = false;
    for (const char *c = format == NULL ? "" : format; *c != 0; c++) {
        in_name ^= *c == ':';
        if (*c == 'O' && !in_name) {
            return true;
        }
    }
    return false;
}

/* The buffer of a numpy array has no format if there are dates in it, but its type tells. */
CQN_RARE static int has_objects_by_type(PyObject *buffer)
{
    PyObject *dtype = PyObject_GetAttrString(buffer, "dtype");
    PyObject *answer = dtype == NULL ? NULL : PyObject_GetAttrString(dtype, "hasobject");
    const int rc = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    Py_XDECREF(dtype);
    if (rc < 0 && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return 0;
    }
    return rc;
}

CQN_RARE int cqn_refuse_objects(PyObject *buffer, const char *name)
{
    Py_buffer view;
    int rc = 0;
    if (PyBytes_CheckExact(buffer) || PyByteArray_CheckExact(buffer)) {
        return 0;
    }
    if (PyObject_GetBuffer(buffer, &view, PyBUF_FULL_RO) == 0) {
        rc = has_references(view.format);
        PyBuffer_Release(&view);
    }
    else if (PyErr_ExceptionMatches(PyExc_Exception)) { /* that of its simple buffer is raised */
        PyErr_Clear();
        rc = has_objects_by_type(buffer);
    }
    else {
        return -1;
    }
    if (rc > 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s must have bytes of its own: this %s has references to Python objects, "
                     "which mean nothing to a peer; convert it to a type of a fixed size, or "
                     "pickle it",
                     name, Py_TYPE(buffer)->tp_name);
        return -1;
    }
    return rc;
}

/* The view keeps a bytearray from being resized, and an mmap from being closed. */
static int pin_buffer(cqn_memory *self, PyObject *buffer, unsigned int access)
{
    if (PyObject_CheckBuffer(buffer) && cqn_refuse_objects(buffer, "buffer") < 0) {
        return -1;
    }
    bool writable = access & CQN_WRITING;
    if (PyObject_GetBuffer(buffer, &self->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
            !PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1; /* it is about something else */
        }
        if (writable && PyObject_CheckBuffer(buffer)) {
            PyErr_Format(PyExc_TypeError,
                         "buffer must be writable and contiguous (this %s is not): pass a "
                         "bytearray, or access=0 to send from it only",
                         Py_TYPE(buffer)->tp_name);
        }
        else if (!PyObject_CheckBuffer(buffer)) {
            PyErr_Format(PyExc_TypeError, "buffer must be a buffer or a length, not %s",
                         Py_TYPE(buffer)->tp_name);
        }
        return -1;
    }
    self->addr = self->view.buf;
    self->length = (size_t)self->view.len;
    return 0;
}

int cqn_memory_take(cqn_memory *self, PyObject *buffer, unsigned int access)
{
    uint64_t length;
    int rc = PyLong_Check(buffer) ? cqn_range(buffer, "length", 1, SSIZE_MAX, &length) : 0;
    if (rc == 0) {
        rc = PyLong_Check(buffer) ? map_own(self, length) : pin_buffer(self, buffer, access);
    }
    if (rc == 0 && self->length == 0) {
        PyErr_SetString(PyExc_ValueError, "an MR needs at least 1 byte, this has 0");
        rc = -1;
    }
    return rc;
}

int cqn_mr_take_memory(cqn_mr *self, PyObject *buffer)
{
    if (cqn_memory_take(&self->memory, buffer, self->access) < 0) {
        return -1;
    }
    self->iova = (uintptr_t)self->memory.addr;
    return 0;
}

/* The kernel can't pin the memory: it could not write to it either, or has no page to pin. Before
 * Linux 6.2 it pins for writing whatever the access, which only a private mapping can be forced to.
 */
static const char *unpinnable_hint(const cqn_memory *memory)
{
    if (memory->view.obj != NULL && memory->view.readonly) {
        return "before Linux 6.2, memory that is read-only and shared can't be registered (an mmap "
               "of PROT_READ): map it with MAP_PRIVATE or writable, or copy it, bytes(buffer)";
    }
    return "not all of it is there to be pinned: does the file that is mapped reach to its end? "
           "From "
           "Linux 6.5 on a file that is mapped shared and writable must be on tmpfs or hugetlbfs: "
           "else map it with MAP_PRIVATE";
}

/* The errno alone rarely says what to do: the limit on locked memory is the most common reason. */
void *cqn_mr_refuse(cqn_state *st, int err, const char *verb, const cqn_memory *memory,
                    unsigned int access, const char *end)
{
    struct rlimit limit;
    if (err == EFAULT) {
        return cqn_verbs_error(st, err, verb, "%zu bytes at %p, access 0x%x: %s%s", memory->length,
                               memory->addr, access, unpinnable_hint(memory), end);
    }
    if ((err == ENOMEM || err == EPERM || err == EAGAIN) &&
        getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        return cqn_verbs_error(st, err, verb,
                               "%zu bytes were asked for, and this process may lock %llu bytes of "
                               "memory: raise the limit (ulimit -l, or memlock in "
                               "/etc/security/limits.conf)%s",
                               memory->length, (unsigned long long)limit.rlim_cur, end);
    }
    return cqn_verbs_error(st, err, verb, "%zu bytes at %p, access 0x%x%s%s", memory->length,
                           memory->addr, access,
                           access & ~USUAL ? ": does the device know all these flags?" : "", end);
}

PyObject *cqn_mr_adopt(cqn_mr *self, struct ibv_mr *mr)
{
    self->lkey = mr->lkey;
    self->rkey = mr->rkey;
    self->registered = true;
    cqn_adopt(CQN_OBJ(self), mr);
    return (PyObject *)self;
}

/* The kernel pins all pages, which can take long: without the GIL. */
PyObject *cqn_mr_register(cqn_mr *self, cqn_object *pd)
{
    struct ibv_pd *handle = pd->handle;
    const cqn_memory *m = &self->memory;
    const bool elsewhere = self->iova != (uintptr_t)m->addr;
    struct ibv_mr *mr;
    int err;
    CQN_CREATING(CQN_OBJ(self),
                 mr = elsewhere
                          ? ibv_reg_mr_iova2(handle, m->addr, m->length, self->iova, self->access)
                          : ibv_reg_mr(handle, m->addr, m->length, self->access);
                 err = errno);
    return mr == NULL ? cqn_mr_refuse(self->base.state, err, "ibv_reg_mr", m, self->access, "")
                      : cqn_mr_adopt(self, mr);
}

/* What the kernel would refuse with EINVAL, and no reason. */
int cqn_mr_access(PyObject *value, unsigned int *access)
{
    *access = IBV_ACCESS_LOCAL_WRITE;
    if (value != NULL &&
        cqn_member32(value, "access", "AccessFlags such as AccessFlags.LOCAL_WRITE", UINT32_MAX,
                     access) < 0) {
        return -1;
    }
    if ((*access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(*access & IBV_ACCESS_LOCAL_WRITE)) {
        PyErr_Format(PyExc_ValueError,
                     "access is 0x%x: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well",
                     *access);
        return -1;
    }
    if (*access & IBV_ACCESS_ZERO_BASED) {
        PyErr_Format(
            PyExc_ValueError,
            "access is 0x%x: ZERO_BASED is for memory windows, since devices differ in what "
            "it does to an MR; iova=0 makes one whose addresses begin at 0",
            *access);
        return -1;
    }
    return 0;
}
