/* SPDX-License-Identifier: MIT */
/*
 * Posting. Everything is checked before the device sees it: a device may
 * accept nonsense, and some keep a work request that they have refused and
 * send it later.
 */

#include "core.h"
#include <endian.h>

/* The parts of a work request that both sides have. */
typedef struct {
    struct ibv_sge sge[CQN_MAX_SGE];
    cqn_object *pinned[CQN_MAX_SGE + 1]; /* what must outlive it; borrowed */
    int num_sge;
    size_t num_pinned;
    uint64_t length;
    bool writable;   /* every MR may be written by the device */
    Py_buffer bytes; /* of an INLINE send straight from a buffer; or obj == NULL */
} gathered;

static void pin(gathered *g, cqn_object *object)
{
    for (size_t i = 0; i < g->num_pinned; i++) {
        if (g->pinned[i] == object) {
            return;
        }
    }
    g->pinned[g->num_pinned++] = object;
}

/* One element: an SGE, or an MR as a whole. `owner` is the QP or SRQ. */
static int gather_one(const cqn_object *owner, PyObject *item, uint32_t max_sge, gathered *g)
{
    cqn_state *st = owner->state;
    cqn_mr *mr;
    uint64_t addr, length;
    if (Py_IS_TYPE(item, st->SGE)) {
        mr = ((cqn_sge *)item)->mr;
        addr = ((cqn_sge *)item)->addr;
        length = ((cqn_sge *)item)->length;
    }
    else if (PyObject_TypeCheck(item, st->MR)) {
        mr = (cqn_mr *)item;
        addr = (uintptr_t)mr->addr;
        length = mr->length;
    }
    else {
        PyErr_Format(PyExc_TypeError,
                     "sg must be mr[a:b], an MR, or a sequence of these, not %s (bytes can only "
                     "be sent with SendFlags.INLINE)",
                     Py_TYPE(item)->tp_name);
        return -1;
    }
    if (cqn_open(CQN_OBJ(mr)) == NULL) {
        return -1;
    }
    if (CQN_OBJ(mr)->uses[0] != owner->uses[0]) {
        PyErr_Format(PyExc_ValueError, "sg: the MR belongs to another PD than the %s",
                     owner->kind->name);
        return -1;
    }
    if (length > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "sg: the MR has %zu bytes, an element at most %u: slice it",
                     mr->length, UINT32_MAX);
        return -1;
    }
    max_sge = max_sge < CQN_MAX_SGE ? max_sge : CQN_MAX_SGE; /* a device may grant more */
    if ((uint32_t)g->num_sge >= max_sge) {
        PyErr_Format(PyExc_ValueError, "sg has more elements than the %u that this %s takes",
                     max_sge, owner->kind->name);
        return -1;
    }
    g->sge[g->num_sge++] = (struct ibv_sge){addr, (uint32_t)length, mr->lkey};
    g->length += length;
    g->writable = g->writable && (mr->access & IBV_ACCESS_LOCAL_WRITE);
    pin(g, CQN_OBJ(mr));
    return 0;
}

static int gather(const cqn_object *owner, PyObject *sg, uint32_t max_sge, gathered *g)
{
    g->num_sge = 0;
    g->num_pinned = 0;
    g->length = 0;
    g->writable = true;
    g->bytes.obj = NULL;
    if (sg == NULL || sg == Py_None) {
        return 0;
    }
    if (!PyList_Check(sg) && !PyTuple_Check(sg)) {
        return gather_one(owner, sg, max_sge, g);
    }
    /* Nothing in gather_one() runs Python code, so the sequence can't change. */
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sg); i++) {
        if (gather_one(owner, PySequence_Fast_GET_ITEM(sg, i), max_sge, g) < 0) {
            return -1;
        }
    }
    return 0;
}

static bool is_plain_buffer(cqn_state *st, PyObject *sg)
{
    return sg != NULL && PyObject_CheckBuffer(sg) && !PyObject_TypeCheck(sg, st->MR);
}

