/* SPDX-License-Identifier: MIT */
/* Two CQs on one channel; after an event of either, the same one is armed. */
#include "peer.h"

static int take_event(struct pair *p)
{
    struct ibv_cq *cq = next_event(p->channel);
    ibv_ack_cq_events(cq, 1);
#ifdef RIGHT
    arm(cq);
#else
    arm(p->sends); /* MISTAKE: the event may be of p->recvs, which is never armed again */
#endif
    return drain(cq);
}

int main(void)
{
    struct pair p = {0};
    struct peer peer = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, ENTRIES, NULL, p.channel, 0));
    open_pair(&p);
    arm(p.sends);
    arm(p.recvs);
    CHECK(drain(p.sends) == 0 && drain(p.recvs) == 0);
    post_recvs(&p, 2);
    post_sends(&p, 1);
    int completions = 0;
    while (completions < 2)
        completions += take_event(&p);
    start_peer(&peer, &p, 1);
    let_send(&peer);
    while (completions < 4)
        completions += take_event(&p);
    CHECK(!pthread_join(peer.thread, NULL));
    close_pair(&p);
    return 0;
}
