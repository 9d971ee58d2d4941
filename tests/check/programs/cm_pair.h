/* SPDX-License-Identifier: MIT */
/* A connection of rdma_cm within one process; rdma_create_qp() makes its CQs and channels. */
#ifndef CM_PAIR_H
#define CM_PAIR_H

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "pair.h"

struct cm_pair {
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener, *client, *server;
    char memory[2 * SIZE];
    struct ibv_mr *client_mr, *server_mr;
};

/* Waits for the next event, and returns its id. */
static inline struct rdma_cm_id *next_cm_event(struct cm_pair *p, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(p->events, &event));
    CHECK(event->event == type);
    struct rdma_cm_id *id = event->id;
    CHECK(!rdma_ack_cm_event(event));
    return id;
}

/* Listens at an address of this host that belongs to an RDMA device. */
static inline void listen_at_device(struct cm_pair *p)
{
    struct ifaddrs *all;
    CHECK(!getifaddrs(&all));
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK)
            continue;
        CHECK(!rdma_create_id(p->events, &p->listener, NULL, RDMA_PS_TCP));
        if (!rdma_bind_addr(p->listener, one->ifa_addr) && p->listener->verbs)
            break;
        rdma_destroy_id(p->listener);
        p->listener = NULL;
    }
    freeifaddrs(all);
    CHECK(p->listener && !rdma_listen(p->listener, 1));
}

static inline void make_cm_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {
        .cap = {DEPTH, DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    CHECK(!rdma_create_qp(id, NULL, &attr));
}

static inline void open_cm_pair(struct cm_pair *p)
{
    struct rdma_conn_param param = {.retry_count = 6, .rnr_retry_count = 7};
    CHECK(p->events = rdma_create_event_channel());
    listen_at_device(p);
    CHECK(!rdma_create_id(p->events, &p->client, NULL, RDMA_PS_TCP));
    struct sockaddr *address = rdma_get_local_addr(p->listener);
    CHECK(!rdma_resolve_addr(p->client, NULL, address, 2000));
    next_cm_event(p, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(!rdma_resolve_route(p->client, 2000));
    next_cm_event(p, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_cm_qp(p->client);
    CHECK(!rdma_connect(p->client, &param));
    p->server = next_cm_event(p, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_cm_qp(p->server);
    CHECK(!rdma_accept(p->server, &param));
    next_cm_event(p, RDMA_CM_EVENT_ESTABLISHED); /* the client's and the server's */
    next_cm_event(p, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(p->client_mr = rdma_reg_msgs(p->client, p->memory, SIZE));
    CHECK(p->server_mr = rdma_reg_msgs(p->server, p->memory + SIZE, SIZE));
}

/* Sends a message to the server. When it returns, the server has it; see deliver() in pair.h. */
static inline void cm_deliver(struct cm_pair *p)
{
    CHECK(!rdma_post_recv(p->server, NULL, p->memory + SIZE, SIZE, p->server_mr));
    CHECK(!rdma_post_send(p->client, NULL, p->memory, SIZE, p->client_mr, 0));
    await_completions(p->client->send_cq, 1);
}

static inline void close_cm_pair(struct cm_pair *p)
{
    CHECK(!rdma_disconnect(p->client));
    for (int ends = 0; ends < 2; ends++) /* the server's first, or on iWARP the client's */
        if (next_cm_event(p, RDMA_CM_EVENT_DISCONNECTED) == p->server)
            rdma_disconnect(p->server); /* on iWARP it may be so already */
    CHECK(!rdma_dereg_mr(p->client_mr) && !rdma_dereg_mr(p->server_mr));
    rdma_destroy_qp(p->client);
    rdma_destroy_qp(p->server);
    CHECK(!rdma_destroy_id(p->client) && !rdma_destroy_id(p->server));
    CHECK(!rdma_destroy_id(p->listener));
    rdma_destroy_event_channel(p->events);
}

#endif
