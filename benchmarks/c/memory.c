/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/memory.py: what the library and the provider keep. */

#include "bench.h"
#include <malloc.h>

enum { N = 100 };

static long in_use(void)
{
    struct mallinfo2 info = mallinfo2();
    return (long)(info.uordblks + info.hblkhd);
}

static long of_cqs(struct bench *b)
{
    struct ibv_cq *made[N];
    long before = in_use();
    for (int i = 0; i < N; i++) {
        CHECK((made[i] = ibv_create_cq(b->ctx, 16, NULL, b->channel, 0)) != NULL);
    }
    long bytes = in_use() - before;
    for (int i = 0; i < N; i++) {
        CHECK(ibv_destroy_cq(made[i]) == 0);
    }
    return bytes;
}

static long of_qps(struct bench *b)
{
    struct ibv_qp_init_attr init = {
        .send_cq = b->cq, .recv_cq = b->cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
    struct ibv_qp *made[N];
    long before = in_use();
    for (int i = 0; i < N; i++) {
        CHECK((made[i] = ibv_create_qp(b->pd, &init)) != NULL);
    }
    long bytes = in_use() - before;
    for (int i = 0; i < N; i++) {
        CHECK(ibv_destroy_qp(made[i]) == 0);
    }
    return bytes;
}

static long of_mrs(struct bench *b)
{
    struct ibv_mr *made[N];
    long before = in_use();
    for (int i = 0; i < N; i++) {
        made[i] = ibv_reg_mr(b->pd, b->memory, sizeof(b->memory), IBV_ACCESS_LOCAL_WRITE);
        CHECK(made[i] != NULL);
    }
    long bytes = in_use() - before;
    for (int i = 0; i < N; i++) {
        CHECK(ibv_dereg_mr(made[i]) == 0);
    }
    return bytes;
}

int main(void)
{
    static struct bench b;
    bench_open(&b);
    while (bench_next_round()) {
        printf("{\"CQ\": {\"ops\": %d, \"total\": %ld}, ", N, of_cqs(&b));
        printf("\"QP\": {\"ops\": %d, \"total\": %ld}, ", N, of_qps(&b));
        printf("\"MR\": {\"ops\": %d, \"total\": %ld}, ", N, of_mrs(&b));
        printf("\"WorkCompletion\": {\"ops\": 1, \"total\": %zu}}\n", sizeof(struct ibv_wc));
    }
    return 0;
}
