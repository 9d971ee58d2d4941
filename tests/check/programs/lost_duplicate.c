/* SPDX-License-Identifier: MIT */
/* An event loop that watches a duplicate of the channel's descriptor, as asyncio programs do. */
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "epoll_loop.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    int loop = epoll_create1(EPOLL_CLOEXEC);
    int first = fcntl(p.channel->fd, F_DUPFD_CLOEXEC, 10), second = dup(first);
    int copy = dup2(second, 20);
    CHECK(copy == 20);
    watch(loop, copy);
    close(first);
    close(second);
    receive_two(&p, loop);
    close(copy);
#ifdef RIGHT
    /* The number is now another file's, which is no channel, though nothing may have armed. */
    CHECK(dup2(loop, 20) == 20);
    CHECK(poll(&(struct pollfd){.fd = 20, .events = POLLIN}, 1, 1500) >= 0);
    close(20);
#endif
    close(loop);
    close_pair(&p);
    return 0;
}
