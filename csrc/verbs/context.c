/* SPDX-License-Identifier: MIT */
/*
 * Context: an open device, and the root of all objects created on it.
 *
 * Lower layers know only its head (cqn_context, base/object.h), which lists the open objects. This
 * file adds the rest, such as the device's reports. device.c finds and opens the device; ports.c
 * has the tables of its ports. Closing a context closes everything created on it, which no other
 * type does; the order is in base/close.c.
 */

#include "verbs/context.h"
#include <endian.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the kind ---- */

static int close_device(void *handle)
{
    return ibv_close_device(handle) == 0 ? 0 : errno;
}

static void context_after_destroy(cqn_object *op)
{
    cqn_device_context *self = (cqn_device_context *)op;
    cqn_wait_queue_shut(&self->reports.wait_queue, cqn_forked(op));
    cqn_async_clear(&self->base);
    cqn_netdev_close(&self->netdev);
}

static int context_clear(PyObject *op)
{
    cqn_device_context *self = (cqn_device_context *)op;
    if (CQN_OBJ(self)->handle == NULL) {
        cqn_wait_queue_clear(&self->reports.wait_queue);
        cqn_async_clear(&self->base);
        cqn_netdev_close(&self->netdev);
        cqn_closed_counters_free(&self->closed_counters);
        Py_CLEAR(self->port_attr);
        Py_CLEAR(self->gid_entry);
        PyMem_Free(self->channels.per_wake);
        self->channels.per_wake = NULL;
    }
    return cqn_clear(op);
}

/* Without this, closing would wait for each retransmitting queue pair in turn. */
static void context_before_cascade(cqn_object *op)
{
    cqn_qps_stop_sending((cqn_context *)op);
}

static const cqn_kind context_kind = {
    .name = "Context",
    .destroy_verb = "ibv_close_device",
    .rank = CQN_RANK_PD,
    .destroy = close_device,
    .after_destroy = context_after_destroy,
    .before_cascade = context_before_cascade,
    .clear = context_clear,
};

/* ---- opening ---- */

/* Records the name of a newly opened device. Returns -1 with an exception if `err`, the result of
 * querying its attributes, is not 0. */
static int enter_attributes(cqn_context *self, struct ibv_context *handle, int err)
{
    snprintf(((cqn_device_context *)self)->name, IBV_SYSFS_NAME_MAX, "%s",
             ibv_get_device_name(handle->device));
    if (err != 0) {
        cqn_verbs_error(self->base.state, err, "ibv_query_device", "%s",
                        ibv_get_device_name(handle->device));
    }
    return err == 0 ? 0 : -1;
}

/* Returns -1 with an exception; the object may have a handle even then. */
static int open_device(cqn_context *self, const char *name)
{
    int err;
    struct ibv_context *handle = cqn_device_open(self->base.state, name, &self->attr, &err);
    if (handle == NULL) {
        return -1;
    }
    cqn_adopt(CQN_OBJ(self), handle);
    return enter_attributes(self, handle, err);
}

/* Returns a new context without a handle; NULL with an exception. */
static cqn_context *new_context(PyTypeObject *type)
{
    if (cqn_load_verbs(cqn_state_of(type)) < 0 || cqn_prepare_for_fork(cqn_state_of(type)) < 0) {
        return NULL;
    }
    cqn_context *self = cqn_new(type, &context_kind, NULL, 0);
    if (self != NULL) {
        self->base.context = self;
#ifdef Py_GIL_DISABLED
        self->base.half = cqn_next_half();
#endif
        self->reports = &((cqn_device_context *)self)->reports;
    }
    return self;
}

/* Releases the object and returns NULL; an exception is set. */
static PyObject *not_opened(cqn_context *self)
{
    cqn_close(CQN_OBJ(self), false);
    Py_DECREF(self);
    return NULL;
}

CQN_RARE static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"name", NULL};
    const char *name = NULL;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|z:Context", names, &name)) {
        return NULL;
    }
    cqn_context *self = new_context(type);
    if (self == NULL) {
        return NULL;
    }
    return open_device(self, name) < 0 || cqn_async_open(self) < 0 ? not_opened(self)
                                                                   : (PyObject *)self;
}

/* ---- a device of another process ---- */

static bool is_same_file(const struct stat *a, int fd)
{
    struct stat b;
    return fstat(fd, &b) == 0 && a->st_ino == b.st_ino && a->st_dev == b.st_dev;
}

