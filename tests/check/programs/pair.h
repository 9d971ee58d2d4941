/* SPDX-License-Identifier: MIT */
/*
 * A pair of connected queue pairs of one device: what the programs of this folder share.
 *
 * `a` sends to `b`. The completions of what a sends come into the CQ `sends`, which is on no
 * channel, those of what b receives into `recvs`, which is on `channel`. A program that needs
 * something else sets it before open_pair(), which creates the rest.
 */
#ifndef PAIR_H
#define PAIR_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum { ENTRIES = 64, DEPTH = 32, SIZE = 64, GRH = 40, QKEY = 0x1234, AREA = 4096 };
enum { SECONDS = 100 }; /* that nothing lasts which does not hang */

struct pair {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    char *memory; /* AREA bytes, for all messages */
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *sends, *recvs;
    struct ibv_srq *srq; /* b's, if a program makes one */
    struct ibv_qp *a, *b;
    enum ibv_qp_type type; /* 0: RC */
    union ibv_gid gid;
    struct ibv_ah *ah;      /* UD: the way from a to b */
    _Atomic uint64_t wr_id; /* the last one: each request has its own */
};

#define CHECK(condition) ((condition) ? (void)0 : failed(#condition, __FILE__, __LINE__))

static inline void failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: failed: %s (%s)\n", file, line, what, strerror(errno));
    exit(1);
}

/* ---- create and connect ---------------------------------------------------------------- */

static inline void open_device(struct pair *p)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices != NULL && devices[0] != NULL);
    CHECK(p->ctx = ibv_open_device(devices[0]));
    ibv_free_device_list(devices);
    CHECK(!ibv_query_gid(p->ctx, 1, 0, &p->gid));
    CHECK(p->pd = ibv_alloc_pd(p->ctx));
    if (!p->memory)
        CHECK(p->memory = aligned_alloc(AREA, AREA));
    CHECK(p->mr =
              ibv_reg_mr(p->pd, p->memory, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    CHECK(p->channel = ibv_create_comp_channel(p->ctx));
}

static inline struct ibv_qp *make_qp(struct pair *p, struct ibv_cq *sends, struct ibv_cq *recvs,
                                     struct ibv_srq *srq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = sends,
        .recv_cq = recvs,
        .srq = srq,
        .cap = {DEPTH, DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = p->type ? p->type : IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(p->pd, &attr);
    CHECK(qp != NULL);
    return qp;
}

static inline struct ibv_ah_attr way(struct pair *p)
{
    return (struct ibv_ah_attr){
        .is_global = 1,
        .grh = {.dgid = p->gid, .hop_limit = 64},
        .port_num = 1,
    };
}

static inline void connect_qp(struct pair *p, struct ibv_qp *qp, struct ibv_qp *peer)
{
    int rc = qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .qkey = QKEY,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    CHECK(!ibv_modify_qp(qp, &attr, mask | (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));

    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = way(p),
    };
    mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (rc ? mask : 0)));

    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 7, /* for ever: a send waits until the peer has posted a receive */
        .max_rd_atomic = 1,
    };
    mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? mask : 0)));
}

/* For b, and other QPs that the program makes. */
static inline void create_srq(struct pair *p)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    CHECK(p->srq = ibv_create_srq(p->pd, &attr));
}

/* Creates what the program has not. */
static inline void open_pair(struct pair *p)
{
    if (!p->ctx)
        open_device(p);
    if (!p->sends)
        CHECK(p->sends = ibv_create_cq(p->ctx, ENTRIES, NULL, NULL, 0));
    if (!p->recvs)
        CHECK(p->recvs = ibv_create_cq(p->ctx, ENTRIES, NULL, p->channel, 0));
    if (!p->a)
        p->a = make_qp(p, p->sends, p->sends, NULL);
    if (!p->b)
        p->b = make_qp(p, p->recvs, p->recvs, p->srq);
    connect_qp(p, p->a, p->b);
    connect_qp(p, p->b, p->a);
    if (p->type == IBV_QPT_UD) {
        struct ibv_ah_attr attr = way(p);
        CHECK(p->ah = ibv_create_ah(p->pd, &attr));
    }
}

