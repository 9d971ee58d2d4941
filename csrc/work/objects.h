/* SPDX-License-Identifier: MIT */
/* The objects that work requests are about, and made to: memory and queues. What makes them, and
 * their methods, is in verbs/. */
#ifndef CQN_WORK_OBJECTS_H
#define CQN_WORK_OBJECTS_H

#include "base/base.h"

#define CQN_MAX_SGE 64 /* of one work request; no known device takes more */

typedef struct cqn_channel cqn_channel; /* see notify/cq.h, as the next */
typedef struct cqn_cq cqn_cq;
typedef struct cqn_wr_queue cqn_wr_queue; /* see queue.h */
typedef struct cqn_group cqn_group;       /* of multicast, see verbs/mcast.c */

typedef struct {
    cqn_object base;
    void *addr;
    size_t length;
    unsigned int access;
    uint32_t lkey, rkey;
    bool registered;   /* the device may use the memory */
    bool implicit;     /* all memory, and no bytes of its own */
    Py_buffer view;    /* the user's buffer, or obj == NULL: own memory */
    size_t own_length; /* of the own mapping, in whole pages */
    Py_ssize_t exports;
} cqn_mr;

typedef struct {
    PyObject_HEAD
    cqn_mr *mr;
    uint64_t addr;
    uint32_t length, lkey;
} cqn_sge;

typedef struct {
    cqn_object base;
    enum ibv_mw_type type;
    uint32_t rkey;       /* of the latest bind that was posted */
    uint32_t bound_rkey; /* of the latest that was carried out */
    uint32_t gone_rkey;  /* invalidated by the peer before that was known */
    size_t binds;        /* in flight */
    bool listed;         /* in the list of requests that is being checked */
} cqn_mw;

typedef struct {
    cqn_object base;
    PyObject *user_data;
    uint32_t max_wr, max_sge; /* as granted */
    cqn_wr_queue *rq;         /* NULL once it was closed */
} cqn_srq;

typedef struct cqn_qp {
    cqn_object base;
    /* Borrowed from `uses`. */
    cqn_object *pd;
    cqn_cq *send_cq, *recv_cq;
    cqn_srq *srq; /* or NULL */
    PyObject *user_data;
    uint32_t qp_num, sq_psn;
    enum ibv_qp_type type;
    enum ibv_qp_state state; /* as last set by us; the device may be in ERR */
    bool sq_sig_all, atomic_write;
    bool must_stop, stopped; /* sending, before it is destroyed: see verbs/qp_close.c */
    uint8_t port_num;        /* set in INIT; 0 before */
    uint32_t max_message;    /* bytes that its port sends in one message */
    struct ibv_qp_cap cap;
    cqn_wr_queue *sq, *rq; /* NULL once it was closed */
    /* How often something of it failed, and up to which of these it was seen to work after all. */
    uint32_t suspicions, cleared;
    struct cqn_qp *serve_next; /* of those where there may be room now, see await/room.c */
    bool to_serve;
    cqn_group *groups;
    size_t groups_len;
} cqn_qp;

/* qp_state.c */

/* How long a message may be, by the port's attributes. Asks the device, with or without the GIL. */
uint32_t cqn_qp_ask_limit(struct ibv_qp *qp, uint8_t port_num);

/* The same, remembered in the queue pair. */
uint32_t cqn_qp_learn_limit(cqn_qp *qp);

/* Waits until no other thread is inside a call that changes the queue pair. -1 with ClosedError. */
int cqn_qp_await_turn(cqn_qp *qp);

/* -1 with VerbsError unless the queue pair was brought as far as `least`. */
int cqn_qp_require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb);

/* windows.c */

/* -1 with ValueError if the window can't be bound through that queue pair now. */
int cqn_mw_check(const cqn_mw *mw, const cqn_qp *qp);

/* A bind was posted that gives the window the key `rkey`. */
void cqn_mw_posted(cqn_mw *mw, cqn_qp *qp, uint32_t rkey);

/* That bind is over; `ok`: the device carried it out. `mr` is NULL if it was to unbind. */
void cqn_mw_bound(cqn_mw *mw, cqn_object *mr, uint32_t rkey, bool ok, cqn_object **trash);

/* The peer, or a request of ours, has invalidated the window of that key, if there is one. */
void cqn_mw_invalidated(cqn_context *ctx, uint32_t rkey, cqn_object **trash);

#endif
