/* SPDX-License-Identifier: MIT */
/* Arms the CQ before each poll, and never sleeps. */
#include "pair.h"

static int poll_one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    CHECK(n >= 0);
    return n;
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    for (int i = 0; i < 300; i++) {
        deliver(&p, 1);
#ifndef RIGHT
        arm(p.recvs); /* MISTAKE: nobody waits for the events; each arm costs a doorbell */
#endif
        while (poll_one(p.recvs) == 0)
            ;
    }
    close_pair(&p);
    return 0;
}
