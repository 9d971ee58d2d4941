/* SPDX-License-Identifier: MIT */
/* Arms once, as if an arm held for all messages to come. */
#include "peer.h"

static void await_event(struct pair *p)
{
    ibv_ack_cq_events(next_event(p->channel), 1);
    await_all(p->recvs, 1);
}

int main(void)
{
    struct pair p = {0};
    struct peer peer = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 1);
    await_event(&p);
    post_recvs(&p, 1);
#ifdef RIGHT
    start_peer(&peer, &p, 1);
    arm(p.recvs);
    CHECK(drain(p.recvs) == 0);
    let_send(&peer);
#endif
    await_event(&p); /* MISTAKE: the first event used up the arm */
    join_peer(&peer);
    close_pair(&p);
    return 0;
}
