/* SPDX-License-Identifier: MIT */
/*
 * The work requests of a queue that have not completed, in the order in which
 * they were posted, and what each keeps alive.
 *
 * A send queue completes in order, so the completion of a request says that
 * all before it, signaled or not, are done as well. Requests are told apart by
 * their wr_id, which the user chooses: where several have the same, the oldest
 * is taken, so a buffer may be kept too long but is never let go too early.
 *
 * The receives of a shared receive queue complete in the order of the messages
 * of several queue pairs, on several CQs. A completion there speaks for its own
 * request alone. What a queue pair took and never completed stays in the queue.
 * There the oldest of several of the same wr_id need not be the one that is done,
 * and a buffer may be let go too early: SRQ.post_recv() warns of it.
 */

#include "wr.h"

static cqn_wr *entry(const cqn_wr_queue *q, size_t i)
{
    return &q->ring[(q->head + i) & (q->room - 1)];
}

int cqn_wr_queue_grow(cqn_wr_queue *q, size_t n)
{
    size_t room = q->room ? q->room : 16;
    while (room < q->len + n) {
        room *= 2;
    }
    cqn_wr *ring = PyMem_New(cqn_wr, room);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < q->len; i++) {
        ring[i] = *entry(q, i);
    }
    PyMem_Free(q->ring);
    q->ring = ring;
    q->head = 0;
    q->room = room;
    return 0;
}

/* Releases an entry, which stays where it is. What would die of that goes to
 * the trash. */
static void release(cqn_wr_queue *q, const cqn_wr *wr, cqn_object **trash)
{
    if (wr->last) {
        q->requests--;
        q->signaled -= wr->signaled;
    }
    if (wr->pinned != NULL) {
        wr->pinned->pins--;
        cqn_trash_add(trash, wr->pinned);
    }
}

static void drop_first(cqn_wr_queue *q, size_t n)
{
    q->head = (q->head + n) & (q->room - 1);
    q->len -= n;
}

/* How many entries are done if the oldest request of that wr_id is; 0: there
 * is no such request. */
static size_t find(const cqn_wr_queue *q, uint64_t wr_id, bool only_signaled)
{
    for (size_t i = 0; i < q->len; i++) {
        const cqn_wr *wr = entry(q, i);
        if (wr->last && wr->wr_id == wr_id && (wr->signaled || !only_signaled)) {
            return i + 1;
        }
    }
    return 0;
}

/* The same of those that bind or invalidate: nothing else fails with MW_BIND_ERR. */
static size_t find_of_window(const cqn_wr_queue *q, uint64_t wr_id)
{
    for (size_t i = 0; i < q->len; i++) {
        const cqn_wr *wr = entry(q, i);
        if (wr->does != CQN_WR_TRANSFERS && wr->wr_id == wr_id) {
            return i + (wr->last ? 1 : 2);
        }
    }
    return 0;
}

/* Whether the failure of the bind that begins at `i` can be that of a later request
 * of the same wr_id, since its own success would have given no completion. */
static bool is_in_doubt(const cqn_wr_queue *q, size_t i)
{
    const cqn_wr *bind = entry(q, i);
    for (size_t j = i + (bind->last ? 1 : 2); !bind->signaled && j < q->len; j++) {
        if (entry(q, j)->wr_id == bind->wr_id) {
            return true;
        }
    }
    return false;
}

/* What a request that begins at `i` and is over has done to a window. In doubt it
 * is bound, so that what it needs stays open. */
static void settle(const cqn_qp *qp, const cqn_wr_queue *q, size_t i, bool ok, cqn_object **trash)
{
    const cqn_wr *wr = entry(q, i);
    if (wr->does == CQN_WR_BINDS) {
        cqn_mw_bound((cqn_mw *)wr->pinned, wr->last ? NULL : entry(q, i + 1)->pinned, wr->rkey,
                     ok || is_in_doubt(q, i), trash);
    }
    else if (wr->does == CQN_WR_INVALIDATES && ok) {
        cqn_mw_invalidated(qp->pd->context, wr->rkey, trash);
    }
}

/* All were carried out, but for the last, if that is not `ok`: of one that fails
 * a completion tells. Returns how many requests that were. */
static size_t pop_many(const cqn_qp *qp, cqn_wr_queue *q, size_t n, bool ok, cqn_object **trash)
{
    size_t before = q->requests;
    for (size_t i = 0; i < n; i++) {
        const cqn_wr *wr = entry(q, i);
        if (wr->does != CQN_WR_TRANSFERS) {
            settle(qp, q, i, ok || i + (wr->last ? 1 : 2) < n, trash);
        }
        release(q, wr, trash);
    }
    drop_first(q, n);
    return before - q->requests;
}

/* Releases one request alone, whose entries end before `end`. Those before it
 * move up, mostly none, so that what stays there leaves no holes behind it. */
static void take_out(cqn_wr_queue *q, size_t end, cqn_object **trash)
{
    size_t begin = end;
    do {
        release(q, entry(q, --begin), trash);
    } while (begin > 0 && !entry(q, begin - 1)->last);
    const size_t n = end - begin;
    while (begin-- > 0) {
        *entry(q, begin + n) = *entry(q, begin);
    }
    drop_first(q, n);
}

/* A failed request whose completion fits both queues, since they share the CQ
 * and the user gave both the same wr_id. Each of them is told of once; when
 * there were as many as there are requests, all of them are done. */
