/* SPDX-License-Identifier: MIT */
/*
 * Faults that the verbs allow, made for `cqnotify chaos`.
 *
 * CQNOTIFY_CHAOS asks for them: "seed=7,faults=eintr+split,rate=4", where one in `rate` calls that
 * may have the fault has it. A program may set and unset the variable while it runs.
 *
 * Whether a call has a fault depends on the seed, the fault and how many calls could have had it
 * before, and on nothing else: so a program with one thread gets the same faults again.
 *
 * A fault is drawn, done, and noted: in the log, which log.h describes, and in the timeline, where
 * it stands between the records of the call that has it.
 */
#ifndef CQN_CHECK_CHAOS_H
#define CQN_CHECK_CHAOS_H

#include "objects.h"
#include "record.h"

/* Their names are in chaos.c and cqnotify/check/chaos.py. */
enum fault {
    CHAOS_SPLIT,    /* a poll finds fewer completions than there are */
    CHAOS_HOLD,     /* a poll finds none: they come after it */
    CHAOS_EINTR,    /* a sleep ends by a signal */
    CHAOS_LATE,     /* a sleep ends late */
    CHAOS_DESTROY,  /* a destroy or a deregistration takes long */
    CHAOS_ARM,      /* ibv_req_notify_cq() is refused */
    CHAOS_CREATE,   /* a new object is refused */
    CHAOS_REGISTER, /* a new region is refused */
    CHAOS_POST,     /* a post is refused, in the midst of its list */
    CHAOS_FAIL,     /* a send fails, and its QP with it */
    CHAOS_ASYNC,    /* an asynchronous event of the port or the device comes */
    CHAOS_FAULTS,
};

extern uint32_t cqn_chaos_faults; /* a bit for each that is on */

void cqn_chaos_set(const char *settings); /* NULL: none */
void cqn_chaos_forked(void);              /* a process counts from its start */
bool cqn_chaos_draw(enum fault fault);
uint64_t cqn_chaos_digits(void);                        /* that this thread's last fault may use */
void cqn_chaos_note(enum fault fault, uint32_t detail); /* of the fault this thread drew last */

static inline bool cqn_chaos(enum fault fault)
{
    return cqn_chaos_faults & 1u << fault && cqn_chaos_draw(fault);
}

bool cqn_chaos_refuses(enum fault fault); /* and the program's errno is ENOMEM */
bool cqn_chaos_refuses_arm(void);
bool cqn_chaos_interrupts(enum record_call call);
void cqn_chaos_delays(enum fault fault);
bool cqn_chaos_async(struct ibv_async_event *event);
/* With the CQ's lock: how many of the `asked` completions a poll may hand out. */
int cqn_chaos_batch(struct cq *cq, int asked);

/* chaos_post.c: posts by the provider, or refuses. With the queue's lock. */
int cqn_chaos_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int cqn_chaos_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int cqn_chaos_post_srq_recv(struct srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* With the CQ's lock: the failure that was drawn for this QP is that of its first flushed send. */
void cqn_chaos_status(struct cq *cq, struct ibv_wc *wc);

#endif
