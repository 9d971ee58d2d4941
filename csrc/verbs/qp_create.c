/* SPDX-License-Identifier: MIT */
/* Creation of a queue pair: the arguments of QP() and QP.open(), and the handle. */

#include "verbs/qp.h"

/* ---- arguments ---- */

typedef struct {
    PyObject *pd, *send_cq, *recv_cq, *srq, *xrcd, *rwq_ind_tbl, *user_data;
    struct ibv_qp_init_attr_ex attr;
    uint64_t ops;     /* operations to support, see parse_ops() */
    uint32_t max_tso; /* bytes that the device can segment */
    uint8_t rx_hash_key[UINT8_MAX];
} qp_args;

/* Converts one of the five capacities: NULL is the default, and the device's limit is `max`.
 * Returns -1 with an exception. */
static int parse_capacity(PyObject *value, const char *name, uint32_t fallback, int max,
                          uint32_t *out)
{
    *out = fallback;
    return value == NULL ? 0 : cqn_u32(value, name, (uint32_t)max, out);
}

/* A queue pair with an SRQ has no receive queue. */
static int parse_capacities(const struct ibv_device_attr *limits, PyObject *const *v, bool has_srq,
                            struct ibv_qp_cap *cap)
{
    const uint32_t recvs = has_srq ? 0 : 16, recv_sge = has_srq ? 0 : 1;
    if (has_srq && (v[1] != NULL || v[3] != NULL)) {
        PyErr_Format(PyExc_ValueError,
                     "%s was given, but with srq there is no receive queue: give it to the SRQ",
                     v[1] != NULL ? "max_recv_wr" : "max_recv_sge");
        return -1;
    }
    int sge = limits->max_sge < CQN_MAX_SGE ? limits->max_sge : CQN_MAX_SGE;
    return parse_capacity(v[0], "max_send_wr", 16, limits->max_qp_wr, &cap->max_send_wr) < 0 ||
                   parse_capacity(v[1], "max_recv_wr", recvs, limits->max_qp_wr,
                                  &cap->max_recv_wr) < 0 ||
                   parse_capacity(v[2], "max_send_sge", 1, sge, &cap->max_send_sge) < 0 ||
                   parse_capacity(v[3], "max_recv_sge", recv_sge, sge, &cap->max_recv_sge) < 0 ||
                   parse_capacity(v[4], "max_inline_data", 0, INT32_MAX, &cap->max_inline_data) < 0
               ? -1
               : 0;
}

static int parse_qp_type(PyObject *value, enum ibv_qp_type *out)
{
    uint32_t type;
    if (cqn_member32(value, "qp_type", "a QPType such as QPType.RC", UINT8_MAX, &type) < 0) {
        return -1;
    }
    if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_UD &&
        type != IBV_QPT_RAW_PACKET && type != IBV_QPT_XRC_SEND && type != IBV_QPT_XRC_RECV) {
        PyErr_Format(PyExc_ValueError,
                     "qp_type is %R: it must be QPType.RC, UC, UD, RAW_PACKET, XRC_SEND or "
                     "XRC_RECV",
                     value);
        return -1;
    }
    *out = type;
    return 0;
}

/* Returns -1 with VerbsError if the device lacks the type: it may accept it nevertheless. */
static int refuse_type(cqn_state *st, const struct ibv_device_attr *limits, enum ibv_qp_type type)
{
    if ((type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV) &&
        !(limits->device_cap_flags & IBV_DEVICE_XRC)) {
        cqn_verbs_error(st, EOPNOTSUPP, "ibv_create_qp", "QPType.%s", cqn_qp_type_name(type));
        return -1;
    }
    return 0;
}

/* Returns -1 with ValueError if the argument is given: this queue pair does not take it. */
static int refuse_given(PyObject *value, const char *name, const char *what)
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s was given, but %s does not take it", name, what);
    return -1;
}

static int require(PyObject *value, const char *name, const char *what)
{
    if (value != NULL && value != Py_None) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s is missing: %s needs it", name, what);
    return -1;
}

