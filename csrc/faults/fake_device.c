/* SPDX-License-Identifier: MIT */
/* The fake device, see fake_device.h; its memory is in fake_memory.c. Used by one thread at a
 * time. */

#include "faults/fake_device.h"
#include "base/base.h"

/* ---- recorded calls ---- */

enum { CALLS = 64, LONGEST = 512 };
static struct {
    const char *verb;
    uintptr_t result;
    size_t size;
    char bytes[LONGEST];
} calls[CALLS];
static size_t n_calls; /* the most recent ones */

void *cqn_fake_note(const char *verb, void *result, const void *data, size_t size, const void *more,
                    size_t more_size)
{
    if (size + more_size > LONGEST) {
        abort(); /* more than any test uses */
    }
    if (n_calls == CALLS) {
        memmove(calls, calls + 1, sizeof(calls) - sizeof(*calls));
        n_calls--;
    }
    calls[n_calls].verb = verb;
    calls[n_calls].result = (uintptr_t)result;
    calls[n_calls].size = size + more_size;
    memcpy(calls[n_calls].bytes, data, size);
    if (more_size > 0) {
        memcpy(calls[n_calls].bytes + size, more, more_size);
    }
    n_calls++;
    return result;
}

PyObject *cqn_fake_calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < n_calls; i++) {
        PyObject *call = Py_BuildValue("(sKy#)", calls[i].verb, (unsigned long long)calls[i].result,
                                       calls[i].bytes, (Py_ssize_t)calls[i].size);
        if (call == NULL || PyList_Append(list, call) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(call);
    }
    n_calls = 0;
    return list;
}

/* ---- queue pairs ---- */

enum { MANY = 64 };
typedef struct {
    struct ibv_qp *qp;     /* as the core knows it; NULL: unused */
    struct ibv_qp *real;   /* the same, except for XRC_RECV; NULL: its SRQ was destroyed */
    enum ibv_qp_type type; /* the emulated type */
    int *used;             /* the number of users of its domain or table, or NULL */
} fake_qp;
static fake_qp qps[MANY];
static struct ibv_srq_init_attr_ex xrc; /* of the latest SRQ of that type, */
static struct ibv_srq *xrc_srq;         /* which gets all messages */
typedef struct {
    struct ibv_xrcd xrcd;
    int users;
} domain;
static struct ibv_qp *(*create_qp_ex_of_device)(struct ibv_context *, struct ibv_qp_init_attr_ex *);

/* Returns the entry of a queue pair; for NULL an unused one. */
static fake_qp *find_qp(const struct ibv_qp *qp)
{
    for (size_t i = 0; i < MANY; i++) {
        if (qps[i].qp == qp) {
            return &qps[i];
        }
    }
    return NULL;
}

static struct ibv_qp *add_fake_qp(struct ibv_qp *qp, struct ibv_qp *real, enum ibv_qp_type type,
                                  int *used)
{
    if (qp != NULL) {
        fake_qp *entry = find_qp(NULL);
        assert(entry != NULL); /* more than any test uses at a time */
        *entry = (fake_qp){.qp = qp, .real = real, .type = type, .used = used};
        if (used != NULL) {
            ++*used;
        }
    }
    return qp;
}

/* RC stands in for XRC, and UC for raw packets, where a queue pair is its own peer. */
static struct ibv_qp *make_qp(struct ibv_pd *pd, const struct ibv_qp_init_attr *attr, int *used)
{
    struct ibv_qp_init_attr real = *attr;
    const bool raw = attr->qp_type == IBV_QPT_RAW_PACKET;
    const bool xrc_send = attr->qp_type == IBV_QPT_XRC_SEND;
    real.qp_type = raw ? IBV_QPT_UC : xrc_send ? IBV_QPT_RC : attr->qp_type;
    real.recv_cq = attr->recv_cq ? attr->recv_cq : attr->send_cq;
    struct ibv_qp *qp = (ibv_create_qp)(pd, &real);
    /* cppcheck-suppress returnDanglingLifetime ; the parentheses call the function itself */
    return raw || xrc_send ? add_fake_qp(qp, qp, attr->qp_type, used) : qp;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);

void *cqn_fake_alloc(size_t size)
{
    void *zeroed = calloc(1, size);
    if (zeroed == NULL) {
        abort();
    }
    return zeroed;
}

