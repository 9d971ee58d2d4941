/* SPDX-License-Identifier: MIT */
/*
 * Queue pairs and shared receive queues: create, modify, post, destroy; and the request that each
 * completion ends.
 */
#include "chaos.h"
#include "hooks.h"
#include "ops.h"

/* The number of destroyed queue pairs to remember. */
enum { REMEMBERED = 256, FIRST_POSTS = 64 };

static struct qp *destroyed[REMEMBERED];
static uint32_t destroyed_count;

/* ---- create -------------------------------------------------------------------------------- */

static uintptr_t key_of(uint32_t qp_num)
{
    return (uintptr_t)qp_num + 2; /* 0 and 1 are no keys */
}

static struct qp *add(struct ibv_qp *ibv, const struct ibv_qp_cap *cap, bool all_signaled)
{
    struct context *context = ibv ? cqn_context(ibv->context) : NULL;
    struct qp *qp = context ? cqn_alloc(sizeof(*qp)) : NULL;
    if (!qp)
        return NULL;
    if (!cqn_table_put(&cqn_objects, (uintptr_t)ibv, qp)) {
        cqn_free(qp, sizeof(*qp));
        return NULL;
    }
    qp->ibv = ibv;
    qp->context = context;
    qp->send_cq = ibv->send_cq ? cqn_object(ibv->send_cq) : NULL;
    qp->recv_cq = ibv->recv_cq ? cqn_object(ibv->recv_cq) : NULL;
    qp->srq = ibv->srq ? cqn_object(ibv->srq) : NULL;
    qp->qp_num = ibv->qp_num;
    qp->all_signaled = all_signaled;
    cqn_queue_init(&qp->sends, cap->max_send_wr, cap->max_send_sge);
    cqn_queue_init(&qp->receives, ibv->srq ? 0 : cap->max_recv_wr, cap->max_recv_sge);
    cqn_lock(&cqn_lists_lock);
    qp->number = ++cqn_counts.qps;
    qp->next = cqn_qps;
    cqn_qps = qp;
    cqn_table_remove(&qp->context->qps, key_of(qp->qp_num)); /* an earlier one of that number */
    cqn_table_put(&qp->context->qps, key_of(qp->qp_num), qp);
    cqn_unlock(&cqn_lists_lock);
    RECORD(.what = RECORD_QP_CREATED, .object = qp->number,
           .other = qp->send_cq ? qp->send_cq->number : 0,
           .value = qp->recv_cq ? qp->recv_cq->number : 0, .number = qp->qp_num,
           .detail = (uint32_t)ibv->qp_type);
    return qp;
}

struct ibv_qp *cqn_hook_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    cqn_context(pd->context);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_qp *ibv = cqn_real.ibv_create_qp(pd, attr);
    add(ibv, &attr->cap, attr->sq_sig_all);
    return ibv;
}

struct ibv_qp *cqn_op_create_qp_ex(struct ibv_context *ibv_context,
                                   struct ibv_qp_init_attr_ex *attr)
{
    struct context *context = cqn_replaced(ibv_context);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_qp *ibv = context->create_qp_ex(ibv_context, attr);
    struct qp *qp = add(ibv, &attr->cap, attr->sq_sig_all);
    if (qp && attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        cqn_qp_ex_wrap(qp, attr->send_ops_flags & IBV_QP_EX_WITH_ATOMIC_WRITE);
    return ibv;
}

static void add_srq(struct ibv_srq *ibv, const struct ibv_srq_attr *attr)
{
    struct context *context = ibv ? cqn_context(ibv->context) : NULL;
    struct srq *srq = context ? cqn_alloc(sizeof(*srq)) : NULL;
    if (!srq)
        return;
    if (!cqn_table_put(&cqn_objects, (uintptr_t)ibv, srq)) {
        cqn_free(srq, sizeof(*srq));
        return;
    }
    srq->ibv = ibv;
    srq->context = context;
    cqn_queue_init(&srq->receives, attr->max_wr, attr->max_sge);
    cqn_lock(&cqn_lists_lock);
    srq->number = ++cqn_counts.srqs;
    srq->next = cqn_srqs;
    cqn_srqs = srq;
    cqn_unlock(&cqn_lists_lock);
    RECORD(.what = RECORD_SRQ_CREATED, .object = srq->number, .number = attr->max_wr);
}

struct ibv_srq *cqn_hook_ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    cqn_context(pd->context);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_srq *ibv = cqn_real.ibv_create_srq(pd, attr);
    add_srq(ibv, &attr->attr);
    return ibv;
}

