/* SPDX-License-Identifier: MIT */
/* Deregisters the memory of the fifth and last buffer of a send that the peer has not received. */
#include "pair.h"

enum { BUFFERS = 5 };

static struct ibv_qp *make_wide_qp(struct pair *p)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = p->sends,
        .recv_cq = p->sends,
        .cap = {DEPTH, DEPTH, .max_send_sge = BUFFERS, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(p->pd, &attr);
    CHECK(qp != NULL);
    return qp;
}

static void send_buffers(struct pair *p)
{
    static char last[SIZE];
    struct ibv_mr *mr = ibv_reg_mr(p->pd, last, SIZE, 0);
    CHECK(mr != NULL);
    struct ibv_sge sges[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
        sges[i] = (struct ibv_sge){(uintptr_t)p->memory, 1, p->mr->lkey};
    sges[BUFFERS - 1] = (struct ibv_sge){(uintptr_t)last, SIZE - BUFFERS, mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {
        .wr_id = 1,
        .sg_list = sges,
        .num_sge = BUFFERS,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
    };
    CHECK(!ibv_post_send(p->a, &wr, &bad));
#ifdef RIGHT
    post_recvs(p, 1);
    await_completions(p->sends, 1);
#endif
    CHECK(!ibv_dereg_mr(mr)); /* MISTAKE: the send uses it like the first */
}

int main(void)
{
    struct pair p = {.wr_id = 100};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, ENTRIES, NULL, NULL, 0));
    p.a = make_wide_qp(&p);
    open_pair(&p);
    send_buffers(&p);
    close_pair(&p);
    return 0;
}
