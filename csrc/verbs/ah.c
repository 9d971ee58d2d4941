/* SPDX-License-Identifier: MIT */
/*
 * AH: an address handle, the destination of a UD send.
 *
 * Created from attributes, or from the completion of a datagram, to answer it. A send in flight
 * pins its AH: the WR queue (work/wr_queue.c) holds it until the send completes.
 */

#include "verbs/verbs.h"
#include <arpa/inet.h>

typedef struct {
    cqn_object base;
    struct ibv_ah_attr attr;
} ah;

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

/* If `wc` is not NULL, takes the path from that completion. Returns -1 with an exception. */
static int create_ah(ah *self, cqn_object *pd, struct ibv_ah_attr *attr, struct ibv_wc *wc,
                     struct ibv_grh *grh)
{
    struct ibv_pd *handle = pd->handle;
    struct ibv_ah *created;
    bool known;
    int err;
    if (handle->context->device->transport_type == IBV_TRANSPORT_IWARP) {
        cqn_verbs_error(self->base.state, EOPNOTSUPP, "ibv_create_ah",
                        "an iWARP device sends no datagrams");
        return -1;
    }
    /* The verb can block while the neighbour's address is resolved. It sets no errno if it finds no
     * GID. */
    CQN_CREATING(&self->base, errno = 0;
                 known = wc == NULL ||
                         ibv_init_ah_from_wc(handle->context, attr->port_num, wc, grh, attr) == 0;
                 created = known ? ibv_create_ah(handle, attr) : NULL;
                 err = errno ? errno : EINVAL);
    if (created != NULL) {
        self->attr = *attr;
        cqn_adopt(&self->base, created);
        return 0;
    }
    if (!known) {
        cqn_verbs_error(self->base.state, err, "ibv_init_ah_from_wc",
                        "port %d has no GID that the datagram was sent to: was `grh` the 40 bytes "
                        "before this message, and port_num its port?",
                        attr->port_num);
    }
    else if (err == ENODATA) {
        PyObject *there = cqn_context_gid_indices(self->base.context, attr->port_num);
        cqn_verbs_error(self->base.state, err, "ibv_create_ah",
                        "port %d has no GID at index %d (sgid_index); it has GIDs at %V",
                        attr->port_num, attr->grh.sgid_index, there, "?");
        Py_XDECREF(there);
    }
    else {
        cqn_verbs_error(self->base.state, err, "ibv_create_ah",
                        "port %d, sgid_index %d: RoCE needs dgid, both GIDs must be of one subnet, "
                        "and the index valid",
                        attr->port_num, attr->grh.sgid_index);
    }
    return -1;
}

