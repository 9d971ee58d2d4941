/* SPDX-License-Identifier: MIT */
/*
 * A libibverbs with one device, "sched0", for schedules (csrc/faults/schedule.h): loaded before the
 * core looks for its functions, it takes the place of the library.
 *
 * What is posted stays with the device until the scheduler lets it take a step: device_step()
 * carries out one work request, or adds one completion. Queue pairs transfer messages to the one
 * that they are connected to; without a receive there they wait. It is as unhelpful as the verbs
 * allow: it raises an event only if the CQ is armed, arming for solicited completions replaces
 * arming for any, resizing disarms, and a CQ is not destroyed before each event that was read is
 * acknowledged. More acknowledgements than events abort the process.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEVICE_NAME "sched0"
#include "../../benchmarks/c/one_device.h"

enum { CQES = 256, EVENTS = 1024, QPS = 256, WRS = 64, SGES = 4 };

struct cq {
    struct ibv_cq ibv;
    int armed; /* 0; 1: for solicited completions; 2: for any; -1: it is being destroyed */
    unsigned read, acked;
    unsigned head, tail;
    struct ibv_wc wcs[CQES];
};

struct channel {
    struct ibv_comp_channel ibv;
    unsigned head, tail;
    struct cq *events[EVENTS];
};

struct wr {
    uint64_t id;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint64_t remote;
    int n;
    struct ibv_sge sges[SGES];
};

struct queue {
    unsigned head, tail;
    struct wr wrs[WRS];
};

struct qp {
    struct ibv_qp ibv;
    uint32_t peer;
    struct queue sends, receives;
};

static struct qp *qps[QPS];
static struct { /* the completion of a send, after that of its receive */
    bool is_due;
    struct ibv_cq *cq;
    struct ibv_wc wc;
} later;

static void must(bool condition, const char *rule)
{
    if (!condition) {
        fprintf(stderr, "device: %s\n", rule);
        abort();
    }
}

/* ---- completions and events ---- */

static void complete(struct ibv_cq *ibv, const struct ibv_wc *wc, bool solicited)
{
    struct cq *cq = (struct cq *)ibv;
    struct channel *channel = (struct channel *)ibv->channel;
    must(cq->tail - cq->head < CQES, "a CQ overflows");
    cq->wcs[cq->tail++ % CQES] = *wc;
    if (channel != NULL && cq->armed > !(solicited || wc->status != IBV_WC_SUCCESS)) {
        const uint64_t one = 1;
        cq->armed = 0;
        must(channel->tail - channel->head < EVENTS, "too many events");
        channel->events[channel->tail++ % EVENTS] = cq;
        must(write(channel->ibv.fd, &one, sizeof(one)) == sizeof(one), "an event has no place");
    }
}

static int poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
    struct cq *cq = (struct cq *)ibv;
    int got = 0;
    while (got < n && cq->head != cq->tail) {
        wc[got++] = cq->wcs[cq->head++ % CQES];
    }
    return got;
}

/* As on siw, the latest arming replaces the one before. */
static int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    ((struct cq *)ibv)->armed = solicited_only ? 1 : 2;
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
    struct channel *channel = (struct channel *)ibv;
    uint64_t one;
    if (read(ibv->fd, &one, sizeof(one)) != sizeof(one)) {
        return -1;
    }
    struct cq *it = channel->events[channel->head++ % EVENTS];
    it->read++;
    *cq = &it->ibv;
    *cq_context = it->ibv.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int n)
{
    struct cq *cq = (struct cq *)ibv;
    cq->acked += n;
    must(cq->acked <= cq->read, "more events are acknowledged than were read");
}

static void remove_events(struct channel *channel, const struct cq *cq)
{
    const unsigned n = channel->tail - channel->head;
    for (unsigned i = 0; i < n; i++) {
        struct cq *it = channel->events[channel->head++ % EVENTS];
        uint64_t one;
        if (it != cq) {
            channel->events[channel->tail++ % EVENTS] = it;
        }
        else {
            must(read(channel->ibv.fd, &one, sizeof(one)) == sizeof(one), "an event is missing");
        }
    }
}

