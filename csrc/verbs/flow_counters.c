/* SPDX-License-Identifier: MIT */
/*
 * FlowCounters: counters of the device for the packets of flows.
 *
 * A flow that uses an object of this type (see flow.c) is closed with it.
 */

#include "verbs/verbs.h"

typedef struct {
    cqn_object base;
    uint32_t n; /* the highest index in use, plus one */
} flow_counters;

static int destroy_counters(void *handle)
{
    return ibv_destroy_counters(handle);
}

static const cqn_kind counters_kind = {
    .name = "FlowCounters",
    .destroy_verb = "ibv_destroy_counters",
    .rank = CQN_RANK_OTHER,
    .destroy = destroy_counters,
    .clear = cqn_clear,
};

static void *create_counters(struct ibv_context *context)
{
    struct ibv_counters_init_attr attr = {.comp_mask = 0};
    return ibv_create_counters(context, &attr);
}

CQN_RARE static PyObject *counters_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static const cqn_alloc alloc = {create_counters, "ibv_create_counters", "counters of flows"};
    return cqn_new_of_context(type, args, kwargs, &counters_kind, &alloc);
}

CQN_RARE static PyObject *counters_attach(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                          PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"counter_desc", "index", NULL};
    flow_counters *self = (flow_counters *)op;
    PyObject *in[2] = {NULL};
    uint32_t desc;
    struct ibv_counter_attach_attr attr = {.comp_mask = 0};
    if (cqn_open(&self->base) == NULL ||
        cqn_args("attach", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        cqn_member32(in[0], "counter_desc",
                     "a CounterDescription such as CounterDescription.PACKETS", IBV_COUNTER_BYTES,
                     &desc) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "index", UINT16_MAX, &attr.index) < 0)) {
        return NULL;
    }
    struct ibv_counters *handle = cqn_open(&self->base);
    if (handle == NULL) {
        return NULL;
    }
    attr.counter_desc = (enum ibv_counter_description)desc;
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_attach_counters_point_flow(handle, &attr, NULL));
    if (err != 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_attach_counters_point_flow",
                               "counter_desc %u at index %u: before a Flow counts by them", desc,
                               attr.index);
    }
    self->n = attr.index >= self->n ? attr.index + 1 : self->n;
    Py_RETURN_NONE;
}

static PyObject *to_list(const uint64_t *values, uint32_t n)
{
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (value == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, value);
    }
    return list;
}

static PyObject *read_values(flow_counters *self, uint32_t flags)
{
    struct ibv_counters *handle = self->base.handle;
    const uint32_t n = self->n;
    uint64_t *values = PyMem_Calloc(n, sizeof(*values));
    if (values == NULL) {
        return PyErr_NoMemory();
    }
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_read_counters(handle, values, n, flags));
    PyObject *list =
        err != 0 ? cqn_verbs_error(self->base.state, err, "ibv_read_counters",
                                   "%u of them, flags 0x%x: does a Flow count by them?", n, flags)
                 : to_list(values, n);
    PyMem_Free(values);
    return list;
}

CQN_RARE static PyObject *counters_read(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                        PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"flags", NULL};
    flow_counters *self = (flow_counters *)op;
    PyObject *in[1] = {NULL};
    uint32_t flags = 0;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("read", names, 0, 0, args, nargs, kwnames, in) < 0 ||
        (in[0] != NULL &&
         cqn_member32(in[0], "flags", "ReadCountersFlags such as ReadCountersFlags.PREFER_CACHED",
                      IBV_READ_COUNTERS_ATTR_PREFER_CACHED, &flags) < 0) ||
        cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->n == 0) {
        PyErr_SetString(PyExc_ValueError, "nothing is counted: attach() says what is");
        return NULL;
    }
    return read_values(self, flags);
}

static PyMethodDef counters_methods[] = {
    {"attach", (PyCFunction)(void (*)(void))counters_attach, METH_FASTCALL | METH_KEYWORDS,
     "attach($self, /, counter_desc, index=0)\n--\n\n"
     "Have packets or bytes counted.\n\n"
     "counter_desc: a CounterDescription: PACKETS or BYTES.\n"
     "index: its place in what read() returns, 0 to 65535.\n\n"
     "Raises VerbsError once a Flow counts by them.\n\n"
     "Wraps ibv_attach_counters_point_flow(3)."},
    {"read", (PyCFunction)(void (*)(void))counters_read, METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, *, flags=0)\n--\n\n"
     "Return what was counted, a list by the index of attach().\n\n"
     "flags: ReadCountersFlags.\n\n"
     "Raises VerbsError before a Flow counts by them.\n\n"
     "Wraps ibv_read_counters(3)."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef counters_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_POINTER("struct ibv_counters"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef counters_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot counters_slots[] = {
    {Py_tp_doc, "FlowCounters(context)\n--\n\n"
                "Counters for the packets of the Flows that name them, see FlowSpecActionCount.\n\n"
                "context: the Context of the device.\n\n"
                "attach() says what is counted, before the first Flow. Closing it closes its\n"
                "Flows. Raises VerbsError (EOPNOTSUPP) where the device has none.\n\n"
                "Wraps ibv_create_counters(3)."},
    {Py_tp_new, counters_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, counters_methods},
    {Py_tp_getset, counters_getset},
    {Py_tp_members, counters_members},
    {0, NULL},
};

PyType_Spec cqn_flow_counters_spec = {
    .name = "cqnotify.hw.FlowCounters",
    .basicsize = sizeof(flow_counters),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = counters_slots,
};
