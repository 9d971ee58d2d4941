/* SPDX-License-Identifier: MIT */
/* Sleeps in ibv_get_cq_event() after an arm that came too late. */
#include "pair.h"

static void await_message(struct pair *p)
{
    arm(p->recvs);
#ifdef RIGHT
    if (drain(p->recvs) > 0)
        return;
#endif
    /* MISTAKE: the message came before the arm, so it raises no event. */
    struct ibv_cq *cq = next_event(p->channel);
    ibv_ack_cq_events(cq, 1);
    drain(cq);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    deliver(&p, 1);
    await_message(&p);
    close_pair(&p);
    return 0;
}
