/* SPDX-License-Identifier: MIT */
/*
 * The arguments of a send request: which of them go together, independently of a queue pair.
 *
 * A send request is built in two steps. cqn_send_parse() converts the numbers, which can run
 * arbitrary code. cqn_send_gather() then adds the objects. From there to the post no Python code
 * runs, so all checks still hold when the device gets the request.
 */

#include "work/wr.h"
#include <endian.h>

enum {
    RC = 1 << IBV_QPT_RC,
    UC = 1 << IBV_QPT_UC,
    UD = 1 << IBV_QPT_UD,
    RAW = 1 << IBV_QPT_RAW_PACKET,
    XRC = 1 << IBV_QPT_XRC_SEND,
    ALL = RC | UC | UD | RAW | XRC
};
enum { ATOMIC_SIZE = 8 }; /* bytes that an atomic operation changes */

/* clang-format off */
#define OPCODE(name, types, ...) [IBV_WR_##name] = {#name, types, __VA_ARGS__}
static const cqn_opcode opcodes[] = {
    OPCODE(SEND, ALL, .solicited = true, .inlined = true),
    OPCODE(SEND_WITH_IMM, RC | UC | UD | XRC, .imm = true, .solicited = true, .inlined = true),
    OPCODE(RDMA_WRITE, RC | UC | XRC, .remote = true, .inlined = true),
    OPCODE(RDMA_WRITE_WITH_IMM, RC | UC | XRC, .imm = true, .remote = true, .solicited = true,
           .inlined = true),
    OPCODE(RDMA_READ, RC | XRC, .remote = true, .fills = true, .rd_atomic = true),
    OPCODE(ATOMIC_CMP_AND_SWP, RC | XRC, .remote = true, .fills = true, .rd_atomic = true,
           .atomic = true, .swaps = true),
    OPCODE(ATOMIC_FETCH_AND_ADD, RC | XRC, .remote = true, .fills = true, .rd_atomic = true,
           .atomic = true),
    OPCODE(SEND_WITH_INV, RC | UC | XRC, .invalidates = true, .solicited = true, .inlined = true),
    OPCODE(LOCAL_INV, RC | UC | XRC, .invalidates = true, .does = CQN_WR_INVALIDATES),
    OPCODE(BIND_MW, RC | UC | XRC, .does = CQN_WR_BINDS),
    OPCODE(ATOMIC_WRITE, RC, .remote = true, .rd_atomic = true, .atomic_write = true,
           .verb = "ibv_wr_atomic_write"),
    [CQN_WR_FLUSH] = {"FLUSH", RC, .remote = true, .flush = true, .verb = "ibv_wr_flush"},
    OPCODE(TSO, UD | RAW, .solicited = true, .tso = true),
};
#undef OPCODE

const char *const cqn_send_names[CQN_SEND_NAMES + 1] = {
    "sg", "wr_id", "opcode", "send_flags", "imm_data", "remote_addr", "rkey", "compare_add", "swap",
    "invalidate_rkey", "mw", "access", "ah", "remote_qpn", "remote_qkey",
    "remote_srqn", "tso_header", "mss", "length", "placement", "level", NULL};
/* clang-format on */

const cqn_opcode *cqn_opcode_of(uint32_t opcode)
{
    if (opcode < Py_ARRAY_LENGTH(opcodes) && opcodes[opcode].name != NULL) {
        return &opcodes[opcode];
    }
    PyErr_Format(PyExc_ValueError,
                 "opcode is %u: a work request takes SEND, SEND_WITH_IMM, SEND_WITH_INV, "
                 "RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ, ATOMIC_CMP_AND_SWP, "
                 "ATOMIC_FETCH_AND_ADD, LOCAL_INV, BIND_MW, ATOMIC_WRITE, FLUSH and TSO",
                 opcode);
    return NULL;
}

static bool is_given(PyObject *const *in, int index)
{
    return in[index] != NULL && in[index] != Py_None;
}

/* Checks that an argument is given exactly if `what`, an opcode or a type of QP, needs it. Returns
 * -1 with ValueError. */
static int check_presence(PyObject *const *in, int index, bool wanted, const char *what)
{
    if (is_given(in, index) == wanted) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 wanted ? "%s is missing: %s needs it" : "%s was given, but %s does not take it",
                 cqn_send_names[index], what);
    return -1;
}