/* Refuses the arguments for receives, and, if `sends`, those for sends. */
static int refuse_queue(PyObject *const *cap, const qp_args *a, const char *what, bool sends)
{
    return (sends && (refuse_given(a->send_cq, "send_cq", what) < 0 ||
                      refuse_given(cap[0], "max_send_wr", what) < 0 ||
                      refuse_given(cap[2], "max_send_sge", what) < 0 ||
                      refuse_given(cap[4], "max_inline_data", what) < 0)) ||
                   refuse_given(a->recv_cq, "recv_cq", what) < 0 ||
                   refuse_given(a->srq, "srq", what) < 0 ||
                   refuse_given(cap[1], "max_recv_wr", what) < 0 ||
                   refuse_given(cap[3], "max_recv_sge", what) < 0
               ? -1
               : 0;
}

/* Checks that the given objects fit the type. Returns -1 with an exception. */
static int check_parts(const qp_args *a, PyObject *const *cap)
{
    const enum ibv_qp_type type = a->attr.qp_type;
    const char *name = cqn_qp_type_name(type);
    if (type == IBV_QPT_XRC_RECV) {
        return require(a->xrcd, "xrcd", name) < 0 || refuse_given(a->pd, "pd", name) < 0 ||
                       refuse_given(a->rwq_ind_tbl, "rwq_ind_tbl", name) < 0
                   ? -1
                   : refuse_queue(cap, a, name, true);
    }
    if (refuse_given(a->xrcd, "xrcd", name) < 0) {
        return -1;
    }
    if (a->rwq_ind_tbl != Py_None) {
        if (type != IBV_QPT_RAW_PACKET && type != IBV_QPT_UD) {
            return refuse_given(a->rwq_ind_tbl, "rwq_ind_tbl", name);
        }
        return refuse_queue(cap, a, "a QP with rwq_ind_tbl", true);
    }
    if (a->send_cq == NULL || a->send_cq == Py_None) {
        PyErr_SetString(PyExc_TypeError, "QP() missing required argument 'send_cq'");
        return -1;
    }
    return type == IBV_QPT_XRC_SEND ? refuse_queue(cap, a, name, false) : 0;
}

/* ---- flags and hashing ---- */

static int parse_flags(PyObject *flags, PyObject *source_qpn, struct ibv_qp_init_attr_ex *attr)
{
    const uint32_t known = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | IBV_QP_CREATE_SCATTER_FCS |
                           IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SOURCE_QPN |
                           IBV_QP_CREATE_PCI_WRITE_END_PADDING;
    uint32_t value = 0;
    const bool has_source = source_qpn != NULL && source_qpn != Py_None;
    if ((flags != NULL &&
         cqn_member32(flags, "create_flags", "QPCreateFlags such as QPCreateFlags.SOURCE_QPN",
                      UINT32_MAX, &value) < 0) ||
        (has_source && cqn_u32(source_qpn, "source_qpn", 0xffffff, &attr->source_qpn) < 0)) {
        return -1;
    }
    if (value & ~known) {
        PyErr_Format(PyExc_ValueError, "create_flags is 0x%x: 0x%x is no flag", value,
                     value & ~known);
        return -1;
    }
    if ((value & IBV_QP_CREATE_SOURCE_QPN) && !has_source) {
        PyErr_SetString(PyExc_ValueError, "create_flags has SOURCE_QPN: give source_qpn as well");
        return -1;
    }
    attr->create_flags = value | (has_source ? IBV_QP_CREATE_SOURCE_QPN : 0u);
    attr->comp_mask |= attr->create_flags != 0 ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0u;
    return 0;
}

