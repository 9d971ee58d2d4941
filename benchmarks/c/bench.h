/* SPDX-License-Identifier: MIT */
/* What the benchmarks in C share: rounds by request, the clock, a device, a QP. */

#ifndef BENCH_H
#define BENCH_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DEPTH 1024 /* of every queue */

/* Ends the program unless the condition holds. */
#define CHECK(condition) ((condition) ? (void)0 : bench_fail(__FILE__, __LINE__, #condition))
_Noreturn void bench_fail(const char *file, int line, const char *condition);

/* Whether another round is wanted: one line on stdin for each. The round prints its figures as one
 * line of JSON, {"case": {"ops": 1, "total": 2}}. */
bool bench_next_round(void);

/* Nanoseconds, which are instructions where the emulator counts these. */
int64_t bench_clock(void);
int64_t bench_clock_cost(void);

/* The socket to the other end, see plan.Benchmark.peer. */
int bench_peer(void);

/* A device with what most need; a QP goes into its one CQ. */
struct bench {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char memory[4096];
};

void bench_open(struct bench *b);
struct ibv_qp *bench_create_qp(struct bench *b, enum ibv_qp_type type);
/* From RESET to RTS; its peer is the QP itself. */
void bench_connect_to_itself(struct bench *b, struct ibv_qp *qp);
/* Posts an RDMA write of 8 bytes, which has a completion. */
void bench_post(struct bench *b, struct ibv_qp *qp, uint64_t wr_id);
/* Posts n RDMA writes of 8 bytes with wr_id 0 to n-1, each its own completion. */
void bench_fill(struct bench *b, struct ibv_qp *qp, int n);

#endif
