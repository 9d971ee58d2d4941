/* SPDX-License-Identifier: MIT */
/* Acknowledges all events at the end, which is right; but arms after it has polled. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 1);
    unsigned int events = 0;
    for (int messages = 0; messages < 4;) {
        next_event(p.channel);
        events++;
#ifdef RIGHT
        arm(p.recvs);
#endif
        messages += drain(p.recvs);
        deliver(&p, 1);
#ifndef RIGHT
        arm(p.recvs); /* MISTAKE: too late for what came since the poll */
#endif
    }
    ibv_ack_cq_events(p.recvs, events);
    close_pair(&p);
    return 0;
}
