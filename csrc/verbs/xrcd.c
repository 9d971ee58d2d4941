/* SPDX-License-Identifier: MIT */
/*
 * XRCD: a domain of extended reliable connections, in which a queue pair of one process can deliver
 * messages to the SRQs of another.
 */

#include "verbs/verbs.h"
#include <fcntl.h>

static int close_xrcd(void *handle)
{
    return ibv_close_xrcd(handle);
}

static const cqn_kind xrcd_kind = {
    .name = "XRCD",
    .destroy_verb = "ibv_close_xrcd",
    .rank = CQN_RANK_PD,
    .destroy = close_xrcd,
    .clear = cqn_clear,
};

/* Converts the file that identifies the domain; without a file the descriptor is -1. Returns -1
 * with an exception. */
static int parse_file(PyObject *file, PyObject *flags, struct ibv_xrcd_init_attr *attr)
{
    uint32_t oflags = O_CREAT;
    attr->fd = -1;
    if (file != Py_None && (attr->fd = PyObject_AsFileDescriptor(file)) < 0) {
        return -1;
    }
    if (flags != NULL && cqn_u32(flags, "oflags", INT32_MAX, &oflags) < 0) {
        return -1;
    }
    if (oflags & ~(uint32_t)(O_CREAT | O_EXCL)) {
        PyErr_Format(PyExc_ValueError, "oflags is 0x%x: it can have os.O_CREAT and os.O_EXCL",
                     oflags);
        return -1;
    }
    if (attr->fd < 0 && !(oflags & O_CREAT)) {
        PyErr_SetString(PyExc_ValueError, "oflags lack os.O_CREAT: without fd the domain is new");
        return -1;
    }
    attr->oflags = (int)oflags;
    return 0;
}

CQN_RARE static PyObject *xrcd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "fd", "oflags", NULL};
    cqn_state *st = cqn_state_of(type);
    PyObject *context, *file = Py_None, *flags = NULL;
    struct ibv_xrcd_init_attr attr = {.comp_mask =
                                          IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS};
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO:XRCD", names, &context, &file, &flags) ||
        cqn_expect(context, st->Context, "context") < 0 || parse_file(file, flags, &attr) < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_object *self = cqn_new(type, &xrcd_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_xrcd *xrcd;
    int err;
    CQN_CREATING(self, xrcd = ibv_open_xrcd(handle, &attr); err = errno);
    if (xrcd == NULL) {
        cqn_verbs_error(st, err, "ibv_open_xrcd", "fd %d, oflags 0x%x%s", attr.fd,
                        (unsigned)attr.oflags,
                        used->context->attr.device_cap_flags & IBV_DEVICE_XRC
                            ? ""
                            : ", and XRC is not among the device_cap_flags");
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, xrcd);
    return (PyObject *)self;
}

static PyMethodDef xrcd_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef xrcd_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_POINTER("struct ibv_xrcd"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef xrcd_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot xrcd_slots[] = {
    {Py_tp_doc,
     "XRCD(context, *, fd=None, oflags=64)\n--\n\n"
     "A domain of extended reliable connections (XRC): its XRC_RECV queue pairs deliver each\n"
     "message to the SRQ of the domain that the message names.\n\n"
     "context: the Context.\n"
     "fd: a file, by its descriptor or an object that has one: processes that give the same\n"
     "    file share the domain. None: it is private.\n"
     "oflags: os.O_CREAT (64), to make the domain if the file has none, and os.O_EXCL, to fail\n"
     "    if it has one.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device has no XRC.\n\n"
     "Wraps ibv_open_xrcd(3)."},
    {Py_tp_new, xrcd_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, xrcd_methods},
    {Py_tp_getset, xrcd_getset},
    {Py_tp_members, xrcd_members},
    {0, NULL},
};

PyType_Spec cqn_xrcd_spec = {
    .name = "cqnotify.hw.XRCD",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = xrcd_slots,
};
