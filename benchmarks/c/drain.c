/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/drain.py. */

#include "bench.h"

enum { OPS = 1024, MOST = 64 };

static const struct {
    int waiting;
    int batch;
} cases[] = {{1, 16}, {16, 16}, {256, 1}, {256, 16}, {256, 64}, {1024, 64}};

/* Reads wr_id and status of each; returns the sum of the wr_ids. */
static uint64_t drain(struct ibv_cq *cq, int waiting, int batch)
{
    struct ibv_wc wcs[MOST];
    uint64_t sum = 0;
    while (waiting > 0) {
        int n = ibv_poll_cq(cq, batch, wcs);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            CHECK(wcs[i].status == IBV_WC_SUCCESS);
            sum += wcs[i].wr_id;
        }
        waiting -= n;
    }
    return sum;
}

int main(void)
{
    static struct bench b;
    bench_open(&b);
    struct ibv_qp *qp = bench_create_qp(&b, IBV_QPT_UC);
    bench_connect_to_itself(&b, qp);
    int64_t cost = bench_clock_cost();
    while (bench_next_round()) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
            int waiting = cases[i].waiting;
            int64_t total = 0;
            for (int done = 0; done < OPS; done += waiting) {
                bench_fill(&b, qp, waiting);
                int64_t start = bench_clock();
                uint64_t sum = drain(b.cq, waiting, cases[i].batch);
                total += bench_clock() - start - cost;
                CHECK(sum == (uint64_t)waiting * (uint64_t)(waiting - 1) / 2);
            }
            printf("%s\"%d/%d\": {\"ops\": %d, \"total\": %ld}", i ? ", " : "{", waiting,
                   cases[i].batch, OPS, (long)total);
        }
        printf("}\n");
    }
    return 0;
}