/* An INLINE send takes its bytes while it is posted, so any buffer will do. */
static int gather_bytes(PyObject *sg, gathered *g)
{
    g->bytes.obj = NULL; /* an exporter that fails may leave it alone */
    if (PyObject_GetBuffer(sg, &g->bytes, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    g->num_sge = 1;
    g->num_pinned = 0;
    g->writable = true;
    g->length = (uint64_t)g->bytes.len;
    g->sge[0] = (struct ibv_sge){(uintptr_t)g->bytes.buf, (uint32_t)g->bytes.len, 0};
    return 0;
}

static int require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb)
{
    if (qp->state >= least) {
        return 0;
    }
    cqn_verbs_error(qp->base.state, EINVAL, verb, "QP %u is in %s, and needs %s: %s", qp->qp_num,
                    cqn_qp_state_name(qp->state), cqn_qp_state_name(least), "see QP.connect()");
    return -1;
}

static void *refuse_post(const cqn_qp *qp, int err, const char *verb, const cqn_wr_queue *queue,
                         uint32_t room)
{
    if (err == ENOMEM) {
        return cqn_verbs_error(qp->base.state, err, verb,
                               "the queue of QP %u is full: it was granted %u work requests and "
                               "%zd have not completed; poll its CQ, or ask for more",
                               qp->qp_num, room, (Py_ssize_t)queue->requests);
    }
    return cqn_verbs_error(qp->base.state, err, verb, "QP %u", qp->qp_num);
}

/* The arguments of post_recv(), and room for it in the queue of the QP or SRQ. */
static int prepare_recv(cqn_object *owner, const uint32_t *max_sge, cqn_wr_queue *queue,
                        PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                        struct ibv_recv_wr *wr, gathered *g)
{
    static const char *const names[] = {"sg", "wr_id", NULL};
    PyObject *in[2] = {NULL, NULL};
    *wr = (struct ibv_recv_wr){.sg_list = g->sge};
    if (cqn_open(owner) == NULL ||
        cqn_args("post_recv", names, 1, 1, args, nargs, kwnames, in) < 0 ||
        (in[1] != NULL && cqn_uint(in[1], "wr_id", UINT64_MAX, &wr->wr_id) < 0) ||
        cqn_open(owner) == NULL || gather(owner, in[0], *max_sge, g) < 0) {
        return -1;
    }
    if (!g->writable) {
        PyErr_SetString(PyExc_ValueError, "sg: to receive, an MR needs access LOCAL_WRITE");
        return -1;
    }
    wr->num_sge = g->num_sge;
    return cqn_wr_queue_reserve(queue, g->num_pinned + 1);
}

const char cqn_qp_post_recv_doc[] =
    "post_recv($self, /, sg, *, wr_id=0)\n--\n\n"
    "Post memory for one message to be received: mr[a:b], an MR, a list of these, or None.\n\n"
    "The memory is kept alive until the completion was polled or the QP closed. A UD message "
    "begins with 40 bytes of GRH. VerbsError (ENOMEM) when the queue is full.\n\n"
    "Wraps ibv_post_recv(3).";

PyObject *cqn_qp_post_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    cqn_qp *qp = (cqn_qp *)op;
    struct ibv_recv_wr wr, *bad = NULL;
    gathered g;
    if (cqn_is_open(&qp->base) && qp->srq != NULL) {
        return PyErr_Format(PyExc_ValueError,
                            "QP %u receives from its SRQ: post there, qp.srq.post_recv()",
                            (unsigned)qp->qp_num);
    }
    if (prepare_recv(&qp->base, &qp->cap.max_recv_sge, &qp->rq, args, nargs, kwnames, &wr, &g) <
            0 ||
        require_state(qp, IBV_QPS_INIT, "ibv_post_recv") < 0) {
        return NULL;
    }
    int err = ibv_post_recv(qp->base.handle, &wr, &bad);
    if (err != 0) {
        return refuse_post(qp, err, "ibv_post_recv", &qp->rq, qp->cap.max_recv_wr);
    }
    cqn_wr_queue_push(&qp->rq, wr.wr_id, true, g.pinned, g.num_pinned);
    Py_RETURN_NONE;
}

