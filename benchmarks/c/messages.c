/* SPDX-License-Identifier: MIT */
/* The floors of benchmarks/messages.py: the same messages in C, an end in each of two processes.
 *
 *   verbs     sends out of registered memory into posted receives, asleep in between: what
 *             ib_send_lat -e and ib_send_bw -e do, but with a window, so that none finds no receive
 *   reads     no message but RDMA READs: the receiver reads the same bytes, and the sender sleeps
 *   rsockets  rsend() and rrecv(), the blocking sockets of librdmacm */

#include "bench.h"
#include <arpa/inet.h>
#include <limits.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SMALL = 64, TRIPS = 200, LARGEST = 1 << 24, WINDOW = 16 };

static const struct {
    const char *name;
    size_t size;
    long messages;
} streams[] = {{"64 B", 64, 512}, {"64 KiB", 1 << 16, 64}, {"16 MiB", LARGEST, 2}};
#define STREAMS (sizeof(streams) / sizeof(*streams))

/* listen() writes to the pipe once it listens. send() and recv() use the memory below, for a
 * message of that size. window: how many messages may be sent ahead of an acknowledgement. serve()
 * and run_round() are what the ends do in one round. */
struct transport {
    const char *name, *port;
    void (*listen)(int pipe);
    void (*connect)(void);
    void (*send)(size_t size);
    void (*recv)(size_t size);
    void (*serve)(void);
    void (*run_round)(void);
    long window;
};
static const struct transport *by;

static char out[LARGEST], in[LARGEST];
static const char *host, *port;

/* ---- verbs ------------------------------------------------------------------------------ */

static struct rdma_cm_id *id;
static struct ibv_mr *out_mr, *in_mr;
static unsigned posted;

/* All receives use the same memory, since no message is read. */
static void post_receive(void)
{
    CHECK(rdma_post_recv(id, NULL, in, sizeof(in), in_mr) == 0);
}

static void prepare(void)
{
    CHECK((out_mr = rdma_reg_msgs(id, out, sizeof(out))) != NULL);
    CHECK((in_mr = rdma_reg_msgs(id, in, sizeof(in))) != NULL);
    for (int i = 0; i < WINDOW; i++) {
        post_receive();
    }
}

static struct rdma_cm_id *create(int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    CHECK(rdma_getaddrinfo(host, port, &hints, &found) == 0);
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct rdma_cm_id *created;
    CHECK(rdma_create_ep(&created, found, NULL, &init) == 0);
    rdma_freeaddrinfo(found);
    return created;
}

static void verbs_listen(int pipe)
{
    struct rdma_cm_id *listener = create(RAI_PASSIVE);
    CHECK(rdma_listen(listener, 1) == 0);
    CHECK(write(pipe, "+", 1) == 1);
    CHECK(rdma_get_request(listener, &id) == 0);
    prepare();
    CHECK(rdma_accept(id, NULL) == 0);
}

static void verbs_connect(void)
{
    id = create(0);
    prepare();
    CHECK(rdma_connect(id, NULL) == 0);
}

static void verbs_send(size_t size)
{
    bool signaled = ++posted % (WINDOW / 2) == 0;
    CHECK(rdma_post_send(id, NULL, out, size, out_mr, signaled ? IBV_SEND_SIGNALED : 0) == 0);
    struct ibv_wc wc;
    CHECK(!signaled || (rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS));
}

static void verbs_recv(size_t size)
{
    struct ibv_wc wc;
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == size);
    post_receive();
}

/* ---- rsockets --------------------------------------------------------------------------- */

static int fd;

static struct sockaddr_in address(void)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    CHECK(inet_pton(AF_INET, host, &sin.sin_addr) == 1);
    return sin;
}

static void rsockets_listen(int pipe)
{
    struct sockaddr_in sin = address();
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0 && rbind(listener, (struct sockaddr *)&sin, sizeof(sin)) == 0);
    CHECK(rlisten(listener, 1) == 0);
    CHECK(write(pipe, "+", 1) == 1);
    CHECK((fd = raccept(listener, NULL, NULL)) >= 0);
}

