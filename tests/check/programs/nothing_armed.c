/* SPDX-License-Identifier: MIT */
/* Sleeps for a message, and has never armed the CQ. */
#include "peer.h"

int main(void)
{
    struct pair p = {0};
    struct peer peer = {0};
    open_pair(&p);
    post_recvs(&p, 1);
#ifdef RIGHT
    start_peer(&peer, &p, 1);
    arm(p.recvs);
    CHECK(drain(p.recvs) == 0);
    let_send(&peer);
#endif
    ibv_ack_cq_events(next_event(p.channel), 1); /* MISTAKE: not armed */
    await_all(p.recvs, 1);
    join_peer(&peer);
    close_pair(&p);
    return 0;
}
