/* SPDX-License-Identifier: MIT */
/*
 * Posting sends. Everything is checked first, because a device may accept an invalid work request,
 * and some devices keep one that they refused and send it later.
 */

#include "work/wr.h"

/* Checks a message that the device segments (TSO). Returns -1 with an exception. */
static int check_segments(const cqn_qp *qp, const cqn_send *send)
{
    const uint16_t header = send->wr.tso.hdr_sz;
    if (header > qp->max_tso_header) {
        PyErr_Format(PyExc_ValueError,
                     "tso_header has %d bytes: this QP sends at most %d (max_tso_header)",
                     (int)header, (int)qp->max_tso_header);
        return -1;
    }
    if (send->sg.length > qp->max_tso) {
        PyErr_Format(PyExc_ValueError,
                     "sg has %llu bytes: %s segments at most %u (query_device_ex().tso_caps)",
                     (unsigned long long)send->sg.length, cqn_device_name(&qp->base), qp->max_tso);
        return -1;
    }
    return 0;
}

/* Queries the port in the middle of a post, so with the GIL held. */
static uint32_t learn_limit(cqn_qp *self)
{
    self->max_message = cqn_qp_query_limit(self->base.handle, self->port_num);
    return self->max_message;
}

/* Some devices accept a message that is too long, and lose it. */
static int check_length(cqn_qp *qp, const cqn_send *send)
{
    const uint64_t length = send->sg.length;
    if (send->opcode->tso) {
        return check_segments(qp, send);
    }
    /* the limit can have grown with the link's MTU */
    if (length <= qp->max_message || length <= learn_limit(qp)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "sg has %llu bytes: port %d sends at most %u in one %s",
                 (unsigned long long)length, qp->port_num, qp->max_message,
                 qp->type == IBV_QPT_UD ? "datagram (its MTU)" : "message (max_msg_sz)");
    return -1;
}

static int check_inline(const cqn_qp *qp, const cqn_send *send)
{
    const bool is_inline = send->wr.send_flags & IBV_SEND_INLINE;
    if (send->sg.unreadable && (is_inline || send->opcode->atomic_write)) {
        PyErr_Format(PyExc_ValueError,
                     "sg: %s copies the bytes from this process, and the addresses of this MR are "
                     "others, or there are none: pass a buffer such as memoryview(mr)[a:b]",
                     is_inline ? "INLINE" : "ATOMIC_WRITE");
        return -1;
    }
    if (!is_inline || send->sg.length <= qp->cap.max_inline_data) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "sg has %llu bytes: this QP sends at most %u INLINE (max_inline_data)",
                 (unsigned long long)send->sg.length, qp->cap.max_inline_data);
    return -1;
}

/* A device may accept an operation that it does not support, and fail it later or not at all. */
static int check_device(const cqn_qp *qp, const cqn_send *send)
{
    const struct ibv_device_attr *device = &qp->base.context->attr;
    if (qp->send_cq == NULL) {
        PyErr_Format(PyExc_ValueError, "QP %u has no send queue", qp->qp_num);
        return -1;
    }
    if (send->opcode->atomic_write && !qp->atomic_write) {
        PyErr_SetString(PyExc_ValueError,
                        "opcode is ATOMIC_WRITE: that needs a QP made with atomic_write=True");
        return -1;
    }
    if (send->opcode->flush && !qp->flush) {
        PyErr_SetString(PyExc_ValueError, "opcode is FLUSH: that needs a QP made with flush=True");
        return -1;
    }
    if (send->opcode->atomic && device->atomic_cap == IBV_ATOMIC_NONE) {
        cqn_verbs_error(qp->base.state, EOPNOTSUPP, "ibv_post_send",
                        "%s: %s has no atomic operations (its atomic_cap is NONE)",
                        send->opcode->name, cqn_device_name(&qp->base));
        return -1;
    }
    const bool raw = qp->type == IBV_QPT_RAW_PACKET;
    if ((send->wr.send_flags & IBV_SEND_IP_CSUM) &&
        !(device->device_cap_flags & (raw ? IBV_DEVICE_RAW_IP_CSUM : IBV_DEVICE_UD_IP_CSUM))) {
        cqn_verbs_error(qp->base.state, EOPNOTSUPP, "ibv_post_send",
                        "send_flags: IP_CSUM is not supported by %s (its device_cap_flags lack "
                        "%s_IP_CSUM)",
                        cqn_device_name(&qp->base), raw ? "RAW" : "UD");
        return -1;
    }
    return 0;
}

