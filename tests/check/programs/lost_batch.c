/* SPDX-License-Identifier: MIT */
/* Polls in batches of four, and takes a full batch for all there was. */
#include "pair.h"

static int poll_batch(struct ibv_cq *cq)
{
    struct ibv_wc wc[4];
    int n = ibv_poll_cq(cq, 4, wc);
    CHECK(n >= 0);
    return n;
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 10);
    for (int messages = 0; messages < 10;) {
        ibv_ack_cq_events(next_event(p.channel), 1);
        arm(p.recvs);
#ifdef RIGHT
        for (int n; (n = poll_batch(p.recvs)) > 0;)
            messages += n;
#else
        messages += poll_batch(p.recvs); /* MISTAKE: polls once, not until the CQ is empty */
#endif
    }
    close_pair(&p);
    return 0;
}
