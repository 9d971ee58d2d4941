/* SPDX-License-Identifier: MIT */
/* Sleeps in poll(2) on rdma_cm's events and the CQ's at once, as event loops do. */
#include <poll.h>

#include "cm_pair.h"

static void await_message(struct cm_pair *p)
{
    struct pollfd fds[] = {
        {.fd = p->events->fd, .events = POLLIN},
        {.fd = p->server->recv_cq_channel->fd, .events = POLLIN},
    };
    CHECK(poll(fds, 2, -1) == 1 && fds[1].revents == POLLIN);
    ibv_ack_cq_events(next_event(p->server->recv_cq_channel), 1);
}

int main(void)
{
    struct cm_pair p = {0};
    open_cm_pair(&p);
    struct ibv_cq *cq = p.server->recv_cq;
    arm(cq);
    cm_deliver(&p);
    for (int messages = 0; messages < 2;) {
        await_message(&p);
#ifdef RIGHT
        arm(cq);
#endif /* MISTAKE: an event uses up the arm, so the CQ must be armed again before the next sleep \
        */
        messages += drain(cq);
        cm_deliver(&p);
    }
    close_cm_pair(&p);
    return 0;
}
