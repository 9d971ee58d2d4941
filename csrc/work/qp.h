/* SPDX-License-Identifier: MIT */
/* Queue pairs and SRQs, to which work requests are posted, and the memory and windows that these
 * name: the structs. Their types are in verbs/. */
#ifndef CQN_WORK_QP_H
#define CQN_WORK_QP_H

#include "base/base.h"

#define CQN_SIW_VENDOR 0x626d74 /* vendor_id of Soft-iWARP, which differs in places */
#define CQN_MAX_SGE 64          /* of one work request: the most that known devices take */
#define CQN_DEPTH_UNKNOWN 255

typedef struct cqn_channel cqn_channel; /* see notify/cq.h */
typedef struct cqn_cq cqn_cq;
typedef struct cqn_wr_queue cqn_wr_queue; /* see queue.h */
typedef struct cqn_group cqn_group;       /* of multicast, see verbs/qp_mcast.c */

/* Where the bytes of an MR are, and what keeps them there. */
typedef struct {
    void *addr; /* NULL: not in this process */
    size_t length;
    Py_buffer view;    /* the user's buffer, or obj == NULL: own memory */
    size_t own_length; /* of the own mapping, in whole pages */
} cqn_memory;

typedef struct {
    cqn_object base;
    cqn_memory memory;
    uint64_t iova; /* the address of its first byte, for the device */
    unsigned int access;
    uint32_t lkey, rkey;
    bool registered; /* the device may use the memory */
    bool implicit;   /* all memory, and no bytes of its own */
    Py_ssize_t exports;
} cqn_mr;

typedef struct {
    PyObject_HEAD
    cqn_mr *mr;
    uint64_t addr;
    uint32_t length, lkey;
    uint32_t changes; /* of the MR, when this was made */
} cqn_sge;

typedef struct {
    cqn_object base;
    enum ibv_mw_type type;
    uint32_t rkey;       /* of the latest bind that was posted */
    uint32_t bound_rkey; /* of the latest bind that was carried out */
    uint32_t gone_rkey;  /* a key that was invalidated before its bind was polled */
    size_t binds;        /* binds in flight */
    bool listed;         /* it is in the list that post_send() checks */
} cqn_mw;

/* A receive in a list of tags: its id in the WR queue, and its handle. */
typedef struct {
    uint64_t id; /* 0: none */
    uint32_t handle;
} cqn_tagged;

typedef struct {
    cqn_object base;
    PyObject *user_data;
    cqn_tagged *tagged; /* max_num_tags of them; or NULL */
    uint32_t max_num_tags;
    cqn_cq *cq; /* of its receives, borrowed from `uses`; NULL: that of each queue pair */
    enum ibv_srq_type type;
    uint32_t max_wr, max_sge; /* as granted */
    cqn_wr_queue *rq;         /* NULL once it was closed */
} cqn_srq;

typedef struct cqn_qp {
    cqn_object base;
    /* Borrowed from `uses`, or NULL. A queue pair without queues has no CQ. */
    cqn_object *pd, *xrcd, *rwq_ind_tbl;
    cqn_cq *send_cq, *recv_cq;
    cqn_srq *srq;
    PyObject *user_data;
    uint32_t qp_num;
    uint32_t sq_psn; /* 0: not drawn yet, see cqn_qp_psn() */
    enum ibv_qp_type type;
    enum ibv_qp_state state; /* as this process last set it; the device may be in ERR */
    bool sq_sig_all, atomic_write, flush;
    uint16_t max_tso_header; /* of TSO, in bytes; 0: no TSO */
    uint32_t max_tso;        /* bytes that the device segments */
    bool no_recvs;           /* what arrives goes elsewhere, and not to `srq` */
    bool must_stop;          /* it sends again what is not acknowledged: see verbs/qp.c */
    bool stopped;            /* it was reset before it is destroyed */
    bool has_capacity;       /* it is in the list of `next_with_capacity` */
    uint8_t port_num;        /* set in INIT; 0 before */
    uint8_t max_rd_atomic;   /* reads and atomics in flight; or CQN_DEPTH_UNKNOWN */
    bool depth_granted;      /* the peer of an rdma_cm connection granted max_rd_atomic */
    uint32_t max_message;    /* the most bytes of a message, by its port */
    struct ibv_qp_cap cap;
    cqn_wr_queue *sq, *rq; /* NULL once it was closed */
    /* How many errors there were, and up to which of them the device has said that it works. */
    uint32_t errors_seen, errors_checked;
    struct cqn_qp
        *next_with_capacity; /* of those where there may be capacity now, see await/post.c */
    struct cqn_awaitable *first_claim,
        *last_claim; /* completions() that name it: await/waitlist.c */
    cqn_group *groups;
    size_t groups_len;
} cqn_qp;

/* mw_state.c */

/* -1 with ValueError if the window is bound through another queue pair. */
int cqn_mw_check(const cqn_mw *mw, const cqn_qp *qp);

/* Notes that a bind was posted, which gives the window the key `rkey`. */
void cqn_mw_posted(cqn_mw *mw, cqn_qp *qp, uint32_t rkey);

/* Notes that the bind has ended; `ok`: the device carried it out. `mr` is NULL if it was to unbind.
 */
void cqn_mw_bound(cqn_mw *mw, cqn_object *mr, uint32_t rkey, bool ok, cqn_object **deferred);

/* Notes that the peer, or a request of ours, has invalidated the window of that key, if there is
 * one. */
void cqn_mw_invalidated(cqn_context *ctx, uint32_t rkey, cqn_object **deferred);

#endif
