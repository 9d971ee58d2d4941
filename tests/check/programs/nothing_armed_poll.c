/* SPDX-License-Identifier: MIT */
/* Two CQs on one channel, both unarmed, and a sleep in poll(2). */
#include <poll.h>

#include "peer.h"

static void await_event(struct ibv_comp_channel *channel)
{
    struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
    CHECK(poll(&fd, 1, -1) == 1);
    ibv_ack_cq_events(next_event(channel), 1);
}

int main(void)
{
    struct pair p = {0};
    struct peer peer = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, ENTRIES, NULL, p.channel, 0));
    open_pair(&p);
    post_recvs(&p, 1);
#ifdef RIGHT
    start_peer(&peer, &p, 1);
    arm(p.sends);
    arm(p.recvs);
    CHECK(drain(p.sends) == 0 && drain(p.recvs) == 0);
    let_send(&peer);
#endif
    await_event(p.channel); /* MISTAKE: none is armed */
    await_completions(p.recvs, 1);
    join_peer(&peer);
    close_pair(&p);
    return 0;
}
