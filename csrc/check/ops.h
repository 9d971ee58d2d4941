/* SPDX-License-Identifier: MIT */
/* The functions that the observer puts into the tables of a context, and its sums. */
#ifndef CQN_CHECK_OPS_H
#define CQN_CHECK_OPS_H

#include "check.h"
#include "objects.h"

int cqn_op_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc);
int cqn_op_req_notify_cq(struct ibv_cq *ibv, int solicited_only);
int cqn_op_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int cqn_op_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int cqn_op_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_cq_ex *cqn_op_create_cq_ex(struct ibv_context *ibv, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *cqn_op_create_qp_ex(struct ibv_context *ibv, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *cqn_op_create_srq_ex(struct ibv_context *ibv, struct ibv_srq_init_attr_ex *attr);

/* The sums of the process. Each CQ counts its own calls, and adds them here when it is
 * destroyed. */
struct counts {
    uint32_t contexts, channels, cqs, qps, srqs, regions;
    uint64_t arms, events, acks, polls, completions, sleeps, posts;
};

extern struct counts cqn_counts;

#endif
