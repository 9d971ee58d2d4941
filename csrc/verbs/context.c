/* SPDX-License-Identifier: MIT */
/*
 * Context: an open device, and the root of everything made on it.
 *
 * The layers below know a context by its head (cqn_context, base/object.h), which lists what is
 * open on it. This file adds what they keep in it, the device's reports among that; what is asked
 * of a device is in context_query.c. Closing a context closes all that was made on it, which no
 * other type does; base/close.c has the order.
 */

#include "verbs/context.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- its kind ---- */

static int close_device(void *handle)
{
    return ibv_close_device(handle) == 0 ? 0 : errno;
}

static void context_after_destroy(cqn_object *op)
{
    cqn_device_context *self = (cqn_device_context *)op;
    cqn_gate_shut(&self->reports.gate, cqn_forked(op));
    cqn_async_clear(&self->base);
    cqn_netdev_close(&self->netdev);
}

static int context_clear(PyObject *op)
{
    cqn_device_context *self = (cqn_device_context *)op;
    if (CQN_OBJ(self)->handle == NULL) {
        cqn_gate_clear(&self->reports.gate);
        cqn_async_clear(&self->base);
        cqn_netdev_close(&self->netdev);
        cqn_tallies_free(&self->tallies);
        Py_CLEAR(self->port_fields);
        PyMem_Free(self->channels.per_wake);
        self->channels.per_wake = NULL;
    }
    return cqn_clear(op);
}

/* Queue pairs that send again and again would each be waited for in turn. */
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

/* The names of all devices, for the message. */
static PyObject *names_of(struct ibv_device **list)
{
    PyObject *names = PyUnicode_FromString("");
    for (int i = 0; names != NULL && list[i] != NULL; i++) {
        char name[IBV_SYSFS_NAME_MAX];
        cqn_device_name_now(list[i], name);
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%s", names, i ? ", " : "", name));
    }
    return names;
}

/* Names what there is, when there is no device of that name. */
CQN_RARE static void *refuse_name(cqn_state *st, struct ibv_device **list, int err,
                                  const char *name)
{
    if (list == NULL && err != ENOSYS) { /* which is a kernel that knows no RDMA */
        return cqn_device_list_error(st, err);
    }
    if (list == NULL || list[0] == NULL) {
        PyObject *why = cqn_no_device(st);
        if (why != NULL) {
            cqn_verbs_error(st, ENODEV, "ibv_open_device", "%U", why);
            Py_DECREF(why);
        }
        return NULL;
    }
    PyObject *names = names_of(list);
    if (names != NULL) {
        cqn_verbs_error(st, ENODEV, "ibv_open_device",
                        "no RDMA device is called '%s'; this machine has %U", name, names);
        Py_DECREF(names);
    }
    return NULL;
}

/* What opening a device has brought. */
typedef struct {
    struct ibv_device **list;  /* or NULL */
    struct ibv_device *device; /* of the list, which is open or, of those that are not, the first;
                                * NULL: none has that name */
    struct ibv_context *handle;
    bool renamed;  /* since libibverbs first saw it: it is not opened */
    int err;       /* of the list, or of opening */
    int query_err; /* of asking for the attributes, without which it is of no use */
} opened;

/* Why it could not be opened, nor any other if it was not `named`. The library tries several ways,
 * and tells the errno of the last, so the device's file is asked once more. */
CQN_RARE static void *refuse_open(cqn_state *st, const opened *o, bool named)
{
    int err = o->err;
    char path[sizeof("/dev/infiniband/") + IBV_SYSFS_NAME_MAX];
    snprintf(path, sizeof(path), "/dev/infiniband/%s", o->device->dev_name);
    const char *hint = "see what ibv_devinfo(1) says of it";
    if (access(path, R_OK | W_OK) != 0) {
        err = errno;
        hint = err == ENOENT ? "the file is missing: load the module ib_uverbs"
                             : "you need permission to read and write that file";
    }
    const bool others = !named && o->list[1] != NULL;
    PyObject *names = others ? names_of(o->list) : PyUnicode_FromString("");
    if (names != NULL) {
        cqn_verbs_error(st, err, "ibv_open_device", "%s (%s): %s%s%U%s", o->device->name, path,
                        hint, others ? "; none of " : "", names, others ? " can be opened" : "");
        Py_DECREF(names);
    }
    return NULL;
}

