/* SPDX-License-Identifier: MIT */
/* AH: an address handle, where a UD send goes. */

#include "core.h"

static int destroy_ah(void *handle)
{
    return ibv_destroy_ah(handle);
}

static const cqn_kind ah_kind = {
    .name = "AH",
    .destroy_verb = "ibv_destroy_ah",
    .rank = CQN_RANK_OTHER,
    .destroy = destroy_ah,
    .clear = cqn_clear,
};

static PyObject *ah_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    cqn_state *st = cqn_state_of(type);
    PyObject *pd;
    if (!PyArg_ParseTuple(args, "O;AH() takes a PD, and the fields of ibv_ah_attr by name", &pd) ||
        cqn_expect(pd, st->PD, "pd") < 0) {
        return NULL;
    }
    struct ibv_ah_attr attr;
    int ports = CQN_OBJ(pd)->context->attr.phys_port_cnt;
    PyObject *fields = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
    int rc = fields == NULL ? -1 : cqn_ah_attr_from(fields, "AH()", ports, &attr);
    Py_XDECREF(fields);
    cqn_object *used = CQN_OBJ(pd);
    cqn_object *self = rc < 0 ? NULL : cqn_new(type, &ah_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    /* It can wait for the neighbour's address to be resolved. */
    struct ibv_pd *pd_handle = used->handle;
    struct ibv_ah *ah;
    int err;
    cqn_enter(used);
    Py_BEGIN_ALLOW_THREADS
        ah = ibv_create_ah(pd_handle, &attr);
        err = errno;
    Py_END_ALLOW_THREADS
    cqn_leave(used);
    if (ah == NULL) {
        cqn_verbs_error(st, err, "ibv_create_ah",
                        "port %d, sgid_index %d: RoCE needs dgid, both GIDs must be of one subnet, "
                        "and the index valid",
                        attr.port_num, attr.grh.sgid_index);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, ah);
    return (PyObject *)self;
}

static PyMethodDef ah_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef ah_getset[] = {
    {"pd", cqn_get_used, NULL, "The PD that it belongs to.", (void *)0},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef ah_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot ah_slots[] = {
    {Py_tp_doc,
     "AH(pd, *, dgid=None, sgid_index=0, port_num=1, dlid=0, sl=0, hop_limit=64, "
     "traffic_class=0, flow_label=0, src_path_bits=0, static_rate=0)\n--\n\n"
     "An address handle: where a send on a UD queue pair goes.\n\n"
     "The arguments are the fields of struct ibv_ah_attr. RoCE needs `dgid`, the GID of the "
     "peer, and `sgid_index`, the index of an own GID that can reach it.\n\n"
     "Wraps ibv_create_ah(3)."},
    {Py_tp_new, ah_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, ah_methods},
    {Py_tp_getset, ah_getset},
    {Py_tp_members, ah_members},
    {0, NULL},
};

PyType_Spec cqn_ah_spec = {
    .name = "cqnotify.AH",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ah_slots,
};