/* The library owns `fd` from here on. On failure it closes `fd` only if it reached the provider, so
 * `fd` is closed here if it still refers to the same file. */
static int import_device(cqn_context *self, int fd, const struct stat *file)
{
    struct ibv_context *handle;
    int err, query_err = 0;
    Py_BEGIN_ALLOW_THREADS
        errno = 0;
        handle = ibv_import_device(fd);
        err = errno;
        if (handle != NULL) {
            query_err = ibv_query_device(handle, &self->attr);
        }
        else if (is_same_file(file, fd)) {
            close(fd);
        }
    Py_END_ALLOW_THREADS
    if (handle == NULL) {
        cqn_verbs_error(self->base.state, err, "ibv_import_device",
                        "only some providers import the contexts of other processes");
        return -1;
    }
    cqn_adopt(CQN_OBJ(self), handle);
    return enter_attributes(self, handle, query_err);
}

/* The library closes an imported descriptor, so it gets a duplicate. */
CQN_RARE static PyObject *context_from_fd(PyObject *cls, PyObject *file)
{
    CQN_LOCKED;
    struct stat st;
    const int given = PyObject_AsFileDescriptor(file);
    if (given < 0) {
        return NULL;
    }
    /* A high number, because open() takes the lowest: another file does not get this number once it
     * is free. */
    int fd = fcntl(given, F_DUPFD_CLOEXEC, 512);
    if (fd < 0 && errno == EINVAL) { /* the limit is below 512 */
        fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    else if (!S_ISCHR(st.st_mode)) {
        PyErr_Format(PyExc_ValueError,
                     "cmd_fd is %d: it must be the cmd_fd of a Context, passed on by SCM_RIGHTS or "
                     "inherited",
                     given);
    }
    cqn_context *self = PyErr_Occurred() ? NULL : new_context((PyTypeObject *)cls);
    if (self == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    return import_device(self, fd, &st) < 0 || cqn_async_open(self) < 0 ? not_opened(self)
                                                                        : (PyObject *)self;
}

/* ---- queries of the device ---- */

static PyObject *context_query_device(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_device_attr attr = {.phys_port_cnt = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_device(handle, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_device", "")
               : cqn_struct_to_dict(&attr, cqn_device_fields);
}

static PyObject *device_ex_to_dict(const struct ibv_device_attr_ex *attr)
{
    PyObject *dict = cqn_struct_to_dict(attr, cqn_device_ex_fields);
    PyObject *orig = dict ? cqn_struct_to_dict(&attr->orig_attr, cqn_device_fields) : NULL;
    if (orig == NULL || PyDict_SetItemString(dict, "orig_attr", orig) < 0) {
        Py_CLEAR(dict);
    }
    Py_XDECREF(orig);
    return dict;
}

static PyObject *context_query_device_ex(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_device_attr_ex attr;
    return cqn_open(CQN_OBJ(op)) == NULL || cqn_device_attr_ex(CQN_OBJ(op), &attr) < 0
               ? NULL
               : device_ex_to_dict(&attr);
}

/* Providers return all cycles of the clock in the nanoseconds. They read a register, which takes
 * less time than releasing the GIL. */
static PyObject *context_query_rt_values(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    int err = ibv_query_rt_values_ex(handle, &values);
    if (err == 0 && !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK)) {
        err = EOPNOTSUPP;
    }
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_rt_values_ex",
                                 "the device's clock can't be read")
               : Py_BuildValue("{s:K}", "raw_clock",
                               (unsigned long long)values.raw_clock.tv_sec * 1000000000 +
                                   (unsigned long long)values.raw_clock.tv_nsec);
}

/* Converts a port number of this device; NULL is the first port. Returns -1 with an exception. */
static int port_of(const cqn_context *self, PyObject *value, uint8_t *out)
{
    uint64_t n = 1;
    if (value != NULL && cqn_range(value, "port_num", 1, self->attr.phys_port_cnt, &n) < 0) {
        return -1;
    }
    *out = (uint8_t)n;
    return 0;
}

/* Passes the size of the header's struct to the library, like the header's inline function. Returns
 * an errno. */
static int query_port(struct ibv_context *handle, uint8_t port, cqn_port_attr *out)
{
    struct verbs_context *ops = verbs_get_ctx_op(handle, query_port);
#ifdef CQN_FAULTS
    if (ops != NULL && cqn_fault("ibv_query_port")) {
        return cqn_fault_errno();
    }
#endif
    return ops != NULL ? ops->query_port(handle, port, &out->attr, sizeof(*out))
                       : ibv_query_port(handle, port, &out->attr);
}

/* Programs that wait for a port query it often, and rarely get a new answer, so the last one is
 * kept. Returns a new reference; NULL with an exception. */
static PyObject *port_attr(cqn_device_context *self, const cqn_port_attr *attr)
{
    if (self->port_attr == NULL || memcmp(attr, &self->port, sizeof(*attr)) != 0) {
        PyObject *value = cqn_converted("port_attr", cqn_struct_to_tuple(attr, cqn_port_fields));
        if (value == NULL) {
            return NULL;
        }
        memcpy(&self->port, attr, sizeof(*attr)); /* including its padding */
        Py_XSETREF(self->port_attr, Py_NewRef(value));
        return value; /* even if releasing the old one ran other code */
    }
    return Py_NewRef(self->port_attr);
}

static PyObject *context_query_port(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"port_num", NULL};
    PyObject *value = NULL;
    uint8_t port;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("query_port", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        port_of((cqn_context *)op, value, &port) < 0) {
        return NULL;
    }
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    cqn_port_attr attr;
    int err;
    memset(&attr, 0, sizeof(attr));
    CQN_IN_KERNEL(CQN_OBJ(op), err = query_port(handle, port, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_port", "port %d", port)
               : port_attr((cqn_device_context *)op, &attr);
}

/* The length of the table is queried first, as the limit that the error reports. */
CQN_RARE static PyObject *context_query_pkey(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                             PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"index", "port_num", NULL};
    cqn_context *self = (cqn_context *)op;
    PyObject *in[2] = {NULL, NULL};
    uint8_t port;
    uint64_t entries, index;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("query_pkey", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        port_of(self, in[1], &port) < 0 || cqn_context_pkey_entries(self, port, &entries) < 0) {
        return NULL;
    }
    if (entries == 0) { /* iWARP has no partitions */
        return PyErr_Format(PyExc_ValueError, "port %d has no P_Key at any index", port);
    }
    if (cqn_range(in[0], "index", 0, entries - 1, &index) < 0) {
        return NULL;
    }
    struct ibv_context *handle = cqn_open(&self->base);
    if (handle == NULL) {
        return NULL;
    }
    uint16_t pkey; /* big-endian */
    int rc, err;
    CQN_IN_KERNEL(&self->base, errno = 0; rc = ibv_query_pkey(handle, port, (int)index, &pkey);
                  err = errno ? errno : EINVAL);
    if (rc < 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_query_pkey", "port %d, index %d", port,
                               (int)index);
    }
    return PyLong_FromLong(be16toh(pkey));
}

static PyObject *context_query_gid_table(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_gid_table((cqn_context *)op);
}

/* Converts a 32-bit index. Returns false if it is out of range or an exception is set. */
static bool gid_index(PyObject *value, uint32_t *out)
{
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "index must be an integer, not %s", Py_TYPE(value)->tp_name);
        return false;
    }
    Py_ssize_t n = PyNumber_AsSsize_t(value, NULL); /* clamped: still out of range */
    *out = (uint32_t)n;
    return n >= 0 && n <= UINT32_MAX;
}