static int check_flags(const cqn_opcode *op, const struct ibv_send_wr *wr)
{
    const uint32_t known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED |
                           IBV_SEND_INLINE | IBV_SEND_IP_CSUM;
    const uint32_t flags = wr->send_flags;
    if (flags & ~known) {
        PyErr_Format(PyExc_ValueError, "send_flags is 0x%x: 0x%x is no flag", flags,
                     flags & ~known);
        return -1;
    }
    if ((flags & IBV_SEND_SOLICITED) && !op->solicited) {
        PyErr_Format(PyExc_ValueError,
                     "send_flags: SOLICITED is not possible with %s: it completes nothing at the "
                     "receiver",
                     op->name);
        return -1;
    }
    if ((flags & IBV_SEND_INLINE) && !op->inlined) {
        PyErr_Format(PyExc_ValueError, "send_flags: INLINE is not possible with %s", op->name);
        return -1;
    }
    return 0;
}

static int check_alignment(const cqn_opcode *op, uint64_t addr)
{
    if (addr % ATOMIC_SIZE != 0) {
        PyErr_Format(PyExc_ValueError, "remote_addr is %llu: %s needs a multiple of %d",
                     (unsigned long long)addr, op->name, ATOMIC_SIZE);
        return -1;
    }
    return 0;
}

/* The struct has other members for the same fields of atomics. */
static int set_atomic(PyObject *const *in, const cqn_opcode *op, struct ibv_send_wr *wr)
{
    uint64_t addr, compare_add, swap = 0;
    uint32_t rkey;
    if (cqn_uint(in[CQN_REMOTE_ADDR], "remote_addr", UINT64_MAX, &addr) < 0 ||
        cqn_u32(in[CQN_RKEY], "rkey", UINT32_MAX, &rkey) < 0 ||
        cqn_uint(in[CQN_COMPARE_ADD], "compare_add", UINT64_MAX, &compare_add) < 0 ||
        (op->swaps && cqn_uint(in[CQN_SWAP], "swap", UINT64_MAX, &swap) < 0) ||
        check_alignment(op, addr) < 0) {
        return -1;
    }
    wr->wr.atomic.remote_addr = addr;
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.compare_add = compare_add;
    wr->wr.atomic.swap = swap;
    return 0;
}

static int set_remote(PyObject *const *in, const cqn_opcode *op, struct ibv_send_wr *wr)
{
    const char *name = op->name;
    if (check_presence(in, CQN_REMOTE_ADDR, op->remote, name) < 0 ||
        check_presence(in, CQN_COMPARE_ADD, op->atomic, name) < 0 ||
        check_presence(in, CQN_SWAP, op->swaps, name) < 0 ||
        (op->does != CQN_WR_BINDS && check_presence(in, CQN_RKEY, op->remote, name) < 0)) {
        return -1;
    }
    if (op->atomic) {
        return set_atomic(in, op, wr);
    }
    if (op->remote &&
        (cqn_uint(in[CQN_REMOTE_ADDR], "remote_addr", UINT64_MAX, &wr->wr.rdma.remote_addr) < 0 ||
         cqn_u32(in[CQN_RKEY], "rkey", UINT32_MAX, &wr->wr.rdma.rkey) < 0)) {
        return -1;
    }
    return op->atomic_write ? check_alignment(op, wr->wr.rdma.remote_addr) : 0;
}

/* Sets how a window is bound; gather_bind() adds the window and the memory. */
static int set_bind(PyObject *const *in, cqn_send *out)
{
    const bool binds = out->opcode->does == CQN_WR_BINDS;
    const char *name = out->opcode->name;
    if (check_presence(in, CQN_MW, binds, name) < 0 ||
        (!binds && check_presence(in, CQN_ACCESS, false, name) < 0)) {
        return -1;
    }
    out->has_rkey = binds && is_given(in, CQN_RKEY);
    return (out->has_rkey &&
            cqn_u32(in[CQN_RKEY], "rkey", UINT32_MAX, &out->wr.bind_mw.rkey) < 0) ||
                   (is_given(in, CQN_ACCESS) &&
                    cqn_member32(in[CQN_ACCESS], "access",
                                 "AccessFlags such as AccessFlags.REMOTE_READ", UINT32_MAX,
                                 &out->wr.bind_mw.bind_info.mw_access_flags) < 0)
               ? -1
               : 0;
}