struct ibv_srq *cqn_op_create_srq_ex(struct ibv_context *ibv_context,
                                     struct ibv_srq_init_attr_ex *attr)
{
    struct context *context = cqn_replaced(ibv_context);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_srq *ibv = context->create_srq_ex(ibv_context, attr);
    add_srq(ibv, &attr->attr);
    return ibv;
}

/* ---- modify and destroy -------------------------------------------------------------------- */

/* A QP that stops may have taken receives of its SRQ whose completions have not been polled, or
 * never will be. These receives cannot be identified, so none posted before counts as in flight. */
static void doubt_receives(const struct qp *qp)
{
    if (!qp->srq)
        return;
    cqn_lock(&qp->srq->receives.lock);
    __atomic_store_n(&qp->srq->doubtful, qp->srq->receives.tail, __ATOMIC_RELAXED);
    cqn_unlock(&qp->srq->receives.lock);
}

void cqn_qp_drop_sends(struct qp *qp, uint32_t signaled)
{
    if (qp->send_cq && signaled)
        __atomic_sub_fetch(&qp->send_cq->sends_posted, signaled, __ATOMIC_RELAXED);
}

int cqn_hook_ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    int result = cqn_real.ibv_modify_qp(ibv, attr, mask);
    struct qp *qp = cqn_object(ibv);
    if (result == 0 && qp && mask & IBV_QP_STATE) {
        qp->state = attr->qp_state;
        if (qp->state != IBV_QPS_ERR)
            qp->chaos_status = 0;
        if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
            doubt_receives(qp);
        if (qp->state == IBV_QPS_RESET) { /* drops them without completions */
            cqn_qp_drop_sends(qp, cqn_queue_clear(&qp->sends));
            cqn_queue_clear(&qp->receives);
        }
    }
    return result;
}

/* Keeps a destroyed queue pair, known by its number: completions may still arrive. */
static void remember(struct qp *qp)
{
    struct qp **place = &destroyed[destroyed_count++ % REMEMBERED];
    struct qp *oldest = *place;
    *place = qp;
    if (!oldest)
        return;
    if (oldest->context && cqn_table_find(&oldest->context->qps, key_of(oldest->qp_num)) == oldest)
        cqn_table_remove(&oldest->context->qps, key_of(oldest->qp_num));
    cqn_free(oldest, sizeof(*oldest));
}

static void forget_last(struct cq *cq, const struct qp *qp)
{
    if (!cq)
        return;
    cqn_lock(&cq->lock);
    if (cq->last_qp == qp)
        cq->last_qp = NULL;
    cqn_unlock(&cq->lock);
}

/* The context of remembered queue pairs is about to be freed. */
void cqn_qp_context_closed(const struct context *context)
{
    cqn_lock(&cqn_lists_lock);
    for (int i = 0; i < REMEMBERED; i++)
        if (destroyed[i] && destroyed[i]->context == context)
            destroyed[i]->context = NULL;
    cqn_unlock(&cqn_lists_lock);
}

