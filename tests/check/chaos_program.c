/* SPDX-License-Identifier: MIT */
/*
 * Receives messages by events, in a right way or in a wrong one: chaos_program WAY.
 *
 *  right      arms, and polls until the CQ is empty, before it sleeps
 *  poll-once  polls before it arms, and not after
 *  assume     takes the completion of a send for that of its receive
 *  batch      prints how many completions each poll of four found
 *  told       is told by poll(2) that an event can be read, and reads it: no signal ends that
 *  eintr      takes a signal's end of its sleep for a failure
 *  list       posts a list of four receives; prints which was refused
 *  fail       sends until one fails; prints its status, and that of those after it
 *  refused    creates objects until one is refused; prints which
 *  arm        arms; prints what came of it
 *  destroy    creates CQs and regions, and destroys them
 *  async      reads asynchronous events; prints them
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include "programs/pair.h"

enum { MESSAGES = 24 };

static int is_eintr_fatal;

static void on_signal(int number)
{
    (void)number;
}

static void get_event(struct pair *p)
{
    struct ibv_cq *cq;
    void *context;
    while (ibv_get_cq_event(p->channel, &cq, &context)) {
        CHECK(errno == EINTR && !is_eintr_fatal);
        printf("interrupted\n");
    }
    ibv_ack_cq_events(cq, 1);
}

/* One message after the other, of which each is awaited. */
static void receive(struct pair *p, int is_right)
{
    arm(p->recvs);
    for (int i = 0; i < MESSAGES; i++) {
        deliver(p, 1);
        for (int got = 0; got == 0;) {
            get_event(p);
            if (!is_right)
                got += drain(p->recvs);
            arm(p->recvs);
            if (is_right)
                got += drain(p->recvs);
        }
    }
}

/* Every second time, poll() is told not to sleep. */
static void read_what_is_told(struct pair *p)
{
    struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
    for (int i = 0; i < MESSAGES; i++) {
        arm(p->recvs);
        deliver(p, 1);
        while (poll(&fd, 1, i % 2 ? 0 : -1) != 1) {
            CHECK(errno == EINTR);
            printf("interrupted\n");
        }
        ibv_ack_cq_events(next_event(p->channel), 1);
        await_completions(p->recvs, 1);
    }
}

static void assume(struct pair *p)
{
    for (int i = 0; i < 4; i++) {
        deliver(p, 1);
        CHECK(drain(p->recvs) == 1);
    }
}

static void poll_batches(struct pair *p)
{
    struct ibv_wc wc[4];
    uint64_t last = 0;
    for (int i = 0; i < MESSAGES; i++) {
        deliver(p, 4);
        for (int got = 0; got < 4;) {
            int found = ibv_poll_cq(p->recvs, 4 - got, wc);
            for (int j = 0; j < found; j++) {
                CHECK(wc[j].wr_id > last);
                last = wc[j].wr_id;
            }
            got += found;
            printf("%d\n", found);
        }
    }
}

static void post_lists(struct pair *p)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, SIZE, p->mr->lkey};
    for (int i = 0; i < 8; i++) {
        struct ibv_recv_wr wr[4], *bad = NULL;
        for (int j = 0; j < 4; j++)
            wr[j] = (struct ibv_recv_wr){.wr_id = ++p->wr_id,
                                         .next = j < 3 ? &wr[j + 1] : NULL,
                                         .sg_list = &sge,
                                         .num_sge = 1};
        int result = ibv_post_recv(p->b, wr, &bad);
        int posted = result ? (int)(bad - wr) : 4;
        printf("%d %d\n", result, posted);
        for (int j = 0; j < posted; j += !post_send(p, IBV_SEND_SIGNALED))
            ;
        await_completions(p->sends, posted);
        await_completions(p->recvs, posted);
    }
}

static void send_until_it_fails(struct pair *p)
{
    struct ibv_wc wc = {0};
    while (wc.status == IBV_WC_SUCCESS) {
        post_recvs(p, 1);
        CHECK(!post_send(p, IBV_SEND_SIGNALED));
        while (ibv_poll_cq(p->sends, 1, &wc) == 0)
            ;
    }
    printf("%d\n", (int)wc.status);
    CHECK(!post_send(p, IBV_SEND_SIGNALED));
    while (ibv_poll_cq(p->sends, 1, &wc) == 0)
        ;
    printf("%d\n", (int)wc.status);
}

static void create_until_refused(struct pair *p)
{
    for (int i = 0; i < 1000; i++) {
        struct ibv_cq *cq = ibv_create_cq(p->ctx, 4, NULL, NULL, 0);
        struct ibv_mr *mr = ibv_reg_mr(p->pd, p->memory, SIZE, 0);
        if (!cq || !mr) {
            printf("%d %s %s\n", i, cq ? "mr" : "cq", strerror(errno));
            return;
        }
        CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
    }
}

static void arm_again(struct pair *p)
{
    for (int i = 0; i < MESSAGES; i++)
        printf("%d\n", ibv_req_notify_cq(p->recvs, 0));
}

static void destroy(struct pair *p)
{
    for (int i = 0; i < MESSAGES / 4; i++) {
        struct ibv_cq *cq = ibv_create_cq(p->ctx, 4, NULL, NULL, 0);
        struct ibv_mr *mr = ibv_reg_mr(p->pd, p->memory, SIZE, 0);
        CHECK(cq && mr && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
        arm(p->recvs);
    }
}

static void read_async_events(struct pair *p)
{
    CHECK(!fcntl(p->ctx->async_fd, F_SETFL, O_NONBLOCK));
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_async_event event;
        if (ibv_get_async_event(p->ctx, &event)) {
            CHECK(errno == EAGAIN);
            continue;
        }
        printf("%d\n", (int)event.event_type);
        ibv_ack_async_event(&event);
    }
}

static const struct {
    const char *name;
    void (*run)(struct pair *);
} ways[] = {
    {"told", read_what_is_told},
    {"assume", assume},
    {"batch", poll_batches},
    {"list", post_lists},
    {"fail", send_until_it_fails},
    {"refused", create_until_refused},
    {"arm", arm_again},
    {"destroy", destroy},
    {"async", read_async_events},
};

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const char *way = argv[1];
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    is_eintr_fatal = strcmp(way, "eintr") == 0;
    struct pair p = {0};
    open_pair(&p);
    size_t n = 0, count = sizeof(ways) / sizeof(ways[0]);
    while (n < count && strcmp(way, ways[n].name) != 0)
        n++;
    if (n < count)
        ways[n].run(&p);
    else
        receive(&p, strcmp(way, "poll-once") != 0);
    exit(EXIT_SUCCESS);
}
