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
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%s", names, i ? ", " : "",
                                              ibv_get_device_name(list[i])));
    }
    return names;
}

/* Names what there is, when there is no device of that name. */
CQN_RARE static void *refuse_name(cqn_state *st, struct ibv_device **list, int err,
                                  const char *name)
{
    if (list == NULL && err != ENOSYS) { /* which is a kernel that knows no RDMA */
        return cqn_verbs_error(st, err, "ibv_get_device_list", "");
    }
    if (list == NULL || list[0] == NULL) {
        PyObject *why = cqn_why_no_device(NULL, NULL);
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

/* Why it could not be opened. The library tries several ways, and tells the
 * errno of the last, so the device's file is asked once more. */
CQN_RARE static void *refuse_open(cqn_state *st, const struct ibv_device *device, int err)
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
    if (cqn_load_verbs(cqn_state_of(type)) < 0 || cqn_prepare_for_fork(cqn_state_of(type)) < 0) {
        return NULL;
    }
    cqn_state_new_epoch(cqn_state_of(type));
    cqn_context *self = cqn_new(type, &context_kind, NULL, 0);
    if (self == NULL) {
        return NULL;
    }
    self->base.context = self;
    self->reports = &((cqn_device_context *)self)->reports;
    if (open_device(self, name) < 0 || cqn_async_open(self) < 0) {
        cqn_close(CQN_OBJ(self), false);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
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
    .basicsize = sizeof(cqn_device_context),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = context_slots,
};
