/* SPDX-License-Identifier: MIT */
/* Acknowledges the event on the CQ that it expects, not on the one that it got. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, ENTRIES, NULL, p.channel, 0));
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 1);
    struct ibv_cq *cq = next_event(p.channel);
#ifndef RIGHT
    ibv_ack_cq_events(p.sends, 1); /* MISTAKE: it was an event of p.recvs */
    return 0;
#endif
    ibv_ack_cq_events(cq, 1);
    drain(cq);
    close_pair(&p);
    return 0;
}
