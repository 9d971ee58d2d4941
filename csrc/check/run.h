/* SPDX-License-Identifier: MIT */
/*
 * A poll that returns only successes of one QP, in the order of its requests, all signaled: nearly
 * every poll.
 *
 * Each completion is compared with its request, with one branch for all of them. A request is
 * therefore laid out like its completion if it succeeds: wr_id, status, opcode.
 */
#ifndef CQN_CHECK_RUN_H
#define CQN_CHECK_RUN_H

#include <stddef.h>

#include "objects.h"

typedef uint64_t words __attribute__((vector_size(16), may_alias));
typedef words words_of_wc __attribute__((aligned(8)));
/* imm_data, and in the upper half qp_num. */
typedef uint64_t number_of_wc __attribute__((may_alias));

_Static_assert(offsetof(struct ibv_wc, status) == offsetof(struct request, state) &&
                   offsetof(struct ibv_wc, opcode) == offsetof(struct request, kind) &&
                   offsetof(struct ibv_wc, qp_num) == offsetof(struct ibv_wc, imm_data) + 4 &&
                   __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "completions and requests are compared as words");

/* The bits in which completions differ from their requests; and the bits of qp_num that any
 * completion has, and that all have. The two loads of qp_num have different sizes, so each is part
 * of one instruction. */
struct run {
    words differ;
    uint64_t any;
    uint32_t all;
};

static inline void cqn_run_add(struct run *run, const struct request *request,
                               const struct ibv_wc *wc)
{
    run->differ |= *(const words_of_wc *)wc ^ *(const words *)request;
    run->any |= *(const number_of_wc *)&wc->imm_data;
    run->all &= wc->qp_num;
}

enum { RUN_STEP = 8 };

/* Whether these are the completions of these requests of the QP. */
static inline bool cqn_run_matches(const struct request *request, const struct ibv_wc *wc,
                                   uint32_t count, uint32_t qp_num)
{
    struct run run = {.all = UINT32_MAX};
    for (uint32_t steps = count / RUN_STEP; steps; steps--, request += RUN_STEP, wc += RUN_STEP)
#pragma GCC unroll 8
        for (int i = 0; i < RUN_STEP; i++)
            cqn_run_add(&run, request + i, wc + i);
    for (uint32_t rest = count % RUN_STEP; rest; rest--, request++, wc++)
        cqn_run_add(&run, request, wc);
    const uint64_t state_and_direction = (uint64_t)IBV_WC_RECV << 32 | UINT32_MAX;
    return !(run.differ[0] | (run.differ[1] & state_and_direction) | ((run.any >> 32) ^ qp_num) |
             (run.all ^ qp_num));
}

bool cqn_queue_matches_around(const struct queue *queue, const struct ibv_wc *wc, uint32_t count,
                              uint32_t qp_num);

/* Removes the oldest `count` requests if these are their completions; otherwise none, and returns
 * false. */
static inline bool cqn_queue_retire_all(struct queue *queue, const struct ibv_wc *wc,
                                        uint32_t count, uint32_t qp_num)
{
    uint32_t head = queue->head;
    if (__atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE) - head < count)
        return false;
    uint32_t first = head & (queue->size - 1);
    const struct request *request = &queue->requests[first];
    if (wc->wr_id != request->wr_id)
        return false; /* the first differs, so the others need no comparison */
    if (first + count <= queue->size ? !cqn_run_matches(request, wc, count, qp_num)
                                     : !cqn_queue_matches_around(queue, wc, count, qp_num))
        return false;
    __atomic_store_n(&queue->head, head + count, __ATOMIC_RELAXED);
    return true;
}

#endif
