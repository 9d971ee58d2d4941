/* SPDX-License-Identifier: MIT */
/* Acknowledges all events together, on the CQ of the last one. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, ENTRIES, NULL, p.channel, 0));
    open_pair(&p);
    arm(p.sends);
    arm(p.recvs);
    deliver(&p, 1);
    struct ibv_cq *cq[2];
    for (int i = 0; i < 2; i++) /* one event is of the sends, one of the receives */
        cq[i] = next_event(p.channel);
#ifdef RIGHT
    for (int i = 0; i < 2; i++)
        ibv_ack_cq_events(cq[i], 1);
#else
    ibv_ack_cq_events(cq[1], 2); /* MISTAKE: one of them was the other CQ's */
    return 0;
#endif
    drain(p.recvs);
    close_pair(&p);
    return 0;
}