bool cqn_is_fake(const struct ibv_context *context)
{
    const struct verbs_context *ops = verbs_get_ctx((struct ibv_context *)context);
    return ops != NULL && ops->open_xrcd == open_xrcd;
}

struct ibv_qp *cqn_fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    const bool lacks = attr->qp_type == IBV_QPT_RAW_PACKET || attr->qp_type == IBV_QPT_XRC_SEND;
    if (!lacks || !cqn_is_fake(pd->context)) {
        return (ibv_create_qp)(pd, attr);
    }
    return cqn_fake_note("ibv_create_qp", make_qp(pd, attr, NULL), attr, sizeof(*attr), NULL, 0);
}

/* Creates an RC queue pair that uses the SRQ, under another address; it is destroyed before the
 * SRQ. */
static struct ibv_qp *make_xrc_recv(void *qp_context, struct ibv_xrcd *xrcd)
{
    struct ibv_qp_init_attr attr = {.qp_context = qp_context,
                                    .send_cq = xrc.cq,
                                    .recv_cq = xrc.cq,
                                    .srq = xrc_srq,
                                    .cap = {.max_send_wr = 1, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *real = (ibv_create_qp)(xrc.pd, &attr);
    struct ibv_qp *qp = real == NULL ? NULL : cqn_fake_alloc(sizeof(*qp));
    if (qp != NULL) {
        *qp = *real;
    }
    return add_fake_qp(qp, real, IBV_QPT_XRC_RECV, &((domain *)xrcd)->users);
}

static struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
    (void)context;
    return cqn_fake_note("ibv_open_qp", make_xrc_recv(attr->qp_context, attr->xrcd), attr,
                         sizeof(*attr), NULL, 0);
}

typedef struct {
    struct ibv_wq wq;
    struct ibv_qp *qp;
    int users;
} work_queue;

typedef struct {
    struct ibv_rwq_ind_table table;
    work_queue *wqs[8];
    int n, users;
} ind_table;

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        return create_qp_ex_of_device(context, attr);
    }
    struct ibv_qp_init_attr plain;
    ind_table *table = (ind_table *)attr->rwq_ind_tbl;
    memcpy(&plain, attr, sizeof(plain));
    if (table != NULL) {
        plain.qp_type = IBV_QPT_RAW_PACKET;
        plain.send_cq = table->wqs[0]->wq.cq;
        plain.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1};
    }
    struct ibv_qp *qp = attr->qp_type == IBV_QPT_XRC_RECV
                            ? make_xrc_recv(attr->qp_context, attr->xrcd)
                            : make_qp(attr->pd, &plain, table ? &table->users : NULL);
    return cqn_fake_note("ibv_create_qp_ex", qp, attr, sizeof(*attr),
                         attr->rx_hash_conf.rx_hash_key, attr->rx_hash_conf.rx_hash_key_len);
}

static int (*post_send_of_device)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);

/* A message to be segmented is sent whole, without its header; one at a time. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
    struct ibv_send_wr whole = *first;
    if (first->opcode != IBV_WR_TSO) {
        return post_send_of_device(qp, first, bad);
    }
    cqn_fake_note("ibv_post_send", qp, &first->tso.mss, sizeof(first->tso.mss), first->tso.hdr,
                  first->tso.hdr_sz);
    whole.opcode = IBV_WR_SEND;
    return post_send_of_device(qp, &whole, bad);
}

/* Sets the path to the queue pair itself. */
static int lead_back(const struct ibv_qp *qp, struct ibv_qp_attr *attr)
{
    attr->path_mtu = IBV_MTU_1024;
    attr->dest_qp_num = qp->qp_num;
    attr->rq_psn = 0;
    attr->ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
    attr->ah_attr.grh.hop_limit = 1;
    struct ibv_gid_entry gid;
    if ((ibv_query_gid_ex)(qp->context, 1, 0, &gid, 0) == 0) {
        attr->ah_attr.grh.dgid = gid.gid;
    }
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
}

