/* SPDX-License-Identifier: MIT */
/* PD: a protection domain, which memory, windows, addresses and queues belong to. It has nothing
 * but its lifetime. */

#include "verbs/verbs.h"

static int dealloc_pd(void *handle)
{
    return ibv_dealloc_pd(handle);
}

static const cqn_kind pd_kind = {
    .name = "PD",
    .destroy_verb = "ibv_dealloc_pd",
    .rank = CQN_RANK_PD,
    .destroy = dealloc_pd,
    .clear = cqn_clear,
};

static PyObject *pd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", NULL};
    PyObject *context;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O:PD", names, &context) ||
        cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_object *self = cqn_new(type, &pd_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_pd *pd;
    int err;
    CQN_CREATING(self, pd = ibv_alloc_pd(handle); err = errno);
    if (pd == NULL) {
        cqn_verbs_error(st, err, "ibv_alloc_pd", "");
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, pd);
    return (PyObject *)self;
}

/* The handle is the kernel's number of it within this context. */
static PyObject *pd_repr(PyObject *op)
{
    CQN_LOCKED;
    const struct ibv_pd *pd = CQN_OBJ(op)->handle;
    return pd == NULL ? cqn_short_repr(op)
                      : PyUnicode_FromFormat("<PD on %s, handle %u>", cqn_device_name(CQN_OBJ(op)),
                                             pd->handle);
}

static PyMethodDef pd_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef pd_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef pd_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot pd_slots[] = {
    {Py_tp_doc, "PD(context)\n--\n\n"
                "A protection domain: memory regions and queue pairs work together only within "
                "one.\n\nWraps ibv_alloc_pd(3)."},
    {Py_tp_new, pd_new},
    {Py_tp_repr, pd_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, pd_methods},
    {Py_tp_getset, pd_getset},
    {Py_tp_members, pd_members},
    {0, NULL},
};

PyType_Spec cqn_pd_spec = {
    .name = "cqnotify.PD",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pd_slots,
};
