/* SPDX-License-Identifier: MIT */
/* Sleeps in poll(2) on the channel's descriptor; polls the CQ before the arm only. */
#include <poll.h>

#include "pair.h"

static void await_event(struct pair *p)
{
    struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
    CHECK(poll(&fd, 1, -1) == 1);
    ibv_ack_cq_events(next_event(p->channel), 1);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    CHECK(drain(p.recvs) == 0);
    deliver(&p, 3); /* they come between the poll and the arm */
    arm(p.recvs);
#ifdef RIGHT
    if (drain(p.recvs) == 0)
#endif
        await_event(&p); /* MISTAKE: not polled after the arm */
    drain(p.recvs);
    close_pair(&p);
    return 0;
}
