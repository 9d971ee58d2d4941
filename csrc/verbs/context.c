/* SPDX-License-Identifier: MIT */
/*
 * Context: an open device, and the root of everything made on it.
 *
 * The layers below know a context by its head (cqn_context, base/object.h), which lists what is
 * open on it. This file adds what they keep in it, the device's reports among that, and what is
 * asked of a device: its attributes, ports, P_Keys and GIDs. Closing a context closes all that was
 * made on it, which no other type does; base/object.c has the order.
 */

#include "verbs/verbs.h"
#include <endian.h>
#include <unistd.h>

/* With what the layers below, which know a context by its head, need for each. */
typedef struct {
    cqn_context base;
    cqn_reports reports;
    cqn_netdev netdev;
} device_context;

static int close_device(void *handle)
{
    return ibv_close_device(handle) == 0 ? 0 : errno;
}

static void context_after_destroy(cqn_object *op)
{
    device_context *self = (device_context *)op;
    cqn_gate_shut(&self->reports.gate, cqn_forked(op));
    cqn_async_clear(&self->base);
    cqn_netdev_close(&self->netdev);
}

static int context_clear(PyObject *op)
{
    device_context *self = (device_context *)op;
    if (CQN_OBJ(self)->handle == NULL) {
        cqn_gate_clear(&self->reports.gate);
        cqn_async_clear(&self->base);
        cqn_netdev_close(&self->netdev);
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

/* The names of all devices, for the message. */
static PyObject *names_of(struct ibv_device **list)
{
    PyObject *names = PyUnicode_FromString("");
    for (int i = 0; names != NULL && list[i] != NULL; i++) {
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%s", names, i ? ", " : "",
                                              ibv_get_device_name(list[i])));
    }
    return names;
}

/* Names what there is, when there is no device of that name. */
static void *refuse_name(cqn_state *st, struct ibv_device **list, int err, const char *name)
{
    if (list == NULL && err != ENOSYS) { /* which is a kernel that knows no RDMA */
        return cqn_verbs_error(st, err, "ibv_get_device_list", "");
    }
    if (list == NULL || list[0] == NULL) {
        return cqn_verbs_error(st, ENODEV, "ibv_open_device", "%s", cqn_no_device);
    }
    PyObject *names = names_of(list);
    if (names != NULL) {
        cqn_verbs_error(st, ENODEV, "ibv_open_device",
                        "no RDMA device is called '%s'; this machine has %U", name, names);
        Py_DECREF(names);
    }
    return NULL;
}

/* Why it could not be opened. The library tries several ways, and tells the
 * errno of the last, so the device's file is asked once more. */
static void *refuse_open(cqn_state *st, const struct ibv_device *device, int err)
{
    char path[sizeof("/dev/infiniband/") + IBV_SYSFS_NAME_MAX];
    snprintf(path, sizeof(path), "/dev/infiniband/%s", device->dev_name);
    const char *hint = "see what ibv_devinfo(1) says of it";
    if (access(path, R_OK | W_OK) != 0) {
        err = errno;
        hint = err == ENOENT ? "the file is missing: load the module ib_uverbs"
                             : "you need permission to read and write that file";
    }
    return cqn_verbs_error(st, err, "ibv_open_device", "%s (%s): %s", device->name, path, hint);
}

/* What opening a device has brought. */
typedef struct {
    struct ibv_device **list;  /* or NULL */
    struct ibv_device *device; /* of the list; NULL: none has that name */
    struct ibv_context *handle;
    int err;       /* of the list, or of opening */
    int query_err; /* of asking for the attributes, without which it is of no use */
} opened;

/* The device of that name, or the first, and its attributes. Without the GIL. */
static opened find_and_open(const char *name, struct ibv_device_attr *attr)
{
    int n = 0;
    opened o = {.list = ibv_get_device_list(&n)};
    o.err = errno;
    for (int i = 0; i < n && o.device == NULL; i++) {
        if (name == NULL || strcmp(name, ibv_get_device_name(o.list[i])) == 0) {
            o.device = o.list[i];
        }
    }
    if (o.device != NULL) {
        errno = 0;
        o.handle = ibv_open_device(o.device);
        o.err = errno ? errno : ENODEV;
    }
    if (o.handle != NULL) {
        o.query_err = ibv_query_device(o.handle, attr);
    }
    return o;
}

