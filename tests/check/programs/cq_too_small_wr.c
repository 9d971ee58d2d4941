/* SPDX-License-Identifier: MIT */
/* As cq_too_small.c, but posts with ibv_wr_start(), ibv_wr_send() and ibv_wr_complete(). */
#include "pair.h"

enum { SMALL = 7, MESSAGES = 12 };

static void post_signaled(struct pair *p, int n)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p->a);
    ibv_wr_start(qp);
    for (int i = 0; i < n; i++) {
        qp->wr_id = ++p->wr_id;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, p->mr->lkey, (uintptr_t)p->memory, SIZE);
    }
    CHECK(!ibv_wr_complete(qp));
}

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, SMALL, NULL, NULL, 0));
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = p.sends,
        .recv_cq = p.sends,
        .cap = {DEPTH, DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = p.pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    CHECK(p.a = ibv_create_qp_ex(p.ctx, &attr));
    open_pair(&p);
#ifdef RIGHT
    int batch = 6;
#else
    int batch = MESSAGES; /* MISTAKE: the CQ has seven entries */
#endif
    for (int i = 0; i < MESSAGES; i += batch) {
        post_signaled(&p, batch);
        for (int j = 0; j < batch; j++) {
            post_recvs(&p, 1);
            await_completions(p.sends, 1);
        }
    }
    close_pair(&p);
    return 0;
}
