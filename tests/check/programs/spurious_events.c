/* SPDX-License-Identifier: MIT */
/* Polls what an event is for before it takes the event. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    for (int i = 0; i < 20; i++) {
        arm(p.recvs);
        deliver(&p, 1);
#ifndef RIGHT
        CHECK(drain(p.recvs) == 1); /* MISTAKE: an event is on its way for this one */
#endif
        ibv_ack_cq_events(next_event(p.channel), 1);
        drain(p.recvs);
    }
    close_pair(&p);
    return 0;
}
