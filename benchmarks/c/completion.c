/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/completion.py. */

#include "bench.h"

enum { OPS = 500 };

int main(void)
{
    static struct bench b;
    bench_open(&b);
    struct ibv_qp *qp = bench_create_qp(&b, IBV_QPT_UC);
    bench_connect_to_itself(&b, qp);
    while (bench_next_round()) {
        int64_t start = bench_clock();
        for (int i = 0; i < OPS; i++) {
            struct ibv_wc wc;
            int n;
            bench_post(&b, qp, 1);
            while ((n = ibv_poll_cq(b.cq, 1, &wc)) == 0) {
            }
            CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
        }
        long total = (long)(bench_clock() - start);
        printf("{\"8 B\": {\"ops\": %d, \"total\": %ld}}\n", OPS, total);
    }
    return 0;
}