/* The device is queried only if TSO is requested. */
static int parse_tso(PyObject *value, qp_args *a)
{
    const enum ibv_qp_type type = a->attr.qp_type;
    uint32_t size = 0;
    struct ibv_device_attr_ex device;
    if (value != NULL && cqn_u32(value, "max_tso_header", UINT16_MAX, &size) < 0) {
        return -1;
    }
    if (size == 0) {
        return 0;
    }
    if ((type != IBV_QPT_UD && type != IBV_QPT_RAW_PACKET) || a->rwq_ind_tbl != Py_None) {
        return refuse_given(value, "max_tso_header",
                            a->rwq_ind_tbl != Py_None ? "a QP with rwq_ind_tbl"
                                                      : cqn_qp_type_name(type));
    }
    cqn_object *pd = CQN_OBJ(a->pd);
    if (cqn_open(pd) == NULL || cqn_device_attr_ex(pd, &device) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    a->max_tso = device.tso_caps.supported_qpts & (1u << type) ? device.tso_caps.max_tso : 0;
    if (a->max_tso == 0) {
        cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_create_qp_ex",
                        "max_tso_header: %s segments nothing of QPType.%s "
                        "(query_device_ex().tso_caps)",
                        cqn_device_name(pd), cqn_qp_type_name(type));
        return -1;
    }
    a->attr.max_tso_header = (uint16_t)size;
    a->attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    return 0;
}

/* Refuses both versions of IP, or both protocols, in one header. Returns -1 with ValueError. */
static int check_hash_fields(uint64_t fields)
{
    const uint64_t v4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
    const uint64_t v6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6;
    const uint64_t tcp = IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP;
    const uint64_t udp = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
    if (((fields & v4) && (fields & v6)) || ((fields & tcp) && (fields & udp))) {
        PyErr_Format(PyExc_ValueError,
                     "rx_hash_fields_mask is 0x%llx: it can't have both IPv4 and IPv6, nor both "
                     "TCP and UDP",
                     (unsigned long long)fields);
        return -1;
    }
    return 0;
}

static int parse_hash_key(PyObject *value, qp_args *a)
{
    Py_buffer key;
    if (PyObject_GetBuffer(value, &key, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    const bool fits = key.len >= 1 && key.len <= UINT8_MAX;
    if (fits) {
        memcpy(a->rx_hash_key, key.buf, (size_t)key.len);
        a->attr.rx_hash_conf.rx_hash_key_len = (uint8_t)key.len;
    }
    else {
        PyErr_Format(PyExc_ValueError, "rx_hash_key has %zd bytes: it must have 1 to %d", key.len,
                     UINT8_MAX);
    }
    PyBuffer_Release(&key);
    return fits ? 0 : -1;
}

/* Converts a tuple of function, key and fields; copies the key to the arguments. Returns -1 with an
 * exception. */
static int parse_hash(PyObject *value, qp_args *a)
{
    struct ibv_rx_hash_conf *conf = &a->attr.rx_hash_conf;
    const bool is_rss = a->rwq_ind_tbl != Py_None;
    if (!is_rss) {
        return refuse_given(value, "rx_hash_conf", "a QP without rwq_ind_tbl");
    }
    uint32_t function;
    if (require(value, "rx_hash_conf", "rwq_ind_tbl") < 0) {
        return -1;
    }
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3) {
        PyErr_SetString(PyExc_TypeError, "rx_hash_conf must be an RxHashConf");
        return -1;
    }
    if (cqn_member32(PyTuple_GET_ITEM(value, 0), "rx_hash_function",
                     "a RxHashFunction such as RxHashFunction.TOEPLITZ", UINT8_MAX,
                     &function) < 0 ||
        parse_hash_key(PyTuple_GET_ITEM(value, 1), a) < 0 ||
        cqn_member(PyTuple_GET_ITEM(value, 2), "rx_hash_fields_mask",
                   "RxHashFields such as RxHashFields.SRC_IPV4", UINT64_MAX,
                   &conf->rx_hash_fields_mask) < 0) {
        return -1;
    }
    conf->rx_hash_function = (uint8_t)function;
    a->attr.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
    return check_hash_fields(conf->rx_hash_fields_mask);
}

/* Operations of IBV_QP_EX_WITH_* that need a queue pair created for them: FLUSH, and ATOMIC_WRITE,
 * which writes 8 bytes at once. They have their own verbs, see work/post_send.c; such a queue pair
 * posts all others with ibv_post_send(). Returns -1 with an exception. */
static int parse_ops(PyObject *atomic_write, PyObject *flush, qp_args *a)
{
    const int writes = cqn_truth(atomic_write), flushes = writes < 0 ? -1 : cqn_truth(flush);
    a->ops =
        (writes > 0 ? IBV_QP_EX_WITH_ATOMIC_WRITE : 0u) | (flushes > 0 ? CQN_QP_EX_WITH_FLUSH : 0u);
    return flushes < 0 ? -1 : 0;
}

static int refuse_ops(cqn_object *pd, const char *argument, const char *flags)
{
    cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_create_qp_ex",
                    "%s (query_device_ex().device_cap_flags_ex of %s lack %s)", argument,
                    cqn_device_name(pd), flags);
    return -1;
}