/* imm_data and invalidate_rkey share their place in the struct. */
static int set_imm(PyObject *const *in, const cqn_opcode *op, struct ibv_send_wr *wr)
{
    uint32_t imm;
    if (check_presence(in, CQN_IMM_DATA, op->imm, op->name) < 0 ||
        check_presence(in, CQN_INVALIDATE_RKEY, op->invalidates, op->name) < 0 ||
        (op->imm && cqn_u32(in[CQN_IMM_DATA], "imm_data", UINT32_MAX, &imm) < 0)) {
        return -1;
    }
    if (op->imm) {
        wr->imm_data = htobe32(imm);
    }
    return op->invalidates ? cqn_u32(in[CQN_INVALIDATE_RKEY], "invalidate_rkey", UINT32_MAX,
                                     &wr->invalidate_rkey)
                           : 0;
}

/* Sets the header that each segment begins with. The device copies it at the post. */
static int set_tso(PyObject *const *in, cqn_send *out)
{
    const cqn_opcode *op = out->opcode;
    PyObject *header = in[CQN_TSO_HEADER];
    uint64_t mss = 0;
    out->header = NULL;
    if (check_presence(in, CQN_TSO_HEADER, op->tso, op->name) < 0 ||
        check_presence(in, CQN_MSS, op->tso, op->name) < 0) {
        return -1;
    }
    if (!op->tso) {
        return 0;
    }
    if (!PyBytes_Check(header)) {
        PyErr_Format(PyExc_TypeError, "tso_header must be bytes, not %s", Py_TYPE(header)->tp_name);
        return -1;
    }
    const Py_ssize_t size = PyBytes_GET_SIZE(header);
    if (size < 1 || size > UINT16_MAX) {
        PyErr_Format(PyExc_ValueError, "tso_header has %zd bytes: it must have 1 to %d", size,
                     UINT16_MAX);
        return -1;
    }
    if (cqn_range(in[CQN_MSS], "mss", 1, UINT16_MAX, &mss) < 0) {
        return -1;
    }
    out->header = header;
    out->wr.tso.hdr = PyBytes_AS_STRING(header);
    out->wr.tso.hdr_sz = (uint16_t)size;
    out->wr.tso.mss = (uint16_t)mss;
    return 0;
}

static int set_flush(PyObject *const *in, cqn_send *out)
{
    const cqn_opcode *op = out->opcode;
    if (!op->flush) {
        return check_presence(in, CQN_LENGTH, false, op->name) < 0 ||
                       check_presence(in, CQN_PLACEMENT, false, op->name) < 0 ||
                       check_presence(in, CQN_LEVEL, false, op->name) < 0
                   ? -1
                   : 0;
    }
    uint32_t placement = CQN_FLUSH_GLOBAL, level = CQN_FLUSH_RANGE;
    if (check_presence(in, CQN_PLACEMENT, true, op->name) < 0 ||
        cqn_member32(in[CQN_PLACEMENT], "placement", "a PlacementType such as PlacementType.GLOBAL",
                     CQN_FLUSH_GLOBAL | CQN_FLUSH_PERSISTENT, &placement) < 0 ||
        (is_given(in, CQN_LEVEL) &&
         cqn_member32(in[CQN_LEVEL], "level", "a SelectivityLevel such as SelectivityLevel.RANGE",
                      CQN_FLUSH_MR, &level) < 0)) {
        return -1;
    }
    if (placement == 0) {
        PyErr_SetString(PyExc_ValueError, "placement is 0: it must be GLOBAL, PERSISTENT or both");
        return -1;
    }
    out->placement = (uint8_t)placement;
    out->level = (uint8_t)level;
    out->flush_length = 0;
    const bool range = level == CQN_FLUSH_RANGE;
    return check_presence(in, CQN_LENGTH, range,
                          range ? "FLUSH of a RANGE" : "FLUSH of a whole MR") < 0 ||
                   (range && cqn_u32(in[CQN_LENGTH], "length", UINT32_MAX, &out->flush_length) < 0)
               ? -1
               : 0;
}

/* Sets the peer's SRQ, for opcodes that consume a receive there. */
static int set_srq(PyObject *const *in, cqn_send *out)
{
    return cqn_u32(in[CQN_REMOTE_SRQN], "remote_srqn", 0xffffff, &out->wr.qp_type.xrc.remote_srqn);
}

