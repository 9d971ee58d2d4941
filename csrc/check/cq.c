/* SPDX-License-Identifier: MIT */
/*
 * Completion queues: create, poll, arm, event, acknowledge, destroy.
 *
 * While a thread sleeps on a CQ's channel, the observer may look at the CQ (sleep.c), which polls
 * it. The completions found are kept for the program's next polls, in the order of the device; none
 * is lost.
 */
#include <errno.h>

#include "chaos.h"
#include "hooks.h"
#include "ops.h"
#include "run.h"

/* ---- create ------------------------------------------------------------------------------- */

static void show(struct cq *cq)
{
    cqn_lock(&cqn_lists_lock);
    cq->next = cqn_cqs;
    cqn_cqs = cq;
    if (cq->channel) {
        cq->in_channel = cq->channel->cqs;
        cq->channel->cqs = cq;
    }
    cqn_unlock(&cqn_lists_lock);
}

struct cq *cqn_cq_add(struct ibv_cq *ibv)
{
    struct context *context = ibv ? cqn_context(ibv->context) : NULL;
    struct cq *cq = context ? cqn_alloc(sizeof(*cq)) : NULL;
    if (!cq)
        return NULL;
    cq->ibv = ibv;
    cq->context = context;
    cq->channel = ibv->channel ? cqn_object(ibv->channel) : NULL;
    cq->entries = (uint32_t)ibv->cqe;
    cq->number = __atomic_add_fetch(&cqn_counts.cqs, 1, __ATOMIC_RELAXED);
    if (!cqn_table_put(&cqn_objects, (uintptr_t)ibv, cq)) {
        cqn_free(cq, sizeof(*cq));
        return NULL;
    }
    show(cq);
    RECORD(.what = RECORD_CQ_CREATED, .object = cq->number,
           .other = cq->channel ? cq->channel->number : 0, .number = cq->entries);
    return cq;
}

struct ibv_cq *cqn_hook_ibv_create_cq(struct ibv_context *ibv, int entries, void *cq_context,
                                      struct ibv_comp_channel *channel, int vector)
{
    cqn_context(ibv);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_cq *created = cqn_real.ibv_create_cq(ibv, entries, cq_context, channel, vector);
    cqn_cq_add(created);
    return created;
}

int cqn_hook_ibv_resize_cq(struct ibv_cq *ibv, int entries)
{
    int result = cqn_real.ibv_resize_cq(ibv, entries);
    struct cq *cq = cqn_object(ibv);
    if (cq)
        cq->entries = (uint32_t)ibv->cqe;
    return result;
}

/* ---- poll --------------------------------------------------------------------------------- */

struct kept *cqn_cq_next_kept(struct cq *cq)
{
    if (cq->waiting == 0)
        return NULL;
    struct kept *next = &cq->kept[cq->first];
    cq->first = cq->first + 1 == cq->room ? 0 : cq->first + 1;
    cq->waiting--;
    return next;
}

static void record(const struct cq *cq, const struct ibv_wc *wc, const struct qp *qp,
                   uint16_t flags, uint64_t time)
{
    RECORD(.time = time, .what = RECORD_COMPLETION, .flags = flags, .object = cq->number,
           .other = qp ? qp->number : 0, .value = wc->wr_id, .number = wc->byte_len,
           .detail = (uint32_t)wc->opcode | (uint32_t)wc->status << 16);
}

void cqn_cq_completed(struct cq *cq, const struct ibv_wc *wc, bool seen, uint64_t time)
{
    cqn_qp_completed(cq, wc);
    if (!seen)
        record(cq, wc, cq->last_qp, 0, time);
}

static inline void count_poll(struct cq *cq, int asked, int got)
{
    cq->polls++;
    cq->completions += (uint64_t)got;
    cq->polled = true;
    if (got < asked)
        cq->emptied = true;
    if (cq->event_unpolled) {
        cq->spurious += got == 0;
        cq->event_unpolled = false;
    }
    if (cq->looks && got)
        cqn_sleep_polled(cq);
}

void cqn_cq_polled(struct cq *cq, int asked, int got, uint64_t time)
{
    count_poll(cq, asked, got);
    RECORD(.time = time, .what = RECORD_POLL, .object = cq->number, .number = (uint32_t)got,
           .detail = (uint32_t)asked, .caller = cq->poll.caller);
}

/* Retires all completions of a poll if they are successes of the same QP as the last one, in the
 * order of its requests; false if not, and rarely. The requests of an SRQ are not in the QP's
 * queue. */