/* By the old name libibverbs would read attributes, such as P_Keys, of what has that name now. */
CQN_RARE static void *refuse_renamed(cqn_state *st, const struct ibv_device *device)
{
    char now[IBV_SYSFS_NAME_MAX];
    cqn_device_name_now(device, now);
    return cqn_verbs_error(st, ESTALE, "ibv_open_device",
                           "%s was called %s when this process first listed the devices, and "
                           "libibverbs goes on to look for it by that name: start the program anew",
                           now, device->name);
}

/* Opens one that is called so `now`. Of several that can't be opened the first is remembered. */
static void try_open(opened *o, struct ibv_device *device, const char *now)
{
    const bool renamed = strcmp(now, device->name) != 0;
    errno = 0;
    o->handle = renamed ? NULL : ibv_open_device(device);
    if (o->handle != NULL || o->device == NULL) {
        o->device = device;
        o->renamed = renamed;
        o->err = errno ? errno : ENODEV;
    }
}

/* The device of that name, or the first that can be opened, and its attributes. Without the GIL. */
static opened find_and_open(const char *name, struct ibv_device_attr *attr)
{
    int n;
    opened o = {.list = NULL};
    o.list = cqn_device_list(&n, &o.err);
    for (int i = 0; i < n && o.handle == NULL; i++) {
        char now[IBV_SYSFS_NAME_MAX];
        cqn_device_name_now(o.list[i], now);
        if (name == NULL || strcmp(name, now) == 0) {
            try_open(&o, o.list[i], now);
        }
    }
    if (o.handle != NULL) {
        o.query_err = ibv_query_device(o.handle, attr);
    }
    return o;
}

/* The attributes of a new handle, which the object has adopted. */
static int told_attributes(cqn_context *self, struct ibv_context *handle, int err)
{
    snprintf(((cqn_device_context *)self)->name, IBV_SYSFS_NAME_MAX, "%s",
             ibv_get_device_name(handle->device));
    if (err != 0) {
        cqn_verbs_error(self->base.state, err, "ibv_query_device", "%s",
                        ibv_get_device_name(handle->device));
    }
    return err == 0 ? 0 : -1;
}

/* Gives the object its handle; -1 with an exception, and then it may have one. */
static int open_device(cqn_context *self, const char *name)
{
    cqn_state *st = self->base.state;
    opened o;
    Py_BEGIN_ALLOW_THREADS
        cqn_library_enter();
        o = find_and_open(name, &self->attr);
        cqn_library_leave();
    Py_END_ALLOW_THREADS
    if (o.handle != NULL) {
        cqn_adopt(CQN_OBJ(self), o.handle);
        told_attributes(self, o.handle, o.query_err);
    }
    else if (o.device == NULL) {
        refuse_name(st, o.list, o.err, name);
    }
    else if (o.renamed) {
        refuse_renamed(st, o.device);
    }
    else {
        refuse_open(st, &o, name != NULL);
    }
    if (o.list != NULL) {
        ibv_free_device_list(o.list);
    }
    return o.handle == NULL || o.query_err != 0 ? -1 : 0;
}

/* A context without a handle yet. */
static cqn_context *new_context(PyTypeObject *type)
{
    if (cqn_load_verbs(cqn_state_of(type)) < 0 || cqn_prepare_for_fork(cqn_state_of(type)) < 0) {
        return NULL;
    }
    cqn_context *self = cqn_new(type, &context_kind, NULL, 0);
    if (self != NULL) {
        self->base.context = self;
        self->reports = &((cqn_device_context *)self)->reports;
    }
    return self;
}

/* Drops the object with the exception that is set. */
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