/* Returns the types of queue pairs that fit the arguments for the receiver. */
static uint32_t types_by_receiver(PyObject *const *in, const cqn_send *s)
{
    if (is_given(in, CQN_REMOTE_SRQN)) {
        return XRC;
    }
    if (is_given(in, CQN_AH) || is_given(in, CQN_REMOTE_QPN) || is_given(in, CQN_REMOTE_QKEY)) {
        return s->opcode->qp_types & UD ? UD : RC | UC;
    }
    return RC | UC | RAW | (s->opcode->solicited ? 0 : XRC);
}

/* A request with an address handle is a datagram; one with an SRQ number is for an XRC_SEND QP; all
 * others are for a connected QP, or one for raw packets. */
static int set_destination(PyObject *const *in, const cqn_qp *qp, cqn_send *out)
{
    struct ibv_send_wr *wr = &out->wr;
    const uint32_t types = qp ? 1u << qp->type : types_by_receiver(in, out);
    const bool datagram = types == UD, shared = types == XRC && out->opcode->solicited;
    const char *what = datagram       ? "a UD QP"
                       : !qp          ? out->opcode->name
                       : types == RAW ? "a RAW_PACKET QP"
                       : types == XRC ? "an XRC_SEND QP"
                                      : "a connected QP";
    if (check_presence(in, CQN_AH, datagram, what) < 0 ||
        check_presence(in, CQN_REMOTE_QPN, datagram, what) < 0 ||
        check_presence(in, CQN_REMOTE_QKEY, datagram, what) < 0 ||
        check_presence(in, CQN_REMOTE_SRQN, shared,
                       types == XRC && !shared ? out->opcode->name : what) < 0 ||
        (shared && set_srq(in, out) < 0)) {
        return -1;
    }
    out->qp_types &= types;
    return datagram && (cqn_u32(in[CQN_REMOTE_QPN], "remote_qpn", 0xffffff, &wr->wr.ud.remote_qpn) <
                            0 ||
                        cqn_u32(in[CQN_REMOTE_QKEY], "remote_qkey", UINT32_MAX,
                                &wr->wr.ud.remote_qkey) < 0)
               ? -1
               : 0;
}

CQN_RARE int cqn_send_refuse_type(const cqn_send *send, enum ibv_qp_type type)
{
    const uint32_t bit = 1u << type;
    if (!(send->opcode->qp_types & bit)) {
        PyErr_Format(PyExc_ValueError, "opcode %s is not possible on a %s QP", send->opcode->name,
                     cqn_qp_type_name(type));
    }
    else if ((send->wr.send_flags & IBV_SEND_FENCE) && !(bit & (RC | XRC))) {
        PyErr_SetString(PyExc_ValueError, "send_flags: FENCE is possible on an RC QP only");
    }
    else if ((send->wr.send_flags & IBV_SEND_IP_CSUM) && !(bit & (UD | RAW))) {
        PyErr_SetString(PyExc_ValueError, "send_flags: IP_CSUM is possible on a UD QP only");
    }
    else if (bit == UD) {
        PyErr_SetString(PyExc_ValueError, "ah is missing: a UD QP needs it");
    }
    else if (bit == XRC) {
        PyErr_SetString(PyExc_ValueError, "remote_srqn is missing: an XRC_SEND QP needs it");
    }
    else if (send->qp_types & XRC) {
        PyErr_Format(PyExc_ValueError, "remote_srqn was given, but a %s QP does not take it",
                     cqn_qp_type_name(type));
    }
    else {
        PyErr_SetString(PyExc_ValueError, "ah was given, but a connected QP does not take it");
    }
    return -1;
}