/* Gives the object its handle; -1 with an exception, and then it may have one. */
static int open_device(cqn_context *self, const char *name)
{
    cqn_state *st = self->base.state;
    opened o;
    Py_BEGIN_ALLOW_THREADS
        o = find_and_open(name, &self->attr);
    Py_END_ALLOW_THREADS
    if (o.handle != NULL) {
        cqn_adopt(CQN_OBJ(self), o.handle);
        if (o.query_err != 0) {
            cqn_verbs_error(st, o.query_err, "ibv_query_device", "%s",
                            ibv_get_device_name(o.device));
        }
    }
    else if (o.device == NULL) {
        refuse_name(st, o.list, o.err, name);
    }
    else {
        refuse_open(st, o.device, o.err);
    }
    if (o.list != NULL) {
        ibv_free_device_list(o.list);
    }
    return o.handle == NULL || o.query_err != 0 ? -1 : 0;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"name", NULL};
    const char *name = NULL;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|z:Context", names, &name)) {
        return NULL;
    }
    if (cqn_prepare_for_fork(cqn_state_of(type)) < 0) {
        return NULL;
    }
    cqn_state_new_epoch(cqn_state_of(type));
    cqn_context *self = cqn_new(type, &context_kind, NULL, 0);
    if (self == NULL) {
        return NULL;
    }
    self->base.context = self;
    self->reports = &((device_context *)self)->reports;
    if (open_device(self, name) < 0 || cqn_async_open(self) < 0) {
        cqn_close(CQN_OBJ(self), false);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

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

/* Providers put the cycles of the clock into the nanoseconds, however many. They read a register,
 * within less time than it takes to release the GIL. */
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

/* A port number of this device; NULL is the first. */
static int port_of(const cqn_context *self, PyObject *value, uint8_t *out)
{
    uint64_t n = 1;
    if (value != NULL && cqn_range(value, "port_num", 1, self->attr.phys_port_cnt, &n) < 0) {
        return -1;
    }
    *out = (uint8_t)n;
    return 0;
}

/* A tuple, not a dict: programs that wait for a port ask often. */
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
    struct ibv_port_attr attr = {.flags = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_port(handle, port, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_port", "port %d", port)
               : cqn_struct_to_tuple(&attr, cqn_port_fields);
}

/* How many P_Keys a port has, and so the limit of their index. */
static int pkey_entries(cqn_context *self, uint8_t port, uint64_t *out)
{
    struct ibv_context *handle = cqn_open(&self->base);
    if (handle == NULL) {
        return -1;
    }
    struct ibv_port_attr attr = {.flags = 0};
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_query_port(handle, port, &attr));
    if (err != 0) {
        cqn_verbs_error(self->base.state, err, "ibv_query_port", "port %d", port);
        return -1;
    }
    *out = attr.pkey_tbl_len;
    return 0;
}

/* The length of the table is asked first: it is the limit that an error names. */
static PyObject *context_query_pkey(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
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
        port_of(self, in[1], &port) < 0 || pkey_entries(self, port, &entries) < 0) {
        return NULL;
    }
    if (entries == 0) { /* of iWARP, which has no partitions */
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

/* How many entries the GID tables of all ports can have; negative: an error
 * is set. */
static Py_ssize_t gid_entries(cqn_context *self, struct ibv_context *handle)
{
    Py_ssize_t total = 0;
    for (int port = 1; port <= self->attr.phys_port_cnt; port++) {
        struct ibv_port_attr attr = {.flags = 0};
        int err;
        CQN_IN_KERNEL(&self->base, err = ibv_query_port(handle, (uint8_t)port, &attr));
        if (err != 0) {
            cqn_verbs_error(self->base.state, err, "ibv_query_port", "port %d", port);
            return -1;
        }
        if (cqn_open(&self->base) == NULL) {
            return -1;
        }
        total += attr.gid_tbl_len;
    }
    return total;
}

static PyObject *gid_entry(cqn_context *self, const struct ibv_gid_entry *e)
{
    PyObject *netdev = cqn_netdev_name(&((device_context *)self)->netdev,
                                       cqn_is_open(&self->base) ? e->ndev_ifindex : 0);
    return netdev == NULL ? NULL
                          : Py_BuildValue("(y#IIIN)", e->gid.raw, (Py_ssize_t)sizeof(e->gid.raw),
                                          e->gid_index, e->port_num, e->gid_type, netdev);
}

static PyObject *gid_list(cqn_context *self, const struct ibv_gid_entry *entries, ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (ssize_t i = 0; list != NULL && i < n; i++) {
        PyObject *entry = gid_entry(self, &entries[i]);
        if (entry == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, entry);
        }
    }
    return list;
}

static PyObject *context_query_gid_table(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_context *self = (cqn_context *)op;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    Py_ssize_t room = handle == NULL ? -1 : gid_entries(self, handle);
    if (room < 0) {
        return NULL;
    }
    struct ibv_gid_entry *entries = PyMem_New(struct ibv_gid_entry, (size_t)room);
    if (entries == NULL) {
        return PyErr_NoMemory();
    }
    ssize_t n;
    CQN_IN_KERNEL(&self->base, n = ibv_query_gid_table(handle, entries, (size_t)room, 0));
    PyObject *list = n < 0 ? cqn_verbs_error(self->base.state, (int)-n, "ibv_query_gid_table", "")
                           : gid_list(self, entries, n);
    PyMem_Free(entries);
    return list;
}

/* An index of 32 bits; false: it is none, or an exception is set. */
static bool gid_index(PyObject *value, uint32_t *out)
{
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "index must be an integer, not %s", Py_TYPE(value)->tp_name);
        return false;
    }
    Py_ssize_t n = PyNumber_AsSsize_t(value, NULL); /* clamped: far out is out, too */
    *out = (uint32_t)n;
    return n >= 0 && n <= UINT32_MAX;
}