const char cqn_srq_post_recv_doc[] =
    "post_recv($self, /, sg, *, wr_id=0)\n--\n\n"
    "Post memory for one message, to whichever of its QPs it comes: mr[a:b], an MR, a list of "
    "these, or None.\n\n"
    "The completion, on the receive CQ of that QP, says by its `wr_id` alone which memory it is, "
    "so give each its own. The memory, of the SRQ's own PD, is kept alive until the completion was "
    "polled or the SRQ closed. VerbsError (ENOMEM) when the queue is full.\n\n"
    "Wraps ibv_post_srq_recv(3).";

PyObject *cqn_srq_post_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    cqn_srq *srq = (cqn_srq *)op;
    struct ibv_recv_wr wr, *bad = NULL;
    gathered g;
    if (prepare_recv(&srq->base, &srq->max_sge, &srq->rq, args, nargs, kwnames, &wr, &g) < 0) {
        return NULL;
    }
    int err = ibv_post_srq_recv(srq->base.handle, &wr, &bad);
    if (err != 0) {
        return cqn_verbs_error(srq->base.state, err, "ibv_post_srq_recv",
                               err == ENOMEM ? "the SRQ is full: it was granted %u receives and "
                                               "%zd have not completed; poll the CQs of its QPs, "
                                               "or ask for more"
                                             : "max_wr %u, %zd have not completed",
                               srq->max_wr, (Py_ssize_t)srq->rq.requests);
    }
    cqn_wr_queue_push(&srq->rq, wr.wr_id, true, g.pinned, g.num_pinned);
    Py_RETURN_NONE;
}

enum { RC = 1, UC = 2, UD = 4 };
enum { ATOMIC_SIZE = 8 }; /* bytes that an atomic operation works on */

/* What each opcode allows and asks for. */
typedef struct {
    int opcode;
    int types;
    bool imm, remote, solicited, inlined, fills, atomic, swaps;
} opcode_rule;

static const opcode_rule rules[] = {
    {IBV_WR_SEND, RC | UC | UD, .solicited = true, .inlined = true},
    {IBV_WR_SEND_WITH_IMM, RC | UC | UD, .imm = true, .solicited = true, .inlined = true},
    {IBV_WR_RDMA_WRITE, RC | UC, .remote = true, .inlined = true},
    {IBV_WR_RDMA_WRITE_WITH_IMM, RC | UC, .imm = true, .remote = true, .solicited = true,
     .inlined = true},
    {IBV_WR_RDMA_READ, RC, .remote = true, .fills = true},
    {IBV_WR_ATOMIC_CMP_AND_SWP, RC, .remote = true, .fills = true, .atomic = true, .swaps = true},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, RC, .remote = true, .fills = true, .atomic = true},
};

enum {
    SG,
    WR_ID,
    OPCODE,
    SEND_FLAGS,
    IMM_DATA,
    REMOTE_ADDR,
    RKEY,
    COMPARE_ADD,
    SWAP,
    AH,
    REMOTE_QPN,
    REMOTE_QKEY
};

static const char *const send_names[] = {
    "sg",          "wr_id", "opcode", "send_flags", "imm_data",    "remote_addr", "rkey",
    "compare_add", "swap",  "ah",     "remote_qpn", "remote_qkey", NULL};
#define N_SEND (Py_ARRAY_LENGTH(send_names) - 1)

static const opcode_rule *rule_of(const cqn_qp *qp, uint32_t opcode)
{
    static const char *const type_names[] = {
        [IBV_QPT_RC] = "RC", [IBV_QPT_UC] = "UC", [IBV_QPT_UD] = "UD"};
    const int type = qp->type == IBV_QPT_RC ? RC : qp->type == IBV_QPT_UC ? UC : UD;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(rules); i++) {
        if (rules[i].opcode == (int)opcode) {
            if (rules[i].types & type) {
                return &rules[i];
            }
            PyErr_Format(PyExc_ValueError, "opcode %s is not possible on a %s QP",
                         cqn_wr_opcode_name(opcode), type_names[qp->type]);
            return NULL;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "opcode is %u: post_send() takes SEND, SEND_WITH_IMM, "
                 "RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ, ATOMIC_CMP_AND_SWP and "
                 "ATOMIC_FETCH_AND_ADD",
                 opcode);
    return NULL;
}

/* An argument that is required, or refused, with this opcode or QP type. */
static int presence(PyObject *const *in, int index, bool wanted, const char *what)
{
    bool given = in[index] != NULL && in[index] != Py_None;
    if (given == wanted) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 wanted ? "%s is missing: %s needs it" : "%s was given, but %s does not take it",
                 send_names[index], what);
    return -1;
}

