/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/post.py; with the argument "lists" in lists of 100. */

#include "bench.h"

enum { POSTS = 800, LIST = 100, RECEIVE = 64, BATCH = 16 };

static int per_call;

static int64_t receives(struct bench *b, struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)b->memory, RECEIVE, b->mr->lkey};
    struct ibv_recv_wr wrs[LIST], *bad;
    for (int i = 0; i < LIST; i++) {
        wrs[i] = (struct ibv_recv_wr){.sg_list = &sge, .num_sge = 1};
        wrs[i].next = i + 1 < per_call ? &wrs[i + 1] : NULL;
    }
    int64_t start = bench_clock();
    for (int i = 0; i < POSTS; i += per_call) {
        wrs[0].wr_id = (uint64_t)i;
        CHECK(ibv_post_recv(qp, wrs, &bad) == 0);
    }
    return bench_clock() - start;
}

static int64_t sends(struct bench *b, struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)b->memory, 8, b->mr->lkey};
    struct ibv_send_wr wrs[LIST], *bad;
    for (int i = 0; i < LIST; i++) {
        wrs[i] = (struct ibv_send_wr){
            .next = i + 1 < per_call ? &wrs[i + 1] : NULL,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
            .wr.rdma = {.remote_addr = (uintptr_t)b->memory, .rkey = b->mr->rkey},
        };
    }
    int64_t start = bench_clock();
    for (int i = 0; i < POSTS; i += per_call) {
        wrs[0].wr_id = (uint64_t)i;
        CHECK(ibv_post_send(qp, wrs, &bad) == 0);
    }
    return bench_clock() - start;
}

static void drain(struct bench *b)
{
    struct ibv_wc wcs[BATCH];
    for (int done = 0; done < POSTS;) {
        int n = ibv_poll_cq(b->cq, BATCH, wcs);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            CHECK(wcs[i].status == IBV_WC_SUCCESS);
        }
        done += n;
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    (void)argv;
    per_call = argc > 1 ? LIST : 1;
    bench_open(&b);
    struct ibv_qp *qp = bench_create_qp(&b, IBV_QPT_UC);
    bench_connect_to_itself(&b, qp);
    while (bench_next_round()) {
        struct ibv_qp *receiver = bench_create_qp(&b, IBV_QPT_RC); /* its receives go with it */
        long received = (long)receives(&b, receiver);
        long sent = (long)sends(&b, qp);
        drain(&b);
        CHECK(ibv_destroy_qp(receiver) == 0);
        printf("{\"post_recv\": {\"ops\": %d, \"total\": %ld}, "
               "\"post_send\": {\"ops\": %d, \"total\": %ld}}\n",
               POSTS, received, POSTS, sent);
    }
    return 0;
}
