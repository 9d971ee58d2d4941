/* SPDX-License-Identifier: MIT */
/* A channel that does not block: no event there is taken for an empty CQ. */
#include <fcntl.h>
#include <poll.h>

#include "pair.h"

static int take_event(struct pair *p)
{
    struct ibv_cq *cq;
    void *context;
    if (ibv_get_cq_event(p->channel, &cq, &context)) {
        CHECK(errno == EAGAIN);
        return 0;
    }
    ibv_ack_cq_events(cq, 1);
    return 1;
}

static void await_message(struct pair *p)
{
    struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
    while (!take_event(p)) {
#ifdef RIGHT
        if (drain(p->recvs))
            return;
#endif
        CHECK(poll(&fd, 1, -1) == 1); /* MISTAKE: no event does not say that the CQ is empty */
    }
    drain(p->recvs);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    CHECK(!fcntl(p.channel->fd, F_SETFL, O_NONBLOCK));
    deliver(&p, 1);
    arm(p.recvs);
    await_message(&p);
    close_pair(&p);
    return 0;
}