/* The device may create the queue pair although it lacks an operation, and fail the operation
 * later. Returns -1 with an exception. */
static int check_device_ops(cqn_object *pd, uint64_t ops)
{
    struct ibv_device_attr_ex attr;
    if (ops == 0) {
        return 0;
    }
    if (cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    const uint64_t has = attr.device_cap_flags_ex;
    if ((ops & IBV_QP_EX_WITH_ATOMIC_WRITE) && !(has & CQN_DEVICE_ATOMIC_WRITE)) {
        return refuse_ops(pd, "atomic_write", "ATOMIC_WRITE");
    }
    if ((ops & CQN_QP_EX_WITH_FLUSH) &&
        !(has & (CQN_DEVICE_FLUSH_GLOBAL | CQN_DEVICE_FLUSH_PERSISTENT))) {
        return refuse_ops(pd, "flush", "FLUSH_GLOBAL and FLUSH_PERSISTENT");
    }
    return 0;
}

static int check_ops(const qp_args *a)
{
    if (a->ops != 0 && a->attr.qp_type != IBV_QPT_RC) {
        PyErr_Format(PyExc_ValueError, "%s is possible with QPType.RC only",
                     a->ops & CQN_QP_EX_WITH_FLUSH ? "flush" : "atomic_write");
        return -1;
    }
    return check_device_ops(CQN_OBJ(a->pd), a->ops);
}

/* Returns the domain of the queue pair, borrowed. */
static PyObject *domain_of(const qp_args *a)
{
    return a->pd != Py_None ? a->pd : a->xrcd;
}

static int check_part(PyTypeObject *type, PyObject *value, const char *name, const qp_args *a)
{
    return value == Py_None || value == NULL
               ? 0
               : cqn_expect_beside(value, type, name, domain_of(a), "pd");
}

static int check_open(cqn_state *st, const qp_args *a)
{
    return cqn_open(CQN_OBJ(domain_of(a))) == NULL ||
                   check_part(st->CQ, a->send_cq, "send_cq", a) < 0 ||
                   check_part(st->CQ, a->recv_cq, "recv_cq", a) < 0 ||
                   check_part(st->SRQ, a->srq, "srq", a) < 0 ||
                   check_part(st->RwqIndTable, a->rwq_ind_tbl, "rwq_ind_tbl", a) < 0
               ? -1
               : 0;
}

/* The conversions come first: they can run code that closes the objects, which are checked last. */
static int parse_new_qp(cqn_state *st, PyObject *args, PyObject *kwargs, qp_args *a)
{
    /* clang-format off */
    static const char *const names[] = {
        "pd", "qp_type", "send_cq", "recv_cq", "srq", "xrcd", "rwq_ind_tbl", "user_data",
        "max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data",
        "sq_sig_all", "atomic_write", "flush", "create_flags", "source_qpn", "max_tso_header",
        "rx_hash_conf", NULL};
    /* clang-format on */
    enum { CAP = 8, SIG_ALL = 13, ATOMIC_WRITE, FLUSH, FLAGS, SOURCE_QPN, TSO, HASH };
    PyObject *in[Py_ARRAY_LENGTH(names) - 1] = {NULL};
    if (cqn_sort_new("QP", names, 2, 2, args, kwargs, in) < 0) {
        return -1;
    }
    PyObject *const *cap = &in[CAP];
    const int sig_all = cqn_truth(in[SIG_ALL]);
    if (sig_all < 0 || parse_ops(in[ATOMIC_WRITE], in[FLUSH], a) < 0) {
        return -1;
    }
    a->pd = in[0];
    a->send_cq = in[2];
    a->recv_cq = cqn_given(in[3]);
    a->srq = cqn_given(in[4]);
    a->xrcd = cqn_given(in[5]);
    a->rwq_ind_tbl = cqn_given(in[6]);
    a->user_data = cqn_given(in[7]);
    a->attr.sq_sig_all = sig_all;
    if (parse_qp_type(in[1], &a->attr.qp_type) < 0 || check_parts(a, cap) < 0 ||
        (a->pd == Py_None && a->xrcd != Py_None ? cqn_expect(a->xrcd, st->XRCD, "xrcd")
                                                : cqn_expect(a->pd, st->PD, "pd")) < 0) {
        return -1;
    }
    /* A copy: the conversions can run code that closes the PD. */
    const struct ibv_device_attr limits = CQN_OBJ(domain_of(a))->context->attr;
    const bool no_recvs = a->srq != Py_None || a->attr.qp_type == IBV_QPT_XRC_SEND;
    const bool has_queues = a->xrcd == Py_None && a->rwq_ind_tbl == Py_None;
    if (has_queues && a->recv_cq == Py_None) {
        a->recv_cq = a->send_cq;
    }
    return refuse_type(st, &limits, a->attr.qp_type) < 0 ||
                   (has_queues && parse_capacities(&limits, cap, no_recvs, &a->attr.cap) < 0) ||
                   parse_flags(in[FLAGS], in[SOURCE_QPN], &a->attr) < 0 ||
                   parse_tso(in[TSO], a) < 0 || parse_hash(in[HASH], a) < 0 ||
                   check_open(st, a) < 0 || check_ops(a) < 0
               ? -1
               : 0;
}

/* ---- creation ---- */

static int make_queues(cqn_qp *self, enum ibv_qp_type type)
{
    self->sq = cqn_wr_queue_new(self, 1u << type, NULL);
    self->rq = self->sq ? cqn_wr_queue_new(self, 1u << type, self->srq) : NULL;
    return self->rq != NULL ? 0 : -1;
}

/* Records an object that the queue pair uses, and returns its handle; NULL if there is none. */
static void *use(PyObject *value, cqn_object **used, size_t *n, void *place)
{
    if (value == NULL || value == Py_None) {
        return NULL;
    }
    used[(*n)++] = CQN_OBJ(value);
    memcpy(place, &value, sizeof(value));
    return CQN_OBJ(value)->handle;
}

/* Sets the objects in use in `attr` and, borrowed, in `parts`. Returns their number. */
static size_t collect_parts(qp_args *a, cqn_qp *parts, cqn_object **used)
{
    struct ibv_qp_init_attr_ex *attr = &a->attr;
    size_t n = 0;
    attr->pd = use(a->pd, used, &n, &parts->pd);
    attr->send_cq = use(a->send_cq, used, &n, &parts->send_cq);
    attr->recv_cq = use(a->recv_cq, used, &n, &parts->recv_cq);
    attr->srq = use(a->srq, used, &n, &parts->srq);
    attr->xrcd = use(a->xrcd, used, &n, &parts->xrcd);
    attr->rwq_ind_tbl = use(a->rwq_ind_tbl, used, &n, &parts->rwq_ind_tbl);
    attr->comp_mask |= (attr->pd ? IBV_QP_INIT_ATTR_PD : 0u) |
                       (attr->xrcd ? IBV_QP_INIT_ATTR_XRCD : 0u) |
                       (a->ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0u);
    attr->send_ops_flags = a->ops;
    attr->rx_hash_conf.rx_hash_key = attr->rwq_ind_tbl ? a->rx_hash_key : NULL;
    if (attr->qp_type == IBV_QPT_XRC_SEND) {
        attr->recv_cq = NULL;
    }
    return n;
}

/* Returns a new object without a handle; NULL with an exception. */
static cqn_qp *new_qp(PyTypeObject *type, const cqn_kind *kind, qp_args *a)
{
    cqn_object *used[CQN_MAX_USES];
    cqn_qp parts = {.pd = NULL};
    const size_t n = collect_parts(a, &parts, used);
    cqn_qp *self = cqn_new(type, kind, used, n);
    if (self == NULL) {
        return NULL;
    }
    self->pd = parts.pd;
    self->xrcd = parts.xrcd;
    self->rwq_ind_tbl = parts.rwq_ind_tbl;
    self->send_cq = parts.send_cq;
    self->recv_cq = parts.recv_cq;
    self->srq = parts.srq;
    self->type = a->attr.qp_type;
    self->no_recvs = a->attr.recv_cq == NULL;
    self->user_data = Py_NewRef(a->user_data);
    self->errors_seen = 1;     /* until the state is queried */
    a->attr.qp_context = self; /* for the asynchronous events that name it */
    if (make_queues(self, self->type) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

/* Most queue pairs need only the older verb, which every device has. Called without the GIL. */
static struct ibv_qp *create_qp(struct ibv_context *device, struct ibv_qp_init_attr_ex *attr)
{
    return attr->comp_mask == IBV_QP_INIT_ATTR_PD
               ? ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr)
               : ibv_create_qp_ex(device, attr);
}

static void refuse_qp(cqn_state *st, int err, const struct ibv_qp_init_attr_ex *attr)
{
    const bool ex = attr->comp_mask != IBV_QP_INIT_ATTR_PD;
    const struct ibv_qp_cap *c = &attr->cap;
    const char *verb = ex ? "ibv_create_qp_ex" : "ibv_create_qp";
    if (err == EOPNOTSUPP || err == ENOSYS) {
        cqn_verbs_error(st, err, verb, "QPType.%s%s%s", cqn_qp_type_name(attr->qp_type),
                        attr->create_flags ? " with these create_flags" : "",
                        attr->rwq_ind_tbl ? " with rwq_ind_tbl" : "");
        return;
    }
    if (err == EPERM && attr->qp_type == IBV_QPT_RAW_PACKET) {
        cqn_verbs_error(st, err, verb, "QPType.RAW_PACKET needs the capability CAP_NET_RAW");
        return;
    }
    cqn_verbs_error(st, err, verb,
                    "max_send_wr=%u, max_recv_wr=%u, max_send_sge=%u, max_recv_sge=%u, "
                    "max_inline_data=%u%s",
                    c->max_send_wr, c->max_recv_wr, c->max_send_sge, c->max_recv_sge,
                    c->max_inline_data, err != EAGAIN ? ": ask for less of one of these" : "");
}

/* Raises VerbsError: the device has the operation, and its provider lacks it. */
static void refuse_provider(cqn_object *qp, uint64_t ops)
{
    const bool flush = ops & CQN_QP_EX_WITH_FLUSH;
    cqn_verbs_error(qp->state, EOPNOTSUPP, "ibv_create_qp_ex",
                    "%s: %s has it, but its provider in this libibverbs does not; the provider of "
                    "Soft-RoCE has it from rdma-core %d on",
                    flush ? "flush" : "atomic_write", cqn_device_name(qp), flush ? 47 : 44);
}

static void enter_handle(cqn_qp *self, struct ibv_qp *qp, const struct ibv_qp_init_attr_ex *attr)
{
    self->qp_num = qp->qp_num;
    self->state = IBV_QPS_RESET;
    self->max_rd_atomic = CQN_DEPTH_UNKNOWN;
    self->sq_sig_all = attr->sq_sig_all;
    self->cap = attr->cap;
    if (self->srq != NULL || self->no_recvs) { /* a device may set these to anything */
        self->cap.max_recv_wr = self->cap.max_recv_sge = 0;
    }
    cqn_adopt(CQN_OBJ(self), qp);
}

CQN_RARE PyObject *cqn_qp_create(PyTypeObject *type, const cqn_kind *kind, PyObject *args,
                                 PyObject *kwargs)
{
    CQN_COPY copy = NULL;
    cqn_state *st = cqn_state_of(type);
    qp_args a = {.pd = NULL};
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 || parse_new_qp(st, args, kwargs, &a) < 0) {
        return NULL;
    }
    cqn_qp *self = new_qp(type, kind, &a);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *device = self->base.context->base.handle;
    struct ibv_qp *qp;
    int err;
    CQN_CREATING(CQN_OBJ(self), qp = create_qp(device, &a.attr); err = errno);
    if (qp == NULL) {
        if (a.ops != 0 && err == EOPNOTSUPP) {
            refuse_provider(CQN_OBJ(self), a.ops);
        }
        else {
            refuse_qp(st, err, &a.attr);
        }
        Py_DECREF(self);
        return NULL;
    }
    self->atomic_write = a.ops & IBV_QP_EX_WITH_ATOMIC_WRITE;
    self->flush = a.ops & CQN_QP_EX_WITH_FLUSH;
    self->max_tso_header = a.attr.max_tso_header;
    self->max_tso = a.max_tso;
    enter_handle(self, qp, &a.attr);
    return (PyObject *)self;
}

/* ---- a queue pair of another process ---- */

static int parse_open(cqn_state *st, PyObject *args, PyObject *kwargs, qp_args *a,
                      struct ibv_qp_open_attr *open)
{
    static char *names[] = {"xrcd", "qp_num", "user_data", NULL};
    PyObject *qp_num;
    a->pd = a->recv_cq = a->srq = a->rwq_ind_tbl = a->user_data = Py_None;
    a->attr.qp_type = IBV_QPT_XRC_RECV;
    return !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$O:open", names, &a->xrcd, &qp_num,
                                        &a->user_data) ||
                   cqn_u32(qp_num, "qp_num", 0xffffff, &open->qp_num) < 0 ||
                   cqn_expect(a->xrcd, st->XRCD, "xrcd") < 0
               ? -1
               : 0;
}