int cqn_send_parse(PyObject *const *in, const cqn_qp *qp, uint32_t opcode, cqn_send *out)
{
    uint32_t flags = IBV_SEND_SIGNALED;
    struct ibv_send_wr *wr = &out->wr;
    *wr = (struct ibv_send_wr){.wr_id = 0};
    out->wr_id = 0;
    if ((in[CQN_WR_ID] != NULL && cqn_uint(in[CQN_WR_ID], "wr_id", UINT64_MAX, &out->wr_id) < 0) ||
        (in[CQN_OPCODE] != NULL &&
         cqn_member32(in[CQN_OPCODE], "opcode", "a WROpcode such as WROpcode.SEND", UINT8_MAX,
                      &opcode) < 0) ||
        (in[CQN_SEND_FLAGS] != NULL &&
         cqn_member32(in[CQN_SEND_FLAGS], "send_flags", "SendFlags such as SendFlags.SIGNALED",
                      UINT32_MAX, &flags) < 0)) {
        return -1;
    }
    wr->opcode = opcode;
    wr->send_flags = flags;
    out->opcode = cqn_opcode_of(opcode);
    if (out->opcode == NULL) {
        return -1;
    }
    out->qp_types = out->opcode->qp_types & (flags & IBV_SEND_FENCE ? RC | XRC : ALL) &
                    (flags & IBV_SEND_IP_CSUM ? UD | RAW : ALL);
    if (qp != NULL && !(out->qp_types & (1u << qp->type))) {
        return cqn_send_refuse_type(out, qp->type);
    }
    if (check_flags(out->opcode, wr) < 0 || set_imm(in, out->opcode, wr) < 0 ||
        set_remote(in, out->opcode, wr) < 0 || set_bind(in, out) < 0 || set_tso(in, out) < 0 ||
        set_flush(in, out) < 0 || set_destination(in, qp, out) < 0) {
        return -1;
    }
    return out->qp_types == 0 ? cqn_send_refuse_type(out, IBV_QPT_UD) : 0;
}

static bool is_plain_buffer(cqn_state *st, PyObject *memory)
{
    return memory != NULL && PyObject_CheckBuffer(memory) && !PyObject_TypeCheck(memory, st->MR);
}

/* Checks the opcode's requirements on the memory. Otherwise the device would fail the request
 * later, or do something else. */
static int check_memory(const cqn_send *s)
{
    if (s->opcode->fills && !s->sg.writable) {
        PyErr_SetString(PyExc_ValueError, "sg: to read into, an MR needs access LOCAL_WRITE");
        return -1;
    }
    if ((s->opcode->atomic || s->opcode->atomic_write) &&
        (s->sg.num_sge != 1 || s->sg.length != ATOMIC_SIZE)) {
        PyErr_Format(PyExc_ValueError,
                     "sg has %llu bytes in %u element%s: %s needs %d bytes in one element%s",
                     (unsigned long long)s->sg.length, s->sg.num_sge, s->sg.num_sge == 1 ? "" : "s",
                     s->opcode->name, ATOMIC_SIZE,
                     s->opcode->atomic ? ", for the number that was there" : "");
        return -1;
    }
    return 0;
}

/* Checks what a peer may do through a window, and whether the MR allows it. No access at all is
 * left to the device, and so is LOCAL_WRITE, which means nothing to a peer. Invalid flags are
 * refused here: rxe of Linux 6.12 refuses them too, and then cannot destroy the window. */
static int check_access(const cqn_mw *mw, const cqn_mr *mr, const struct ibv_mw_bind_info *bind)
{
    const unsigned int remote =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const unsigned int writing = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const bool type_2 = mw->type == IBV_MW_TYPE_2;
    const unsigned int access = bind->mw_access_flags;
    if (bind->length == 0) {
        if (type_2 || access != 0) {
            PyErr_Format(PyExc_ValueError,
                         type_2
                             ? "sg has 0 bytes: a window of type 2 is unbound by LOCAL_INV"
                             : "access is 0x%x: 0 bytes unbind the window, and nobody has access",
                         access);
            return -1;
        }
        return 0;
    }
    if (access & ~(remote | IBV_ACCESS_LOCAL_WRITE | (type_2 ? IBV_ACCESS_ZERO_BASED : 0u))) {
        PyErr_Format(PyExc_ValueError,
                     "access is 0x%x: it can have REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC%s, and "
                     "the LOCAL_WRITE that some devices take",
                     access, type_2 ? ", ZERO_BASED" : "");
        return -1;
    }
    if (!(mr->access & IBV_ACCESS_MW_BIND) || (mr->access & IBV_ACCESS_ZERO_BASED)) {
        PyErr_SetString(PyExc_ValueError,
                        "sg: to be bound to, an MR needs access MW_BIND, and not ZERO_BASED");
        return -1;
    }
    if ((access & writing) && !(mr->access & IBV_ACCESS_LOCAL_WRITE)) {
        PyErr_SetString(PyExc_ValueError,
                        "access: for REMOTE_WRITE and REMOTE_ATOMIC the MR needs LOCAL_WRITE");
        return -1;
    }
    return 0;
}

