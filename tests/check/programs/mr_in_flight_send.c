/* SPDX-License-Identifier: MIT */
/* Deregisters the memory of a send that the peer has not received yet. */
#include "pair.h"

static void send_buffer(struct pair *p, char *buffer)
{
    struct ibv_mr *mr = ibv_reg_mr(p->pd, buffer, SIZE, 0);
    CHECK(mr != NULL);
    struct ibv_sge sge = {(uintptr_t)buffer, SIZE, mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {
        .wr_id = 1,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
    };
    CHECK(!ibv_post_send(p->a, &wr, &bad));
#ifdef RIGHT
    post_recvs(p, 1);
    await_completions(p->sends, 1);
#endif
    CHECK(!ibv_dereg_mr(mr)); /* MISTAKE: ibv_post_send() returns before the message is sent */
}

int main(void)
{
    struct pair p = {.wr_id = 100};
    static char buffer[SIZE];
    open_pair(&p);
    send_buffer(&p, buffer);
    close_pair(&p);
    return 0;
}
