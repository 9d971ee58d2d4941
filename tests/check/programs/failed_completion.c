/* SPDX-License-Identifier: MIT */
/* Writes to memory of the peer by a wrong key; what was posted after it is flushed. */
#include "pair.h"

static void post_write(struct pair *p, uint32_t rkey)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, SIZE, p->mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {
        .wr_id = ++p->wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)p->memory + AREA / 2, rkey},
    };
    CHECK(!ibv_post_send(p->a, &wr, &bad));
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
#ifdef RIGHT
    uint32_t rkey = p.mr->rkey;
#else
    uint32_t rkey = p.mr->rkey + 1; /* MISTAKE: not the key of the memory */
#endif
    for (int i = 0; i < 4; i++)
        post_write(&p, rkey);
    for (int n = 0; n < 4;) {
        struct ibv_wc wc;
        n += ibv_poll_cq(p.sends, 1, &wc);
    }
    close_pair(&p);
    return 0;
}