/* Adds the attributes that the real type requires. */
static int complete(const struct ibv_qp *qp, enum ibv_qp_type type, struct ibv_qp_attr *attr)
{
    const bool raw = type == IBV_QPT_RAW_PACKET;
    switch (attr->qp_state) {
    case IBV_QPS_INIT:
        return raw ? IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS : 0;
    case IBV_QPS_RTR:
        attr->max_dest_rd_atomic = 1;
        attr->min_rnr_timer = 12;
        return raw                        ? lead_back(qp, attr)
               : type == IBV_QPT_XRC_SEND ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
                                          : 0;
    case IBV_QPS_RTS:
        if (type != IBV_QPT_XRC_RECV) {
            return raw ? IBV_QP_SQ_PSN : 0;
        }
        attr->retry_cnt = attr->rnr_retry = 6;
        attr->max_rd_atomic = 1;
        return IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    default:
        return 0;
    }
}

int cqn_fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    const fake_qp *it = find_qp(qp);
    struct ibv_qp_attr all = *attr;
    if (it != NULL) {
        cqn_fake_note("ibv_modify_qp", qp, attr, sizeof(*attr), &mask, sizeof(mask));
        mask |= mask & IBV_QP_STATE ? complete(qp, it->type, &all) : 0;
        qp = it->real;
    }
    return qp == NULL ? EINVAL : (ibv_modify_qp)(qp, &all, mask);
}

int cqn_fake_destroy_qp(struct ibv_qp *qp)
{
    fake_qp *it = find_qp(qp);
    struct ibv_qp *real = it != NULL ? it->real : qp;
    const int err = real == NULL ? 0 : (ibv_destroy_qp)(real);
    if (it != NULL && err == 0) {
        if (qp != real) {
            free(qp);
        }
        if (it->used != NULL) {
            --*it->used;
        }
        it->qp = NULL;
    }
    return err;
}

/* ---- XRC ---- */

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
    domain *self = cqn_fake_alloc(sizeof(*self));
    self->xrcd.context = context;
    return cqn_fake_note("ibv_open_xrcd", self, attr, sizeof(*attr), NULL, 0);
}

static int close_xrcd(struct ibv_xrcd *xrcd)
{
    if (((domain *)xrcd)->users > 0) {
        return EBUSY;
    }
    cqn_fake_note("ibv_close_xrcd", xrcd, "", 0, NULL, 0);
    free(xrcd);
    return 0;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
    (void)context;
    struct ibv_srq *srq = (ibv_create_srq)(attr->pd, (struct ibv_srq_init_attr *)attr);
    if (attr->srq_type == IBV_SRQT_XRC && srq != NULL) {
        xrc = *attr;
        xrc_srq = srq;
        ((domain *)xrc.xrcd)->users++;
    }
    return cqn_fake_note("ibv_create_srq_ex", srq, attr, sizeof(*attr), NULL, 0);
}

enum { SRQ_NUM = 0x4711 };
static int get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
    *srq_num = SRQ_NUM;
    return srq == xrc_srq ? 0 : EOPNOTSUPP;
}

int cqn_fake_destroy_srq(struct ibv_srq *srq)
{
    for (size_t i = 0; srq == xrc_srq && i < MANY; i++) {
        if (qps[i].qp != NULL && qps[i].type == IBV_QPT_XRC_RECV && qps[i].real != NULL) {
            (ibv_destroy_qp)(qps[i].real);
            qps[i].real = NULL;
        }
    }
    int err = (ibv_destroy_srq)(srq);
    if (err == 0 && xrc_srq == srq) {
        ((domain *)xrc.xrcd)->users--;
        xrc_srq = NULL;
    }
    return err;
}

/* ---- tag matching ---- */

static uint32_t handles;

static int post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad)
{
    (void)bad;
    if (op->opcode == IBV_WR_TAG_ADD) {
        op->tm.handle = ++handles;
    }
    cqn_fake_note("ibv_post_srq_ops", srq, op, sizeof(*op), op->tm.add.sg_list,
                  (size_t)op->tm.add.num_sge * sizeof(struct ibv_sge));
    return 0;
}

/* The fields of the completion with that id, in place of those of a write. */
static struct {
    uint64_t id;
    int opcode, wc_flags;
    struct ibv_wc_tm_info tm;
} completed;
static int (*poll_cq_of_device)(struct ibv_cq *, int, struct ibv_wc *);
static struct ibv_cq_ex *(*create_cq_ex_of_device)(struct ibv_context *,
                                                   struct ibv_cq_init_attr_ex *);
