/* SPDX-License-Identifier: MIT */
/*
 * Flow: a rule that selects packets for a queue pair.
 *
 * cqnotify/hw/_flow.py packs the specs. This file checks each spec, because a provider would read
 * beyond the end of a short one, refuses specs with pointers, and adds the spec of the
 * FlowCounters.
 */

#include "verbs/verbs.h"

static int destroy_flow(void *handle)
{
    return ibv_destroy_flow(handle);
}

/* A flow is closed with its queue pair. */
static const cqn_kind flow_kind = {
    .name = "Flow",
    .destroy_verb = "ibv_destroy_flow",
    .rank = CQN_RANK_FLOW,
    .closes_with_parent = true,
    .destroy = destroy_flow,
    .clear = cqn_clear,
};

typedef struct {
    PyObject *qp, *counters; /* `counters` may be NULL */
    struct ibv_flow_attr attr;
    struct ibv_flow_attr *joined; /* the attributes, followed by the specs */
} flow_args;

enum { MAX_SPECS = UINT8_MAX - 1 }; /* without the spec of the counters */

/* Returns the size of a spec of this type; 0 if there is no such spec. */
static uint16_t size_of_spec(uint32_t type)
{
    switch (type & ~(uint32_t)IBV_FLOW_SPEC_INNER) {
    case IBV_FLOW_SPEC_ETH:
        return sizeof(struct ibv_flow_spec_eth);
    case IBV_FLOW_SPEC_IPV4_EXT:
        return sizeof(struct ibv_flow_spec_ipv4_ext);
    case IBV_FLOW_SPEC_IPV6:
        return sizeof(struct ibv_flow_spec_ipv6);
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
        return sizeof(struct ibv_flow_spec_tcp_udp);
    case IBV_FLOW_SPEC_ACTION_TAG:
        return sizeof(struct ibv_flow_spec_action_tag);
    case IBV_FLOW_SPEC_ACTION_DROP:
        return sizeof(struct ibv_flow_spec_action_drop);
    default:
        return 0;
    }
}

/* Returns the number of specs; -1 with ValueError unless all are complete and known. */
static int check_specs(flow_args *a, Py_ssize_t length)
{
    const char *at = (const char *)(a->joined + 1);
    Py_ssize_t left = length;
    int n = 0;
    while (left > 0) {
        struct {
            uint32_t type;
            uint16_t size;
        } head = {0, 0};
        memcpy(&head, at, left < 6 ? (size_t)left : 6);
        const uint16_t size = size_of_spec(head.type);
        if (size == 0 || size != head.size || size > left || n == MAX_SPECS) {
            PyErr_Format(PyExc_ValueError, "specs[%d] is no spec that a Flow takes", n);
            return -1;
        }
        at += size;
        left -= size;
        n++;
    }
    a->attr.num_of_specs = (uint8_t)n;
    a->attr.size = (uint16_t)(sizeof(a->attr) + (size_t)length);
    return 0;
}

/* Copies the specs before checking them: another thread may write to the buffer. Returns -1 with an
 * exception. */
