/* SPDX-License-Identifier: MIT */
/*
 * The events of a channel, and arming a CQ for them.
 *
 * The life of an event:
 *   - cq.req_notify() arms a CQ. Its next completion queues one event on the channel: a cookie of
 *     8 bytes that the channel's descriptor delivers.
 *   - ibv_get_cq_event() reads the cookie, which leads to the ibv_cq and to our CQ object behind
 * it. Both are alive: destroying a CQ removes its unread events from the channel, then waits until
 *     each event that was read is acknowledged. So an event that was read is safe to use until it
 * is acknowledged, and it must be acknowledged once, or its CQ can never be destroyed.
 *   - An event is read and counted without releasing the GIL in between. So it is either unread or
 *     counted in its CQ's `unacked`; cq.ack() and the closing of the CQ acknowledge it.
 *
 * An event that is read while another thread destroys its CQ is acknowledged at once, since that
 * thread waits for it. If destroying then fails, the event is late: it goes to a list of the
 * channel and is returned from there, acknowledged in advance. An event of the core's own is
 * returned the same way: a waiter slept when the CQ was resized, or when a task of a closed AsyncCQ
 * gave back its completion.
 *
 * A CQ remembers for what it is armed, so it is not armed twice for one event. It forgets this
 * when one of its events is read, and when a wait on its channel ends without an event, since the
 * event may be lost.
 */

#include "notify/cq.h"

#define ACK_BATCH 32 /* acknowledging takes a mutex, so it is done in batches */

/* ---- counting and acknowledging ---- */

void cqn_cq_event_is_over(cqn_cq *self)
{
    if (self->stats.events > 0) {
        cqn_histogram_add(&self->histograms[CQN_PER_EVENT],
                          self->stats.fetched - self->fetched_before);
    }
    self->fetched_before = self->stats.fetched;
}

/* Counts an event of this CQ that was read from the channel. */
static void count_event(cqn_cq *self)
{
    cqn_cq_event_is_over(self);
    CQN_TRACE(event, self);
    CQN_STEP(event, self, self->channel, 0, 0);
    self->unacked++;
    self->stats.events++;
    self->event_unpolled = true;
    self->armed = CQN_UNARMED;
}

void cqn_cq_ack(cqn_cq *self, unsigned int n)
{
    unsigned int paid = n < self->prepaid ? n : self->prepaid;
    CQN_TRACE_N(ack, self, n);
    CQN_STEP(ack, self, n, paid, 0);
    if (n > paid) {
        ibv_ack_cq_events(self->base.handle, n - paid);
    }
    self->prepaid -= paid;
    self->unacked -= n;
    self->stats.acked += n;
}

/* The event loop's callback read the event for the engine, which acknowledges in batches. Events
 * that the program reads itself are acknowledged by the program. */
void cqn_cq_dispatched(cqn_cq *self)
{
    if (++self->dispatched >= ACK_BATCH) {
        cqn_cq_ack_dispatched(self);
    }
}

void cqn_cq_ack_dispatched(cqn_cq *self)
{
    const unsigned int n = self->dispatched < self->unacked ? self->dispatched : self->unacked;
    self->dispatched = 0;
    if (n > 0) {
        cqn_cq_ack(self, n);
    }
}

/* ---- reading ---- */

/* Removes the first late event and counts it. Returns its CQ as a new reference, or NULL. */
static cqn_cq *pop_late(cqn_channel *self)
{
    cqn_cq **place = &self->late;
    while (*place != NULL && !cqn_try_ref(&(*place)->base)) {
        place = &(*place)->late_next;
    }
    cqn_cq *cq = *place;
    if (cq != NULL) {
        CQN_STEP(late, cq, 0, 0, 0);
        count_event(cq);
        cq->prepaid++;
        if (--cq->late == 0) {
            *place = cq->late_next;
        }
    }
    return cq;
}

PyObject *cqn_channel_read_event(cqn_channel *self, struct ibv_comp_channel *channel)
{
    cqn_cq *cq = pop_late(self);
    while (cq == NULL) {
        struct ibv_cq *handle;
        void *cookie;
        errno = 0;
        if (ibv_get_cq_event(channel, &handle, &cookie) == 0) {
            cq = cookie;
            if (cq->base.handle == NULL || !cqn_try_ref(&cq->base)) {
                /* The CQ is being destroyed. Or it is being deallocated and will be destroyed soon,
                 * unless its __del__ resurrects it in another thread. */
                ibv_ack_cq_events(handle, 1);
                CQN_STEP(acked_at_once, cq, 0, 0, 0);
                if (cq->late++ == 0 && cq->base.handle != NULL && !cq->base.refs.dying) {
                    cq->armed = CQN_UNARMED;
                    cqn_channel_add_late(self, cq);
                }
                cq = NULL;
                continue;
            }
            count_event(cq);
        }
        else if (errno != EINTR) {
            if (errno != EAGAIN) {
                /* a read of 0 bytes means the same: the device is gone */
                cqn_verbs_error(self->base.state, errno ? errno : EIO, "ibv_get_cq_event",
                                "no more events will come from this channel");
            }
            return NULL;
        }
    }
    return (PyObject *)cq;
}

/* Called when destroying a CQ failed after some of its events were acknowledged, or when the core
 * generates an event, see above. */
void cqn_channel_add_late(cqn_channel *self, cqn_cq *cq)
{
    cq->late_next = self->late;
    self->late = cq;
    cqn_wait_queue_wake(&self->wait_queue);
}

void cqn_cq_add_event(cqn_cq *self)
{
    if (self->late++ == 0) {
        cqn_channel_add_late(self->channel, self);
    }
}

void cqn_channel_drop_late(cqn_channel *self, const cqn_cq *cq)
{
    cqn_cq **place = &self->late;
    while (*place != NULL && *place != cq) {
        place = &(*place)->late_next;
    }
    if (*place != NULL) {
        *place = cq->late_next;
    }
}

/* ---- arming ---- */

/* Returns for what the CQ is known to be armed. After a wait that timed out nothing is known: the
 * event may be lost, to another process that reads the descriptor or to a lack of memory in the
 * kernel, and then no other event ever arrives. */
static cqn_armed known_armed(const cqn_cq *self)
{
    return self->armed_at == self->channel->timeouts ? self->armed : CQN_UNARMED;
}

bool cqn_cq_is_armed(const cqn_cq *self, bool solicited_only)
{
    return known_armed(self) >= (solicited_only ? CQN_ARMED_SOLICITED : CQN_ARMED);
}

/* In InfiniBand, arming for any completion outlasts a later arming for solicited ones; on some
 * devices, such as siw, the later one replaces it. So a CQ known to be armed for any completion is
 * armed for any again. */
int cqn_cq_arm(cqn_cq *self, bool solicited_only)
{
    assert(self->base.handle != NULL);
    const bool any = !solicited_only || known_armed(self) == CQN_ARMED;
    CQN_TRACE_N(arm, self, !any);
    int err = ibv_req_notify_cq(self->base.handle, !any);
    if (err != 0) {
        cqn_verbs_error(self->base.state, err, "ibv_req_notify_cq", "");
        return -1;
    }
    self->armed = any ? CQN_ARMED : CQN_ARMED_SOLICITED;
    self->armed_at = self->channel->timeouts;
    self->stats.arms++;
    CQN_STEP(arm, self, solicited_only, any, self->channel);
    return 0;
}

void cqn_cq_forget_arming(cqn_cq *self)
{
    self->armed = CQN_UNARMED;
    CQN_STEP(disarm, self, 0, 0, 0);
}
