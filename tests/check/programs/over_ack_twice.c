/* SPDX-License-Identifier: MIT */
/* Acknowledges each event where it gets it, and all of them again at the end. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    unsigned int events = 0;
    for (int i = 0; i < 3; i++) {
        arm(p.recvs);
        deliver(&p, 1);
        struct ibv_cq *cq = next_event(p.channel);
        ibv_ack_cq_events(cq, 1);
        drain(cq);
        events++;
    }
#ifndef RIGHT
    ibv_ack_cq_events(p.recvs, events); /* MISTAKE: they are acknowledged already */
    return 0;
#endif
    CHECK(events == 3);
    close_pair(&p);
    return 0;
}