/* ---- of another process ---- */

static bool is_same_file(const struct stat *a, int fd)
{
    struct stat b;
    return fstat(fd, &b) == 0 && a->st_ino == b.st_ino && a->st_dev == b.st_dev;
}

/* The library owns `fd` from here on; if it fails, it has closed it only if it came to ask the
 * provider, so what still is that file is closed here. */
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
    return told_attributes(self, handle, query_err);
}

/* The library gets a duplicate, since it closes what it imports. */
CQN_RARE static PyObject *context_from_fd(PyObject *cls, PyObject *file)
{
    CQN_LOCKED;
    struct stat st;
    const int given = PyObject_AsFileDescriptor(file);
    if (given < 0) {
        return NULL;
    }
    /* A high one: open() takes the lowest, so that none gets its number when it was closed. */
    int fd = fcntl(given, F_DUPFD_CLOEXEC, 512);
    if (fd < 0 && errno == EINVAL) { /* the limit is lower */
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
    "Who waits on one of its channels gets ClosedError; work in flight is dropped.\n\n"
    "Wraps ibv_close_device(3).";

static PyMethodDef context_methods[] = {
    {"query_device", cqn_context_query_device, METH_NOARGS,
     "query_device($self, /)\n--\n\n"
     "The attributes of the device.\n\nWraps ibv_query_device(3)."},
    {"query_device_ex", cqn_context_query_device_ex, METH_NOARGS,
     "query_device_ex($self, /)\n--\n\n"
     "The attributes of the device, and the later ones.\n\nWraps ibv_query_device_ex(3)."},
    {"query_rt_values", cqn_context_query_rt_values, METH_NOARGS,
     "query_rt_values($self, /)\n--\n\n"
     "What the device's clock shows now.\n\nWraps ibv_query_rt_values_ex(3)."},
    {"query_port", (PyCFunction)(void (*)(void))cqn_context_query_port,
     METH_FASTCALL | METH_KEYWORDS,
     "query_port($self, /, port_num=1)\n--\n\n"
     "The attributes of a port, in the order of struct ibv_port_attr; ports count from 1.\n\n"
     "Wraps ibv_query_port(3)."},
    {"query_pkey", (PyCFunction)(void (*)(void))cqn_context_query_pkey,
     METH_FASTCALL | METH_KEYWORDS,
     "query_pkey($self, /, index, port_num=1)\n--\n\n"
     "The P_Key at `index` of a port's table, as a number in our byte order.\n\n"
     "ValueError beyond the table's pkey_tbl_len entries.\n\nWraps ibv_query_pkey(3)."},
    {"query_gid_table", cqn_context_query_gid_table, METH_NOARGS,
     "query_gid_table($self, /)\n--\n\n"
     "The valid entries of the GID tables of all ports: the GID, its index, port and type, and "
     "the name of its network device.\n\nWraps ibv_query_gid_table(3)."},
    {"query_gid", (PyCFunction)(void (*)(void))cqn_context_query_gid, METH_FASTCALL | METH_KEYWORDS,
     "query_gid($self, /, index, port_num=1)\n--\n\n"
     "One of these entries; None where the port's table has no valid one at `index`.\n\n"
     "Wraps ibv_query_gid_ex(3)."},
    {"from_fd", context_from_fd, METH_CLASS | METH_O,
     "from_fd($type, cmd_fd, /)\n--\n\n"
     "The context of another process, whose `cmd_fd` this is: a descriptor, or an object with "
     "fileno().\n\n"
     "PD.from_handle(), MR.from_handle() and DM.from_handle() find its objects. The descriptor is "
     "duplicated and stays the caller's. VerbsError (EOPNOTSUPP) where the device's provider "
     "imports no contexts.\n\n"
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
                "An open RDMA device: the one called `name`, or the first that can be "
                "opened.\n\n"
                "VerbsError (ENODEV) where there is none. Closing it closes all that was made on "
                "it.\n\nWraps ibv_open_device(3)."},
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
