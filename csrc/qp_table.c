/* SPDX-License-Identifier: MIT */
/* A context's queue pairs by their number: open addressing, linear probing,
 * at most half full. */

#include "core.h"

static size_t slot_of(const cqn_context *ctx, uint32_t qp_num)
{
    return (qp_num * UINT32_C(2654435761)) & ctx->qps_mask;
}

static void insert(cqn_context *ctx, cqn_qp *qp)
{
    size_t i = slot_of(ctx, qp->qp_num);
    while (ctx->qps[i] != NULL) {
        i = (i + 1) & ctx->qps_mask;
    }
    ctx->qps[i] = qp;
}

static int grow(cqn_context *ctx)
{
    size_t old_size = ctx->qps ? ctx->qps_mask + 1 : 0;
    size_t size = old_size ? old_size * 2 : 16;
    cqn_qp **old = ctx->qps;
    cqn_qp **fresh = PyMem_Calloc(size, sizeof(*fresh));
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    ctx->qps = fresh;
    ctx->qps_mask = size - 1;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i] != NULL) {
            insert(ctx, old[i]);
        }
    }
    PyMem_Free(old);
    return 0;
}

int cqn_qp_table_add(cqn_context *ctx, cqn_qp *qp)
{
    if (ctx->qps == NULL || (ctx->qps_used + 1) * 2 > ctx->qps_mask + 1) {
        if (grow(ctx) < 0) {
            return -1;
        }
    }
    insert(ctx, qp);
    ctx->qps_used++;
    return 0;
}

/* Also moves up what was pushed beyond its slot by the one that leaves. */
void cqn_qp_table_remove(cqn_context *ctx, cqn_qp *qp)
{
    if (ctx->qps == NULL) {
        return;
    }
    size_t i = slot_of(ctx, qp->qp_num);
    while (ctx->qps[i] != NULL && ctx->qps[i] != qp) {
        i = (i + 1) & ctx->qps_mask;
    }
    if (ctx->qps[i] == NULL) {
        return;
    }
    ctx->qps[i] = NULL;
    ctx->qps_used--;
    for (i = (i + 1) & ctx->qps_mask; ctx->qps[i] != NULL; i = (i + 1) & ctx->qps_mask) {
        cqn_qp *moved = ctx->qps[i];
        ctx->qps[i] = NULL;
        insert(ctx, moved);
    }
}

/* The one of that number that completes on `cq`. One that is being destroyed, of
 * which there may be completions still, counts until another has its number. */
cqn_qp *cqn_qp_table_find(const cqn_context *ctx, uint32_t qp_num, const cqn_cq *cq)
{
    cqn_qp *leaving = NULL;
    if (ctx->qps == NULL) {
        return NULL;
    }
    for (size_t i = slot_of(ctx, qp_num); ctx->qps[i] != NULL; i = (i + 1) & ctx->qps_mask) {
        cqn_qp *qp = ctx->qps[i];
        if (qp->qp_num != qp_num || (qp->send_cq != cq && qp->recv_cq != cq)) {
            continue;
        }
        if (qp->base.handle != NULL) {
            return qp;
        }
        leaving = qp;
    }
    return leaving;
}
