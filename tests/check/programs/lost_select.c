/* SPDX-License-Identifier: MIT */
/* Sleeps in select(2): sees that the CQ is empty, then arms it. */
#include <sys/select.h>

#include "pair.h"

static void await_readable(int fd)
{
    fd_set fds;
    FD_ZERO(&fds);
    FD_SET(fd, &fds);
    CHECK(select(fd + 1, &fds, NULL, NULL, NULL) == 1);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
#ifdef RIGHT
    arm(p.recvs);
#endif
    int found = drain(p.recvs);
    deliver(&p, 1);
#ifndef RIGHT
    arm(p.recvs); /* MISTAKE: must be done before the CQ is found empty */
#endif
    if (found == 0)
        await_readable(p.channel->fd);
    ibv_ack_cq_events(next_event(p.channel), 1);
    drain(p.recvs);
    close_pair(&p);
    return 0;
}