/* Raises LookupError with a list of the entries that exist. Returns NULL. */
CQN_RARE static PyObject *raise_no_gid(PyObject *op, PyObject *index, uint8_t port)
{
    PyObject *none;
    CQN_UNLOCKED(none = PyObject_CallMethod(op, "_raise_no_gid", "Oi", index, port));
    assert(none == NULL);
    return none;
}

/* Keeps the GIL: the kernel has the table, and answers sooner than the GIL could be taken again
 * while another thread computes. */
static PyObject *context_query_gid(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"index", "port_num", NULL};
    cqn_context *self = (cqn_context *)op;
    PyObject *in[2] = {NULL, NULL};
    uint8_t port;
    uint32_t index;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("query_gid", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        port_of(self, in[1], &port) < 0) {
        return NULL;
    }
    const bool possible = gid_index(in[0], &index);
    struct ibv_context *handle = PyErr_Occurred() ? NULL : cqn_open(&self->base);
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_gid_entry entry;
    int err = possible ? ibv_query_gid_ex(handle, port, index, &entry, 0) : EINVAL;
    if (err == 0) {
        return cqn_gid_entry(self, &entry);
    }
    /* ENODATA: the entry is empty; EINVAL: the index is beyond the table. */
    return err == ENODATA || err == EINVAL
               ? raise_no_gid(op, in[0], port)
               : cqn_verbs_error(self->base.state, err, "ibv_query_gid_ex", "port %d, index %u",
                                 port, index);
}