int cqn_hook_ibv_destroy_qp(struct ibv_qp *ibv)
{
    struct qp *qp = cqn_object(ibv);
    if (!qp)
        return cqn_real.ibv_destroy_qp(ibv);
    SITE_HERE(&qp->destroy);
    cqn_table_remove(&cqn_objects, (uintptr_t)ibv);
    cqn_chaos_delays(CHAOS_DESTROY);
    int result = cqn_real.ibv_destroy_qp(ibv);
    if (result != 0) {
        cqn_table_put(&cqn_objects, (uintptr_t)ibv, qp);
        return result;
    }
    cqn_report_qp_end(qp);
    doubt_receives(qp);
    RECORD(.what = RECORD_QP_DESTROYED, .object = qp->number);
    cqn_qp_drop_sends(qp, cqn_queue_clear(&qp->sends));
    cqn_lock(&cqn_lists_lock);
    CQN_UNLINK(&cqn_qps, qp, next);
    cqn_unlock(&cqn_lists_lock);
    qp->ibv = NULL; /* first, so no poll makes it the last one again */
    forget_last(qp->send_cq, qp);
    forget_last(qp->recv_cq, qp);
    cqn_queue_free(&qp->sends);
    cqn_queue_free(&qp->receives);
    cqn_qp_ex_free(qp->ex);
    qp->ex = NULL;
    qp->send_cq = qp->recv_cq = NULL;
    cqn_lock(&cqn_lists_lock);
    remember(qp);
    cqn_unlock(&cqn_lists_lock);
    return result;
}

int cqn_hook_ibv_destroy_srq(struct ibv_srq *ibv)
{
    struct srq *srq = cqn_object(ibv);
    if (!srq)
        return cqn_real.ibv_destroy_srq(ibv);
    cqn_table_remove(&cqn_objects, (uintptr_t)ibv);
    int result = cqn_real.ibv_destroy_srq(ibv);
    if (result != 0) {
        cqn_table_put(&cqn_objects, (uintptr_t)ibv, srq);
        return result;
    }
    RECORD(.what = RECORD_SRQ_DESTROYED, .object = srq->number);
    cqn_lock(&cqn_lists_lock);
    CQN_UNLINK(&cqn_srqs, srq, next);
    cqn_unlock(&cqn_lists_lock);
    cqn_queue_free(&srq->receives);
    cqn_free(srq, sizeof(*srq));
    return result;
}

/* ---- post ---------------------------------------------------------------------------------- */

static uint32_t bytes_of(const struct ibv_sge *sges, int count)
{
    uint32_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += sges[i].length;
    return bytes;
}

/* Reports a request in flight with the same wr_id. Only the first posts of a queue are checked,
 * because the search takes time. */
static void check_reuse(struct qp *qp, const struct queue *queue, uint64_t wr_id,
                        const struct site *post)
{
    if (qp->posts < FIRST_POSTS && !qp->reused && cqn_queue_has(queue, wr_id))
        cqn_report_reused(qp, wr_id, queue == &qp->sends, post);
}

void cqn_qp_sends_refused(struct qp *qp, int error, uint32_t refused)
{
    cqn_queue_take_back(&qp->sends, refused);
    RECORD(.what = RECORD_POST_REFUSED, .object = qp->number, .detail = (uint32_t)error,
           .caller = qp->post_send.caller);
    if (qp->sends.requests && cqn_queue_count(&qp->sends) >= qp->sends.depth &&
        !cqn_queue_frees_itself(&qp->sends) && !qp->full)
        cqn_report_full(qp);
}

/* Called before the device gets the sends: their completions can be polled at once. */
void cqn_qp_count_sends(struct qp *qp, uint32_t signaled)
{
    if (!qp->send_cq || signaled == 0)
        return;
    uint32_t sends = __atomic_add_fetch(&qp->send_cq->sends_posted, signaled, __ATOMIC_RELAXED) -
                     __atomic_load_n(&qp->send_cq->sends_ended, __ATOMIC_RELAXED);
    if (sends > qp->send_cq->entries && !qp->send_cq->too_small && sends < (1u << 31))
        cqn_report_too_small(qp->send_cq, qp, sends);
}

