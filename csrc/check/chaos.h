/* SPDX-License-Identifier: MIT */
/*
 * Faults that the verbs permit, injected for `cqnotify chaos`.
 *
 * CQNOTIFY_CHAOS selects them: "seed=7,faults=eintr+split,rate=4" injects a fault into one of
 * `rate` calls that can have it. A program may set and unset the variable at run time.
 *
 * Whether a call has a fault depends only on the seed, the fault, and the number of earlier calls
 * that could have had it, so a program with one thread gets the same faults each time.
 *
 * A fault is drawn, injected and recorded: in the log, described in log.h, and in the timeline,
 * between the records of the affected call.
 */
#ifndef CQN_CHECK_CHAOS_H
#define CQN_CHECK_CHAOS_H

#include "objects.h"
#include "record.h"

/* The names are in chaos.c and cqnotify/check/chaos.py. */
enum fault {
    CHAOS_SPLIT,    /* a poll returns fewer completions than there are */
    CHAOS_HOLD,     /* a poll returns none, as if they arrived later */
    CHAOS_EINTR,    /* a signal ends a sleep */
    CHAOS_LATE,     /* a sleep ends late */
    CHAOS_DESTROY,  /* a destroy or a deregistration takes long */
    CHAOS_ARM,      /* ibv_req_notify_cq() fails */
    CHAOS_CREATE,   /* creating an object fails */
    CHAOS_REGISTER, /* registering a region fails */
    CHAOS_POST,     /* a post fails in the middle of its list */
    CHAOS_FAIL,     /* a send fails, and its QP with it */
    CHAOS_ASYNC,    /* an asynchronous event of the port or the device arrives */
    CHAOS_FAULTS,
};

extern uint32_t cqn_chaos_faults; /* a bit for each enabled fault */

void cqn_chaos_set(const char *settings); /* NULL: none */
void cqn_chaos_forked(void);              /* counting restarts in a child */
bool cqn_chaos_draw(enum fault fault);
uint64_t cqn_chaos_digits(void);                        /* details of this thread's last fault */
void cqn_chaos_note(enum fault fault, uint32_t detail); /* records this thread's last fault */

static inline bool cqn_chaos(enum fault fault)
{
    return cqn_chaos_faults & 1u << fault && cqn_chaos_draw(fault);
}

bool cqn_chaos_refuses(enum fault fault); /* sets the program's errno to ENOMEM */
bool cqn_chaos_refuses_arm(void);
bool cqn_chaos_interrupts(enum record_call call);
void cqn_chaos_delays(enum fault fault);
bool cqn_chaos_async(struct ibv_async_event *event);
/* Returns how many of the `asked` completions a poll may return. Called with the CQ's lock. */
int cqn_chaos_batch(struct cq *cq, int asked);

/* chaos_post.c: post with the provider's function, or fail. Called with the queue's lock. */
int cqn_chaos_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int cqn_chaos_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int cqn_chaos_post_srq_recv(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* Gives the failure drawn for a QP to its first flushed send. Called with the CQ's lock. */
void cqn_chaos_status(struct cq *cq, struct ibv_wc *wc);

#endif
