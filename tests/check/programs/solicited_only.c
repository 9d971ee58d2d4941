/* SPDX-License-Identifier: MIT */
/* Arms for solicited messages, which the peer does not send; a timer makes it poll nevertheless. */
#include <poll.h>

#include "peer.h"

enum { MILLISECONDS = 5000 };

static void await_event(struct pair *p)
{
    struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
    if (poll(&fd, 1, MILLISECONDS) == 1)
        ibv_ack_cq_events(next_event(p->channel), 1);
}

int main(void)
{
    struct pair p = {0};
    struct peer peer = {0};
    open_pair(&p);
    post_recvs(&p, 1);
    start_peer(&peer, &p, 1);
#ifdef RIGHT
    int solicited_only = 0;
#else
    int solicited_only = 1; /* MISTAKE: the peer does not set IBV_SEND_SOLICITED */
#endif
    CHECK(!ibv_req_notify_cq(p.recvs, solicited_only));
    CHECK(drain(p.recvs) == 0);
    let_send(&peer);
    await_event(&p);
    await_all(p.recvs, 1);
    join_peer(&peer);
    close_pair(&p);
    return 0;
}
