/* SPDX-License-Identifier: MIT */
/* Rules about acknowledging, and rules checked at the end of a CQ or of the process. */
#include <poll.h>

#include "hooks.h"
#include "ops.h"

/* ---- acknowledging -------------------------------------------------------------------------- */

/* Returns the CQ of the same channel with the opposite error; or NULL. */
static struct cq *counterpart(const struct cq *cq, bool over_acked)
{
    struct cq *found = NULL;
    cqn_lock(&cqn_lists_lock);
    for (struct cq *other = cq->channel ? cq->channel->cqs : NULL; other && !found;
         other = other->in_channel)
        if (other != cq &&
            (over_acked ? other->acked > other->events : other->acked < other->events))
            found = other;
    cqn_unlock(&cqn_lists_lock);
    return found;
}

void cqn_report_over_acked(struct cq *cq)
{
    struct cq *other = counterpart(cq, false);
    struct line line;
    cqn_finding_begin(&line, other ? "ack-on-wrong-cq" : "over-ack");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "events", cq->events);
    cqn_finding_value(&line, "acked", cq->acked);
    if (other) {
        cqn_finding_value(&line, "other", other->number);
        cqn_finding_value(&line, "unacked", other->events - other->acked);
    }
    cqn_finding_here(&line, "ack");
    cq->over_acked = cqn_finding_end(&line, 0);
}

/* ibv_destroy_cq() waits until other threads have acknowledged all events. They get a second,
 * measured in waits, which last longer on a busy machine. */
static bool others_acknowledge(const struct cq *cq)
{
    for (int i = 0; i < LOOKS && !cqn_is_alone(); i++) {
        if (cq->acked >= cq->events)
            return true;
        cqn_real.poll(NULL, 0, LOOK_MS);
    }
    return cq->acked >= cq->events;
}

void cqn_report_destroy_hangs(struct cq *cq)
{
    if (others_acknowledge(cq))
        return;
    struct cq *other = counterpart(cq, true);
    cqn_lock(&cqn_lists_lock);
    cqn_report_so_far();
    cqn_unlock(&cqn_lists_lock);
    struct line line;
    cqn_finding_begin(&line, "destroy-hangs");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "events", cq->events);
    cqn_finding_value(&line, "acked", cq->acked);
    cqn_finding_value(&line, "other", other ? other->number : 0);
    cqn_finding_here(&line, "destroy");
    cqn_finding_site(&line, "ack", other ? &other->ack : &cq->ack);
    cqn_finding_end(&line, 0);
}

/* ---- the end of a CQ ------------------------------------------------------------------------ */

enum { MANY = 100 };

static void report_arms(const struct cq *cq)
{
    if (cq->arms < MANY || cq->arms < 4 * cq->sleeps || cq->arms < 4 * cq->events)
        return;
    struct line line;
    cqn_finding_begin(&line, "arm-per-poll");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "arms", cq->arms);
    cqn_finding_value(&line, "events", cq->events);
    cqn_finding_value(&line, "sleeps", cq->sleeps);
    cqn_finding_site(&line, "arm", &cq->arm);
    cqn_finding_end(&line, 0);
}

void cqn_report_not_polled(struct cq *cq)
{
    struct line line;
    cqn_finding_begin(&line, "not-polled-after-arm");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "channel", cq->channel->number);
    cqn_finding_value(&line, "outstanding", cq->not_polled_requests);
    cqn_finding_value(&line, "times", cq->not_polled_times);
    cqn_finding_site(&line, "arm", &cq->arm);
    cq->not_polled = cqn_finding_end(&line, cq->not_polled);
}

void cqn_report_late(struct cq *cq)
{
    struct line line;
    cqn_finding_begin(&line, "late-wakeup");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "channel", cq->channel->number);
    cqn_finding_value(&line, "completions", cq->late_completions);
    cqn_finding_text(&line, "armed", cqn_armed_text(cq->armed));
    cqn_finding_text(&line, "call", cq->late_call);
    cqn_finding_value(&line, "times", cq->late_times);
    cqn_finding_site(&line, "poll", &cq->poll);
    cqn_finding_site(&line, "arm", &cq->arm);
    cq->late = cqn_finding_end(&line, cq->late);
}

static void report_spurious(const struct cq *cq)
{
    if (cq->spurious < 10)
        return;
    struct line line;
    cqn_finding_begin(&line, "spurious-events");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "events", cq->events);
    cqn_finding_value(&line, "spurious", cq->spurious);
    cqn_finding_end(&line, 0);
}

static void add_counts(struct counts *counts, const struct cq *cq)
{
    counts->arms += cq->arms;
    counts->events += cq->events;
    counts->acks += cq->acked;
    counts->polls += cq->polls;
    counts->completions += cq->completions;
}