/* With the GIL: the kernel has the table itself and asks no device, which takes less time than to
 * wait for the GIL beside a thread that computes. */
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
        return gid_entry(self, &entry);
    }
    /* The first is for an entry that is empty, the second for one beyond the table. */
    return err == ENODATA || err == EINVAL
               ? Py_NewRef(Py_None)
               : cqn_verbs_error(self->base.state, err, "ibv_query_gid_ex", "port %d, index %u",
                                 port, index);
}

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

static PyObject *context_get_num_comp_vectors(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromLong(handle->num_comp_vectors);
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
     "The attributes of a port, in the order of struct ibv_port_attr; ports count from 1.\n\n"
     "Wraps ibv_query_port(3)."},
    {"query_pkey", (PyCFunction)(void (*)(void))context_query_pkey, METH_FASTCALL | METH_KEYWORDS,
     "query_pkey($self, /, index, port_num=1)\n--\n\n"
     "The P_Key at `index` of a port's table, as a number in our byte order.\n\n"
     "ValueError beyond the table's pkey_tbl_len entries.\n\nWraps ibv_query_pkey(3)."},
    {"query_gid_table", context_query_gid_table, METH_NOARGS,
     "query_gid_table($self, /)\n--\n\n"
     "The valid entries of the GID tables of all ports: the GID, its index, port and type, and "
     "the name of its network device.\n\nWraps ibv_query_gid_table(3)."},
    {"query_gid", (PyCFunction)(void (*)(void))context_query_gid, METH_FASTCALL | METH_KEYWORDS,
     "query_gid($self, /, index, port_num=1)\n--\n\n"
     "One of these entries; None where the port's table has no valid one at `index`.\n\n"
     "Wraps ibv_query_gid_ex(3)."},
    {"get_async_event", (PyCFunction)(void (*)(void))cqn_get_async_event,
     METH_FASTCALL | METH_KEYWORDS, cqn_get_async_event_doc},
    {"try_get_async_event", cqn_try_get_async_event, METH_NOARGS, cqn_try_get_async_event_doc},
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
    {"num_comp_vectors", context_get_num_comp_vectors, NULL,
     "How many completion vectors a CQ can choose from.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef context_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot context_slots[] = {
    {Py_tp_doc, "Context(name=None)\n--\n\n"
                "An open RDMA device: the one called `name`, or the first.\n\n"
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
    .basicsize = sizeof(device_context),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};