static bool is_signaled(const struct qp *qp, const struct ibv_send_wr *wr)
{
    return qp->all_signaled || wr->send_flags & IBV_SEND_SIGNALED;
}

/* Returns whether the send is signaled. */
static bool push_send(struct qp *qp, const struct ibv_send_wr *wr, uint64_t now)
{
    bool signaled = is_signaled(qp, wr);
    check_reuse(qp, &qp->sends, wr->wr_id, &qp->post_send);
    struct request *request =
        cqn_queue_next(&qp->sends, wr->wr_id, signaled ? 0 : REQUEST_UNSIGNALED, 0);
    if (request) {
        if (!(wr->send_flags & IBV_SEND_INLINE))
            cqn_queue_set_keys(&qp->sends, request, wr->sg_list, (uint32_t)wr->num_sge);
        cqn_queue_commit(&qp->sends);
    }
    qp->posts++;
    RECORD(.time = now, .what = RECORD_POST_SEND,
           .flags = (uint16_t)((signaled ? RECORD_SIGNALED : 0) |
                               (wr->send_flags & IBV_SEND_SOLICITED ? RECORD_SOLICITED : 0)),
           .object = qp->number, .value = wr->wr_id, .number = bytes_of(wr->sg_list, wr->num_sge),
           .detail = (uint32_t)wr->opcode, .caller = qp->post_send.caller);
    return signaled;
}

int cqn_op_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *qp = cqn_object(ibv);
    if (!qp)
        return cqn_context(ibv->context)->ops.post_send(ibv, wr, bad);
    SITE_HERE(&qp->post_send);
    cqn_lock(&qp->sends.lock);
    uint64_t now = cqn_timeline ? cqn_now() : 0;
    uint32_t signaled = 0;
    for (const struct ibv_send_wr *next = wr; next; next = next->next)
        signaled += push_send(qp, next, now);
    cqn_qp_count_sends(qp, signaled);
    int result = cqn_chaos_faults ? cqn_chaos_post_send(qp, wr, bad)
                                  : qp->context->ops.post_send(ibv, wr, bad);
    if (result != 0) {
        uint32_t refused = 0, not_signaled = 0;
        for (const struct ibv_send_wr *next = *bad; next; next = next->next) {
            refused++;
            not_signaled += is_signaled(qp, next);
        }
        cqn_qp_drop_sends(qp, not_signaled);
        cqn_qp_sends_refused(qp, result, refused);
    }
    cqn_unlock(&qp->sends.lock);
    return result;
}

static void push_receive(struct queue *queue, const struct ibv_recv_wr *wr)
{
    struct request *request = cqn_queue_next(queue, wr->wr_id, 0, IBV_WC_RECV);
    if (request) {
        cqn_queue_set_keys(queue, request, wr->sg_list, (uint32_t)wr->num_sge);
        cqn_queue_commit(queue);
    }
}

static uint32_t count_of(const struct ibv_recv_wr *wr)
{
    uint32_t count = 0;
    for (; wr; wr = wr->next)
        count++;
    return count;
}

int cqn_op_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct qp *qp = cqn_object(ibv);
    if (!qp)
        return cqn_context(ibv->context)->ops.post_recv(ibv, wr, bad);
    SITE_HERE(&qp->post_recv);
    cqn_lock(&qp->receives.lock);
    uint64_t now = cqn_timeline ? cqn_now() : 0;
    for (const struct ibv_recv_wr *next = wr; next; next = next->next) {
        check_reuse(qp, &qp->receives, next->wr_id, &qp->post_recv);
        push_receive(&qp->receives, next);
        qp->posts++;
        RECORD(.time = now, .what = RECORD_POST_RECV, .object = qp->number, .value = next->wr_id,
               .number = bytes_of(next->sg_list, next->num_sge), .caller = qp->post_recv.caller);
    }
    int result = cqn_chaos_faults ? cqn_chaos_post_recv(qp, wr, bad)
                                  : qp->context->ops.post_recv(ibv, wr, bad);
    if (result != 0) {
        cqn_queue_take_back(&qp->receives, count_of(*bad));
        RECORD(.what = RECORD_POST_REFUSED, .object = qp->number, .detail = (uint32_t)result,
               .caller = qp->post_recv.caller);
    }
    cqn_unlock(&qp->receives.lock);
    return result;
}

