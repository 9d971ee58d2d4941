/* SPDX-License-Identifier: MIT */
/* An event loop with epoll, for the programs whose mistake is in its turn. */
#ifndef EPOLL_LOOP_H
#define EPOLL_LOOP_H

#include <sys/epoll.h>

#include "pair.h"

static void watch(int loop, int descriptor)
{
    struct epoll_event readable = {.events = EPOLLIN};
    CHECK(!epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &readable));
}

static void await_readable(int loop)
{
    struct epoll_event found;
    int count;
#ifdef PRECISE
    while ((count = epoll_pwait2(loop, &found, 1, NULL, NULL)) < 0)
#else
    while ((count = epoll_wait(loop, &found, 1, -1)) < 0)
#endif
        CHECK(errno == EINTR);
    CHECK(count == 1);
}

static void receive_two(struct pair *p, int loop)
{
    int messages = 0;
    arm(p->recvs);
    deliver(p, 1);
    while (messages < 2) {
        await_readable(loop);
        ibv_ack_cq_events(next_event(p->channel), 1);
#ifdef RIGHT
        arm(p->recvs);
        deliver(p, 1);
        messages += drain(p->recvs);
#else
        messages += drain(p->recvs);
        deliver(p, 1);
        arm(p->recvs); /* MISTAKE: after the poll: the last message came between the two */
#endif
    }
}

#endif