CQN_RARE static PyObject *ah_make(PyTypeObject *type, cqn_object *pd, struct ibv_ah_attr *attr,
                                  struct ibv_wc *wc, struct ibv_grh *grh)
{
    ah *self = cqn_new(type, &ah_kind, &pd, 1);
    if (self != NULL && create_ah(self, pd, attr, wc, grh) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* The dict of attributes is a copy, see cqn_dict_copy(). */
CQN_RARE static PyObject *ah_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    PyObject *pd;
    if (!PyArg_ParseTuple(args, "O;AH() takes a PD, and the fields of ibv_ah_attr by name", &pd) ||
        cqn_expect(pd, cqn_state_of(type)->PD, "pd") < 0) {
        return NULL;
    }
    struct ibv_ah_attr attr;
    int ports = CQN_OBJ(pd)->context->attr.phys_port_cnt;
    PyObject *fields = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
    int rc = fields == NULL ? -1 : cqn_ah_attr_from(fields, "AH()", ports, &attr);
    Py_XDECREF(fields);
    return rc < 0 ? NULL : ah_make(type, CQN_OBJ(pd), &attr, NULL, NULL);
}

/* Only the completion of a datagram has the sender's address. Returns -1 with ValueError for any
 * other. */
static int check_datagram(const struct ibv_wc *raw, const Py_buffer *grh)
{
    if (!(cqn_wc_fields(raw) & IBV_WC_EX_WITH_SRC_QP)) {
        PyErr_SetString(PyExc_ValueError,
                        "wc must be the successful receive of a datagram (on a UD QP)");
        return -1;
    }
    if ((raw->wc_flags & IBV_WC_GRH) && grh->len < (Py_ssize_t)sizeof(struct ibv_grh)) {
        PyErr_Format(PyExc_ValueError,
                     "grh has %zd bytes: it must be the %zu before the message, which are a GRH",
                     grh->len, sizeof(struct ibv_grh));
        return -1;
    }
    return 0;
}

static const char ah_from_wc_doc[] =
    "from_wc($type, /, pd, wc, grh=b'', *, port_num=1)\n--\n\n"
    "Return the address handle that leads back to the sender of a datagram, whose QP number\n"
    "is wc.src_qp.\n\n"
    "pd: the PD of the QP that is to send.\n"
    "wc: the completion of the receive.\n"
    "grh: the 40 bytes before the message, if the completion has them: mr.read(40, ...), or a\n"
    "    buffer.\n"
    "port_num: the port on which the datagram arrived.\n\n"
    "Raises ValueError if `wc` is not the successful receive of a datagram, and VerbsError if\n"
    "there is no way back.\n\n"
    "Wraps ibv_init_ah_from_wc(3) and ibv_create_ah(3).";

CQN_RARE static PyObject *ah_from_wc(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "wc", "grh", "port_num", NULL};
    cqn_state *st = cqn_state_of((PyTypeObject *)cls);
    PyObject *pd, *wc, *port = NULL, *self = NULL;
    Py_buffer bytes = {.obj = NULL};
    struct ibv_grh grh = {.hop_limit = 0};
    struct ibv_ah_attr attr = {.port_num = 1};
    uint64_t port_num = 1;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|y*$O:from_wc", names, &pd, &wc, &bytes,
                                     &port)) {
        return NULL;
    }
    const struct ibv_wc *received = cqn_wc_raw(st, wc, "wc");
    if (received != NULL && cqn_expect(pd, st->PD, "pd") == 0 &&
        (port == NULL || cqn_range(port, "port_num", 1, CQN_OBJ(pd)->context->attr.phys_port_cnt,
                                   &port_num) == 0) &&
        check_datagram(received, &bytes) == 0) {
        struct ibv_wc raw = *received;
        raw.wc_flags &= ~CQN_WC_OURS;
        if (raw.wc_flags & IBV_WC_GRH) {
            memcpy(&grh, bytes.buf, sizeof(grh));
        }
        attr.port_num = (uint8_t)port_num;
        self = ah_make((PyTypeObject *)cls, CQN_OBJ(pd), &attr, &raw, &grh);
    }
    PyBuffer_Release(&bytes);
    return self;
}

/* An address on InfiniBand can be a LID without a GID. */
static PyObject *ah_repr(PyObject *op)
{
    CQN_LOCKED;
    const ah *self = (ah *)op;
    char gid[INET6_ADDRSTRLEN] = "";
    if (self->base.handle == NULL) {
        return cqn_short_repr(op);
    }
    const char *device = cqn_device_name(&self->base);
    if (!self->attr.is_global) {
        return PyUnicode_FromFormat("<AH on %s, port %d to LID %u>", device, self->attr.port_num,
                                    (unsigned)self->attr.dlid);
    }
    inet_ntop(AF_INET6, self->attr.grh.dgid.raw, gid, sizeof(gid));
    return PyUnicode_FromFormat("<AH on %s, port %d to %s>", device, self->attr.port_num, gid);
}

static PyMethodDef ah_methods[] = {
    CQN_OBJECT_METHODS(cqn_close_doc),
    {"from_wc", (PyCFunction)(void (*)(void))ah_from_wc, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     ah_from_wc_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef ah_getset[] = {
    CQN_POINTER("struct ibv_ah"),
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
     "pd: the PD of the QP.\n"
     "dgid: the peer's GID: an IP address, its text, or 16 bytes. RoCE needs it; None is a\n"
     "    path within the InfiniBand subnet.\n"
     "sgid_index: the index of our GID that can reach it.\n"
     "port_num: our port, from 1 on.\n"
     "dlid: the peer's LID, 16 bits, on InfiniBand.\n"
     "sl: the service level, 0 to 15.\n"
     "hop_limit, traffic_class: fields of the IP header, 0 to 255.\n"
     "flow_label: the IPv6 flow label, 20 bits.\n"
     "src_path_bits: bits of our LID, 0 to 127, on InfiniBand.\n"
     "static_rate: the limit of the rate, a code of enum ibv_rate; 0 is none.\n\n"
     "Wraps ibv_create_ah(3)."},
    {Py_tp_new, ah_new},
    {Py_tp_repr, ah_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, ah_methods},
    {Py_tp_getset, ah_getset},
    {Py_tp_members, ah_members},
    {0, NULL},
};

PyType_Spec cqn_ah_spec = {
    .name = "cqnotify.AH",
    .basicsize = sizeof(ah),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ah_slots,
};