/* Another program, which has the channel's descriptor, reads an event. */
void device_steal(struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq;
    void *context;
    if (ibv_get_cq_event(channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
    }
}

/* So many of the next attempts to destroy a CQ fail, and change nothing. */
static int refusals;

void device_refuse(int n)
{
    refusals = n;
}

/* The kernel raises no more events, and removes unread ones; then ibv_destroy_cq() waits for the
 * others. */
bool device_may_destroy(struct ibv_cq *ibv)
{
    struct cq *cq = (struct cq *)ibv;
    if (refusals > 0) {
        return true;
    }
    cq->armed = -1;
    if (ibv->channel != NULL) {
        remove_events((struct channel *)ibv->channel, cq);
    }
    return cq->acked == cq->read;
}

/* ---- work requests ---- */

static struct qp *find(uint32_t num)
{
    for (int i = 0; i < QPS; i++) {
        if (qps[i] != NULL && qps[i]->ibv.qp_num == num) {
            return qps[i];
        }
    }
    return NULL;
}

static bool is_empty(const struct queue *q)
{
    return q->head == q->tail;
}

static struct wr *first(struct queue *q)
{
    return &q->wrs[q->head % WRS];
}

static int put(struct queue *q, const struct wr *wr)
{
    if (q->tail - q->head == WRS) {
        return ENOMEM;
    }
    q->wrs[q->tail++ % WRS] = *wr;
    return 0;
}

static int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *qp = (struct qp *)ibv;
    for (; wr != NULL; wr = wr->next) {
        struct wr copy = {.id = wr->wr_id,
                          .opcode = wr->opcode,
                          .flags = wr->send_flags,
                          .remote = wr->wr.rdma.remote_addr,
                          .n = wr->num_sge};
        memcpy(copy.sges, wr->sg_list, sizeof(copy.sges[0]) * (size_t)copy.n);
        if (put(&qp->sends, &copy) != 0) {
            *bad = wr;
            return ENOMEM;
        }
    }
    return 0;
}

static int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct qp *qp = (struct qp *)ibv;
    for (; wr != NULL; wr = wr->next) {
        struct wr copy = {.id = wr->wr_id, .n = wr->num_sge};
        memcpy(copy.sges, wr->sg_list, sizeof(copy.sges[0]) * (size_t)copy.n);
        if (put(&qp->receives, &copy) != 0) {
            *bad = wr;
            return ENOMEM;
        }
    }
    return 0;
}

/* Copies a message of one piece at either end. */
static uint32_t transfer(const struct wr *from, const struct wr *to)
{
    const uint32_t n = from->n > 0 ? from->sges[0].length : 0;
    if (n > 0 && to->n > 0) {
        must(to->sges[0].length >= n, "a message is longer than its receive");
        memcpy((void *)(uintptr_t)to->sges[0].addr, (void *)(uintptr_t)from->sges[0].addr, n);
    }
    return n;
}

static bool is_flushing(const struct qp *qp)
{
    return qp->ibv.state == IBV_QPS_ERR;
}

static bool can_send(struct qp *qp)
{
    const struct qp *peer = find(qp->peer);
    return qp->ibv.state == IBV_QPS_RTS && !is_empty(&qp->sends) &&
           (first(&qp->sends)->opcode != IBV_WR_SEND ||
            (peer != NULL && peer->ibv.state >= IBV_QPS_RTR && peer->ibv.state <= IBV_QPS_SQD &&
             !is_empty(&peer->receives)));
}

static void flush(struct qp *qp)
{
    const bool sends = !is_empty(&qp->sends);
    struct queue *q = sends ? &qp->sends : &qp->receives;
    const struct ibv_wc wc = {
        .wr_id = first(q)->id, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->ibv.qp_num};
    q->head++;
    complete(sends ? qp->ibv.send_cq : qp->ibv.recv_cq, &wc, false);
}

static void send(struct qp *qp)
{
    const struct wr *wr = first(&qp->sends);
    qp->sends.head++;
    struct ibv_wc wc = {.wr_id = wr->id, .opcode = IBV_WC_RDMA_WRITE, .qp_num = qp->ibv.qp_num};
    if (wr->opcode == IBV_WR_SEND) {
        struct qp *peer = find(qp->peer);
        const struct wr *receive = first(&peer->receives);
        peer->receives.head++;
        const struct ibv_wc received = {.wr_id = receive->id,
                                        .opcode = IBV_WC_RECV,
                                        .byte_len = transfer(wr, receive),
                                        .qp_num = peer->ibv.qp_num};
        complete(peer->ibv.recv_cq, &received, wr->flags & IBV_SEND_SOLICITED);
        wc.opcode = IBV_WC_SEND;
    }
    if (wr->flags & IBV_SEND_SIGNALED) {
        later.is_due = true;
        later.cq = qp->ibv.send_cq;
        later.wc = wc;
    }
}

