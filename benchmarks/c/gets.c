/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/gets.py: RDMA READs of another process's memory, asleep until each has
 * completed.
 *
 *   events   one READ for each get: arm, post, sleep until the event, poll
 *   polls    the same, but arms and sleeps only if a first poll finds nothing
 *   pieces   the same in READs of 1 MiB, 4 of them under way, as cqnotify.memory reads 16 MiB */

#include "bench.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 1 << 20, UNDER_WAY = 4, LARGEST = 1 << 24, READS = 16, ACK_BATCH = 32 };

static const struct {
    const char *name;
    size_t size;
    long gets;
} cases[] = {{"4 KiB", 4096, 500}, {"64 KiB", 1 << 16, 64}, {"16 MiB", LARGEST, 2}};
#define CASES (sizeof(cases) / sizeof(*cases))

static struct source {
    uint64_t addr;
    uint32_t rkey;
} source; /* the answer to the connection request */

static char memory[LARGEST];
static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static bool events, pieces;
static unsigned unacked;

static struct rdma_cm_id *create(int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    CHECK(rdma_getaddrinfo(getenv("BENCH_HOST"), "7478", &hints, &found) == 0);
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct rdma_cm_id *created;
    CHECK(rdma_create_ep(&created, found, NULL, &init) == 0);
    rdma_freeaddrinfo(found);
    return created;
}

static struct rdma_conn_param parameters(const void *private_data, uint8_t length)
{
    return (struct rdma_conn_param){
        .private_data = private_data,
        .private_data_len = length,
        .responder_resources = READS,
        .initiator_depth = READS,
    };
}

/* The other end: once the connection is there, it sleeps until the pipe is closed. */
static void serve(int ready, int end)
{
    struct rdma_cm_id *listener = create(RAI_PASSIVE);
    CHECK(rdma_listen(listener, 1) == 0);
    CHECK(write(ready, "+", 1) == 1);
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK((mr = rdma_reg_read(id, memory, sizeof(memory))) != NULL);
    source = (struct source){(uintptr_t)memory, mr->rkey};
    struct rdma_conn_param param = parameters(&source, sizeof(source));
    CHECK(rdma_accept(id, &param) == 0);
    char c;
    CHECK(read(end, &c, 1) == 0);
}

/* Starts the other end, before this one has touched the device. */
static pid_t start_server(void)
{
    int ready[2], end[2];
    char c;
    CHECK(pipe(ready) == 0 && pipe(end) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        close(end[1]);
        serve(ready[1], end[0]);
        _exit(0);
    }
    CHECK(read(ready[0], &c, 1) == 1);
    return pid;
}

static void connect_to_server(void)
{
    id = create(0);
    struct rdma_conn_param param = parameters(NULL, 0);
    CHECK(rdma_connect(id, &param) == 0);
    memcpy(&source, id->event->param.conn.private_data, sizeof(source));
    CHECK((mr = rdma_reg_msgs(id, memory, sizeof(memory))) != NULL);
}

static void post(size_t offset, size_t length)
{
    CHECK(rdma_post_read(id, NULL, memory + offset, length, mr, IBV_SEND_SIGNALED,
                         source.addr + offset, source.rkey) == 0);
}

static void wait_for_event(struct ibv_wc *wc)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(id->send_cq_channel, &cq, &context) == 0);
    if (++unacked == ACK_BATCH) {
        ibv_ack_cq_events(cq, unacked);
        unacked = 0;
    }
    CHECK(ibv_poll_cq(cq, 1, wc) == 1);
}

static void get(size_t size, size_t piece)
{
    size_t posted = 0;
    for (size_t done = 0; done < size; done += piece) {
        CHECK(!events || ibv_req_notify_cq(id->send_cq, 0) == 0);
        for (; posted < size && posted - done < UNDER_WAY * piece; posted += piece) {
            post(posted, piece);
        }
        struct ibv_wc wc;
        if (events) {
            wait_for_event(&wc);
        }
        else {
            CHECK(rdma_get_send_comp(id, &wc) == 1);
        }
        CHECK(wc.status == IBV_WC_SUCCESS);
    }
}

static void run_case(size_t i)
{
    const size_t piece = pieces ? PIECE : cases[i].size;
    get(cases[i].size, piece);
    int64_t start = bench_clock();
    for (long n = 0; n < cases[i].gets; n++) {
        get(cases[i].size, piece);
    }
    printf("\"%s\": {\"ops\": %ld, \"total\": %ld}", cases[i].name, cases[i].gets,
           (long)(bench_clock() - start));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    events = strcmp(argv[1], "events") == 0;
    pieces = strcmp(argv[1], "pieces") == 0;
    start_server();
    connect_to_server();
    while (bench_next_round()) {
        printf("{");
        for (size_t i = pieces ? CASES - 1 : 0; i < CASES; i++) {
            run_case(i);
            printf(i + 1 < CASES ? ", " : "}\n");
        }
    }
    return 0;
}