/* With max_rd_atomic 0 the device would hold back the request, and everything posted after it,
 * forever. */
static int check_depth(const cqn_qp *qp, const cqn_send *send)
{
    if (!send->opcode->rd_atomic || qp->max_rd_atomic > 0) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "opcode is %s: max_rd_atomic of QP %u is 0, so that no read or atomic can be in "
                 "flight from it: %s",
                 send->opcode->name, qp->qp_num,
                 qp->depth_granted
                     ? "the peer has granted none (its responder_resources is 0)"
                     : "connect it with 1 or more (over rdma_cm that is initiator_depth)");
    return -1;
}

static cqn_mw *window_of(const cqn_send *send)
{
    return send->opcode->does == CQN_WR_BINDS ? (cqn_mw *)send->sg.pinned[0] : NULL;
}

/* Checks that the QP can carry out the work request now. Returns -1 with an exception. */
static int admit_send(cqn_qp *qp, const cqn_send *send)
{
    const cqn_mw *mw = window_of(send);
    if (!(send->qp_types & (1u << qp->type))) {
        return cqn_send_refuse_type(send, qp->type);
    }
    if (!cqn_sg_fits(&send->sg, qp->pd, qp->cap.max_send_sge)) {
        return cqn_sg_refuse(&send->sg, &qp->base, qp->pd, qp->cap.max_send_sge);
    }
    return cqn_qp_require_state(qp, IBV_QPS_RTS, "ibv_post_send") < 0 ||
                   check_device(qp, send) < 0 || check_depth(qp, send) < 0 ||
                   check_inline(qp, send) < 0 || check_length(qp, send) < 0 ||
                   (mw != NULL && cqn_mw_check(mw, qp) < 0)
               ? -1
               : 0;
}

/* Gives a bind the next key of its window, unless the user chose one. */
static void choose_key(cqn_send *send)
{
    const cqn_mw *mw = window_of(send);
    if (mw != NULL && !send->has_rkey) {
        send->wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    }
}

/* siw completes reads after requests that were posted later, unless these have a fence. The WR
 * queue relies on the order. */
static void keep_order(const cqn_qp *qp, struct ibv_send_wr *wrs, size_t n)
{
    for (size_t i = 0; qp->base.context->attr.vendor_id == CQN_SIW_VENDOR && i < n; i++) {
        if (wrs[i].opcode != IBV_WR_RDMA_READ) {
            wrs[i].send_flags |= IBV_SEND_FENCE;
        }
    }
}

/* libsiw reports the first request that did not fit, but returns 0. */
static int forgotten_error(const cqn_qp *qp, const struct ibv_send_wr *bad)
{
    return bad != NULL && qp->base.context->attr.vendor_id == CQN_SIW_VENDOR ? ENOMEM : 0;
}

/* Posts the n work requests of an array. Returns 0 or an errno; *posted: how many were posted, that
 * is, are not known to be refused. */
static int post_sends(cqn_qp *qp, struct ibv_send_wr *first, size_t n, size_t *posted)
{
    struct ibv_send_wr *bad = NULL;
    const unsigned int flags = first->send_flags; /* keep_order() may change them */
    keep_order(qp, first, n);
    int err = cqn_errno_of(ibv_post_send((struct ibv_qp *)qp->base.handle, first, &bad));
    first->send_flags = flags;
    err = err == 0 ? forgotten_error(qp, bad) : err;
    *posted = err == 0 || bad == NULL ? n : (size_t)(bad - first);
    return err;
}

/* Calls ibv_wr_flush(), which follows the last member declared by the header of rdma-core 44. A
 * provider that created a QP for FLUSH has it. */