int cqn_op_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct srq *srq = cqn_object(ibv);
    if (!srq)
        return cqn_context(ibv->context)->ops.post_srq_recv(ibv, wr, bad);
    SITE_HERE(&srq->post);
    cqn_lock(&srq->receives.lock);
    uint64_t now = cqn_timeline ? cqn_now() : 0;
    for (const struct ibv_recv_wr *next = wr; next; next = next->next) {
        push_receive(&srq->receives, next);
        RECORD(.time = now, .what = RECORD_POST_SRQ_RECV, .object = srq->number,
               .value = next->wr_id, .number = bytes_of(next->sg_list, next->num_sge),
               .caller = srq->post.caller);
    }
    int result = cqn_chaos_faults ? cqn_chaos_post_srq_recv(srq, wr, bad)
                                  : srq->context->ops.post_srq_recv(ibv, wr, bad);
    if (result != 0)
        cqn_queue_take_back(&srq->receives, count_of(*bad));
    cqn_unlock(&srq->receives.lock);
    return result;
}

/* ---- completions --------------------------------------------------------------------------- */

static void retire_send(struct cq *cq, struct qp *qp, const struct ibv_wc *wc)
{
    cqn_cq_end_sends(cq, cqn_queue_retire(&qp->sends, wc->wr_id, wc->status != IBV_WC_SUCCESS));
}

static void retire_receive(struct qp *qp, const struct ibv_wc *wc)
{
    if (!qp->srq) {
        cqn_queue_retire(&qp->receives, wc->wr_id, false);
        return;
    }
    cqn_lock(&qp->srq->head_lock);
    cqn_queue_retire_any(&qp->srq->receives, wc->wr_id);
    cqn_unlock(&qp->srq->head_lock);
}

/* The opcode of a failed completion is invalid: its queue is the one whose CQ it came from, or the
 * one that contains such a request. */
static bool is_receive(const struct cq *cq, const struct qp *qp, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_SUCCESS)
        return wc->opcode & IBV_WC_RECV;
    if (qp->send_cq != qp->recv_cq)
        return cq == qp->recv_cq;
    return !cqn_queue_has(&qp->sends, wc->wr_id);
}

static void note_failure(struct cq *cq, struct qp *qp, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        qp->flushed++;
        return;
    }
    if (qp->failed)
        return;
    qp->failed_status = (uint32_t)wc->status;
    qp->failed_vendor = wc->vendor_err;
    qp->failed_wr_id = wc->wr_id;
    qp->failed_cq = cq->number;
    qp->failed_poll = cq->poll;
    cqn_report_failed(qp);
}

struct qp *cqn_qp_of(const struct cq *cq, uint32_t qp_num)
{
    return cqn_table_find(&cq->context->qps, key_of(qp_num));
}

int cqn_qp_completed_run(struct cq *cq, const struct ibv_wc *wc, int count)
{
    struct qp *qp = cq->last_qp;
    if (!qp || qp->qp_num != wc->qp_num)
        return 0;
    if (!(wc->opcode & IBV_WC_RECV)) {
        int run = cqn_queue_retire_run(&qp->sends, wc, count);
        cqn_cq_end_sends(cq, (uint32_t)run);
        return run;
    }
    return qp->srq ? 0 : cqn_queue_retire_run(&qp->receives, wc, count);
}

