/* SPDX-License-Identifier: MIT */
/* Queue pairs and SRQs, to which work requests are posted, and the MRs, SGEs and memory windows
 * that these use: the structs. Their types are in verbs/. */
#ifndef CQN_WORK_QP_H
#define CQN_WORK_QP_H

#include "base/base.h"

#define CQN_SIW_VENDOR 0x626d74 /* vendor_id of Soft-iWARP, which needs special treatment */
#define CQN_RXE_VENDOR 0xffffff /* of Soft-RoCE */
#define CQN_MAX_SGE 64          /* per work request; the limit of known devices */
#define CQN_DEPTH_UNKNOWN 255

typedef struct cqn_channel cqn_channel; /* see notify/cq.h */
typedef struct cqn_cq cqn_cq;
typedef struct cqn_wr_queue cqn_wr_queue; /* see queue.h */
typedef struct cqn_group cqn_group;       /* multicast, see verbs/qp_mcast.c */

/* The memory of an MR and its owner. */
typedef struct {
    void *addr; /* NULL: not in this process */
    size_t length;
    Py_buffer view;    /* the user's buffer; obj == NULL: own memory */
    size_t own_length; /* length of the own mapping, in whole pages */
} cqn_memory;

typedef struct {
    cqn_object base;
    cqn_memory memory;
    uint64_t iova; /* the device's address of the first byte */
    unsigned int access;
    uint32_t lkey, rkey;
    bool registered; /* the device may use the memory */
    bool implicit;   /* all memory of the process, without own bytes */
    Py_ssize_t exports;
} cqn_mr;

typedef struct {
    PyObject_HEAD
    cqn_mr *mr;
    uint64_t addr;
    uint32_t length, lkey;
    uint32_t changes; /* the MR's `changes` at creation */
} cqn_sge;

typedef struct {
    cqn_object base;
    enum ibv_mw_type type;
    uint32_t rkey;       /* of the latest posted bind */
    uint32_t bound_rkey; /* of the latest completed bind */
    uint32_t gone_rkey;  /* a key invalidated before its bind was polled */
    size_t binds;        /* in flight */
    bool listed;         /* in the list that post_send() is checking */
} cqn_mw;

/* A tagged receive: its id in the WR queue, and its handle. */
typedef struct {
    uint64_t id; /* 0: none */
    uint32_t handle;
} cqn_tagged;

typedef struct {
    cqn_object base;
    PyObject *user_data;
    cqn_tagged *tagged; /* max_num_tags entries, or NULL */
    uint32_t max_num_tags;
    cqn_cq *cq; /* for its receives, borrowed from `uses`; NULL: the one of each queue pair */
    enum ibv_srq_type type;
    uint32_t max_wr, max_sge; /* as granted */
    cqn_wr_queue *rq;         /* NULL after it was closed */
} cqn_srq;

typedef struct cqn_qp {
    cqn_object base;
    /* Borrowed from `uses`, or NULL. A queue pair without queues has no CQ. */
    cqn_object *pd, *xrcd, *rwq_ind_tbl;
    cqn_cq *send_cq, *recv_cq;
    cqn_srq *srq;
    PyObject *user_data;
    uint32_t qp_num;
    uint32_t sq_psn; /* 0: not chosen yet, see cqn_qp_psn() */
    enum ibv_qp_type type;
    enum ibv_qp_state state; /* last set by this process; the device may be in ERR */
    bool sq_sig_all, atomic_write, flush;
    uint16_t max_tso_header; /* of TSO, in bytes; 0: no TSO */
    uint32_t max_tso;        /* bytes that the device segments */
    bool no_recvs;           /* its messages go elsewhere, and not to `srq` */
    bool must_stop;          /* it retransmits unacknowledged messages: see verbs/qp.c */
    bool stopped;            /* reset before being destroyed */
    bool has_failed;         /* before its state was changed; on rxe, see notify/reads.c */
    bool has_capacity;       /* in the list of `next_with_capacity` */
    uint8_t port_num;        /* set in INIT; 0 before */
    uint8_t max_rd_atomic;   /* reads and atomics in flight, or CQN_DEPTH_UNKNOWN */
    bool depth_granted;      /* max_rd_atomic was granted by an rdma_cm peer */
    uint32_t path_mtu;       /* in bytes; 0: not set */
    uint32_t max_message;    /* largest message in bytes, by its port */
    struct ibv_qp_cap cap;
    uint32_t reserved_sends; /* slots of the send queue that awaited operations leave free */
    cqn_wr_queue *sq, *rq;   /* NULL after it was closed */
    /* The number of errors, and its value when the device was last found to work. */
    uint32_t errors_seen, errors_checked;
    struct cqn_qp *next_with_capacity; /* queue pairs that may have capacity, see await/post.c */
    struct cqn_awaitable *first_claim,
        *last_claim; /* completions() that name it: await/waitlist.c */
    cqn_group *groups;
    size_t groups_len;
} cqn_qp;

/* Returns the device's state of the queue pair, or `known` if the query fails. Unless `draining` is
 * NULL, sets it to whether the send queue is draining. */
static inline enum ibv_qp_state cqn_qp_query_state(struct ibv_qp *qp, enum ibv_qp_state known,
                                                   bool *draining)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init;
    const bool answered = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0;
    if (draining != NULL) {
        *draining = answered && attr.qp_state == IBV_QPS_SQD && attr.sq_draining != 0;
    }
    return answered ? attr.qp_state : known;
}

/* mw_state.c */

/* Returns -1 with ValueError if the window is bound through another queue pair. */
int cqn_mw_check(const cqn_mw *mw, const cqn_qp *qp);

/* Records a posted bind, which gives the window the key `rkey`. */
void cqn_mw_posted(cqn_mw *mw, cqn_qp *qp, uint32_t rkey);

/* Records the end of a bind; `ok`: the device carried it out. `mr` is NULL if it was to unbind. */
void cqn_mw_bound(cqn_mw *mw, cqn_object *mr, uint32_t rkey, bool ok, cqn_object **deferred);

/* Records that the peer, or an own work request, invalidated the window with this key, if there is
 * one. */
void cqn_mw_invalidated(cqn_context *ctx, uint32_t rkey, cqn_object **deferred);

#endif