static void wr_flush(struct ibv_qp_ex *ex, const cqn_send *send)
{
    void (*flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
    memcpy(&flush, &ex->wr_atomic_write + 1, sizeof(flush));
    flush(ex, send->wr.wr.rdma.rkey, send->wr.wr.rdma.remote_addr, send->flush_length,
          send->placement, send->level);
}

/* Posts a work request that has its own verb. Returns 0 or an errno. The bytes of an atomic write
 * are copied at once. */
static int post_alone(cqn_qp *qp, const cqn_send *send, size_t *posted)
{
    const struct ibv_send_wr *wr = &send->wr;
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp->base.handle);
    ibv_wr_start(ex);
    ex->wr_id = wr->wr_id;
    ex->wr_flags = wr->send_flags;
    if (send->opcode->flush) {
        wr_flush(ex, send);
    }
    else {
        ibv_wr_atomic_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr,
                            (const void *)(uintptr_t)wr->sg_list[0].addr);
    }
    int err = ibv_wr_complete(ex);
    *posted = err == 0;
    return err == ENOSPC ? ENOMEM : err; /* ibv_post_send()'s errno for a full queue */
}

static PyObject *refuse_send(const cqn_qp *qp, const char *verb, int err, PyObject *bad_wr,
                             size_t posted, size_t of)
{
    return cqn_wr_refused(&(cqn_wr_refusal){.owner = &qp->base,
                                            .verb = verb,
                                            .max_wr = qp->cap.max_send_wr,
                                            .requests = qp->sq->requests,
                                            .err = err,
                                            .posted = posted,
                                            .of = of,
                                            .bad_wr = bad_wr});
}

/* Adds a posted work request to the WR queue, which keeps its objects alive from here on. */
static void enter_wr_queue(cqn_qp *qp, const cqn_send *send, cqn_awaitable *awaitable)
{
    const struct ibv_send_wr *wr = &send->wr;
    cqn_wr entry = {.does = (uint8_t)send->opcode->does,
                    .signaled = qp->sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED)};
    if (awaitable == NULL) {
        entry.wr_id = send->wr_id;
    }
    else {
        entry.awaitable = awaitable;
        entry.marks = CQN_WR_AWAITED;
    }
    if (send->opcode->does == CQN_WR_BINDS) {
        entry.rkey = wr->bind_mw.rkey;
        cqn_mw_posted(window_of(send), qp, entry.rkey);
    }
    else if (send->opcode->does == CQN_WR_INVALIDATES) {
        entry.rkey = wr->invalidate_rkey;
    }
    if (send->opcode->rd_atomic) {
        qp->base.context->has_read = true;
    }
    cqn_wr_queue_push(qp->sq, &entry, &send->sg);
}

/* Returns 0, the device's errno without an exception, or -1 with one; *posted: how many were
 * posted. */
static int try_one(cqn_qp *qp, cqn_send *send, cqn_awaitable *awaitable, size_t *posted)
{
    const size_t entries = cqn_wr_entries(&send->sg);
    if (admit_send(qp, send) < 0 || cqn_wr_queue_reserve(qp->sq, entries) < 0) {
        return -1;
    }
    choose_key(send);
    send->wr.wr_id = cqn_wr_queue_id(qp->sq, entries);
    int err = send->opcode->verb != NULL ? post_alone(qp, send, posted)
                                         : post_sends(qp, &send->wr, 1, posted);
    if (*posted > 0) {
        enter_wr_queue(qp, send, awaitable);
    }
    else {
        cqn_wr_queue_refused(qp->sq, 1);
    }
    return err;
}

/* `object` is the SendWR, or NULL. Posting writes to the request; without a GIL to a copy, because
 * another thread can post the same SendWR with the other half of the lock. */
static PyObject *post_one_send(cqn_qp *qp, cqn_send *send, PyObject *object)
{
    size_t posted;
#ifdef Py_GIL_DISABLED
    cqn_send copy;
    if (object != NULL) {
        copy = *send;
        send = &copy;
    }
#endif
    int err = try_one(qp, send, NULL, &posted);
    if (err < 0) {
        return NULL;
    }
    const char *verb = send->opcode->verb != NULL ? send->opcode->verb : "ibv_post_send";
    return err == 0 ? Py_NewRef(Py_None)
                    : refuse_send(qp, verb, err, posted == 0 ? object : NULL, posted, 1);
}

int cqn_post_awaited_send(cqn_qp *qp, cqn_send *send, cqn_awaitable *awaitable)
{
    size_t posted = 0;
    int err = try_one(qp, send, awaitable, &posted);
    return err > 0 && posted > 0 ? 0 : err;
}

