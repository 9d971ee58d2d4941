/* SPDX-License-Identifier: MIT */
/* One list of more signaled sends than the CQ has entries. */
#include "pair.h"

enum { SMALL = 7, MESSAGES = 10 };

/* Posts n sends by one call; every n-th of `signaled` has a completion. */
static void post_list(struct pair *p, int n, int signaled)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, SIZE, p->mr->lkey};
    struct ibv_send_wr wr[MESSAGES] = {0}, *bad;
    for (int i = 0; i < n; i++)
        wr[i] = (struct ibv_send_wr){
            .wr_id = ++p->wr_id,
            .next = i + 1 < n ? &wr[i + 1] : NULL,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = (i + 1) % signaled ? 0 : IBV_SEND_SIGNALED,
        };
    CHECK(!ibv_post_send(p->a, wr, &bad));
}

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, SMALL, NULL, NULL, 0));
    open_pair(&p);
#ifdef RIGHT
    int signaled = 5;
#else
    int signaled = 1; /* MISTAKE: ten completions for a CQ of seven entries */
#endif
    post_list(&p, MESSAGES, signaled);
    for (int i = 1; i <= MESSAGES; i++) {
        post_recvs(&p, 1);
        if (i % signaled == 0)
            await_completions(p.sends, 1);
    }
    close_pair(&p);
    return 0;
}
