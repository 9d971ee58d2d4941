/* SPDX-License-Identifier: MIT */
/*
 * The memory of an MR: acquiring it, registering it, and registering it again.
 *
 * An MR owns the view of the user's buffer, or its own pages, until the device and the last
 * memoryview have released them. This file is below mr.c and mr_foreign.c, which create the kinds
 * of MR.
 */

#include "verbs/mr.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void release_memory(cqn_memory *memory)
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

/* The memory is released once the registration and the last memoryview are gone. `registered` is
 * tested instead of `handle`: while another thread is in ibv_dereg_mr(), the device may still use
 * the memory. */
void cqn_mr_release_memory(cqn_mr *self)
{
    if (self->exports == 0 && !self->registered) {
        release_memory(&self->memory);
    }
}

static int dereg_mr(void *handle)
{
    return ibv_dereg_mr(handle);
}

void cqn_mr_after_destroy(cqn_object *self)
{
    ((cqn_mr *)self)->registered = false;
    cqn_mr_release_memory((cqn_mr *)self);
}

int cqn_mr_clear(PyObject *op)
{
    cqn_mr *self = (cqn_mr *)op;
    cqn_mr_release_memory(self);
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

/* The MR's own pages are mapped, not allocated: they begin at a page boundary and can be returned
 * to the system at once. Returns -1 with an exception. */
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

/* Whether a format of PEP 3118 contains a reference to an object; colons enclose names of
 * fields. */
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

/* The buffer of a numpy array of dates has no format; its dtype says whether it contains objects.
 * Returns 1, 0, or -1 with an exception. */
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
    else if (PyErr_ExceptionMatches(
                 PyExc_Exception)) { /* the simple buffer raises its error later */
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

/* The view prevents resizing a bytearray and closing an mmap. Returns -1 with an exception. */
static int pin_buffer(cqn_memory *self, PyObject *buffer, unsigned int access)
{
    if (PyObject_CheckBuffer(buffer) && cqn_refuse_objects(buffer, "buffer") < 0) {
        return -1;
    }
    bool writable = access & CQN_WRITING;
    if (PyObject_GetBuffer(buffer, &self->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
            !PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1; /* another error */
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

static int acquire_memory(cqn_memory *self, PyObject *buffer, unsigned int access)
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

int cqn_mr_acquire_memory(cqn_mr *self, PyObject *buffer)
{
    if (acquire_memory(&self->memory, buffer, self->access) < 0) {
        return -1;
    }
    self->iova = (uintptr_t)self->memory.addr;
    return 0;
}

/* Explains why the kernel cannot pin the memory: it is not writable, or has no page. Before Linux
 * 6.2 the kernel pins for writing whatever the access, and can force that only on a private
 * mapping. */
static const char *unpinnable_hint(const cqn_memory *memory)
{
    if (memory->view.obj != NULL && memory->view.readonly) {
        return "before Linux 6.2, memory that is read-only and shared can't be registered (an mmap "
               "of PROT_READ): map it with MAP_PRIVATE or writable, or copy it, bytes(buffer)";
    }
    return "the kernel can't pin all of it: is it a mapping that is longer than its file? From "
           "Linux 6.5 on a file that is mapped shared and writable must be on tmpfs or hugetlbfs: "
           "else map it with MAP_PRIVATE";
}

/* The errno rarely helps; the most common cause is the limit on locked memory. Returns NULL. */
static void *refuse_memory(cqn_state *st, int err, const char *verb, const cqn_memory *memory,
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

/* Releases the GIL: the kernel pins all pages, which can take long. */
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
    return mr == NULL ? refuse_memory(self->base.state, err, "ibv_reg_mr", m, self->access, "")
                      : cqn_mr_adopt(self, mr);
}

/* Also refuses the combinations for which the kernel's error would be a bare EINVAL. */
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

int cqn_check_odp(cqn_object *pd, uint64_t needed)
{
    struct ibv_device_attr_ex attr;
    if (cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    if ((attr.odp_caps.general_caps & needed) != needed) {
        cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_reg_mr",
                        "%son-demand paging, see query_device_ex().odp_caps",
                        needed & IBV_ODP_SUPPORT_IMPLICIT ? "implicit " : "");
        return -1;
    }
    return 0;
}

/* ---- rereg(): other memory, another PD or other access ----
 *
 * The MR remains the same object, and may get other keys. Objects derived from it before, such as
 * SGEs and kept work requests, have the old keys; each change is counted, and posting compares the
 * count.
 *
 * The kernel works without the GIL. During that time no work request may be posted with the MR,
 * which counts as being closed, and both the old and the new memory stay pinned until it is known
 * which of them the device uses. */

typedef struct {
    PyObject *buffer, *pd; /* borrowed; NULL: unchanged */
    unsigned int access;
    int flags;
    cqn_memory memory; /* of the new buffer */
} change;

static bool is_given(PyObject *value)
{
    return value != NULL && value != Py_None;
}

static int parse_change(cqn_mr *self, PyObject *const *in, change *c)
{
    *c = (change){.access = self->access};
    if (is_given(in[0])) {
        c->buffer = in[0];
        c->flags |= IBV_REREG_MR_CHANGE_TRANSLATION;
    }
    if (is_given(in[1])) {
        c->pd = in[1];
        c->flags |= IBV_REREG_MR_CHANGE_PD;
    }
    if (is_given(in[2])) {
        c->flags |= IBV_REREG_MR_CHANGE_ACCESS;
        if (cqn_mr_access(in[2], &c->access) < 0) {
            return -1;
        }
    }
    if (c->flags == 0) {
        PyErr_SetString(PyExc_TypeError, "rereg() needs buffer, pd or access");
        return -1;
    }
    return 0;
}

/* Returns 0 if the MR can be changed now; -1 with an exception. */
static int check_change(cqn_mr *self, const change *c)
{
    cqn_state *st = self->base.state;
    if (cqn_open(&self->base) == NULL ||
        (c->pd != NULL &&
         cqn_expect_beside(c->pd, st->PD, "pd", (PyObject *)self, "this MR") < 0)) {
        return -1;
    }
    if (self->base.kind != &cqn_mr_kind || self->memory.addr == NULL ||
        self->iova != (uintptr_t)self->memory.addr) {
        PyErr_SetString(PyExc_ValueError,
                        "rereg() is for an MR over memory of this process, at its own addresses");
        return -1;
    }
    if (self->base.pins > 0 || self->base.users > 0) {
        cqn_busy_error(st, "ibv_rereg_mr",
                       PyUnicode_FromFormat("this MR is still needed by %zu work request%s in "
                                            "flight and %u bound window%s",
                                            self->base.pins, self->base.pins == 1 ? "" : "s",
                                            self->base.users, self->base.users == 1 ? "" : "s"));
        return -1;
    }
    if (c->buffer != NULL && self->exports > 0) {
        PyErr_SetString(PyExc_BufferError,
                        "this MR has memoryviews: release them before you change its memory");
        return -1;
    }
    if (c->buffer == NULL && self->memory.view.obj != NULL && self->memory.view.readonly &&
        c->access & CQN_WRITING) {
        PyErr_Format(PyExc_TypeError,
                     "access is 0x%x: this MR is over a read-only buffer, which nothing may write",
                     c->access);
        return -1;
    }
    return 0;
}

/* Updates the MR after the device has changed it, and moves the old memory to `c`. Can run
 * arbitrary code. */
static void become(cqn_mr *self, change *c)
{
    cqn_object *deferred = NULL;
    const struct ibv_mr *mr = self->base.handle;
    self->lkey = mr->lkey;
    self->rkey = mr->rkey;
    self->access = c->access;
    if (c->pd != NULL) {
        cqn_use(&self->base, 0, CQN_OBJ(c->pd), &deferred);
    }
    if (c->buffer != NULL) {
        const cqn_memory old = self->memory;
        self->memory = c->memory;
        self->iova = (uintptr_t)self->memory.addr;
        c->memory = old;
    }
    cqn_decref_deferred(deferred);
}

typedef enum { IS_NEW, IS_NEW_BUT, IS_OLD, IS_LOST, IS_STUCK } outcome;

/* The outcome of a call, from enum ibv_rereg_mr_err_code. A device without the verb has done
 * nothing. */
static outcome outcome_of(int result, int err)
{
    return result == 0                                ? IS_NEW
           : result == IBV_REREG_MR_ERR_DO_FORK_OLD   ? IS_NEW_BUT
           : result == IBV_REREG_MR_ERR_INPUT         ? IS_OLD
           : result == IBV_REREG_MR_ERR_DONT_FORK_NEW ? IS_OLD
           : err == EOPNOTSUPP || err == ENOSYS       ? IS_OLD
                                                      : IS_LOST;
}

static const char *const ends[] = {
    [IS_NEW] = "",
    [IS_NEW_BUT] = ". The MR was registered anew, but forked children stay without its old memory",
    [IS_OLD] = ". The MR stays as it was",
    [IS_LOST] = ". Nothing is known of the MR any more, so it was closed",
    [IS_STUCK] =
        ". Nothing is known of the MR any more, and it can't be closed now: close it later",
};

/* Closes an MR whose state is unknown. If that fails, the device may use either memory, and both
 * stay pinned: the old until a later close() succeeds, the new forever. */
static outcome give_up(cqn_mr *self, change *c)
{
    if (cqn_close(&self->base, false) == 0) {
        return IS_LOST;
    }
    PyErr_Clear();
    c->memory = (cqn_memory){.addr = NULL};
    return IS_STUCK;
}

static PyObject *carry_out(cqn_mr *self, change *c)
{
    struct ibv_mr *handle = self->base.handle;
    cqn_object *const pd = c->pd == NULL ? NULL : CQN_OBJ(c->pd);
    struct ibv_pd *const pd_handle = pd == NULL ? NULL : pd->handle;
    const int access = c->flags & IBV_REREG_MR_CHANGE_ACCESS ? (int)c->access : 0;
    const cqn_memory memory = c->memory;
    int result, err;
    self->base.changes++;
    self->base.closing++;
    if (pd != NULL) {
        cqn_enter(pd);
    }
    CQN_IN_KERNEL(&self->base, errno = 0; result = ibv_rereg_mr(handle, c->flags, pd_handle,
                                                                memory.addr, memory.length, access);
                  err = errno);
    if (pd != NULL) {
        cqn_leave(pd);
    }
    self->base.closing--;
    outcome out = outcome_of(result, err);
    /* If nothing changed, objects derived before are valid again. */
    self->base.changes += out == IS_OLD ? UINT32_MAX : 1;
    if (out <= IS_NEW_BUT) {
        become(self, c);
    }
    if (out == IS_NEW) {
        Py_RETURN_NONE;
    }
    out = out == IS_LOST ? give_up(self, c) : out;
    refuse_memory(self->base.state, err, "ibv_rereg_mr",
                  c->buffer != NULL ? &memory : &self->memory, c->access, ends[out]);
    return NULL;
}

/* The new buffer is pinned before the call, which can block; the old one is released after it. */
CQN_RARE PyObject *cqn_mr_rereg(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"buffer", "pd", "access", NULL};
    cqn_mr *self = (cqn_mr *)op;
    PyObject *in[3] = {NULL, NULL, NULL}, *result = NULL;
    change c;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("rereg", names, 1, 0, args, nargs, kwnames, in) < 0 ||
        parse_change(self, in, &c) < 0 || check_change(self, &c) < 0) {
        return NULL;
    }
    /* On a device without on-demand paging the call would fail and leave the state of the MR
     * unknown. */
    if (c.access & ~self->access & IBV_ACCESS_ON_DEMAND &&
        cqn_check_odp(&self->base, IBV_ODP_SUPPORT) < 0) {
        return NULL;
    }
    /* The check, and pinning the user's buffer, can run Python code, so everything is checked
     * again. */
    if ((c.buffer == NULL || acquire_memory(&c.memory, c.buffer, c.access) == 0) &&
        check_change(self, &c) == 0) {
        result = carry_out(self, &c);
    }
    PyObject *error = cqn_take_exception();
    release_memory(&c.memory);
    cqn_put_exception(error);
    return result;
}
