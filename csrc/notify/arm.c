/* SPDX-License-Identifier: MIT */
/*
 * Arming a CQ.
 *
 * The CQ remembers for what it is armed, so that it is not armed twice for one event. It forgets
 * that when one of its events is read (events.c), and when a wait on its channel ends without one,
 * since the event may have been lost.
 */

#include "notify/cq.h"

/* For what the CQ is armed, as far as is known. After a wait that timed out nothing is known: the
 * event can have been lost, to another process that reads the descriptor or to a lack of memory in
 * the kernel, and then no other event ever comes. */
static cqn_armed known_armed(const cqn_cq *self)
{
    return self->armed_at == self->channel->timeouts ? self->armed : CQN_UNARMED;
}

bool cqn_cq_is_armed(const cqn_cq *self, bool solicited_only)
{
    return known_armed(self) >= (solicited_only ? CQN_ARMED_SOLICITED : CQN_ARMED);
}

/* In InfiniBand, an arm for any completion outlasts a later one for solicited completions. On some
 * devices, such as siw, the later one takes its place. So what is known to be armed for any is
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
    return 0;
}