/* ---- open objects, for cqnotify.report(); listing them has no side effects ---- */

static Py_ssize_t count_below(const cqn_context *ctx)
{
    Py_ssize_t n = 0;
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        for (const cqn_object *o = ctx->first[rank]; o != NULL; o = o->next) {
            n++;
        }
    }
    return n;
}

/* Creating the list can run the garbage collector, which can close objects and create new ones. The
 * list gets the objects that exist when it is filled, up to the number counted before. */
CQN_RARE PyObject *cqn_open_objects(PyObject *module, PyObject *context)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    if (cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    const cqn_context *ctx = (cqn_context *)context;
    const Py_ssize_t most = count_below(ctx);
    PyObject *list = PyList_New(most);
    Py_ssize_t n = 0;
    for (int rank = 0; list != NULL && rank < CQN_RANKS; rank++) {
        for (cqn_object *o = ctx->first[rank]; o != NULL && n < most; o = o->next) {
            if (o->handle != NULL && cqn_try_ref(o)) {
                PyList_SET_ITEM(list, n++, (PyObject *)o);
            }
        }
    }
    if (list != NULL && PyList_SetSlice(list, n, most, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* In a forked child the contexts of the parent are not included. */
CQN_RARE PyObject *cqn_open_contexts(PyObject *module, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_state *st = PyModule_GetState(module);
    Py_ssize_t most = 0, n = 0;
    for (const cqn_object *o = st->contexts; o != NULL; o = o->next) {
        most++;
    }
    PyObject *list = PyList_New(most);
    for (cqn_object *o = st->contexts; list != NULL && o != NULL && n < most; o = o->next) {
        if (cqn_is_open(o) && cqn_try_ref(o)) {
            PyList_SET_ITEM(list, n++, (PyObject *)o);
        }
    }
    if (list != NULL && PyList_SetSlice(list, n, most, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *cqn_known_async_events(PyObject *module, PyObject *context)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    return cqn_expect(context, st->Context, "context") < 0
               ? NULL
               : cqn_async_known((cqn_context *)context);
}

/* ---- the type ---- */

static PyObject *context_get_name(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyUnicode_FromString(ibv_get_device_name(handle->device));
}

static PyObject *context_get_transport_type(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromLong((long)handle->device->transport_type);
}

static PyObject *context_get_async_fd(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromLong(((cqn_context *)op)->reports->flag.fd);
}

static PyObject *context_get_cmd_fd(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromLong(handle->cmd_fd);
}

static PyObject *context_get_num_comp_vectors(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromLong(handle->num_comp_vectors);
}

static PyObject *context_get_measure_latency(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? PyBool_FromLong(((cqn_context *)op)->measure_latency) : NULL;
}

static int context_set_measure_latency(PyObject *op, PyObject *value, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    if (value == NULL || !PyBool_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "measure_latency is True or False");
        return -1;
    }
    if (cqn_open(CQN_OBJ(op)) == NULL) {
        return -1;
    }
    ((cqn_context *)op)->measure_latency = value == Py_True;
    return 0;
}

static PyObject *context_repr(PyObject *op)
{
    CQN_LOCKED;
    struct ibv_context *handle = CQN_OBJ(op)->handle;
    return PyUnicode_FromFormat("<Context %s>",
                                handle ? ibv_get_device_name(handle->device) : "closed");
}

static const char context_close_doc[] =
    "close($self, /)\n--\n\n"
    "Close the device and everything that was made on it. Closing twice is fine.\n\n"
    "Waits on its channels end with ClosedError; work in flight is dropped.\n\n"
    "Wraps ibv_close_device(3).";

static PyMethodDef context_methods[] = {
    {"query_device", context_query_device, METH_NOARGS,
     "query_device($self, /)\n--\n\n"
     "The attributes of the device.\n\nWraps ibv_query_device(3)."},
    {"query_device_ex", context_query_device_ex, METH_NOARGS,
     "query_device_ex($self, /)\n--\n\n"
     "The attributes of the device, and the later ones.\n\nWraps ibv_query_device_ex(3)."},
    {"query_rt_values", context_query_rt_values, METH_NOARGS,
     "query_rt_values($self, /)\n--\n\n"
     "What the device's clock shows now.\n\nWraps ibv_query_rt_values_ex(3)."},
    {"query_port", (PyCFunction)(void (*)(void))context_query_port, METH_FASTCALL | METH_KEYWORDS,
     "query_port($self, /, port_num=1)\n--\n\n"
     "Return the state of a port, a PortAttr.\n\n"
     "port_num: from 1 on.\n\n"
     "Wraps ibv_query_port(3)."},
    {"query_pkey", (PyCFunction)(void (*)(void))context_query_pkey, METH_FASTCALL | METH_KEYWORDS,
     "query_pkey($self, /, index, port_num=1)\n--\n\n"
     "Return a P_Key of a port's table, as a number in our byte order.\n\n"
     "index: its place in the table, from 0 to the port's pkey_tbl_len - 1.\n"
     "port_num: from 1 on.\n\n"
     "Wraps ibv_query_pkey(3)."},
    {"query_gid_table", context_query_gid_table, METH_NOARGS,
     "query_gid_table($self, /)\n--\n\n"
     "The valid entries of the GID tables of all ports.\n\nWraps ibv_query_gid_table(3)."},
    {"query_gid", (PyCFunction)(void (*)(void))context_query_gid, METH_FASTCALL | METH_KEYWORDS,
     "query_gid($self, /, index, port_num=1)\n--\n\n"
     "Return one entry of a port's GID table, a GIDEntry.\n\n"
     "index: its place in the table, from 0 on. It changes when addresses are added or\n"
     "    removed; `find_gid` is safer.\n"
     "port_num: from 1 on.\n\n"
     "Raises LookupError where the table has no valid entry there, ValueError where there is\n"
     "no such port. Wraps ibv_query_gid_ex(3)."},
    {"from_fd", context_from_fd, METH_CLASS | METH_O,
     "from_fd($type, cmd_fd, /)\n--\n\n"
     "Return the context of another process.\n\n"
     "cmd_fd: its `Context.cmd_fd` there, a descriptor, or an object with fileno(). It is\n"
     "    duplicated, and stays the caller's.\n\n"
     "PD.from_handle(), MR.from_handle() and hw.DM.from_handle() find its objects. Raises\n"
     "VerbsError (EOPNOTSUPP) where the device's provider imports no contexts.\n\n"
     "Wraps ibv_import_device(3)."},
    {"get_async_event", (PyCFunction)(void (*)(void))cqn_get_async_event,
     METH_FASTCALL | METH_KEYWORDS, cqn_get_async_event_doc},
    {"try_get_async_event", cqn_try_get_async_event, METH_NOARGS, cqn_try_get_async_event_doc},
    {"_counters", cqn_context_counters, METH_NOARGS,
     "_counters($self, /)\n--\n\nFor cqnotify.metrics: the device, what its CQs counted, by "
     "name, and its channels."},
    CQN_OBJECT_METHODS(context_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef context_getset[] = {
    {"name", context_get_name, NULL, "Name of the device, such as rxe0.", NULL},
    {"transport_type", context_get_transport_type, NULL,
     "Which wire protocol the device speaks: InfiniBand's, also over Ethernet, or iWARP.", NULL},
    {"async_fd", context_get_async_fd, NULL,
     "A file descriptor, readable while asynchronous events wait, for select and event loops.\n\n"
     "Then call try_get_async_event() until it returns None. It is not the device's own (it stands "
     "for that one and for what was read from it already): do not read it.",
     NULL},
    {"cmd_fd", context_get_cmd_fd, NULL,
     "The descriptor of the device's file, by which the library asks the kernel.\n\n"
     "Pass it on to another process for Context.from_fd(), and do not close it.",
     NULL},
    CQN_POINTER("struct ibv_context"),
    {"num_comp_vectors", context_get_num_comp_vectors, NULL,
     "How many completion vectors a CQ can choose from.", NULL},
    {"measure_latency", context_get_measure_latency, context_set_measure_latency,
     "Whether wake-ups are timed, see cqnotify.metrics: False, unless it was set.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef context_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot context_slots[] = {
    {Py_tp_doc, "Context(name=None)\n--\n\n"
                "The base of cqnotify.Context.\n\n"
                "Wraps ibv_open_device(3)."},
    {Py_tp_new, context_new},
    {Py_tp_repr, context_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {Py_tp_members, context_members},
    {0, NULL},
};

PyType_Spec cqn_context_spec = {
    .name = "cqnotify.Context",
    .basicsize = sizeof(cqn_device_context),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};