static void rsockets_connect(void)
{
    struct sockaddr_in sin = address();
    CHECK((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(rconnect(fd, (struct sockaddr *)&sin, sizeof(sin)) == 0);
}

static void rsockets_send(size_t size)
{
    CHECK(rsend(fd, out, size, 0) == (ssize_t)size);
}

static void rsockets_recv(size_t size)
{
    CHECK(rrecv(fd, in, size, MSG_WAITALL) == (ssize_t)size);
}

/* ---- messages --------------------------------------------------------------------------- */

/* The receiver acknowledges each half of a window, and the last message. */
static void receive(size_t size, long messages)
{
    for (long i = 1; i <= messages; i++) {
        by->recv(size);
        if (i % (by->window / 2) == 0 || i == messages) {
            by->send(1);
        }
    }
}

static void stream(size_t size, long messages)
{
    const long half = by->window / 2;
    long due = (messages - 1) / half + 1;
    for (long i = 0; i < messages; i++) {
        if (i >= by->window && i % half == 0) {
            by->recv(1);
            due--;
        }
        by->send(size);
    }
    for (; due > 0; due--) {
        by->recv(1);
    }
}

static void serve_messages(void)
{
    for (int i = 0; i < TRIPS; i++) {
        by->recv(SMALL);
        by->send(SMALL);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        receive(streams[i].size, 1);
        receive(streams[i].size, streams[i].messages);
    }
}

static void print(const char *name, long ops, int64_t start)
{
    printf("\"%s\": {\"ops\": %ld, \"total\": %ld}", name, ops, (long)(bench_clock() - start));
}

static void exchange_messages(void)
{
    int64_t start = bench_clock();
    for (int i = 0; i < TRIPS; i++) {
        by->send(SMALL);
        by->recv(SMALL);
    }
    print("64 B round trip", TRIPS, start);
    for (size_t i = 0; i < STREAMS; i++) {
        printf(", ");
        stream(streams[i].size, 1);
        start = bench_clock();
        stream(streams[i].size, streams[i].messages);
        print(streams[i].name, streams[i].messages, start);
    }
}

/* ---- READs ------------------------------------------------------------------------------ */

enum { FIRST_READ = 1, MOST_READ = 1 << 20 };

static struct {
    uint64_t addr;
    uint32_t rkey;
} source;

/* Tells the receiver where it reads. */
static void reads_connect(void)
{
    verbs_connect();
    struct ibv_mr *mr = rdma_reg_read(id, out, sizeof(out));
    CHECK(mr != NULL);
    source.addr = (uintptr_t)out;
    source.rkey = mr->rkey;
    memcpy(out, &source, sizeof(source));
    verbs_send(sizeof(source));
    verbs_recv(1);
}

static void reads_listen(int pipe)
{
    verbs_listen(pipe);
    verbs_recv(sizeof(source));
    memcpy(&source, in, sizeof(source));
    verbs_send(1);
}

/* As large as the messages' own READs are. All read into the same memory. */
static void read_all(size_t size, long messages)
{
    const size_t each = size < MOST_READ ? size : MOST_READ;
    const long reads = messages * (long)(size / each);
    for (long i = 1; i <= reads; i++) {
        bool signaled = i % WINDOW == 0 || i == reads;
        CHECK(rdma_post_read(id, NULL, in, each, in_mr, signaled ? IBV_SEND_SIGNALED : 0,
                             source.addr, source.rkey) == 0);
        struct ibv_wc wc;
        CHECK(!signaled || (rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS));
    }
}

static void serve_reads(void)
{
    for (size_t i = FIRST_READ; i < STREAMS; i++) {
        verbs_recv(1);
        read_all(streams[i].size, 1);
        verbs_send(1);
        verbs_recv(1);
        read_all(streams[i].size, streams[i].messages);
        verbs_send(1);
    }
}

static void wait_for_reads(void)
{
    for (size_t i = FIRST_READ; i < STREAMS; i++) {
        verbs_send(1);
        verbs_recv(1);
        int64_t start = bench_clock();
        verbs_send(1);
        verbs_recv(1);
        printf("%s", i > FIRST_READ ? ", " : "");
        print(streams[i].name, streams[i].messages, start);
    }
}

/* ---- the two ends ----------------------------------------------------------------------- */

static const struct transport transports[] = {
    {"verbs", "7475", verbs_listen, verbs_connect, verbs_send, verbs_recv, serve_messages,
     exchange_messages, WINDOW},
    {"rsockets", "7476", rsockets_listen, rsockets_connect, rsockets_send, rsockets_recv,
     serve_messages, exchange_messages, LONG_MAX},
    {"reads", "7477", reads_listen, reads_connect, verbs_send, verbs_recv, serve_reads,
     wait_for_reads, WINDOW},
};

static const struct transport *find(const char *name)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(*transports); i++) {
        if (strcmp(transports[i].name, name) == 0) {
            return &transports[i];
        }
    }
    return NULL;
}

static void serve(int pipe)
{
    by->listen(pipe);
    while (by->recv(1), in[0]) {
        by->serve();
    }
}

static void run_round(void)
{
    by->send(1);
    printf("{");
    by->run_round();
    printf("}\n");
}

/* The other end, before this one has touched the device. */
static pid_t start_server(void)
{
    int ends[2];
    char c;
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        serve(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(ends[0], &c, 1) == 1);
    close(ends[0]);
    return pid;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK((by = find(argv[1])) != NULL);
    port = by->port;
    CHECK((host = getenv("BENCH_HOST")) != NULL);
    pid_t server = start_server();
    by->connect();
    out[0] = 1;
    while (bench_next_round()) {
        run_round();
    }
    out[0] = 0;
    by->send(1);
    int status;
    CHECK(waitpid(server, &status, 0) == server && status == 0);
    return 0;
}
