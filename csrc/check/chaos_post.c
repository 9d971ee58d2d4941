/* SPDX-License-Identifier: MIT */
/* Posts that fail in the middle of a list, and sends that fail. */
#include <errno.h>

#include "chaos.h"
#include "hooks.h"
#include "ops.h"

/* Posts the first requests one by one, as copies: the list belongs to the program, and other
 * threads may read it. */
#define POST_SOME(type, post, object, wr, bad)                    \
    do {                                                          \
        uint32_t length = 0;                                      \
        for (const type *next = (wr); next; next = next->next)    \
            length++;                                             \
        uint32_t first = (uint32_t)(cqn_chaos_digits() % length); \
        *(bad) = (wr);                                            \
        for (uint32_t left = first; left > 0; left--) {           \
            type copy = **(bad), *refused;                        \
            copy.next = NULL;                                     \
            int result = post((object)->ibv, &copy, &refused);    \
            if (result != 0)                                      \
                return result;                                    \
            *(bad) = (*(bad))->next;                              \
        }                                                         \
        cqn_chaos_note(CHAOS_POST, first);                        \
        return ENOMEM;                                            \
    } while (0)

static int post_some_sends(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    POST_SOME(struct ibv_send_wr, qp->context->ops.post_send, qp, wr, bad);
}

static int post_some_recvs(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    POST_SOME(struct ibv_recv_wr, qp->context->ops.post_recv, qp, wr, bad);
}

static int post_some_srq_recvs(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    POST_SOME(struct ibv_recv_wr, srq->context->ops.post_srq_recv, srq, wr, bad);
}

int cqn_chaos_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    if (wr && cqn_chaos(CHAOS_POST))
        return post_some_recvs(qp, wr, bad);
    return qp->context->ops.post_recv(qp->ibv, wr, bad);
}

int cqn_chaos_post_srq_recv(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    if (wr && cqn_chaos(CHAOS_POST))
        return post_some_srq_recvs(srq, wr, bad);
    return srq->context->ops.post_srq_recv(srq->ibv, wr, bad);
}

/* ---- failing sends -------------------------------------------------------------------------- */

/* Moves the QP to the error state, so the device flushes its requests. */
static void fail(struct qp *qp)
{
    static const enum ibv_wc_status statuses[] = {IBV_WC_LOC_LEN_ERR,    IBV_WC_LOC_QP_OP_ERR,
                                                  IBV_WC_LOC_PROT_ERR,   IBV_WC_REM_INV_REQ_ERR,
                                                  IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
                                                  IBV_WC_RETRY_EXC_ERR,  IBV_WC_RNR_RETRY_EXC_ERR};
    int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int);
    *(void **)&modify = cqn_find_verb("ibv_modify_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    enum ibv_wc_status status =
        statuses[cqn_chaos_digits() % (sizeof(statuses) / sizeof(statuses[0]))];
    int before = *cqn_errno();
    qp->chaos_status = (uint32_t)status;
    if (!modify || modify(qp->ibv, &attr, IBV_QP_STATE) != 0)
        qp->chaos_status = 0;
    else {
        qp->state = IBV_QPS_ERR;
        cqn_chaos_note(CHAOS_FAIL, (uint32_t)status);
    }
    *cqn_errno() = before;
}

int cqn_chaos_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    if (wr && cqn_chaos(CHAOS_POST))
        return post_some_sends(qp, wr, bad);
    int result = qp->context->ops.post_send(qp->ibv, wr, bad);
    if (result == 0 && qp->ibv->qp_type == IBV_QPT_RC && qp->state != IBV_QPS_ERR &&
        cqn_chaos(CHAOS_FAIL))
        fail(qp);
    return result;
}

void cqn_chaos_status(struct cq *cq, struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_WR_FLUSH_ERR)
        return;
    struct qp *qp = cqn_qp_of(cq, wc->qp_num);
    if (!qp || qp->chaos_status == 0 || qp->send_cq != cq)
        return;
    if (qp->recv_cq == cq && !cqn_queue_has(&qp->sends, wc->wr_id))
        return;
    wc->status = (enum ibv_wc_status)qp->chaos_status;
    qp->chaos_status = 0;
}