static int check_flags(const cqn_qp *qp, const opcode_rule *rule, uint32_t flags)
{
    const uint32_t known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED |
                           IBV_SEND_INLINE | IBV_SEND_IP_CSUM;
    const char *name = cqn_wr_opcode_name(rule->opcode);
    if (flags & ~known) {
        PyErr_Format(PyExc_ValueError, "send_flags is 0x%x: 0x%x is no flag", flags,
                     flags & ~known);
        return -1;
    }
    if ((flags & IBV_SEND_SOLICITED) && !rule->solicited) {
        PyErr_Format(PyExc_ValueError,
                     "send_flags: SOLICITED is not possible with %s: it "
                     "completes nothing at the receiver",
                     name);
        return -1;
    }
    if ((flags & IBV_SEND_INLINE) && !rule->inlined) {
        PyErr_Format(PyExc_ValueError, "send_flags: INLINE is not possible with %s", name);
        return -1;
    }
    if ((flags & IBV_SEND_FENCE) && qp->type != IBV_QPT_RC) {
        PyErr_SetString(PyExc_ValueError, "send_flags: FENCE is possible on an RC QP only");
        return -1;
    }
    return 0;
}

/* The atomics' part of the request has other places for the same fields. */
static int set_atomic(PyObject *const *in, const opcode_rule *rule, struct ibv_send_wr *wr)
{
    uint64_t addr, compare_add, swap = 0;
    uint32_t rkey;
    if (cqn_uint(in[REMOTE_ADDR], "remote_addr", UINT64_MAX, &addr) < 0 ||
        cqn_u32(in[RKEY], "rkey", UINT32_MAX, &rkey) < 0 ||
        cqn_uint(in[COMPARE_ADD], "compare_add", UINT64_MAX, &compare_add) < 0 ||
        (rule->swaps && cqn_uint(in[SWAP], "swap", UINT64_MAX, &swap) < 0)) {
        return -1;
    }
    if (addr % ATOMIC_SIZE != 0) {
        PyErr_Format(PyExc_ValueError, "remote_addr is %llu: %s needs a multiple of %d",
                     (unsigned long long)addr, cqn_wr_opcode_name(rule->opcode), ATOMIC_SIZE);
        return -1;
    }
    wr->wr.atomic.remote_addr = addr;
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.compare_add = compare_add;
    wr->wr.atomic.swap = swap;
    return 0;
}

static int set_remote(PyObject *const *in, const opcode_rule *rule, struct ibv_send_wr *wr)
{
    const char *name = cqn_wr_opcode_name(rule->opcode);
    if (presence(in, REMOTE_ADDR, rule->remote, name) < 0 ||
        presence(in, RKEY, rule->remote, name) < 0 ||
        presence(in, COMPARE_ADD, rule->atomic, name) < 0 ||
        presence(in, SWAP, rule->swaps, name) < 0) {
        return -1;
    }
    if (rule->atomic) {
        return set_atomic(in, rule, wr);
    }
    return rule->remote && (cqn_uint(in[REMOTE_ADDR], "remote_addr", UINT64_MAX,
                                     &wr->wr.rdma.remote_addr) < 0 ||
                            cqn_u32(in[RKEY], "rkey", UINT32_MAX, &wr->wr.rdma.rkey) < 0)
               ? -1
               : 0;
}

static int set_destination(const cqn_qp *qp, PyObject *const *in, struct ibv_send_wr *wr)
{
    bool ud = qp->type == IBV_QPT_UD;
    const char *what = ud ? "a UD QP" : "a connected QP";
    if (presence(in, AH, ud, what) < 0 || presence(in, REMOTE_QPN, ud, what) < 0 ||
        presence(in, REMOTE_QKEY, ud, what) < 0) {
        return -1;
    }
    return ud && (cqn_u32(in[REMOTE_QPN], "remote_qpn", 0xffffff, &wr->wr.ud.remote_qpn) < 0 ||
                  cqn_u32(in[REMOTE_QKEY], "remote_qkey", UINT32_MAX, &wr->wr.ud.remote_qkey) < 0)
               ? -1
               : 0;
}