static inline bool completed_all(struct cq *cq, const struct ibv_wc *wc, uint32_t count)
{
    struct qp *qp = cq->last_qp;
    if (!qp)
        return false;
    bool receives = wc->opcode & IBV_WC_RECV;
    struct queue *queue = receives ? &qp->receives : &qp->sends;
    if (!cqn_queue_retire_all(queue, wc, count, qp->qp_num))
        return false;
    if (!receives)
        cqn_cq_end_sends(cq, count);
    return true;
}

static __attribute__((noinline)) void record_all(const struct cq *cq, int asked, int got,
                                                 const struct ibv_wc *wc)
{
    RECORD(.what = RECORD_POLL, .flags = RECORD_WITH_COMPLETIONS, .object = cq->number,
           .other = cq->last_qp->number, .value = cqn_timeline_completions(wc, (uint32_t)got),
           .number = (uint32_t)got, .detail = (uint32_t)asked, .caller = cq->poll.caller);
}

/* Processes completions one by one, except runs of successes. The first `kept` were seen before. */
static void completed_each(struct cq *cq, const struct ibv_wc *wc, int count, int kept,
                           uint64_t time)
{
    for (int i = 0, run; i < count; i += run) {
        run = cqn_timeline ? 0 : cqn_qp_completed_run(cq, &wc[i], count - i);
        if (run == 0) {
            cqn_cq_completed(cq, &wc[i], i < kept, time);
            run = 1;
        }
    }
}

/* A poll with kept completions, or with faults enabled. */
static __attribute__((noinline)) int poll_kept(struct cq *cq, int asked, struct ibv_wc *wc)
{
    int kept = 0, got = 0, count = asked;
    if (cqn_chaos_faults)
        count = cqn_chaos_batch(cq, count);
    while (kept < count && cq->waiting)
        wc[kept++] = cqn_cq_next_kept(cq)->wc;
    if (kept < count)
        got = cq->context->ops.poll_cq(cq->ibv, count - kept, wc + kept);
    int all = kept + (got > 0 ? got : 0);
    for (int i = 0; i < all && cqn_chaos_faults; i++)
        cqn_chaos_status(cq, &wc[i]);
    uint64_t now = cqn_timeline ? cqn_now() : 0;
    completed_each(cq, wc, all, kept, now);
    cqn_cq_polled(cq, asked, all, now);
    return got < 0 && kept == 0 ? got : all;
}

static __attribute__((noinline)) void polled_each(struct cq *cq, int asked, int got,
                                                  const struct ibv_wc *wc)
{
    uint64_t now = cqn_timeline ? cqn_now() : 0;
    completed_each(cq, wc, got, 0, now);
    cqn_cq_polled(cq, asked, got > 0 ? got : 0, now);
}

static inline int poll_device(struct cq *cq, int asked, struct ibv_wc *wc)
{
    int got = cq->context->ops.poll_cq(cq->ibv, asked, wc);
    if (got <= 0 || !completed_all(cq, wc, (uint32_t)got)) {
        polled_each(cq, asked, got, wc);
        return got;
    }
    count_poll(cq, asked, got);
    if (cqn_timeline)
        record_all(cq, asked, got, wc);
    return got;
}

int cqn_op_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
    struct cq *cq = cqn_object(ibv);
    if (!cq)
        return cqn_context(ibv->context)->ops.poll_cq(ibv, count, wc);
    SITE_HERE(&cq->poll);
    cqn_lock(&cq->lock);
    int got =
        cqn_chaos_faults || cq->waiting ? poll_kept(cq, count, wc) : poll_device(cq, count, wc);
    cqn_unlock(&cq->lock);
    return got;
}

/* ---- the look ----------------------------------------------------------------------------- */

/* Space for as many as the CQ holds and some more, because the program's peers may continue. */
static bool make_room(struct cq *cq)
{
    if (!cq->kept) {
        cq->room = cq->entries + 64;
        cq->kept = cqn_alloc(cq->room * sizeof(*cq->kept));
    }
    return cq->kept && cq->waiting < cq->room;
}

static bool take(struct cq *cq, struct kept *kept)
{
    if (cq->ex)
        return cqn_cq_ex_take(cq, kept);
    return cq->context->ops.poll_cq(cq->ibv, 1, &kept->wc) == 1;
}

void cqn_cq_fill(struct cq *cq)
{
    while (make_room(cq)) {
        uint32_t last = (cq->first + cq->waiting) % cq->room;
        struct kept *kept = &cq->kept[last];
        if (!take(cq, kept)) {
            if (cq->waiting == 0)
                cq->emptied = true;
            break;
        }
        cq->waiting++;
        record(cq, &kept->wc, NULL, RECORD_SEEN, 0);
    }
}

