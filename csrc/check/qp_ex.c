/* SPDX-License-Identifier: MIT */
/*
 * Extended queue pairs: sends built call by call, from ibv_wr_start() to ibv_wr_complete(). Their
 * functions are members of the QP, which the observer replaces.
 *
 * The queue's lock is held from start to complete or abort, as providers do.
 */
#include "hooks.h"
#include "ops.h"

struct qp_ex {
    struct ibv_qp_ex real; /* the functions of the provider */
    struct request *last;  /* the request under construction */
    uint32_t requests, signaled;
};

static struct qp *of(struct ibv_qp_ex *ibv)
{
    return cqn_replaced(ibv);
}

/* Commits the previous request, which is complete now. */
static void commit(struct qp *qp)
{
    if (qp->ex->last)
        cqn_queue_commit(&qp->sends);
    qp->ex->last = NULL;
}

static void build(struct qp *qp, enum ibv_wr_opcode opcode)
{
    const struct ibv_qp_ex *ibv = (const struct ibv_qp_ex *)qp->ibv;
    bool signaled = qp->all_signaled || ibv->wr_flags & IBV_SEND_SIGNALED;
    commit(qp);
    qp->ex->last = cqn_queue_next(&qp->sends, ibv->wr_id, signaled ? 0 : REQUEST_UNSIGNALED, 0);
    qp->ex->requests++;
    qp->ex->signaled += signaled;
    qp->posts++;
    RECORD(.what = RECORD_POST_SEND,
           .flags = (uint16_t)((signaled ? RECORD_SIGNALED : 0) |
                               (ibv->wr_flags & IBV_SEND_SOLICITED ? RECORD_SOLICITED : 0)),
           .object = qp->number, .value = ibv->wr_id, .detail = (uint32_t)opcode,
           .caller = qp->post_send.caller);
}

/* ---- building ------------------------------------------------------------------------------- */

#define BUILDER(function, opcode, parameters, ...) \
    static void function parameters                \
    {                                              \
        struct qp *qp = of(ibv);                   \
        build(qp, opcode);                         \
        qp->ex->real.function(__VA_ARGS__);        \
    }

BUILDER(wr_atomic_cmp_swp, IBV_WR_ATOMIC_CMP_AND_SWP,
        (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap),
        ibv, rkey, remote, compare, swap)
BUILDER(wr_atomic_fetch_add, IBV_WR_ATOMIC_FETCH_AND_ADD,
        (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote, uint64_t add), ibv, rkey, remote,
        add)
BUILDER(wr_bind_mw, IBV_WR_BIND_MW,
        (struct ibv_qp_ex * ibv, struct ibv_mw *mw, uint32_t rkey,
         const struct ibv_mw_bind_info *info),
        ibv, mw, rkey, info)
BUILDER(wr_local_inv, IBV_WR_LOCAL_INV, (struct ibv_qp_ex * ibv, uint32_t rkey), ibv, rkey)
BUILDER(wr_rdma_read, IBV_WR_RDMA_READ, (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote),
        ibv, rkey, remote)
BUILDER(wr_rdma_write, IBV_WR_RDMA_WRITE, (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote),
        ibv, rkey, remote)
BUILDER(wr_rdma_write_imm, IBV_WR_RDMA_WRITE_WITH_IMM,
        (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote, __be32 imm), ibv, rkey, remote,
        imm)
BUILDER(wr_send, IBV_WR_SEND, (struct ibv_qp_ex * ibv), ibv)
BUILDER(wr_send_imm, IBV_WR_SEND_WITH_IMM, (struct ibv_qp_ex * ibv, __be32 imm), ibv, imm)
BUILDER(wr_send_inv, IBV_WR_SEND_WITH_INV, (struct ibv_qp_ex * ibv, uint32_t rkey), ibv, rkey)
BUILDER(wr_send_tso, IBV_WR_TSO,
        (struct ibv_qp_ex * ibv, void *header, uint16_t size, uint16_t mss), ibv, header, size, mss)
