/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/channels.py. */

#include "bench.h"

enum { MANY = 500, EVENTS = 1500, ROOM = 16, ACK_BATCH = 32 };

/* The CQ's context. */
struct member {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    unsigned unacked;
};

static struct member make_member(struct bench *b)
{
    struct member member = {0};
    CHECK((member.cq = ibv_create_cq(b->ctx, ROOM, NULL, b->channel, 0)) != NULL);
    struct ibv_qp_init_attr init = {
        .send_cq = member.cq,
        .recv_cq = member.cq,
        .qp_type = IBV_QPT_UC,
        .cap = {.max_send_wr = ROOM, .max_recv_wr = ROOM, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK((member.qp = ibv_create_qp(b->pd, &init)) != NULL);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(member.qp, &attr, mask) == 0);
    bench_connect_to_itself(b, member.qp);
    return member;
}

static void take_event(struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(channel, &cq, &context) == 0);
    struct member *member = context;
    if (++member->unacked == ACK_BATCH) {
        ibv_ack_cq_events(cq, member->unacked);
        member->unacked = 0;
    }
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    struct ibv_wc wcs[ROOM];
    CHECK(ibv_poll_cq(cq, ROOM, wcs) == 1 && wcs[0].status == IBV_WC_SUCCESS);
}

static void measure(struct bench *b, struct member *members, int count)
{
    int64_t cost = bench_clock_cost(), total = 0;
    for (int i = 0; i < count; i++) {
        CHECK(ibv_req_notify_cq(members[i].cq, 0) == 0);
    }
    for (int i = 0; i < EVENTS; i++) {
        bench_fill(b, members[i % count].qp, 1);
        int64_t start = bench_clock();
        take_event(b->channel);
        total += bench_clock() - start - cost;
    }
    printf("\"%d\": {\"ops\": %d, \"total\": %ld, \"events\": %d, \"arms\": %d}", count, EVENTS,
           (long)total, EVENTS, EVENTS);
}

static struct member *make_crowd(struct bench *b, int count)
{
    struct member *members = calloc((size_t)count, sizeof(*members));
    CHECK(members != NULL);
    for (int i = 0; i < count; i++) {
        members[i] = make_member(b);
        members[i].cq->cq_context = &members[i];
    }
    return members;
}

int main(void)
{
    static struct bench one, many;
    bench_open(&one);
    bench_open(&many);
    struct member *single = make_crowd(&one, 1), *crowd = make_crowd(&many, MANY);
    while (bench_next_round()) {
        printf("{");
        measure(&one, single, 1);
        printf(", ");
        measure(&many, crowd, MANY);
        printf("}\n");
    }
    return 0;
}