/* The address handle, last, when no Python code can close it any more. */
static int set_ah(const cqn_qp *qp, PyObject *ah, struct ibv_send_wr *wr, gathered *g)
{
    if (qp->type != IBV_QPT_UD) {
        return 0;
    }
    if (cqn_expect(ah, qp->base.state->AH, "ah") < 0) {
        return -1;
    }
    if (CQN_OBJ(ah)->uses[0] != qp->pd) {
        PyErr_SetString(PyExc_ValueError, "ah belongs to another PD than the QP");
        return -1;
    }
    wr->wr.ud.ah = CQN_OBJ(ah)->handle;
    pin(g, CQN_OBJ(ah));
    return 0;
}

/* Everything of the request but its memory and its address handle. */
static const opcode_rule *set_request(const cqn_qp *qp, PyObject *const *in, struct ibv_send_wr *wr)
{
    uint32_t opcode = IBV_WR_SEND, flags = IBV_SEND_SIGNALED, imm = 0;
    if ((in[WR_ID] != NULL && cqn_uint(in[WR_ID], "wr_id", UINT64_MAX, &wr->wr_id) < 0) ||
        (in[OPCODE] != NULL && cqn_u32(in[OPCODE], "opcode", UINT8_MAX, &opcode) < 0) ||
        (in[SEND_FLAGS] != NULL && cqn_u32(in[SEND_FLAGS], "send_flags", UINT32_MAX, &flags) < 0)) {
        return NULL;
    }
    const opcode_rule *rule = rule_of(qp, opcode);
    if (rule == NULL || check_flags(qp, rule, flags) < 0 ||
        presence(in, IMM_DATA, rule->imm, cqn_wr_opcode_name(opcode)) < 0 ||
        (rule->imm && cqn_u32(in[IMM_DATA], "imm_data", UINT32_MAX, &imm) < 0) ||
        set_remote(in, rule, wr) < 0 || set_destination(qp, in, wr) < 0) {
        return NULL;
    }
    wr->opcode = opcode;
    wr->send_flags = flags;
    if (rule->imm) {
        wr->imm_data = htobe32(imm);
    }
    return rule;
}

/* Some devices take a message that is too long, and lose it. */
static int check_length(cqn_qp *qp, const gathered *g)
{
    /* The limit can have grown with the link's MTU. */
    if (g->length <= qp->max_message || g->length <= cqn_qp_learn_limit(qp)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "sg has %llu bytes: port %d sends at most %u in one %s",
                 (unsigned long long)g->length, qp->port_num, qp->max_message,
                 qp->type == IBV_QPT_UD ? "datagram (its MTU)" : "message (max_msg_sz)");
    return -1;
}

/* A device without atomics may take one all the same, and fail it later or not at all. */
static int check_atomic(const cqn_qp *qp, const opcode_rule *rule, const gathered *g)
{
    const char *name = cqn_wr_opcode_name(rule->opcode);
    if (qp->base.context->attr.atomic_cap == IBV_ATOMIC_NONE) {
        cqn_verbs_error(qp->base.state, EOPNOTSUPP, "ibv_post_send",
                        "%s: %s has no atomic operations (its atomic_cap is NONE)", name,
                        cqn_device_name(&qp->base));
        return -1;
    }
    if (g->num_sge != 1 || g->length != ATOMIC_SIZE) {
        PyErr_Format(PyExc_ValueError,
                     "sg has %llu bytes in %d element%s: %s needs %d bytes in one element, for "
                     "the number that was there",
                     (unsigned long long)g->length, g->num_sge, g->num_sge == 1 ? "" : "s", name,
                     ATOMIC_SIZE);
        return -1;
    }
    return 0;
}

static int check_memory(cqn_qp *qp, const opcode_rule *rule, const struct ibv_send_wr *wr,
                        const gathered *g)
{
    if (rule->atomic && check_atomic(qp, rule, g) < 0) {
        return -1;
    }
    if (rule->fills && !g->writable) {
        PyErr_SetString(PyExc_ValueError, "sg: to read into, an MR needs access LOCAL_WRITE");
        return -1;
    }
    if ((wr->send_flags & IBV_SEND_INLINE) && g->length > qp->cap.max_inline_data) {
        PyErr_Format(PyExc_ValueError,
                     "sg has %llu bytes: this QP sends at most %u INLINE (max_inline_data)",
                     (unsigned long long)g->length, qp->cap.max_inline_data);
        return -1;
    }
    return check_length(qp, g);
}

