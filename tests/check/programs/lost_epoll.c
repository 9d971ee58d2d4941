/* SPDX-License-Identifier: MIT */
/* An event loop with epoll: arms at the end of each turn, and sleeps. */
#include "epoll_loop.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    int loop = epoll_create1(EPOLL_CLOEXEC);
    watch(loop, p.channel->fd);
    receive_two(&p, loop);
    close(loop);
    close_pair(&p);
    return 0;
}