static int parse_specs(PyObject *specs, flow_args *a)
{
    Py_buffer view = {.buf = NULL};
    if (specs != NULL && PyObject_GetBuffer(specs, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    const Py_ssize_t length = view.len;
    const Py_ssize_t most = MAX_SPECS * (Py_ssize_t)sizeof(struct ibv_flow_spec_ipv6);
    const size_t count = sizeof(struct ibv_flow_spec_counter_action);
    if (length <= most &&
        (a->joined = PyMem_Malloc(sizeof(a->attr) + (size_t)length + count)) != NULL &&
        length > 0) {
        memcpy(a->joined + 1, view.buf, (size_t)length);
    }
    PyBuffer_Release(&view);
    if (length > most) {
        PyErr_Format(PyExc_ValueError, "specs: %zd bytes; %d specs have at most %zd", length,
                     MAX_SPECS, most);
        return -1;
    }
    if (a->joined == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return check_specs(a, length);
}

static int parse_numbers(PyObject *const *in, flow_args *a)
{
    const uint32_t all_flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS;
    uint32_t type = IBV_FLOW_ATTR_NORMAL, priority = 0, flags = 0;
    uint64_t port = 1;
    const int ports =
        CQN_OBJ(a->qp)->context->attr.phys_port_cnt; /* before a conversion can close the QP */
    if ((in[0] != NULL &&
         cqn_member32(in[0], "flow_type", "a FlowAttrType such as FlowAttrType.NORMAL",
                      IBV_FLOW_ATTR_SNIFFER, &type) < 0) ||
        (in[1] != NULL && cqn_u32(in[1], "priority", UINT16_MAX, &priority) < 0) ||
        (in[2] != NULL && cqn_member32(in[2], "flags", "FlowAttrFlags such as FlowAttrFlags.EGRESS",
                                       all_flags, &flags) < 0) ||
        (in[3] != NULL && cqn_range(in[3], "port_num", 1, (uint64_t)ports, &port) < 0)) {
        return -1;
    }
    if (flags & 1) {
        PyErr_Format(PyExc_ValueError, "flags is 0x%x: 0x1 is no flag", flags);
        return -1;
    }
    a->attr.type = type;
    a->attr.priority = (uint16_t)priority;
    a->attr.flags = flags;
    a->attr.port = (uint8_t)port;
    return 0;
}

static int parse_new_flow(cqn_state *st, PyObject *args, PyObject *kwargs, flow_args *a)
{
    static const char *const names[] = {"qp",    "specs",    "flow_type", "priority",
                                        "flags", "port_num", "counters",  NULL};
    PyObject *in[7] = {NULL};
    if (cqn_sort_new("Flow", names, 2, 1, args, kwargs, in) < 0) {
        return -1;
    }
    a->qp = in[0];
    a->counters = in[6] == Py_None ? NULL : in[6];
    if (cqn_expect(a->qp, st->QP, "qp") < 0 || cqn_open(CQN_OBJ(a->qp)) == NULL) {
        return -1;
    }
    const enum ibv_qp_type type = ((cqn_qp *)a->qp)->type;
    if (type != IBV_QPT_RAW_PACKET && type != IBV_QPT_UD) {
        PyErr_Format(PyExc_ValueError,
                     "qp is of type %s: a Flow leads to one of type RAW_PACKET or UD",
                     cqn_qp_type_name(type));
        return -1;
    }
    return parse_numbers(in + 2, a) < 0 || parse_specs(in[1], a) < 0 ||
                   cqn_open(CQN_OBJ(a->qp)) == NULL ||
                   (a->counters != NULL &&
                    cqn_expect_beside(a->counters, st->FlowCounters, "counters", a->qp, "qp") < 0)
               ? -1
               : 0;
}

/* parse_specs() has allocated space for this spec after the others. */
static void add_count(flow_args *a)
{
    struct ibv_flow_spec_counter_action count = {.type = IBV_FLOW_SPEC_ACTION_COUNT,
                                                 .size = sizeof(count),
                                                 .counters = CQN_OBJ(a->counters)->handle};
    memcpy((char *)a->joined + a->attr.size, &count, sizeof(count));
    a->attr.size = (uint16_t)(a->attr.size + sizeof(count));
    a->attr.num_of_specs++;
}

static PyObject *create_flow(PyTypeObject *type, flow_args *a)
{
    cqn_object *used[2] = {CQN_OBJ(a->qp), CQN_OBJ(a->counters)};
    struct ibv_flow_attr *attr = a->joined;
    cqn_object *self = cqn_new(type, &flow_kind, used, a->counters != NULL ? 2 : 1);
    if (self == NULL) {
        return NULL;
    }
    if (a->counters != NULL) {
        add_count(a);
    }
    *attr = a->attr;
    struct ibv_qp *handle = used[0]->handle;
    struct ibv_flow *flow;
    int err;
    CQN_CREATING(self, flow = ibv_create_flow(handle, attr); err = errno);
    if (flow == NULL) {
        cqn_verbs_error(self->state, err, "ibv_create_flow",
                        err == EPERM ? "a rule of %d specs needs the capability CAP_NET_RAW"
                                     : "flow steering, of a rule of %d specs",
                        a->attr.num_of_specs);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, flow);
    return (PyObject *)self;
}

CQN_RARE static PyObject *flow_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    flow_args a = {.qp = NULL};
    PyObject *self = NULL;
    if (cqn_freeze_keywords(&kwargs, &copy) == 0 &&
        parse_new_flow(cqn_state_of(type), args, kwargs, &a) == 0) {
        self = create_flow(type, &a);
    }
    PyMem_Free(a.joined);
    return self;
}

static PyObject *flow_get_counters(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *counters = (PyObject *)CQN_OBJ(op)->uses[1];
    return cqn_open(CQN_OBJ(op)) == NULL ? NULL : Py_NewRef(counters == NULL ? Py_None : counters);
}

static PyMethodDef flow_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef flow_getset[] = {
    {"qp", cqn_get_used, NULL, "The QP that gets the packets.", (void *)0},
    {"counters", flow_get_counters, NULL, "The FlowCounters that count them, or None.", NULL},
    CQN_POINTER("struct ibv_flow"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef flow_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot flow_slots[] = {
    {Py_tp_doc,
     "Flow(qp, specs=b'', *, flow_type=0, priority=0, flags=0, port_num=1, counters=None)\n--\n\n"
     "The base of cqnotify.hw.Flow.\n\n"
     "Wraps ibv_create_flow(3)."},
    {Py_tp_new, flow_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, flow_methods},
    {Py_tp_getset, flow_getset},
    {Py_tp_members, flow_members},
    {0, NULL},
};

PyType_Spec cqn_flow_spec = {
    .name = "cqnotify.hw.Flow",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = flow_slots,
};