CQN_RARE PyObject *cqn_qp_open(PyTypeObject *type, const cqn_kind *kind, PyObject *args,
                               PyObject *kwargs)
{
    CQN_COPY copy = NULL;
    cqn_state *st = cqn_state_of(type);
    qp_args a = {.pd = NULL};
    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
                                                 IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
                                    .qp_type = IBV_QPT_XRC_RECV};
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 || parse_open(st, args, kwargs, &a, &open) < 0) {
        return NULL;
    }
    cqn_qp *self = new_qp(type, kind, &a);
    if (self == NULL) {
        return NULL;
    }
    open.xrcd = a.attr.xrcd;
    open.qp_context = self;
    struct ibv_context *device = self->base.context->base.handle;
    struct ibv_qp *qp;
    enum ibv_qp_state state = IBV_QPS_RESET;
    int err;
    CQN_CREATING(CQN_OBJ(self), qp = ibv_open_qp(device, &open); err = errno;
                 /* the state set by the other process */
                 state = qp != NULL ? cqn_qp_query_state(qp, state, NULL) : state);
    if (qp == NULL) {
        cqn_verbs_error(st, err, "ibv_open_qp", "qp_num %u: is it an XRC_RECV QP of that domain?",
                        open.qp_num);
        Py_DECREF(self);
        return NULL;
    }
    enter_handle(self, qp, &a.attr);
    self->state = state;
    return (PyObject *)self;
}
