/* SPDX-License-Identifier: MIT */
/* RDMA writes in lists: the last one of each should be signaled. */
#include "pair.h"

enum { LIST = 12 }; /* the queue takes a part of the last list */

static int post_writes(struct pair *p)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, SIZE, p->mr->lkey};
    struct ibv_send_wr wr[LIST], *bad;
    for (int i = 0; i < LIST; i++)
        wr[i] = (struct ibv_send_wr){
            .wr_id = ++p->wr_id,
            .next = i + 1 < LIST ? &wr[i + 1] : NULL,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .wr.rdma = {(uintptr_t)p->memory + AREA / 2, p->mr->rkey},
        };
#ifdef RIGHT
    wr[LIST - 1].send_flags = IBV_SEND_SIGNALED;
#endif /* MISTAKE: none of them is signaled */
    return ibv_post_send(p->a, wr, &bad);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    /* They have immediate data, and the peer has no receives yet: they stay in the queue. */
    int lists = 0, error;
    while ((error = post_writes(&p)) == 0)
        lists++;
    CHECK(error == ENOMEM);
    for (int i = 0; i < lists; i++) {
        post_recvs(&p, LIST);
        await_completions(p.sends, 1);
    }
    close_pair(&p);
    return 0;
}
