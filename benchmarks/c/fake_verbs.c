/* SPDX-License-Identifier: MIT */
/* A fake libibverbs, to be preloaded: one device, "fake0", that carries no data. It is
 * for the timing of what C, pyverbs, ibverbs and cqnotify do around the verbs, and for
 * nothing else.
 *
 * What is posted to a send queue completes at once, with success, and so does a receive that a SEND
 * of the same queue pair takes. With FAKE_COMPLETE_ON_ARM set they wait, and each req_notify brings
 * one of them, with its event. After fake_delay(ns) they complete so much later: a poll finds them
 * then, and if the CQ is armed a thread brings the event. With FAKE_CPUS set, threads seem to have
 * so many CPUs. A CQ, and what completes on it, is for one thread at a time. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_NAME "fake0"
#include "one_device.h"

enum { MOST_CQE = 1 << 15, MOST_RECEIVES = 1 << 12 };

struct cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex; /* begins as the former does */
    };
    bool armed;
    unsigned head;         /* the next to be polled */
    unsigned arrived;      /* behind the last that can be polled */
    unsigned tail;         /* behind the last that was posted */
    int64_t due[MOST_CQE]; /* when each arrives */
    struct ibv_wc wcs[MOST_CQE];
};

struct channel {
    struct ibv_comp_channel ibv;
    int write_fd;
};

struct qp {
    struct ibv_qp ibv;
    unsigned taken, posted; /* receives */
    uint64_t receives[MOST_RECEIVES];
};

static bool on_arm;

static int64_t delay;                                    /* ns */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows, and of all CQs */
static pthread_cond_t armed = PTHREAD_COND_INITIALIZER;
static struct cq *awaited; /* the CQ that was armed last, while its event is due */

/* ---- events ----------------------------------------------------------------------------- */

static void raise_event(struct cq *cq)
{
    struct channel *channel = (struct channel *)cq->ibv.channel;
    cq->armed = false;
    if (channel != NULL && write(channel->write_fd, &cq, sizeof(cq)) != sizeof(cq)) {
        abort();
    }
}

static void arrive(struct cq *cq)
{
    cq->arrived++;
    if (cq->armed) {
        raise_event(cq);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* With the lock. */
static void arrive_if_due(struct cq *cq)
{
    int64_t now = cq->arrived != cq->tail ? now_ns() : 0;
    while (cq->arrived != cq->tail && cq->due[cq->arrived % MOST_CQE] <= now) {
        arrive(cq);
    }
}

/* The thread that brings events. */
static void *bring_events(void *unused)
{
    prctl(PR_SET_TIMERSLACK, 1L);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (awaited == NULL) {
            pthread_cond_wait(&armed, &lock);
        }
        struct cq *cq = awaited;
        int64_t due = cq->due[cq->arrived % MOST_CQE];
        struct timespec until = {due / 1000000000, due % 1000000000};
        pthread_mutex_unlock(&lock);
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        pthread_mutex_lock(&lock);
        arrive_if_due(cq);
        awaited = cq->armed && cq->arrived != cq->tail ? cq : NULL;
    }
    return unused;
}

/* To be called when nothing is under way. */
void fake_delay(int64_t ns)
{
    static pthread_t thread;
    if (thread == 0 && ns > 0) {
        pthread_create(&thread, NULL, bring_events, NULL);
    }
    delay = ns;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *cpus)
{
    const char *few = getenv("FAKE_CPUS");
    (void)pid;
    memset(cpus, 0, size);
    for (int i = 0; i < (few != NULL ? atoi(few) : (int)sysconf(_SC_NPROCESSORS_ONLN)); i++) {
        CPU_SET_S(i, size, cpus);
    }
    return 0;
}

static int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    (void)solicited_only;
    struct cq *cq = (struct cq *)ibv;
    if (delay > 0) {
        pthread_mutex_lock(&lock);
        arrive_if_due(cq);
        cq->armed = true;
        if (cq->arrived != cq->tail) {
            awaited = cq;
            pthread_cond_signal(&armed);
        }
        pthread_mutex_unlock(&lock);
        return 0;
    }
    cq->armed = true;
    if (on_arm && cq->arrived != cq->tail) {
        arrive(cq);
    }
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    if (read(channel->fd, cq, sizeof(*cq)) != sizeof(*cq)) {
        return -1;
    }
    *cq_context = (*cq)->cq_context;
    return 0;
}

