/* SPDX-License-Identifier: MIT */
/*
 * Looking for completions, and arming the CQ: what makes it safe to sleep.
 *
 * Before any task sleeps, the CQ is armed, and polled after that, even if the stash holds
 * completions that no task has claimed: so no wake-up is lost. An event can be lost, to another
 * program that reads the channel's descriptor for one; so after a wait that ended without an event,
 * the CQ is armed whatever it remembers.
 *
 * Where completions made room in a queue, the operations that wait for room are posted before any
 * task runs.
 */

#include "await/engine_look.h"
#include "await/async_cq.h"
#include "await/engine_fail.h"
#include "await/pending.h"
#include "await/room.h"

#define BATCHES 4 /* that are looked at in a row: then the event loop gets its turn */

/* Looks once: what a request that has just begun is for may be there already. */
int cqn_engine_look(cqn_request *request)
{
    cqn_engine *self = request->engine;
    cqn_object *deferred = NULL;
    bool more;
    int got = cqn_cq_poll_once(self->cq, CQN_BATCH, &more, &deferred);
    request->looked = !more;
    request->arms = self->cq->stats.arms;
    cqn_decref_deferred(deferred);
    CQN_PLACE("look");
    cqn_engine_post_queued(self);
    return got < 0 ? -1 : 0;
}

/* Asks the AsyncCQ for a look in the next turn of the event loop. Returns whether there will be
 * one. */
static bool look_later(cqn_engine *self)
{
    if (!self->looks_later) {
        self->looks_later = true;
        if (cqn_engine_do(self, "_look_later", NULL) < 0) {
            self->looks_later = false;
            PyErr_WriteUnraisable((PyObject *)self);
        }
    }
    return self->looks_later;
}

static bool only_solicited(const cqn_engine *self)
{
    /* On some devices a flushed completion raises no solicited event, and every waiting task must
     * see it. */
    return self->len == self->patient && self->cq->flushing == 0;
}

/* Whether the CQ need not be armed: no task is about to sleep, or a task in wait() is to be woken,
 * which sees to the rest as it goes on. Nor can it be while it is destroyed, which tells the engine
 * how it ended; until then it can, since it may stay open. */
static bool has_no_sleeper(const cqn_engine *self)
{
    const cqn_object *cq = &self->cq->base;
    return self->len == 0 || (self->waiters.first != NULL && self->cq->stash_len > 0) ||
           cq->handle == NULL || cqn_forked(cq);
}

/* Looks once, unless the caller has just `looked`, and arms the CQ if that found all there was.
 * Returns 1 if it is safe to sleep, 0 to look again, or -1 with an exception. */
static int look_and_arm(cqn_engine *self, bool looked, cqn_object **deferred)
{
    cqn_cq *cq = self->cq;
    bool more = false;
    if (has_no_sleeper(self)) {
        return 1;
    }
    if (!looked && cqn_cq_poll_once(cq, CQN_BATCH, &more, deferred) < 0) {
        return -1;
    }
    const bool solicited = only_solicited(self);
    if (has_no_sleeper(self) || (!more && cqn_cq_is_armed(cq, solicited))) {
        return 1;
    }
    return more ? 0 : cqn_cq_arm(cq, solicited);
}

/* Looks a few times in a row. If completions still come then, the event loop gets its turn first.
 */
static int look_until_safe(cqn_engine *self, bool looked)
{
    cqn_object *deferred = NULL;
    int safe = 0;
    for (int i = 0; safe == 0 && (i < BATCHES || !look_later(self)); i++) {
        safe = look_and_arm(self, looked && i == 0, &deferred);
        cqn_decref_deferred(deferred);
        deferred = NULL;
        CQN_PLACE("arm");
    }
    return safe < 0 ? -1 : 0;
}

/* Makes it safe to sleep for all pending requests; those that have something are listed to be
 * woken. `looked`: the caller has looked, and nothing was posted since. */
void cqn_engine_prepare(cqn_engine *self, bool looked)
{
    if (look_until_safe(self, looked) < 0) {
        cqn_engine_break_down(self);
    }
    cqn_engine_post_queued(self);
    cqn_engine_wake_first(self);
}

/* After anything that may have changed something for the pending requests: it is made safe to sleep
 * again, and the tasks that have something are woken. Leaves no exception set. */
void cqn_engine_serve(cqn_engine *self)
{
    if (!self->closed && self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    cqn_engine_hand_over_or_put_off(self);
}