int cqn_post_probe(cqn_qp *qp)
{
    if (cqn_qp_require_state(qp, IBV_QPS_RTS, "ibv_post_send") < 0 ||
        cqn_wr_queue_reserve(qp->sq, 1) < 0) {
        return -1;
    }
    struct ibv_send_wr wr = {.wr_id = cqn_wr_queue_id(qp->sq, 1),
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED};
    size_t posted = 0;
    int err = post_sends(qp, &wr, 1, &posted);
    if (posted == 0) {
        cqn_wr_queue_refused(qp->sq, 1);
        cqn_refuse_send(qp, err);
        return -1;
    }
    cqn_wr_queue_push(qp->sq, &(cqn_wr){.marks = CQN_WR_PROBE, .signaled = true}, &(cqn_sg){0});
    qp->sq->probe = CQN_PROBE_POSTED;
    return 0;
}

int cqn_post_own_sends(cqn_qp *qp, cqn_mr *mr, struct ibv_send_wr *wrs, size_t n, uint64_t wr_id)
{
    cqn_object *pinned = CQN_OBJ(mr);
    const cqn_sg sg = {.pinned = &pinned, .num_pinned = 1};
    if (cqn_open(&qp->base) == NULL || cqn_open(&mr->base) == NULL ||
        cqn_qp_require_state(qp, IBV_QPS_RTS, "ibv_post_send") < 0 ||
        cqn_wr_queue_reserve(qp->sq, n) < 0) {
        return -1;
    }
    cqn_wr_cursor at = cqn_wr_queue_cursor(qp->sq);
    for (size_t i = 0; i < n; i++) {
        wrs[i].wr_id = cqn_wr_queue_next_id(qp->sq, &at, 1);
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    size_t posted;
    const int err = post_sends(qp, wrs, n, &posted);
    for (size_t i = 0; i < posted; i++) {
        const bool signaled = qp->sq_sig_all || (wrs[i].send_flags & IBV_SEND_SIGNALED);
        if (wrs[i].opcode == IBV_WR_RDMA_READ) {
            qp->base.context->has_read = true;
        }
        cqn_wr_queue_push(qp->sq, &(cqn_wr){.wr_id = wr_id + i, .signaled = signaled}, &sg);
    }
    if (posted < n) {
        cqn_wr_queue_refused(qp->sq, n - posted);
    }
    if (err != 0) {
        refuse_send(qp, "ibv_post_send", err, NULL, posted, n);
    }
    return err == 0 ? 0 : -1;
}

void cqn_refuse_send(const cqn_qp *qp, int err)
{
    refuse_send(qp, "ibv_post_send", err, NULL, 0, 1);
}

static cqn_send *send_item(PyObject *list, size_t i)
{
    return &((cqn_send_wr *)PyTuple_GET_ITEM(list, (Py_ssize_t)i))->send;
}

/* A list cannot bind a window twice, because the next key is known only after the previous bind was
 * posted. */
static int check_listed(const cqn_send *send)
{
    cqn_mw *mw = window_of(send);
    if (send->opcode->verb != NULL) {
        PyErr_Format(PyExc_ValueError, "%s is not possible in a list: post it alone",
                     send->opcode->name);
        return -1;
    }
    if (mw == NULL) {
        return 0;
    }
    if (mw->listed) {
        PyErr_SetString(PyExc_ValueError, "its mw is bound by another request of this list as "
                                          "well: post that by itself");
        return -1;
    }
    mw->listed = true;
    return 0;
}

/* Copies the work requests, because one can be in the list more than once, and links the copies.
 * Returns how many may be posted: all, or the ones before the one that raised; *entries: their
 * number of entries in the WR queue. */
static size_t link_sends(cqn_qp *qp, PyObject *list, struct ibv_send_wr *wrs, size_t n,
                         size_t *entries)
{
    for (size_t i = 0; i < n; i++) {
        cqn_send *send = send_item(list, i);
        if (admit_send(qp, send) < 0 || check_listed(send) < 0) {
            cqn_blame_item((Py_ssize_t)i);
            return i;
        }
        *entries += cqn_wr_entries(&send->sg);
        choose_key(send);
        wrs[i] = send->wr;
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    return n;
}

/* Adds the work requests to the WR queue, up to the first one refused by the device. */
static PyObject *post_linked_sends(cqn_qp *qp, PyObject *list, struct ibv_send_wr *wrs, size_t n)
{
    size_t posted;
    cqn_wr_cursor at = cqn_wr_queue_cursor(qp->sq);
    for (size_t i = 0; i < n; i++) {
        wrs[i].wr_id = cqn_wr_queue_next_id(qp->sq, &at, cqn_wr_entries(&send_item(list, i)->sg));
    }
    int err = post_sends(qp, wrs, n, &posted);
    for (size_t i = 0; i < posted; i++) {
        enter_wr_queue(qp, send_item(list, i), NULL);
    }
    if (posted < n) {
        cqn_wr_queue_refused(qp->sq, n - posted);
    }
    PyObject *bad_wr = posted < n ? PyTuple_GET_ITEM(list, (Py_ssize_t)posted) : NULL;
    return err == 0 ? Py_NewRef(Py_None) : refuse_send(qp, "ibv_post_send", err, bad_wr, posted, n);
}

/* The copies are on the heap, because a list can have any length. */
static PyObject *post_send_list(cqn_qp *qp, PyObject *list)
{
    const size_t n = (size_t)PyTuple_GET_SIZE(list);
    struct ibv_send_wr *wrs = PyMem_New(struct ibv_send_wr, n);
    if (wrs == NULL) {
        return PyErr_NoMemory();
    }
    size_t entries = 0;
    const size_t linked = link_sends(qp, list, wrs, n, &entries);
    for (size_t i = 0; i < linked; i++) {
        if (window_of(send_item(list, i)) != NULL) {
            window_of(send_item(list, i))->listed = false;
        }
    }
    PyObject *result = NULL;
    if (linked == n && cqn_wr_queue_reserve(qp->sq, entries) == 0) {
        result = post_linked_sends(qp, list, wrs, n);
    }
    PyMem_Free(wrs);
    return result;
}

/* Everything is on the stack and borrowed from the arguments until it is in the WR queue. */
static PyObject *post_send_arguments(cqn_qp *qp, PyObject *const *in)
{
    cqn_sg_arrays arrays;
    cqn_send send;
    send.sg = (cqn_sg)CQN_SG_IN(arrays);
    if (cqn_send_parse(in, qp, IBV_WR_SEND, &send) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (cqn_send_gather(in, qp->base.state, &send) == 0 && cqn_send_check_window(&send) == 0 &&
        cqn_open(&qp->base) != NULL) {
        result = post_one_send(qp, &send, NULL);
    }
    cqn_sg_drop_bytes(&send.sg);
    return result;
}

const char cqn_qp_post_send_doc[] =
    "post_send($self, /, sg, *, wr_id=0, opcode=2, send_flags=2, imm_data=None, remote_addr=None, "
    "rkey=None, compare_add=None, swap=None, invalidate_rkey=None, mw=None, access=None, ah=None, "
    "remote_qpn=None, remote_qkey=None, remote_srqn=None, tso_header=None, mss=None, length=None, "
    "placement=None, level=None)\n--\n\n"
    "Post one work request: send, write or read memory, change a number of the peer's in one\n"
    "step, or bind or invalidate a memory window.\n\n"
    "sg: the memory: mr[a:b], an MR, a list of these, or None for no bytes, as is an empty\n"
    "    list; with SendFlags.INLINE also any buffer, whose bytes are copied at once. READ\n"
    "    and atomics write into it. Or it is the only argument, a SendWR, or a list of them,\n"
    "    which are posted with one call of the verb: all are checked before the first is\n"
    "    posted.\n"
    "wr_id: 64 bits, which the completion returns.\n"
    "opcode: a WROpcode, by default SEND.\n"
    "send_flags: SendFlags, by default SIGNALED; without it a success has no completion. With\n"
    "    SOLICITED the completion at the receiver is solicited.\n"
    "imm_data: 32 bits for the receiver's completion, with SEND_WITH_IMM and\n"
    "    RDMA_WRITE_WITH_IMM.\n"
    "remote_addr, rkey: the peer's memory and its key, with `RDMA_*` and `ATOMIC_*`; the new\n"
    "    key, with BIND_MW.\n"
    "compare_add, swap: 64 bits each. ATOMIC_FETCH_AND_ADD adds `compare_add` modulo `2**64`,\n"
    "    ATOMIC_CMP_AND_SWP stores `swap` if the number equals `compare_add`.\n"
    "invalidate_rkey: the key of a window that SEND_WITH_INV invalidates at the peer, or\n"
    "    LOCAL_INV, without `sg`, at this end.\n"
    "mw, access: with BIND_MW: the window, of type 2, that is bound to `sg`, and what the\n"
    "    peer may do, as for bind_mw().\n"
    "ah, remote_qpn, remote_qkey: on UD: the receiver's AH, QP number (24 bits) and Q_Key (32\n"
    "    bits).\n"
    "remote_srqn: on XRC_SEND: the number of the peer's SRQ (24 bits), with what takes a\n"
    "    receive there.\n"
    "tso_header, mss: with TSO: the bytes that each packet begins with, which the device\n"
    "    adapts, at most the QP's max_tso_header; and how many bytes of `sg` a packet has at\n"
    "    most, 1 to 65535.\n"
    "length: with FLUSH: how many bytes (32 bits), from `remote_addr` on.\n"
    "placement: with FLUSH: where earlier writes are when it completes, a PlacementType:\n"
    "    GLOBAL (all at the peer see them), PERSISTENT (they outlast a loss of power), or\n"
    "    both.\n"
    "level: with FLUSH: a SelectivityLevel; MR instead of `length` means the whole MR of\n"
    "    `rkey`.\n\n"
    "The memory is kept alive until the completion, its own or a later one's, was polled or\n"
    "the QP closed.\n\n"
    "Atomics work on a number of 64 bits in the peer's byte order, at a multiple of 8. The\n"
    "number from before comes to `sg`, which must be 8 bytes in one element, in our byte\n"
    "order. ATOMIC_WRITE writes 8 bytes, of `sg` or of any buffer, to a multiple of 8, so\n"
    "that the peer sees all of them or none. It needs a QP made with `atomic_write`.\n\n"
    "FLUSH has no `sg`, and needs a QP made with `flush`; the peer's MR and QP must allow it,\n"
    "by AccessFlags.FLUSH_GLOBAL or FLUSH_PERSISTENT, or it fails. TSO needs a UD or\n"
    "RAW_PACKET QP made with `max_tso_header`. ATOMIC_WRITE and FLUSH are not possible in a\n"
    "list.\n\n"
    "Raises ValueError for what does not go together; VerbsError, (ENOMEM) when the queue is\n"
    "full, and (EOPNOTSUPP) on a device that has no atomics. For a list it says how many were\n"
    "`posted`, and which is the `bad_wr` that was refused.\n\n"
    "Wraps ibv_post_send(3), ibv_wr_atomic_write(3) and ibv_wr_flush(3).";

PyObject *cqn_qp_post_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_qp *qp = (cqn_qp *)op;
    PyTypeObject *type = qp->base.state->SendWR;
    if (cqn_open(&qp->base) == NULL) {
        return NULL;
    }
    if (nargs == 1 && kwnames == NULL && Py_IS_TYPE(args[0], type)) {
        return post_one_send(qp, &((cqn_send_wr *)args[0])->send, args[0]); /* the fast path */
    }
    PyObject *in[CQN_SEND_NAMES] = {NULL};
    CQN_COPY copy = NULL;
    if (cqn_args("post_send", cqn_send_names, 1, 1, args, nargs, kwnames, in) < 0 ||
        cqn_freeze(&in[0], &copy) < 0) {
        return NULL;
    }
    bool list = cqn_wr_is_list(in[0], type);
    if (!list && !Py_IS_TYPE(in[0], type)) {
        return post_send_arguments(qp, in);
    }
    if (cqn_wr_is_alone(cqn_send_names, in) < 0) {
        return NULL;
    }
    if (!list) {
        return post_one_send(qp, &((cqn_send_wr *)in[0])->send, in[0]);
    }
    PyObject *wrs = cqn_wr_list(in[0], type);
    PyObject *result = wrs == NULL || cqn_open(&qp->base) == NULL ? NULL : post_send_list(qp, wrs);
    Py_XDECREF(wrs);
    return result;
}

/* ---- binding ---- */

const char cqn_qp_bind_mw_doc[] =
    "bind_mw($self, /, mw, sg, *, access=0, wr_id=0, send_flags=2, rkey=None)\n--\n\n"
    "Bind a memory window to memory, for the peer of an RC or UC QP; `mw.rkey` then is its\n"
    "new key.\n\n"
    "mw: the MW.\n"
    "sg: mr[a:b] or an MR, with access MW_BIND, and LOCAL_WRITE if the peer may write.\n"
    "access: what the peer may do there: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, by default\n"
    "    nothing. The QP has to allow it, too, see connect(). With ZERO_BASED, for type 2,\n"
    "    the window's addresses begin at 0, else they are those of the MR.\n"
    "wr_id, send_flags: as for post_send().\n"
    "rkey: the new key of a window of type 2, whose last byte can be chosen; None:\n"
    "    inc_rkey(mw.rkey).\n\n"
    "A window of type 1 is good for every QP of its PD; to bind it again, or to 0 bytes,\n"
    "mr[0:0], invalidates its key. One of type 2 is only for this QP; LOCAL_INV or the peer's\n"
    "SEND_WITH_INV invalidates its key, and then it can be bound again. (Soft-RoCE lets the\n"
    "peer reach the MR outside of the window.)\n\n"
    "A bind that fails, with MW_BIND_ERR, breaks the QP; when that was polled, `mw.rkey` is\n"
    "as before. Raises ValueError for what does not go together.\n\n"
    "Wraps ibv_bind_mw(3), and for type 2 ibv_post_send(3).";

/* A type 1 window has its own verb, which chooses the key. */
static PyObject *post_bind(cqn_qp *qp, cqn_send *send)
{
    struct ibv_mw *mw = send->wr.bind_mw.mw;
    struct ibv_mw_bind bind = {.send_flags = send->wr.send_flags,
                               .bind_info = send->wr.bind_mw.bind_info};
    const size_t entries = cqn_wr_entries(&send->sg);
    if (admit_send(qp, send) < 0 || cqn_wr_queue_reserve(qp->sq, entries) < 0) {
        return NULL;
    }
    bind.wr_id = cqn_wr_queue_id(qp->sq, entries);
    int err = cqn_errno_of(ibv_bind_mw((struct ibv_qp *)qp->base.handle, mw, &bind));
    if (err != 0) {
        cqn_wr_queue_refused(qp->sq, 1);
        return refuse_send(qp, "ibv_bind_mw", err, NULL, 0, 1);
    }
    send->wr.bind_mw.rkey = mw->rkey;
    enter_wr_queue(qp, send, NULL);
    Py_RETURN_NONE;
}

PyObject *cqn_qp_bind_mw(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"mw", "sg", "access", "wr_id", "rkey", "send_flags", NULL};
    cqn_qp *qp = (cqn_qp *)op;
    PyObject *given[6] = {NULL}, *in[CQN_SEND_NAMES] = {NULL};
    cqn_sg_arrays arrays;
    cqn_send send = {.sg = CQN_SG_IN(arrays)};
    if (cqn_open(&qp->base) == NULL ||
        cqn_args("bind_mw", names, 2, 2, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *opcode = PyLong_FromLong(IBV_WR_BIND_MW);
    if (opcode == NULL) {
        return NULL;
    }
    in[CQN_OPCODE] = opcode;
    in[CQN_MW] = given[0];
    in[CQN_SG] = given[1];
    in[CQN_ACCESS] = given[2];
    in[CQN_WR_ID] = given[3];
    in[CQN_RKEY] = given[4];
    in[CQN_SEND_FLAGS] = given[5];
    int rc = cqn_send_parse(in, qp, IBV_WR_SEND, &send);
    Py_DECREF(opcode);
    if (rc < 0 || cqn_send_gather(in, qp->base.state, &send) < 0 || cqn_open(&qp->base) == NULL) {
        return NULL;
    }
    return send.wr.bind_mw.mw->type == IBV_MW_TYPE_1 ? post_bind(qp, &send)
                                                     : post_one_send(qp, &send, NULL);
}