const char cqn_qp_post_send_doc[] =
    "post_send($self, /, sg, *, wr_id=0, opcode=2, send_flags=2, imm_data=None, remote_addr=None, "
    "rkey=None, compare_add=None, swap=None, ah=None, "
    "remote_qpn=None, remote_qkey=None)\n--\n\n"
    "Post one work request: send, write or read the memory `sg`, or change a number of the peer's "
    "in one step.\n\n"
    "`opcode` is a WROpcode, SEND by default, `send_flags` are SendFlags, SIGNALED by default, and "
    "`wr_id` (64 bits) comes back in the completion. "
    "`sg` is mr[a:b], an MR, a list of these, or None for an empty message; with "
    "SendFlags.INLINE also any buffer, whose bytes are taken at once. Without SIGNALED a success "
    "gives no completion. `imm_data` (32 bits) goes with the *_WITH_IMM opcodes, `remote_addr` "
    "and `rkey` with RDMA_* and ATOMIC_*, `ah`, `remote_qpn` and `remote_qkey` with a UD QP. The "
    "memory is kept alive until the completion, its own or a later one's, was polled or the QP "
    "closed. "
    "ValueError for what does not go together, VerbsError (ENOMEM) when the queue is full.\n\n"
    "ATOMIC_* work on a number of 64 bits in the peer's byte order, at a multiple of 8: "
    "ATOMIC_FETCH_AND_ADD adds `compare_add` modulo 2**64, ATOMIC_CMP_AND_SWP puts `swap` there if "
    "`compare_add` was there. The number from before comes to `sg`, which must be 8 bytes in one "
    "element, in our byte order. VerbsError (EOPNOTSUPP) on a device that has no atomics.\n\n"
    "Wraps ibv_post_send(3).";

static int gather_send(cqn_qp *qp, PyObject *sg, const struct ibv_send_wr *wr, gathered *g)
{
    return (wr->send_flags & IBV_SEND_INLINE) && is_plain_buffer(qp->base.state, sg)
               ? gather_bytes(sg, g)
               : gather(&qp->base, sg, qp->cap.max_send_sge, g);
}

static int post(cqn_qp *qp, struct ibv_send_wr *wr, gathered *g)
{
    struct ibv_send_wr *bad = NULL;
    wr->sg_list = g->sge;
    wr->num_sge = g->num_sge;
    int err = ibv_post_send(qp->base.handle, wr, &bad);
    if (err != 0) {
        refuse_post(qp, err, "ibv_post_send", &qp->sq, qp->cap.max_send_wr);
        return -1;
    }
    cqn_wr_queue_push(&qp->sq, wr->wr_id, qp->sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED),
                      g->pinned, g->num_pinned);
    return 0;
}

PyObject *cqn_qp_post_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    cqn_qp *qp = (cqn_qp *)op;
    PyObject *in[N_SEND] = {NULL};
    struct ibv_send_wr wr = {.wr_id = 0};
    gathered g;
    if (cqn_open(&qp->base) == NULL ||
        cqn_args("post_send", send_names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    const opcode_rule *rule = set_request(qp, in, &wr);
    if (rule == NULL) {
        return NULL;
    }
    /* Converting can have run Python code: what is closed shows only now. */
    int rc = gather_send(qp, in[SG], &wr, &g);
    if (rc == 0) {
        rc = cqn_open(&qp->base) == NULL || set_ah(qp, in[AH], &wr, &g) < 0 ||
                     require_state(qp, IBV_QPS_RTS, "ibv_post_send") < 0 ||
                     check_memory(qp, rule, &wr, &g) < 0 ||
                     cqn_wr_queue_reserve(&qp->sq, g.num_pinned + 1) < 0 || post(qp, &wr, &g) < 0
                 ? -1
                 : 0;
    }
    if (g.bytes.obj != NULL) {
        PyBuffer_Release(&g.bytes);
    }
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}