bool cqn_cq_look(struct cq *cq)
{
    if (!cqn_trylock(&cq->lock))
        return false;
    cqn_cq_fill(cq);
    bool waits = cq->waiting != 0;
    cqn_unlock(&cq->lock);
    return waits;
}

/* ---- arm ----------------------------------------------------------------------------------- */

static uint32_t in_flight(const struct cq *cq)
{
    cqn_lock(&cqn_lists_lock);
    uint32_t count = cqn_cq_in_flight(cq);
    cqn_unlock(&cqn_lists_lock);
    return count;
}

int cqn_op_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    struct cq *cq = cqn_object(ibv);
    if (!cq)
        return cqn_context(ibv->context)->ops.req_notify_cq(ibv, solicited_only);
    SITE_HERE(&cq->arm);
    /* Set before the device is armed: another thread may read the event at once. */
    enum armed before = cq->armed;
    cq->arms++;
    cq->arms_since_event++;
    cq->was_armed = true;
    cq->polled = cq->emptied = false;
    cq->in_flight_when_armed = cq->slept_unpolled ? in_flight(cq) : 0;
    cq->slept_unpolled = false;
    cq->armed = !solicited_only ? ARMED : before > ARMED_SOLICITED ? before : ARMED_SOLICITED;
    RECORD(.what = RECORD_ARM, .object = cq->number, .detail = solicited_only != 0,
           .caller = cq->arm.caller);
    cqn_sleep_armed(cq);
    bool injected = cqn_chaos_refuses_arm();
    int result = injected ? ENOMEM : cq->context->ops.req_notify_cq(ibv, solicited_only);
    if (result != 0) {
        cq->armed = before;
        RECORD(.what = RECORD_ARM_FAILED, .flags = injected ? RECORD_INJECTED : 0,
               .object = cq->number, .detail = (uint32_t)result);
    }
    return result;
}

/* ---- events -------------------------------------------------------------------------------- */

void cqn_cq_event(struct ibv_cq *ibv, struct channel *channel)
{
    struct cq *cq = cqn_object(ibv);
    if (!cq)
        return;
    cqn_sleep_event(cq);
    cq->event_unpolled = true;
    __atomic_add_fetch(&cq->events, 1, __ATOMIC_RELAXED);
    cq->armed = cq->arms_since_event > 1 ? MAYBE_ARMED : NOT_ARMED;
    cq->arms_since_event = cq->arms_since_event > 1;
    RECORD(.what = RECORD_EVENT, .object = cq->number, .other = channel ? channel->number : 0);
}

void cqn_hook_ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int count)
{
    struct cq *cq = cqn_object(ibv);
    if (cq) {
        SITE_HERE(&cq->ack);
        uint64_t acked = __atomic_add_fetch(&cq->acked, count, __ATOMIC_RELAXED);
        RECORD(.what = RECORD_ACK, .object = cq->number, .number = count, .caller = cq->ack.caller);
        if (acked > cq->events && !cq->over_acked)
            cqn_report_over_acked(cq);
    }
    cqn_real.ibv_ack_cq_events(ibv, count);
}

/* ---- destroy ------------------------------------------------------------------------------- */

/* Hides the CQ from threads that look while they sleep on its channel. */
static void hide(struct cq *cq)
{
    cqn_lock(&cqn_lists_lock);
    CQN_UNLINK(&cqn_cqs, cq, next);
    if (cq->channel)
        CQN_UNLINK(&cq->channel->cqs, cq, in_channel);
    cqn_unlock(&cqn_lists_lock);
    /* Another CQ can get the same address as soon as this one is destroyed. */
    cqn_table_remove(&cqn_objects, (uintptr_t)cq->ibv);
}

int cqn_hook_ibv_destroy_cq(struct ibv_cq *ibv)
{
    struct cq *cq = cqn_object(ibv);
    if (!cq)
        return cqn_real.ibv_destroy_cq(ibv);
    if (cq->acked < cq->events)
        cqn_report_destroy_hangs(cq);
    hide(cq);
    cqn_chaos_delays(CHAOS_DESTROY);
    int result = cqn_real.ibv_destroy_cq(ibv);
    if (result != 0) {
        cqn_table_put(&cqn_objects, (uintptr_t)ibv, cq);
        show(cq);
        return result;
    }
    cqn_report_cq_end(cq);
    RECORD(.what = RECORD_CQ_DESTROYED, .object = cq->number);
    cqn_free(cq->kept, cq->room * sizeof(*cq->kept));
    cqn_cq_ex_free(cq->ex);
    cqn_free(cq, sizeof(*cq));
    return result;
}
