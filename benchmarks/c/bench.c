/* SPDX-License-Identifier: MIT */
/* What the benchmarks in C share; see bench.h. */

#include "bench.h"
#include <string.h>
#include <time.h>
#include <unistd.h>

void bench_fail(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: this does not hold: %s (%m)\n", file, line, condition);
    exit(1);
}

bool bench_next_round(void)
{
    fflush(stdout);
    int c = getchar();
    while (c != '\n' && c != EOF) {
        c = getchar();
    }
    return c == '\n';
}

int64_t bench_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int64_t bench_clock_cost(void)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < 1000; i++) {
        int64_t start = bench_clock();
        int64_t cost = bench_clock() - start;
        least = cost < least ? cost : least;
    }
    return least;
}

int bench_peer(void)
{
    const char *fd = getenv("BENCH_PEER");
    CHECK(fd != NULL);
    return atoi(fd);
}

static struct ibv_context *open_device(void)
{
    const char *name = getenv("BENCH_DEVICE");
    CHECK(name != NULL);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list != NULL);
    struct ibv_context *ctx = NULL;
    for (int i = 0; list[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), name) == 0) {
            ctx = ibv_open_device(list[i]);
        }
    }
    CHECK(ctx != NULL);
    ibv_free_device_list(list);
    return ctx;
}

void bench_open(struct bench *b)
{
    b->ctx = open_device();
    CHECK((b->pd = ibv_alloc_pd(b->ctx)) != NULL);
    CHECK((b->channel = ibv_create_comp_channel(b->ctx)) != NULL);
    CHECK((b->cq = ibv_create_cq(b->ctx, DEPTH, NULL, b->channel, 0)) != NULL);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    CHECK((b->mr = ibv_reg_mr(b->pd, b->memory, sizeof(b->memory), access)) != NULL);
}

struct ibv_qp *bench_create_qp(struct bench *b, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = b->cq,
        .recv_cq = b->cq,
        .qp_type = type,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(b->pd, &init);
    CHECK(qp != NULL);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    return qp;
}

static struct ibv_ah_attr path_to_itself(struct bench *b)
{
    struct ibv_ah_attr ah = {.port_num = 1};
    const char *index = getenv("BENCH_GID_INDEX");
    if (index != NULL && atoi(index) >= 0) {
        ah.is_global = 1;
        ah.grh.sgid_index = (uint8_t)atoi(index);
        ah.grh.hop_limit = 1;
        CHECK(ibv_query_gid(b->ctx, 1, atoi(index), &ah.grh.dgid) == 0);
    }
    else {
        struct ibv_port_attr port;
        CHECK(ibv_query_port(b->ctx, 1, &port) == 0);
        ah.dlid = port.lid;
    }
    return ah;
}

void bench_connect_to_itself(struct bench *b, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp->qp_num,
        .ah_attr = path_to_itself(b),
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

void bench_post(struct bench *b, struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_sge sge = {(uintptr_t)b->memory, 8, b->mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = (uintptr_t)b->memory, .rkey = b->mr->rkey},
    };
    struct ibv_send_wr *bad;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

void bench_fill(struct bench *b, struct ibv_qp *qp, int n)
{
    for (int i = 0; i < n; i++) {
        bench_post(b, qp, (uint64_t)i);
    }
    if (strcmp(ibv_get_device_name(b->ctx->device), "fake0") != 0) {
        usleep((useconds_t)(100 + n * 20)); /* until the device has done it */
    }
}
