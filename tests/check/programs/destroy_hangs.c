/* SPDX-License-Identifier: MIT */
/* Forgets to acknowledge an event: ibv_destroy_cq() waits for that. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 1);
    struct ibv_cq *cq = next_event(p.channel);
#ifdef RIGHT
    ibv_ack_cq_events(cq, 1);
#endif
    drain(cq);
    close_pair(&p); /* MISTAKE: the event is not acknowledged */
    return 0;
}