static struct qp *next_qp(void)
{
    for (int i = 0; i < QPS; i++) {
        struct qp *qp = qps[i];
        if (qp != NULL && (can_send(qp) || (is_flushing(qp) &&
                                            !(is_empty(&qp->sends) && is_empty(&qp->receives))))) {
            return qp;
        }
    }
    return NULL;
}

bool device_has_work(void)
{
    return later.is_due || next_qp() != NULL;
}

const char *device_step(void)
{
    if (later.is_due) {
        later.is_due = false;
        complete(later.cq, &later.wc, false);
        return "completes";
    }
    struct qp *qp = next_qp();
    if (is_flushing(qp)) {
        flush(qp);
        return "flushes";
    }
    send(qp);
    return "transfers";
}

/* ---- objects ---- */

struct ibv_context *ibv_open_device(struct ibv_device *it)
{
    struct verbs_context *extended = calloc(1, sizeof(*extended));
    struct ibv_context *ctx = &extended->context;
    extended->sz = sizeof(*extended);
    ctx->abi_compat = __VERBS_ABI_IS_EXTENDED;
    ctx->device = it;
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
    *attr = (struct ibv_device_attr){.max_qp = QPS,
                                     .max_qp_wr = WRS,
                                     .max_sge = SGES,
                                     .max_cq = 1024,
                                     .max_cqe = CQES,
                                     .max_mr = 1024,
                                     .max_mr_size = SIZE_MAX,
                                     .max_pd = 1024,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
    struct channel *channel = calloc(1, sizeof(*channel));
    channel->ibv.context = ctx;
    channel->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    close(ibv->fd);
    free(ibv);
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
    return &cq->ibv;
}

/* Resizing disarms. */
int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
    ((struct cq *)ibv)->armed = 0;
    ibv->cqe = cqe;
    return 0;
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
    if (refusals > 0) {
        refusals--;
        return EBUSY;
    }
    must(device_may_destroy(ibv), "an event that was read is not acknowledged");
    must(!later.is_due || later.cq != ibv, "a CQ is destroyed before its queue pairs");
    free(ibv);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    struct qp *qp = calloc(1, sizeof(*qp));
    struct ibv_qp *ibv = &qp->ibv;
    int i = 0;
    while (i < QPS && qps[i] != NULL) {
        i++;
    }
    if (i == QPS) {
        abort(); /* more than any program has */
    }
    qps[i] = qp;
    ibv->context = pd->context;
    ibv->pd = pd;
    ibv->qp_context = init->qp_context;
    ibv->send_cq = init->send_cq;
    ibv->recv_cq = init->recv_cq;
    ibv->qp_type = init->qp_type;
    ibv->qp_num = ++last_num;
    return ibv;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    struct qp *qp = (struct qp *)ibv;
    if (mask & IBV_QP_DEST_QPN) {
        qp->peer = attr->dest_qp_num;
    }
    if (mask & IBV_QP_STATE) {
        ibv->state = attr->qp_state;
        if (ibv->state == IBV_QPS_RESET) {
            qp->sends.head = qp->sends.tail;
            qp->receives.head = qp->receives.tail;
        }
    }
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    (void)mask, (void)init;
    *attr = (struct ibv_qp_attr){.qp_state = qp->state, .cur_qp_state = qp->state, .port_num = 1};
    return 0;
}

/* The CQs keep the completions of the queue pair. */
int ibv_destroy_qp(struct ibv_qp *ibv)
{
    for (int i = 0; i < QPS; i++) {
        if (qps[i] == (struct qp *)ibv) {
            qps[i] = NULL;
        }
    }
    if (later.is_due && later.wc.qp_num == ibv->qp_num) {
        later.is_due = false;
    }
    free(ibv);
    return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    return status == IBV_WC_SUCCESS ? "success" : "an error";
}

/* Of the others, only the names are looked for. */
#define NOT_CALLED(function)                     \
    void no_##function(void) __asm__(#function); \
    void no_##function(void)                     \
    {                                            \
        must(false, #function " is called");     \
    }

NOT_CALLED(ibv_ack_async_event)
NOT_CALLED(ibv_attach_mcast)
NOT_CALLED(ibv_create_ah)
NOT_CALLED(ibv_create_srq)
NOT_CALLED(ibv_destroy_ah)
NOT_CALLED(ibv_destroy_srq)
NOT_CALLED(ibv_detach_mcast)
NOT_CALLED(ibv_modify_srq)
NOT_CALLED(ibv_query_pkey)
NOT_CALLED(ibv_query_srq)
