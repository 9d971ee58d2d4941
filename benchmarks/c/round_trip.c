/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/round_trip.py; with the argument "epoll" it sleeps in epoll_wait(2). */

#include "end.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <time.h>

enum { SIZE = 64, OPS = 320, BATCH = 16 };

static int epoll_on(int fd)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    return epoll;
}

/* Polls all completions, as soon as there is one. */
static void receive(struct end *end, int epoll)
{
    struct ibv_wc wcs[BATCH];
    int n;
    do {
        struct epoll_event event;
        CHECK(epoll < 0 || epoll_wait(epoll, &event, 1, -1) == 1);
        end_get_event(end);
        end_arm(end, false);
        n = end_poll(end, BATCH, wcs);
        end->spurious += n == 0;
    } while (n == 0);
    for (int i = 0; i < n; i++) {
        end_post_recv(end, wcs[i].wr_id);
    }
}

int main(int argc, char **argv)
{
    static struct end end;
    struct meter meter;
    (void)argv;
    end_connect(&end, SIZE);
    end_arm(&end, false);
    int epoll = argc > 1 ? epoll_on(end.bench.channel->fd) : -1;
    while (bench_next_round()) {
        end_order("echo %d\n", OPS);
        meter_start(&meter, CLOCK_MONOTONIC, &end);
        for (int i = 0; i < OPS; i++) {
            end_send(&end);
            receive(&end, epoll);
        }
        printf("{");
        meter_print(&meter, &end, "64 B", OPS);
        printf("}\n");
    }
    end_close(&end);
    return 0;
}
