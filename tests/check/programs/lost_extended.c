/* SPDX-License-Identifier: MIT */
/* An extended CQ, which is polled with ibv_start_poll(). */
#include "pair.h"

/* Takes one completion, if there is one. */
static int take(struct ibv_cq_ex *cq)
{
    struct ibv_poll_cq_attr attr = {0};
    int empty = ibv_start_poll(cq, &attr);
    if (empty) {
        CHECK(empty == ENOENT);
        return 0;
    }
    CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_byte_len(cq) == SIZE);
    ibv_end_poll(cq);
    return 1;
}

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    struct ibv_cq_init_attr_ex attr = {
        .cqe = ENTRIES,
        .channel = p.channel,
        .wc_flags = IBV_WC_EX_WITH_BYTE_LEN,
    };
    struct ibv_cq_ex *cq = ibv_create_cq_ex(p.ctx, &attr);
    CHECK(cq != NULL);
    p.recvs = ibv_cq_ex_to_cq(cq);
    open_pair(&p);

    arm(p.recvs);
    deliver(&p, 1);
    for (int messages = 0; messages < 3;) {
        ibv_ack_cq_events(next_event(p.channel), 1);
        while (take(cq))
            messages++;
        deliver(&p, 1);
        arm(p.recvs);
#ifdef RIGHT
        while (take(cq))
            messages++;
        deliver(&p, 1);
#endif /* MISTAKE: sleeps without another ibv_start_poll() */
    }
    close_pair(&p);
    return 0;
}