static enum ibv_wc_opcode (*read_opcode_of_device)(struct ibv_cq_ex *);
static unsigned int (*read_wc_flags_of_device)(struct ibv_cq_ex *);

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    const int got = poll_cq_of_device(cq, n, wc);
    for (int i = 0; i < got; i++) {
        if (wc[i].wr_id == completed.id && wc[i].status == IBV_WC_SUCCESS) {
            wc[i].opcode = (enum ibv_wc_opcode)completed.opcode;
            wc[i].wc_flags = (unsigned)completed.wc_flags;
        }
    }
    return got;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq)
{
    return cq->wr_id == completed.id ? (enum ibv_wc_opcode)completed.opcode
                                     : read_opcode_of_device(cq);
}

static unsigned int read_wc_flags(struct ibv_cq_ex *cq)
{
    return cq->wr_id == completed.id ? (unsigned)completed.wc_flags : read_wc_flags_of_device(cq);
}

static uint32_t read_flow_tag(struct ibv_cq_ex *cq)
{
    return (uint32_t)cq->wr_id;
}

static void read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *info)
{
    (void)cq;
    *info = completed.tm;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    const uint64_t asked = attr->wc_flags;
    attr->wc_flags &= ~(uint64_t)(IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_FLOW_TAG);
    struct ibv_cq_ex *cq = create_cq_ex_of_device(context, attr);
    attr->wc_flags = asked;
    if (cq != NULL) {
        read_opcode_of_device = cq->read_opcode;
        read_wc_flags_of_device = cq->read_wc_flags;
        cq->read_opcode = read_opcode;
        cq->read_wc_flags = read_wc_flags;
        cq->read_tm_info = asked & IBV_WC_EX_WITH_TM_INFO ? read_tm_info : NULL;
        cq->read_flow_tag = asked & IBV_WC_EX_WITH_FLOW_TAG ? read_flow_tag : NULL;
    }
    return cq;
}

/* Completes as an empty write to itself, on an internal queue pair. */
PyObject *cqn_fake_complete(PyObject *Py_UNUSED(module), PyObject *args)
{
    static struct ibv_qp *qp;
    static const int masks[] = {IBV_QP_STATE | IBV_QP_PORT, IBV_QP_STATE, IBV_QP_STATE};
    PyObject *pd = NULL, *cq = NULL;
    unsigned long long id = 0;
    unsigned long long tag = 0;
    unsigned int priv = 0;
    completed.opcode = IBV_WC_RDMA_WRITE;
    completed.wc_flags = 0;
    if (!PyArg_ParseTuple(args, "|OOKiiKI:fake_complete", &pd, &cq, &id, &completed.opcode,
                          &completed.wc_flags, &tag, &priv)) {
        return NULL;
    }
    completed.id = id;
    completed.tm = (struct ibv_wc_tm_info){.tag = tag, .priv = priv};
    if (qp != NULL) {
        cqn_fake_destroy_qp(qp);
        qp = NULL;
    }
    if (cq == NULL) {
        Py_RETURN_NONE;
    }
    struct ibv_qp_init_attr init = {.send_cq = CQN_OBJ(cq)->handle,
                                    .cap = {.max_send_wr = 1, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RAW_PACKET};
    struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    qp = make_qp(CQN_OBJ(pd)->handle, &init, NULL);
    for (int i = 0; i < 3; i++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT + i, .port_num = 1};
        cqn_fake_modify_qp(qp, &attr, masks[i]);
    }
    (ibv_post_send)(qp, &wr, &bad);
    n_calls = 0;
    Py_RETURN_NONE;
}

/* ---- flows and their counters ---- */

typedef struct {
    struct ibv_counters counters;
    int users;
    bool attached[8];
} flow_counters;

typedef struct {
    struct ibv_flow flow;
    flow_counters *counters; /* or NULL */
} counted_flow;

