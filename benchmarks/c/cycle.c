/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/cycle.py. */

#include "bench.h"

enum { CYCLES = 1000, BATCH = 16 };

static uint64_t cycles(struct bench *b)
{
    struct ibv_wc wcs[BATCH];
    for (int i = 0; i < CYCLES; i++) {
        struct ibv_cq *cq;
        void *context;
        CHECK(ibv_req_notify_cq(b->cq, 0) == 0);
        CHECK(ibv_get_cq_event(b->channel, &cq, &context) == 0);
        ibv_ack_cq_events(cq, 1);
        CHECK(ibv_poll_cq(cq, BATCH, wcs) == 1);
    }
    return wcs[0].wr_id;
}

int main(void)
{
    static struct bench b;
    bench_open(&b);
    struct ibv_qp *qp = bench_create_qp(&b, IBV_QPT_UC);
    bench_connect_to_itself(&b, qp);
    while (bench_next_round()) {
        bench_fill(&b, qp, CYCLES);
        int64_t start = bench_clock();
        uint64_t last = cycles(&b);
        int64_t total = bench_clock() - start;
        CHECK(last == CYCLES - 1);
        printf("{\"cycle\": {\"ops\": %d, \"total\": %ld, \"events\": %d, \"arms\": %d}}\n", CYCLES,
               (long)total, CYCLES, CYCLES);
    }
    return 0;
}