void cqn_qp_completed(struct cq *cq, const struct ibv_wc *wc)
{
    struct qp *qp = cq->last_qp;
    if (!qp || qp->qp_num != wc->qp_num) {
        qp = cqn_qp_of(cq, wc->qp_num);
        if (!qp)
            return;
        cq->last_qp = qp;
    }
    if (!qp->ibv) {
        cq->last_qp = NULL;
        cqn_report_destroyed(cq, qp);
        return;
    }
    if (is_receive(cq, qp, wc))
        retire_receive(qp, wc);
    else
        retire_send(cq, qp, wc);
    if (wc->status != IBV_WC_SUCCESS)
        note_failure(cq, qp, wc);
}

/* Called with the lock of the lists. */
uint32_t cqn_cq_in_flight(const struct cq *cq)
{
    uint32_t count = 0;
    for (const struct qp *qp = cqn_qps; qp; qp = qp->next) {
        if (qp->send_cq == cq)
            count += cqn_queue_count(&qp->sends);
        if (qp->recv_cq == cq && qp->state >= IBV_QPS_RTR)
            count += cqn_queue_count(qp->srq ? &qp->srq->receives : &qp->receives);
    }
    return count;
}

/* ---- memory in use ------------------------------------------------------------------------- */

/* Whether the device certainly still uses the memory of the requests, by the device's own state. A
 * disconnected iWARP QP is in SQD, and receives nothing more. */
static bool is_live(const struct qp *qp)
{
    if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_ERR)
        return false;
    int (*query)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *) =
        (int (*)(struct ibv_qp *, struct ibv_qp_attr *, int,
                 struct ibv_qp_init_attr *))cqn_find_verb("ibv_query_qp");
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    if (!query || query(qp->ibv, &attr, IBV_QP_STATE, &init) != 0)
        return false;
    return attr.qp_state != IBV_QPS_RESET && attr.qp_state != IBV_QPS_ERR &&
           attr.qp_state != IBV_QPS_SQD;
}

static const struct qp *live_qp_of(const struct srq *srq)
{
    const struct qp *qp = cqn_qps;
    while (qp && (qp->srq != srq || !is_live(qp)))
        qp = qp->next;
    return qp;
}

static uint32_t srq_using(const struct srq *srq, uint32_t lkey, uint64_t *wr_id)
{
    struct queue certain = srq->receives;
    uint32_t doubtful = __atomic_load_n(&srq->doubtful, __ATOMIC_RELAXED) - certain.head;
    if (doubtful <= cqn_queue_count(&certain))
        certain.head += doubtful;
    return cqn_queue_using(&certain, lkey, wr_id);
}

bool cqn_qp_find_use(const struct context *context, uint32_t lkey, struct use *use)
{
    *use = (struct use){0};
    cqn_lock(&cqn_lists_lock);
    for (const struct qp *qp = cqn_qps; qp; qp = qp->next) {
        if (qp->context != context)
            continue;
        uint64_t wr_id = 0;
        uint32_t receives = cqn_queue_using(&qp->receives, lkey, &wr_id);
        uint32_t requests = receives + cqn_queue_using(&qp->sends, lkey, &wr_id);
        if (requests == 0 || !is_live(qp))
            continue;
        if (use->requests == 0) {
            use->qp = qp->number;
            use->wr_id = wr_id;
            use->post = requests > receives ? qp->post_send : qp->post_recv;
        }
        use->requests += requests;
    }
    for (struct srq *srq = cqn_srqs; srq; srq = srq->next) {
        uint64_t wr_id;
        uint32_t requests = srq_using(srq, lkey, &wr_id);
        const struct qp *qp = requests && srq->context == context ? live_qp_of(srq) : NULL;
        if (!qp)
            continue;
        if (use->requests == 0)
            *use = (struct use){.qp = qp->number, .wr_id = wr_id, .post = srq->post};
        use->requests += requests;
    }
    cqn_unlock(&cqn_lists_lock);
    return use->requests != 0;
}