static void complete_ambiguous(cqn_qp *qp, cqn_object **trash)
{
    if (++qp->ambiguous >= qp->sq.requests + qp->rq.requests) {
        pop_many(qp, &qp->sq, qp->sq.len, false, trash);
        pop_many(qp, &qp->rq, qp->rq.len, false, trash);
        qp->ambiguous = 0;
    }
}

/* Whether there is a request of that wr_id that was not told of yet; now it is. */
static bool tell(cqn_wr_queue *q, uint64_t wr_id)
{
    for (size_t i = 0; i < q->len; i++) {
        cqn_wr *wr = entry(q, i);
        if (wr->last && wr->wr_id == wr_id && !wr->told) {
            wr->told = true;
            return true;
        }
    }
    return false;
}

/* As below, with an SRQ. Where a failure fits both it counts for a send, until
 * each of that wr_id was told of, but releases neither: the send stays until a
 * later one completes or the QP is closed, and the receive, which can be waiting
 * for another QP, until there is no doubt, or the SRQ is closed. */
static void completed_with_srq(cqn_qp *qp, const struct ibv_wc *wc, size_t sends, size_t recvs,
                               cqn_object **trash)
{
    if (recvs == 0) {
        pop_many(qp, &qp->sq, sends, wc->status == IBV_WC_SUCCESS, trash);
    }
    else if (sends == 0 || !tell(&qp->sq, wc->wr_id)) {
        take_out(&qp->srq->rq, recvs, trash);
    }
}

/* The oldest request of its queue succeeded, and it needed one object at most: then
 * nothing else can be meant, and nothing else is done. Whether that was so. */
static bool completed_oldest(cqn_qp *qp, const cqn_cq *cq, const struct ibv_wc *wc,
                             cqn_object **trash)
{
    const bool recv = wc->opcode & IBV_WC_RECV;
    cqn_wr_queue *q = recv ? &qp->rq : &qp->sq;
    if (q->len == 0 || wc->status != IBV_WC_SUCCESS || cq != (recv ? qp->recv_cq : qp->send_cq)) {
        return false;
    }
    const cqn_wr *oldest = entry(q, 0);
    if (oldest->wr_id != wc->wr_id || !oldest->last || !oldest->signaled ||
        oldest->does != CQN_WR_TRANSFERS) {
        return false;
    }
    release(q, oldest, trash);
    drop_first(q, 1);
    return true;
}

/* Finds out which request of `qp` it was that completed on `cq`: releases it, and on
 * a queue of its own all before it. */
static void completed_some(cqn_qp *qp, const cqn_cq *cq, const struct ibv_wc *wc,
                           cqn_object **trash)
{
    const cqn_wr_queue *rq = qp->srq != NULL ? &qp->srq->rq : &qp->rq;
    bool ok = wc->status == IBV_WC_SUCCESS;
    bool window = wc->status == IBV_WC_MW_BIND_ERR;
    bool may_send = cq == qp->send_cq && !(ok && (wc->opcode & IBV_WC_RECV));
    bool may_recv = cq == qp->recv_cq && !window && !(ok && !(wc->opcode & IBV_WC_RECV));
    /* Of a failed request even an unsignaled one tells. Its completion does
     * not say on which side it was, if both share the CQ. */
    size_t sends = !may_send ? 0
                   : window  ? find_of_window(&qp->sq, wc->wr_id)
                             : find(&qp->sq, wc->wr_id, ok);
    size_t recvs = may_recv ? find(rq, wc->wr_id, false) : 0;
    if (qp->srq != NULL) {
        completed_with_srq(qp, wc, sends, recvs, trash);
        return;
    }
    if (sends > 0 && recvs > 0) {
        complete_ambiguous(qp, trash);
        return;
    }
    size_t done = pop_many(qp, &qp->sq, sends, ok, trash) + pop_many(qp, &qp->rq, recvs, ok, trash);
    /* Of those before it, ambiguous completions may have told already. */
    size_t told = done > 0 ? done - 1 : 0;
    qp->ambiguous -= told < qp->ambiguous ? told : qp->ambiguous;
}

/* A request of `qp` completed on `cq`. */
void cqn_qp_completed(cqn_qp *qp, const cqn_cq *cq, const struct ibv_wc *wc, cqn_object **trash)
{
    if (!completed_oldest(qp, cq, wc, trash)) {
        completed_some(qp, cq, wc, trash);
    }
}

/* Releases everything: the queue pair was destroyed or reset. */
void cqn_wr_queue_drop(cqn_wr_queue *q)
{
    cqn_wr_queue old = *q;
    cqn_object *trash = NULL;
    *q = (cqn_wr_queue){.ring = NULL};
    for (size_t i = 0; i < old.len; i++) {
        const cqn_wr *wr = entry(&old, i);
        if (wr->does == CQN_WR_BINDS) {
            settle(NULL, &old, i, true, &trash);
        }
        if (wr->pinned != NULL) {
            wr->pinned->pins--;
        }
    }
    for (size_t i = 0; i < old.len; i++) {
        Py_XDECREF(entry(&old, i)->pinned);
    }
    cqn_trash_empty(trash);
    PyMem_Free(old.ring);
}

int cqn_wr_queue_traverse(const cqn_wr_queue *q, visitproc visit, void *arg)
{
    for (size_t i = 0; i < q->len; i++) {
        Py_VISIT(entry(q, i)->pinned);
    }
    return 0;
}