/* The spec of the counters is the last one. */
static struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
    struct ibv_flow_spec_counter_action last = {.size = 0};
    if (attr->size >= sizeof(*attr) + sizeof(last)) {
        memcpy(&last, (char *)attr + attr->size - sizeof(last), sizeof(last));
    }
    counted_flow *self = cqn_fake_alloc(sizeof(*self));
    self->flow.context = qp->context;
    if (last.type == IBV_FLOW_SPEC_ACTION_COUNT && last.size == sizeof(last)) {
        self->counters = (flow_counters *)last.counters;
        self->counters->users++;
    }
    return cqn_fake_note("ibv_create_flow", self, attr, attr->size, NULL, 0);
}

static int destroy_flow(struct ibv_flow *flow)
{
    counted_flow *self = (counted_flow *)flow;
    if (self->counters != NULL) {
        self->counters->users--;
    }
    cqn_fake_note("ibv_destroy_flow", flow, "", 0, NULL, 0);
    free(flow);
    return 0;
}

static struct ibv_counters *create_counters(struct ibv_context *context,
                                            struct ibv_counters_init_attr *attr)
{
    flow_counters *self = cqn_fake_alloc(sizeof(*self));
    self->counters.context = context;
    return cqn_fake_note("ibv_create_counters", self, attr, sizeof(*attr), NULL, 0);
}

static int destroy_counters(struct ibv_counters *counters)
{
    if (((flow_counters *)counters)->users > 0) {
        return EBUSY;
    }
    cqn_fake_note("ibv_destroy_counters", counters, "", 0, NULL, 0);
    free(counters);
    return 0;
}

static int attach_counters(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
                           struct ibv_flow *flow)
{
    flow_counters *self = (flow_counters *)counters;
    if (flow != NULL || self->users > 0 || attr->index >= Py_ARRAY_LENGTH(self->attached)) {
        return ENOTSUP;
    }
    self->attached[attr->index] = true;
    cqn_fake_note("ibv_attach_counters_point_flow", counters, attr, sizeof(*attr), NULL, 0);
    return 0;
}

/* An attached counter with index n has the value 2^(40 + n). */
static int read_counters(struct ibv_counters *counters, uint64_t *values, uint32_t n,
                         uint32_t flags)
{
    const flow_counters *self = (flow_counters *)counters;
    if (self->users == 0) {
        return EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        values[i] = self->attached[i] ? UINT64_C(1) << (40 + i) : 0;
    }
    cqn_fake_note("ibv_read_counters", counters, &n, sizeof(n), &flags, sizeof(flags));
    return 0;
}

/* ---- WQs: the receive queues of internal queue pairs ---- */

static int post_wq_recv(struct ibv_wq *wq, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
    return (ibv_post_recv)(((work_queue *)wq)->qp, first, bad);
}

static struct ibv_wq *create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
    struct ibv_qp_init_attr real = {
        .send_cq = attr->cq,
        .recv_cq = attr->cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = attr->max_wr, .max_recv_sge = attr->max_sge},
        .qp_type = IBV_QPT_UC};
    work_queue *self = cqn_fake_alloc(sizeof(*self));
    self->qp = (ibv_create_qp)(attr->pd, &real);
    self->wq = (struct ibv_wq){.context = context,
                               .pd = attr->pd,
                               .cq = attr->cq,
                               .wq_num = self->qp->qp_num,
                               .post_recv = post_wq_recv};
    return cqn_fake_note("ibv_create_wq", self, attr, sizeof(*attr), NULL, 0);
}

static int modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr)
{
    struct ibv_qp *qp = ((work_queue *)wq)->qp;
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE;
    cqn_fake_note("ibv_modify_wq", wq, attr, sizeof(*attr), NULL, 0);
    if (attr->wq_state == IBV_WQS_RDY) {
        mask |= IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    }
    else {
        to.qp_state = attr->wq_state == IBV_WQS_ERR ? IBV_QPS_ERR : IBV_QPS_RESET;
    }
    return attr->attr_mask & IBV_WQ_ATTR_STATE ? (ibv_modify_qp)(qp, &to, mask) : 0;
}

static int destroy_wq(struct ibv_wq *wq)
{
    if (((work_queue *)wq)->users > 0) {
        return EBUSY;
    }
    cqn_fake_note("ibv_destroy_wq", wq, "", 0, NULL, 0);
    int err = (ibv_destroy_qp)(((work_queue *)wq)->qp);
    free(wq);
    return err;
}