/* ---- completions ------------------------------------------------------------------------ */

static int poll_cq(struct ibv_cq *ibv, int num_entries, struct ibv_wc *wc)
{
    struct cq *cq = (struct cq *)ibv;
    int n = 0;
    if (delay > 0) {
        pthread_mutex_lock(&lock);
        arrive_if_due(cq);
    }
    for (; n < num_entries && cq->head != cq->arrived; n++) {
        wc[n] = cq->wcs[cq->head++ % MOST_CQE];
    }
    if (delay > 0) {
        pthread_mutex_unlock(&lock);
    }
    return n;
}

/* An extended CQ has wr_id and status, and nothing else to be read. */
static int next_poll(struct ibv_cq_ex *ex)
{
    struct ibv_wc wc;
    if (poll_cq((struct ibv_cq *)ex, 1, &wc) == 0) {
        return ENOENT;
    }
    ex->wr_id = wc.wr_id;
    ex->status = wc.status;
    return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    (void)attr;
    return next_poll(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
    (void)ex;
}

static void complete(struct ibv_cq *ibv, uint32_t qp_num, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
    struct cq *cq = (struct cq *)ibv;
    if (delay > 0) {
        pthread_mutex_lock(&lock);
        cq->due[cq->tail % MOST_CQE] = now_ns() + delay;
    }
    cq->wcs[cq->tail++ % MOST_CQE] = (struct ibv_wc){
        .wr_id = wr_id,
        .status = IBV_WC_SUCCESS,
        .opcode = opcode,
        .qp_num = qp_num,
    };
    if (delay > 0) {
        if (cq->armed) { /* as a task waits for others, which were posted before */
            awaited = cq;
            pthread_cond_signal(&armed);
        }
        pthread_mutex_unlock(&lock);
    }
    else if (!on_arm) {
        arrive(cq);
    }
}

static void send(struct ibv_qp *ibv, const struct ibv_send_wr *wr)
{
    struct qp *qp = (struct qp *)ibv;
    if (wr->opcode == IBV_WR_RDMA_WRITE) {
        complete(ibv->send_cq, ibv->qp_num, wr->wr_id, IBV_WC_RDMA_WRITE);
        return;
    }
    if (wr->send_flags & IBV_SEND_SIGNALED) {
        complete(ibv->send_cq, ibv->qp_num, wr->wr_id, IBV_WC_SEND);
    }
    if (qp->taken != qp->posted) {
        complete(ibv->recv_cq, ibv->qp_num, qp->receives[qp->taken++ % MOST_RECEIVES], IBV_WC_RECV);
    }
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    struct cq *cq = (struct cq *)qp->send_cq;
    for (; wr != NULL; wr = wr->next) {
        if (cq->tail - cq->head == MOST_CQE) {
            *bad_wr = wr;
            return ENOMEM;
        }
        send(qp, wr);
    }
    return 0;
}

static int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    struct qp *qp = (struct qp *)ibv;
    for (; wr != NULL; wr = wr->next) {
        if (qp->posted - qp->taken == MOST_RECEIVES) {
            *bad_wr = wr;
            return ENOMEM;
        }
        qp->receives[qp->posted++ % MOST_RECEIVES] = wr->wr_id;
    }
    return 0;
}

/* ---- objects ---------------------------------------------------------------------------- */

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *init)
{
    struct ibv_cq *ibv = ibv_create_cq(ctx, (int)init->cqe, init->cq_context, init->channel, 0);
    struct ibv_cq_ex *ex = &((struct cq *)ibv)->ex;
    ex->start_poll = start_poll;
    ex->next_poll = next_poll;
    ex->end_poll = end_poll;
    return ex;
}

struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
    struct verbs_context *extended = calloc(1, sizeof(*extended));
    struct ibv_context *ctx = &extended->context;
    extended->sz = sizeof(*extended);
    extended->create_cq_ex = create_cq_ex;
    ctx->abi_compat = __VERBS_ABI_IS_EXTENDED;
    on_arm = getenv("FAKE_COMPLETE_ON_ARM") != NULL;
    ctx->device = dev;
    ctx->ops.poll_cq = poll_cq;
    ctx->ops.req_notify_cq = req_notify_cq;
    ctx->ops.post_send = post_send;
    ctx->ops.post_recv = post_recv;
    ctx->async_fd = eventfd(0, EFD_CLOEXEC);
    ctx->num_comp_vectors = 1;
    return ctx;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
    (void)ctx;
    *attr = (struct ibv_device_attr){.max_qp = 1024,
                                     .max_qp_wr = MOST_CQE,
                                     .max_sge = 1,
                                     .max_cq = 1024,
                                     .max_cqe = MOST_CQE,
                                     .max_mr = 1024,
                                     .max_mr_size = SIZE_MAX,
                                     .max_pd = 1024,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
    int fds[2];
    struct channel *channel = calloc(1, sizeof(*channel));
    if (pipe2(fds, O_CLOEXEC) < 0) {
        abort();
    }
    channel->ibv.context = ctx;
    channel->ibv.fd = fds[0];
    channel->write_fd = fds[1];
    return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    struct channel *channel = (struct channel *)ibv;
    close(channel->write_fd);
    close(channel->ibv.fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int comp_vector)
{
    (void)comp_vector;
    struct cq *cq = calloc(1, sizeof(*cq));
    cq->ibv.context = ctx;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = cqe;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    return &cq->ibv;
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
    struct cq *cq = (struct cq *)ibv;
    if (delay > 0) { /* the thread that brings events may sleep until its next one, and look then */
        pthread_mutex_lock(&lock);
        cq->armed = false;
        cq->arrived = cq->tail;
        pthread_mutex_unlock(&lock);
        return 0;
    }
    free(cq);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct ibv_qp *qp = calloc(1, sizeof(struct qp));
    qp->context = pd->context;
    qp->pd = pd;
    qp->qp_context = init->qp_context;
    qp->send_cq = init->send_cq;
    qp->recv_cq = init->recv_cq;
    qp->srq = init->srq;
    qp->qp_type = init->qp_type;
    qp->qp_num = ++last_num;
    return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
    if (attr_mask & IBV_QP_STATE) {
        qp->state = attr->qp_state;
        if (qp->state == IBV_QPS_RESET) {
            ((struct qp *)qp)->taken = ((struct qp *)qp)->posted;
        }
    }
    return 0;
}

/* As the library does it, which ibverbs does not reach beside this one. */
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += nevents;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                 struct ibv_qp_init_attr *init)
{
    (void)attr_mask, (void)init;
    *attr = (struct ibv_qp_attr){.qp_state = qp->state, .port_num = 1};
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    free(qp);
    return 0;
}

/* ---- what ibverbs looks for as it is imported ------------------------------------------- */

#define NOT_CALLED(function)                     \
    void no_##function(void) __asm__(#function); \
    void no_##function(void)                     \
    {                                            \
        abort();                                 \
    }

NOT_CALLED(ibv_ack_async_event)
NOT_CALLED(ibv_create_ah)
NOT_CALLED(ibv_create_srq)
NOT_CALLED(ibv_destroy_ah)
NOT_CALLED(ibv_destroy_srq)
NOT_CALLED(ibv_event_type_str)
NOT_CALLED(ibv_modify_srq)
NOT_CALLED(ibv_query_gid)
NOT_CALLED(ibv_query_srq)
NOT_CALLED(ibv_wc_status_str)