/* Creates and connects two more QPs, on the same CQs and the same SRQ. */
static inline struct pair second_pair(struct pair *p)
{
    struct pair second = *p;
    second.a = second.b = NULL;
    second.wr_id += 1000;
    open_pair(&second);
    return second;
}

static inline void close_second(struct pair *second)
{
    CHECK(!ibv_destroy_qp(second->a) && !ibv_destroy_qp(second->b));
}

static inline void close_pair(struct pair *p)
{
    CHECK(!p->ah || !ibv_destroy_ah(p->ah));
    CHECK(!p->a || !ibv_destroy_qp(p->a));
    CHECK(!p->b || !ibv_destroy_qp(p->b));
    CHECK(!p->srq || !ibv_destroy_srq(p->srq));
    CHECK(!p->sends || !ibv_destroy_cq(p->sends));
    CHECK(!p->recvs || !ibv_destroy_cq(p->recvs));
    CHECK(!ibv_destroy_comp_channel(p->channel));
    CHECK(!p->mr || !ibv_dereg_mr(p->mr));
    CHECK(!ibv_dealloc_pd(p->pd));
    CHECK(!ibv_close_device(p->ctx));
    free(p->memory);
}

/* ---- send and receive ------------------------------------------------------------------ */

/* Posts n receives: b's, or its SRQ's. */
static inline void post_recvs(struct pair *p, int n)
{
    for (; n > 0; n--) {
        struct ibv_sge sge = {(uintptr_t)p->memory, GRH + SIZE, p->mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = ++p->wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!(p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(p->b, &wr, &bad)));
    }
}

/* Posts a message from a to b, and returns what ibv_post_send() did. */
static inline int post_send(struct pair *p, unsigned int flags)
{
    struct ibv_sge sge = {(uintptr_t)p->memory + AREA / 2, SIZE, p->mr->lkey};
    struct ibv_send_wr *bad;
    struct ibv_send_wr wr = {
        .wr_id = ++p->wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = flags,
    };
    if (p->ah) {
        wr.wr.ud.ah = p->ah;
        wr.wr.ud.remote_qpn = p->b->qp_num;
        wr.wr.ud.remote_qkey = QKEY;
    }
    return ibv_post_send(p->a, &wr, &bad);
}

static inline void post_sends(struct pair *p, int n)
{
    for (; n > 0; n--)
        CHECK(!post_send(p, IBV_SEND_SIGNALED));
}

/* Polls until n completions have come. */
static inline void await_completions(struct ibv_cq *cq, int n)
{
    struct ibv_wc wc;
    time_t hangs = time(NULL) + SECONDS;
    while (n > 0) {
        CHECK(time(NULL) < hangs);
        int found = ibv_poll_cq(cq, 1, &wc);
        CHECK(found >= 0);
        CHECK(!found || wc.status == IBV_WC_SUCCESS);
        n -= found;
    }
}

/* Polls until the CQ is empty, and returns how many completions there were. */
static inline int drain(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n = 0, found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) > 0) {
        CHECK(wc.status == IBV_WC_SUCCESS);
        n++;
    }
    CHECK(found == 0);
    return n;
}

/* Polls until n completions have come, and the CQ is empty. */
static inline void await_all(struct ibv_cq *cq, int n)
{
    await_completions(cq, n);
    CHECK(drain(cq) == 0);
}

/* Sends n messages. When it returns, the peer has them: a send of RC is complete then. That their
 * completions are there, too, only makes mistakes show: no verb promises it to what is right. */
static inline void deliver(struct pair *p, int n)
{
    post_recvs(p, n);
    post_sends(p, n);
    await_completions(p->sends, n);
}

/* ---- events ---------------------------------------------------------------------------- */

static inline void arm(struct ibv_cq *cq)
{
    CHECK(!ibv_req_notify_cq(cq, 0));
}

/* Returns the CQ of the next event, which must be acknowledged. */
static inline struct ibv_cq *next_event(struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(!ibv_get_cq_event(channel, &cq, &context));
    return cq;
}

#endif