static struct ibv_rwq_ind_table *create_table(struct ibv_context *context,
                                              struct ibv_rwq_ind_table_init_attr *attr)
{
    ind_table *self = cqn_fake_alloc(sizeof(*self));
    self->table.context = context;
    self->table.ind_tbl_num = 7;
    self->n = 1 << attr->log_ind_tbl_size;
    for (int i = 0; i < self->n; i++) {
        self->wqs[i] = (work_queue *)attr->ind_tbl[i];
        self->wqs[i]->users++;
    }
    return cqn_fake_note("ibv_create_rwq_ind_table", self, attr, sizeof(*attr), attr->ind_tbl,
                         sizeof(*attr->ind_tbl) << attr->log_ind_tbl_size);
}

static int destroy_table(struct ibv_rwq_ind_table *table)
{
    ind_table *self = (ind_table *)table;
    if (self->users > 0) {
        return EBUSY;
    }
    for (int i = 0; i < self->n; i++) {
        self->wqs[i]->users--;
    }
    cqn_fake_note("ibv_destroy_rwq_ind_table", table, "", 0, NULL, 0);
    free(table);
    return 0;
}

/* ---- ECE and the order of data ---- */

int cqn_fake_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    if (!cqn_is_fake(qp->context)) {
        return (ibv_query_ece)(qp, ece);
    }
    *ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = 0x10000005, .comp_mask = 0};
    return 0;
}

int cqn_fake_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
    if (!cqn_is_fake(qp->context)) {
        return (ibv_set_ece)(qp, ece);
    }
    cqn_fake_note("ibv_set_ece", qp, ece, sizeof(*ece), NULL, 0);
    return 0;
}

int cqn_fake_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
    return cqn_is_fake(qp->context) ? op == IBV_WR_RDMA_WRITE
                                    : (ibv_query_qp_data_in_order)(qp, op, flags);
}

/* ---- the device ---- */

void cqn_fake_attr(struct ibv_device_attr_ex *attr)
{
    attr->rss_caps = (struct ibv_rss_caps){.supported_qpts = 1 << IBV_QPT_RAW_PACKET,
                                           .max_rwq_indirection_tables = 4,
                                           .max_rwq_indirection_table_size = 8,
                                           .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4,
                                           .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ};
    attr->max_wq_type_rq = 9;
    attr->raw_packet_caps = IBV_RAW_PACKET_CAP_SCATTER_FCS;
    attr->tso_caps = (struct ibv_tso_caps){
        .max_tso = 4096, .supported_qpts = 1 << IBV_QPT_UD | 1 << IBV_QPT_RAW_PACKET};
    attr->tm_caps = (struct ibv_tm_caps){.max_rndv_hdr_size = 64,
                                         .max_num_tags = 16,
                                         .flags = IBV_TM_CAP_RC,
                                         .max_ops = 8,
                                         .max_sge = 2};
}

void cqn_make_fake(struct ibv_context *context)
{
    struct verbs_context *ops = verbs_get_ctx(context);
    assert(ops != NULL);
    create_qp_ex_of_device = ops->create_qp_ex;
    ops->create_qp_ex = create_qp_ex;
    create_cq_ex_of_device = ops->create_cq_ex;
    ops->create_cq_ex = create_cq_ex;
    poll_cq_of_device = context->ops.poll_cq;
    context->ops.poll_cq = poll_cq;
    post_send_of_device = context->ops.post_send;
    context->ops.post_send = post_send;
    ops->open_qp = open_qp;
    ops->open_xrcd = open_xrcd;
    ops->close_xrcd = close_xrcd;
    ops->create_srq_ex = create_srq_ex;
    ops->get_srq_num = get_srq_num;
    ops->post_srq_ops = post_srq_ops;
    ops->ibv_create_flow = create_flow;
    ops->ibv_destroy_flow = destroy_flow;
    ops->create_counters = create_counters;
    ops->destroy_counters = destroy_counters;
    ops->attach_counters_point_flow = attach_counters;
    ops->read_counters = read_counters;
    ops->create_wq = create_wq;
    ops->modify_wq = modify_wq;
    ops->destroy_wq = destroy_wq;
    ops->create_rwq_ind_table = create_table;
    ops->destroy_rwq_ind_table = destroy_table;
}
