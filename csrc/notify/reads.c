/* SPDX-License-Identifier: MIT */
/*
 * RDMA reads that rxe reports as successful although their data is not there.
 *
 * If an old acknowledgement arrives between the packets of a response, rxe (not that of Linux 6.1)
 * forgets that the response has begun. It then refuses the next packet, completes the read with the
 * status that it had, success, and moves the queue pair to ERR. The memory of the packets that did
 * not arrive stays as it was. This takes frames that the network reorders or duplicates.
 *
 * So on rxe a read of several packets counts as flushed if its queue pair has failed. It does not
 * if a later request of the same queue succeeded, or failed with another status, which is then the
 * reason of the failure. Two cases remain: a read that succeeded shortly before its queue pair
 * failed as a responder counts as flushed, too; and the device sets the state a moment after the
 * completion, so a poll in between returns success.
 */

#include "notify/cq.h"

/* Whether the queue pair could carry out reads, as far as this process knows. */
static bool works(const cqn_qp *qp)
{
    return qp->base.handle != NULL && (qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD);
}

/* Whether the device has moved it to ERR; also if the device can't be asked. */
static bool is_in_err(const cqn_qp *qp)
{
    return cqn_qp_query_state(qp->base.handle, IBV_QPS_ERR, NULL) == IBV_QPS_ERR;
}

static bool has_failed(const cqn_qp *qp)
{
    return qp->has_failed || (works(qp) && is_in_err(qp));
}

void cqn_qp_record_failure(cqn_qp *qp)
{
    if (qp->base.context->has_read && cqn_is_rxe(&qp->base) && works(qp) && qp->sq != NULL &&
        qp->sq->signaled > 0) {
        qp->has_failed = is_in_err(qp);
    }
}

/* The queue pair of a read of several packets; NULL for any other completion. */
static const cqn_qp *long_read_of(const cqn_cq *self, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS || wc->opcode != IBV_WC_RDMA_READ) {
        return NULL;
    }
    const cqn_wr_queue *q = cqn_wr_queue_of(&self->base, wc->wr_id);
    const cqn_qp *qp = q == NULL ? NULL : q->qp;
    const bool has_length = self->ex == NULL || (self->wc_flags & IBV_WC_EX_WITH_BYTE_LEN);
    return qp != NULL && has_length && wc->byte_len <= qp->path_mtu ? NULL : qp;
}

/* Returns the first of n completions that is of the same queue, or NULL. */
static const struct ibv_wc *next_of_queue(const struct ibv_wc *wc, const struct ibv_wc *later,
                                          size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (((later[i].wr_id ^ wc->wr_id) & (CQN_WR_NUMBERS - 1)) == 0) {
            return &later[i];
        }
    }
    return NULL;
}

bool cqn_cq_check_reads(const cqn_cq *self, struct ibv_wc *wcs, size_t n,
                        const struct ibv_wc *ahead, size_t n_ahead)
{
    bool needs_more = false;
    for (size_t i = 0; i < n; i++) {
        const cqn_qp *qp = long_read_of(self, &wcs[i]);
        if (qp == NULL) {
            continue;
        }
        const struct ibv_wc *next = next_of_queue(&wcs[i], &wcs[i + 1], n - i - 1);
        next = next == NULL ? next_of_queue(&wcs[i], ahead, n_ahead) : next;
        if ((next != NULL && next->status != IBV_WC_WR_FLUSH_ERR) || !has_failed(qp)) {
            continue;
        }
        if (next != NULL || ahead != NULL) {
            wcs[i].status = IBV_WC_WR_FLUSH_ERR;
        }
        else {
            needs_more = true;
        }
    }
    return needs_more;
}
