/* SPDX-License-Identifier: MIT */
/* Beside benchmarks/exposing.py: memory that peers may read is registered, and deregistered. */

#include "bench.h"

enum { N = 500 };

static int64_t print(const char *name, int64_t start, const char *after)
{
    int64_t now = bench_clock();
    printf("\"%s\": {\"ops\": %d, \"total\": %ld}%s", name, N, (long)(now - start), after);
    return bench_clock();
}

int main(void)
{
    static struct bench b;
    static struct ibv_mr *mrs[N];
    bench_open(&b);
    while (bench_next_round()) {
        printf("{");
        int64_t start = bench_clock();
        for (int i = 0; i < N; i++) {
            mrs[i] = ibv_reg_mr(b.pd, b.memory, sizeof(b.memory), IBV_ACCESS_REMOTE_READ);
            CHECK(mrs[i] != NULL);
        }
        start = print("expose", start, ", ");
        for (int i = 0; i < N; i++) {
            CHECK(ibv_dereg_mr(mrs[i]) == 0);
        }
        print("close", start, "}\n");
    }
    return 0;
}
