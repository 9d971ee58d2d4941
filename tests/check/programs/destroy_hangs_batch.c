/* SPDX-License-Identifier: MIT */
/* Acknowledges events in batches of four, which is cheaper, and forgets the rest at the end. */
#include "pair.h"

enum { BATCH = 4 };

static void finish(struct pair *p, unsigned int unacked)
{
#ifdef RIGHT
    ibv_ack_cq_events(p->recvs, unacked);
#else
    (void)unacked; /* MISTAKE: two events are not acknowledged */
#endif
    close_pair(p);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    unsigned int unacked = 0;
    for (int i = 0; i < 6; i++) {
        arm(p.recvs);
        deliver(&p, 1);
        struct ibv_cq *cq = next_event(p.channel);
        if (++unacked == BATCH) {
            ibv_ack_cq_events(cq, BATCH);
            unacked = 0;
        }
        drain(cq);
    }
    finish(&p, unacked);
    return 0;
}