BUILDER(wr_atomic_write, IBV_WR_ATOMIC_WRITE,
        (struct ibv_qp_ex * ibv, uint32_t rkey, uint64_t remote, const void *value), ibv, rkey,
        remote, value)

static void wr_set_sge(struct ibv_qp_ex *ibv, uint32_t lkey, uint64_t address, uint32_t length)
{
    struct qp *qp = of(ibv);
    const struct ibv_sge sge = {.lkey = lkey};
    if (qp->ex->last)
        cqn_queue_set_keys(&qp->sends, qp->ex->last, &sge, 1);
    qp->ex->real.wr_set_sge(ibv, lkey, address, length);
}

static void wr_set_sge_list(struct ibv_qp_ex *ibv, size_t count, const struct ibv_sge *sges)
{
    struct qp *qp = of(ibv);
    if (qp->ex->last)
        cqn_queue_set_keys(&qp->sends, qp->ex->last, sges, (uint32_t)count);
    qp->ex->real.wr_set_sge_list(ibv, count, sges);
}

/* ---- start and complete --------------------------------------------------------------------- */

static void wr_start(struct ibv_qp_ex *ibv)
{
    struct qp *qp = of(ibv);
    SITE_HERE(&qp->post_send);
    cqn_lock(&qp->sends.lock);
    qp->ex->last = NULL;
    qp->ex->requests = qp->ex->signaled = 0;
    qp->ex->real.wr_start(ibv);
}

static int wr_complete(struct ibv_qp_ex *ibv)
{
    struct qp *qp = of(ibv);
    commit(qp);
    cqn_qp_count_sends(qp, qp->ex->signaled);
    int result = qp->ex->real.wr_complete(ibv);
    if (result != 0) {
        cqn_qp_drop_sends(qp, qp->ex->signaled);
        cqn_qp_sends_refused(qp, result, qp->ex->requests);
    }
    cqn_unlock(&qp->sends.lock);
    return result;
}

static void wr_abort(struct ibv_qp_ex *ibv)
{
    struct qp *qp = of(ibv);
    commit(qp);
    cqn_queue_take_back(&qp->sends, qp->ex->requests);
    qp->ex->real.wr_abort(ibv);
    cqn_unlock(&qp->sends.lock);
}

void cqn_qp_ex_wrap(struct qp *qp, bool atomic_write)
{
    struct ibv_qp_ex *(*to_ex)(struct ibv_qp *) =
        (struct ibv_qp_ex * (*)(struct ibv_qp *)) cqn_find_verb("ibv_qp_to_qp_ex");
    struct ibv_qp_ex *ibv = to_ex ? to_ex(qp->ibv) : NULL;
    qp->ex = ibv ? cqn_alloc(sizeof(*qp->ex)) : NULL;
    if (!qp->ex)
        return;
    qp->ex->real = *ibv;
#define REPLACE(function) ibv->function = ibv->function ? function : NULL;
    REPLACE(wr_atomic_cmp_swp)
    REPLACE(wr_atomic_fetch_add)
    REPLACE(wr_bind_mw)
    REPLACE(wr_local_inv)
    REPLACE(wr_rdma_read)
    REPLACE(wr_rdma_write)
    REPLACE(wr_rdma_write_imm)
    REPLACE(wr_send)
    REPLACE(wr_send_imm)
    REPLACE(wr_send_inv)
    REPLACE(wr_send_tso)
    REPLACE(wr_set_sge)
    REPLACE(wr_set_sge_list)
    REPLACE(wr_start)
    REPLACE(wr_complete)
    REPLACE(wr_abort)
    if (atomic_write) /* an older library's struct lacks this member */
        REPLACE(wr_atomic_write)
#undef REPLACE
}

void cqn_qp_ex_free(struct qp_ex *ex)
{
    cqn_free(ex, sizeof(*ex));
}
