/* SPDX-License-Identifier: MIT */
/*
 * MW: a memory window, a second key to a part of an MR.
 *
 * Only the type. A work request binds the window to an MR; another one, or the peer, invalidates
 * the key. work/mw_state.c tracks both.
 */

#include "verbs/verbs.h"

static int dealloc_mw(void *handle)
{
    return ibv_dealloc_mw(handle);
}

static void mw_after_destroy(cqn_object *self)
{
    self->uses[0]->context->mws--;
}

static const cqn_kind mw_kind = {
    .name = "MW",
    .destroy_verb = "ibv_dealloc_mw",
    .rank = CQN_RANK_OTHER,
    .destroy = dealloc_mw,
    .after_destroy = mw_after_destroy,
    .clear = cqn_clear,
};

/* Converts one of the two types of the verbs. Returns -1 with an exception. */
static int parse_mw_type(PyObject *value, enum ibv_mw_type *out)
{
    uint32_t type = IBV_MW_TYPE_1;
    if (value != NULL &&
        cqn_member32(value, "mw_type", "an MWType such as MWType.TYPE_1", UINT8_MAX, &type) < 0) {
        return -1;
    }
    if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
        PyErr_Format(PyExc_ValueError, "mw_type is %u: it must be MWType.TYPE_1 or TYPE_2", type);
        return -1;
    }
    *out = type;
    return 0;
}

/* A new window is unbound: its key gives no access. */
CQN_RARE static PyObject *mw_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "mw_type", NULL};
    cqn_state *st = cqn_state_of(type);
    PyObject *pd, *type_value = NULL;
    enum ibv_mw_type mw_type;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:MW", names, &pd, &type_value) ||
        cqn_expect(pd, st->PD, "pd") < 0 || parse_mw_type(type_value, &mw_type) < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mw *self = cqn_new(type, &mw_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_pd *handle = used->handle;
    struct ibv_mw *mw;
    int err;
    CQN_CREATING(CQN_OBJ(self), mw = ibv_alloc_mw(handle, mw_type); err = errno);
    if (mw == NULL) {
        const char *device = cqn_device_name(used);
        cqn_verbs_error(st, err, "ibv_alloc_mw",
                        err == EOPNOTSUPP ? "windows of type %d are not supported by %s (see its "
                                            "device_cap_flags)"
                                          : "of type %d: %s has at most %d",
                        (int)mw_type, device, used->context->attr.max_mw);
        Py_DECREF(self);
        return NULL;
    }
    self->type = mw_type;
    self->rkey = self->bound_rkey = mw->rkey;
    used->context->mws++;
    cqn_adopt(CQN_OBJ(self), mw);
    return (PyObject *)self;
}

static PyObject *mw_repr(PyObject *op)
{
    CQN_LOCKED;
    const cqn_mw *self = (cqn_mw *)op;
    return self->base.handle == NULL ? cqn_short_repr(op)
                                     : PyUnicode_FromFormat("<MW on %s, TYPE_%d, rkey=0x%x>",
                                                            cqn_device_name(&self->base),
                                                            (int)self->type, (unsigned)self->rkey);
}

static PyMethodDef mw_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef mw_getset[] = {
    CQN_POINTER("struct ibv_mw"),
    {"pd", cqn_get_used, NULL, "The PD that it belongs to.", (void *)0},
    {"mw_type", cqn_get_u32, NULL, "MWType.", (void *)offsetof(cqn_mw, type)},
    {"rkey", cqn_get_u32, NULL,
     "Key for a peer's RDMA operations, of the latest bind that was posted.",
     (void *)offsetof(cqn_mw, rkey)},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef mw_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot mw_slots[] = {
    {Py_tp_doc, "MW(pd, mw_type=1)\n--\n\n"
                "The base of cqnotify.MW.\n\n"
                "Wraps ibv_alloc_mw(3)."},
    {Py_tp_new, mw_new},
    {Py_tp_repr, mw_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, mw_methods},
    {Py_tp_getset, mw_getset},
    {Py_tp_members, mw_members},
    {0, NULL},
};

PyType_Spec cqn_mw_spec = {
    .name = "cqnotify.MW",
    .basicsize = sizeof(cqn_mw),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mw_slots,
};
