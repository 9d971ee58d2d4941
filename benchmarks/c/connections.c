/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/connections.py: both ends of N connections, on one event channel. Each
 * end is closed as soon as it is over. */

#include "bench.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 32, PORT = 7473 };

struct side {
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    bool is_shut_down;
};

static struct bench b;
static struct rdma_event_channel *events;
static struct sockaddr_in address = {.sin_family = AF_INET};
static struct side *clients, *servers;
static long asked, accepted, established, left;

static struct ibv_qp *create_qp(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = b.cq, .recv_cq = b.cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(b.pd, &init);
    CHECK(qp != NULL);
    return qp;
}

static void bring_up(const struct side *side)
{
    for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        struct ibv_qp_attr attr = {.qp_state = state};
        int mask;
        CHECK(rdma_init_qp_attr(side->id, &attr, &mask) == 0);
        CHECK(ibv_modify_qp(side->qp, &attr, mask) == 0);
    }
}

static struct rdma_conn_param parameters(const struct side *side)
{
    return (struct rdma_conn_param){.responder_resources = 1,
                                    .initiator_depth = 1,
                                    .retry_count = 6,
                                    .rnr_retry_count = 7,
                                    .qp_num = side->qp->qp_num};
}

static void ask(void)
{
    struct side *side = &clients[asked++];
    *side = (struct side){.qp = create_qp()};
    CHECK(rdma_create_id(events, &side->id, side, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(side->id, NULL, (struct sockaddr *)&address, 4000) == 0);
}

static void answer(struct rdma_cm_id *id)
{
    struct side *side = &servers[accepted++];
    *side = (struct side){.id = id, .qp = create_qp()};
    id->context = side;
    bring_up(side);
    struct rdma_conn_param param = parameters(side);
    CHECK(rdma_accept(id, &param) == 0);
}

static void close_side(struct side *side)
{
    CHECK(ibv_destroy_qp(side->qp) == 0);
    CHECK(rdma_destroy_id(side->id) == 0);
}

/* Each of the two sides disconnects once. */
static void shut_down(struct side *side)
{
    if (side->is_shut_down) {
        return;
    }
    side->is_shut_down = true;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE) == 0);
    rdma_disconnect(side->id);
}

static void handle(enum rdma_cm_event_type type, struct rdma_cm_id *id)
{
    struct side *side = id->context;
    struct rdma_conn_param param;
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        CHECK(rdma_resolve_route(id, 4000) == 0);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        param = parameters(side);
        CHECK(rdma_connect(id, &param) == 0);
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        answer(id);
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        bring_up(side);
        CHECK(rdma_establish(id) == 0);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        established++;
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        shut_down(side);
        close_side(side);
        left++;
        break;
    default:
        CHECK(type == RDMA_CM_EVENT_TIMEWAIT_EXIT);
    }
}

static void handle_next(void)
{
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(events, &event) == 0);
    enum rdma_cm_event_type type = event->event;
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    handle(type, id);
}

static void connect_all(long n)
{
    asked = accepted = established = 0;
    while (established < n) {
        while (asked < n && asked - established < WINDOW) {
            ask();
        }
        handle_next();
    }
}

static void close_all(long n)
{
    left = 0;
    for (long i = 0; i < n; i++) {
        shut_down(&clients[i]);
        for (; left < 2 * (i + 1 - WINDOW);) {
            handle_next();
        }
    }
    while (left < 2 * n) {
        handle_next();
    }
}

static struct rdma_cm_id *start_listener(void)
{
    struct rdma_cm_id *listener;
    const char *host = getenv("BENCH_HOST");
    CHECK(host != NULL && inet_pton(AF_INET, host, &address.sin_addr) == 1);
    address.sin_port = htons(PORT);
    CHECK((events = rdma_create_event_channel()) != NULL);
    CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
    CHECK(rdma_listen(listener, 1024) == 0);
    return listener;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    const long n = atol(argv[1]);
    CHECK((clients = calloc((size_t)n, sizeof(*clients))) != NULL);
    CHECK((servers = calloc((size_t)n, sizeof(*servers))) != NULL);
    bench_open(&b);
    struct rdma_cm_id *listener = start_listener();
    while (bench_next_round()) {
        int64_t start = bench_clock();
        connect_all(n);
        int64_t connected = bench_clock();
        close_all(n);
        printf("{\"connect\": {\"ops\": %ld, \"total\": %ld}, ", n, (long)(connected - start));
        printf("\"close\": {\"ops\": %ld, \"total\": %ld}}\n", n,
               (long)(bench_clock() - connected));
    }
    CHECK(rdma_destroy_id(listener) == 0);
    return 0;
}