void cqn_report_cq_end(struct cq *cq)
{
    if (cq->not_polled_times > 1)
        cqn_report_not_polled(cq);
    if (cq->late_times > 1)
        cqn_report_late(cq);
    report_arms(cq);
    report_spurious(cq);
    add_counts(&cqn_counts, cq);
}

/* ---- queue pairs --------------------------------------------------------------------------- */

void cqn_report_too_small(struct cq *cq, const struct qp *qp, uint32_t sends)
{
    struct line line;
    cqn_finding_begin(&line, "cq-too-small");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "entries", cq->entries);
    cqn_finding_value(&line, "outstanding", sends);
    cqn_finding_value(&line, "qp", qp->number);
    cqn_finding_here(&line, "post");
    cq->too_small = cqn_finding_end(&line, 0);
}

void cqn_report_full(struct qp *qp)
{
    struct line line;
    cqn_finding_begin(&line, "full-unsignaled");
    cqn_finding_value(&line, "qp", qp->number);
    cqn_finding_value(&line, "depth", qp->sends.depth);
    cqn_finding_here(&line, "post");
    qp->full = cqn_finding_end(&line, 0);
}

/* Reported once per process: a program usually does it everywhere. */
void cqn_report_reused(struct qp *qp, uint64_t wr_id, bool send, const struct site *post)
{
    static bool reported;
    qp->reused = true;
    if (__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        return;
    struct line line;
    cqn_finding_begin(&line, "wr-id-reused");
    cqn_finding_value(&line, "qp", qp->number);
    cqn_finding_value(&line, "wr_id", wr_id);
    cqn_finding_text(&line, "queue", send ? "send" : "receive");
    cqn_finding_site(&line, "post", post);
    cqn_finding_end(&line, 0);
}

void cqn_report_destroyed(struct cq *cq, struct qp *qp)
{
    cq->destroyed_qp_times++;
    if (cq->destroyed_qp)
        return;
    struct line line;
    cqn_finding_begin(&line, "qp-destroyed");
    cqn_finding_value(&line, "qp", qp->number);
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "completions", cq->destroyed_qp_times);
    cqn_finding_here(&line, "poll");
    cqn_finding_site(&line, "destroy", &qp->destroy);
    cq->destroyed_qp = cqn_finding_end(&line, 0);
}

void cqn_report_failed(struct qp *qp)
{
    struct line line;
    cqn_finding_begin(&line, "failed-completion");
    cqn_finding_value(&line, "qp", qp->number);
    cqn_finding_value(&line, "cq", qp->failed_cq);
    cqn_finding_value(&line, "wr_id", qp->failed_wr_id);
    cqn_finding_value(&line, "status", qp->failed_status);
    cqn_finding_value(&line, "vendor", qp->failed_vendor);
    cqn_finding_value(&line, "flushed", qp->flushed);
    cqn_finding_site(&line, "poll", &qp->failed_poll);
    qp->failed = cqn_finding_end(&line, qp->failed);
}

void cqn_report_qp_end(struct qp *qp)
{
    if (qp->failed && qp->flushed)
        cqn_report_failed(qp);
    cqn_counts.posts += qp->posts;
}

/* ---- the sums of the process ---------------------------------------------------------------- */

static void write_counts(const char *kind, const struct counts *counts)
{
    cqn_log_line("{\"kind\": \"%s\", \"time\": %llu, \"contexts\": %u, \"channels\": %u, "
                 "\"cqs\": %u, \"qps\": %u, \"arms\": %llu, \"events\": %llu, \"acks\": %llu, "
                 "\"polls\": %llu, \"completions\": %llu, \"sleeps\": %llu, \"posts\": %llu}",
                 kind, (unsigned long long)cqn_now(), counts->contexts, counts->channels,
                 counts->cqs, counts->qps, (unsigned long long)counts->arms,
                 (unsigned long long)counts->events, (unsigned long long)counts->acks,
                 (unsigned long long)counts->polls, (unsigned long long)counts->completions,
                 (unsigned long long)counts->sleeps, (unsigned long long)counts->posts);
}

void cqn_report_so_far(void)
{
    struct counts counts = cqn_counts;
    for (const struct qp *qp = cqn_qps; qp; qp = qp->next)
        counts.posts += qp->posts;
    for (const struct cq *cq = cqn_cqs; cq; cq = cq->next)
        add_counts(&counts, cq);
    write_counts("so-far", &counts);
}

void cqn_report_end(void)
{
    cqn_lock(&cqn_lists_lock);
    struct cq *cqs = cqn_cqs;
    struct qp *qps = cqn_qps;
    cqn_unlock(&cqn_lists_lock);
    for (struct qp *qp = qps; qp; qp = qp->next)
        cqn_report_qp_end(qp);
    for (struct cq *cq = cqs; cq; cq = cq->next)
        cqn_report_cq_end(cq);
    write_counts("counts", &cqn_counts);
}
