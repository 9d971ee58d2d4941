/* SPDX-License-Identifier: MIT */
/* An event loop with epoll: arms at the end of each turn, and sleeps. */
#include <sys/epoll.h>

#include "pair.h"

static void await_readable(int loop)
{
    struct epoll_event found;
    CHECK(epoll_wait(loop, &found, 1, -1) == 1);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    int loop = epoll_create1(EPOLL_CLOEXEC), messages = 0;
    struct epoll_event readable = {.events = EPOLLIN};
    CHECK(!epoll_ctl(loop, EPOLL_CTL_ADD, p.channel->fd, &readable));

    arm(p.recvs);
    deliver(&p, 1);
    while (messages < 2) {
        await_readable(loop);
        ibv_ack_cq_events(next_event(p.channel), 1);
#ifdef RIGHT
        arm(p.recvs);
        deliver(&p, 1);
        messages += drain(p.recvs);
#else
        messages += drain(p.recvs);
        deliver(&p, 1);
        arm(p.recvs); /* MISTAKE: after the poll: the last message came between the two */
#endif
    }
    close(loop);
    close_pair(&p);
    return 0;
}
