/* SPDX-License-Identifier: MIT */
/* Sleeps with a timeout, after which it polls: a lost wake-up costs this time, and nothing else. */
#include <poll.h>

#include "pair.h"

enum { MILLISECONDS = 200 };

static void await_event(struct pair *p)
{
    struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
    if (poll(&fd, 1, MILLISECONDS) == 1)
        ibv_ack_cq_events(next_event(p->channel), 1);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    deliver(&p, 1);
    arm(p.recvs);
#ifdef RIGHT
    if (drain(p.recvs) == 0)
#endif
        await_event(&p); /* MISTAKE: the message is there; the sleep lasts to its end */
    drain(p.recvs);
    close_pair(&p);
    return 0;
}
