/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/completion.py; with the argument "event" that of benchmarks/awaiting.py:
 * it sleeps in epoll_wait(2) until the event is there. */

#include "bench.h"
#include <string.h>
#include <sys/epoll.h>

enum { OPS = 500 };

static int epoll_on(int fd)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    return epoll;
}

/* The CQ is armed before each post, and empty afterwards, so that each post raises an event. */
static void await_event(struct bench *b, int epoll)
{
    struct epoll_event event;
    struct ibv_cq *cq;
    void *context;
    CHECK(epoll_wait(epoll, &event, 1, -1) == 1);
    CHECK(ibv_get_cq_event(b->channel, &cq, &context) == 0);
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_req_notify_cq(b->cq, 0) == 0);
}

static void reap(struct bench *b)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(b->cq, 1, &wc)) == 0) {
    }
    CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

int main(int argc, char **argv)
{
    static struct bench b;
    bench_open(&b);
    const bool sleeps = argc > 1 && strcmp(argv[1], "event") == 0;
    const int epoll = sleeps ? epoll_on(b.channel->fd) : -1;
    struct ibv_qp *qp = bench_create_qp(&b, IBV_QPT_UC);
    bench_connect_to_itself(&b, qp);
    CHECK(!sleeps || ibv_req_notify_cq(b.cq, 0) == 0);
    while (bench_next_round()) {
        int64_t start = bench_clock();
        for (int i = 0; i < OPS; i++) {
            bench_post(&b, qp, 1);
            if (sleeps) {
                await_event(&b, epoll);
            }
            reap(&b);
        }
        long total = (long)(bench_clock() - start);
        printf("{\"8 B\": {\"ops\": %d, \"total\": %ld}}\n", OPS, total);
    }
    return 0;
}