/* Users choose only the last byte of a key. */
static int check_rkey(const cqn_mw *mw, const cqn_send *s)
{
    const uint32_t rkey = s->wr.bind_mw.rkey;
    if (!s->has_rkey) {
        return 0;
    }
    if (mw->type != IBV_MW_TYPE_2) {
        PyErr_SetString(PyExc_ValueError, "rkey was given, but a window of type 1 gets its own");
        return -1;
    }
    if ((rkey ^ mw->rkey) & 0xffffff00u) {
        PyErr_Format(PyExc_ValueError,
                     "rkey is 0x%x: it must be 0x%x to 0x%x, only the last byte can be chosen",
                     rkey, mw->rkey & 0xffffff00u, mw->rkey | 0xffu);
        return -1;
    }
    return 0;
}

/* Adds the window and the memory that it is bound to. */
static int gather_bind(PyObject *const *in, cqn_state *st, cqn_send *out)
{
    struct ibv_mw_bind_info *bind = &out->wr.bind_mw.bind_info;
    cqn_mr *mr;
    PyObject *to = in[CQN_SG];
    if (check_presence(in, CQN_SG, true, "BIND_MW") < 0 ||
        cqn_expect(in[CQN_MW], st->MW, "mw") < 0) {
        return -1;
    }
    const int located = cqn_sg_locate(st, to, &mr, &bind->addr, &bind->length);
    if (located < 0) {
        return -1;
    }
    if (located == 0) {
        PyErr_Format(PyExc_TypeError, "sg must be mr[a:b] or an MR, what mw is bound to, not %s",
                     Py_TYPE(to)->tp_name);
        return -1;
    }
    if (cqn_open(CQN_OBJ(mr)) == NULL) {
        return -1;
    }
    const cqn_mw *mw = (cqn_mw *)in[CQN_MW];
    cqn_sg_pin(&out->sg, CQN_OBJ(in[CQN_MW]));
    if (bind->length > 0) {
        cqn_sg_pin(&out->sg, CQN_OBJ(mr));
    }
    out->wr.bind_mw.mw = mw->base.handle;
    bind->mr = mr->base.handle;
    return check_access(mw, mr, bind) < 0 || check_rkey(mw, out) < 0 ? -1 : 0;
}

static int gather_ah(PyObject *ah, cqn_state *st, cqn_send *out)
{
    if (cqn_expect(ah, st->AH, "ah") < 0) {
        return -1;
    }
    cqn_sg_pin(&out->sg, CQN_OBJ(ah));
    out->wr.wr.ud.ah = CQN_OBJ(ah)->handle;
    return 0;
}

/* If the request takes its bytes from a buffer, `out` has a view of it, even after a failure. Only
 * creating that view can run Python code, so it comes first. */
int cqn_send_gather(PyObject *const *in, cqn_state *st, cqn_send *out)
{
    if (out->opcode->does == CQN_WR_BINDS) {
        return gather_bind(in, st, out);
    }
    if (out->opcode->does == CQN_WR_INVALIDATES || out->opcode->flush) {
        return check_presence(in, CQN_SG, false, out->opcode->name);
    }
    bool bytes = ((out->wr.send_flags & IBV_SEND_INLINE) || out->opcode->atomic_write) &&
                 is_plain_buffer(st, in[CQN_SG]);
    if ((bytes ? cqn_sg_gather_bytes(&out->sg, in[CQN_SG])
               : cqn_sg_gather(&out->sg, st, in[CQN_SG])) < 0 ||
        (is_given(in, CQN_AH) && gather_ah(in[CQN_AH], st, out) < 0)) {
        return -1;
    }
    out->wr.sg_list = out->sg.sge;
    out->wr.num_sge = (int)out->sg.num_sge;
    return check_memory(out);
}

/* ibv_post_send() does not bind type 1 windows. */
int cqn_send_check_window(const cqn_send *send)
{
    if (send->opcode->does == CQN_WR_BINDS &&
        ((const cqn_mw *)send->sg.pinned[0])->type == IBV_MW_TYPE_1) {
        PyErr_SetString(PyExc_ValueError, "mw is of type 1: only QP.bind_mw() binds it");
        return -1;
    }
    return 0;
}
