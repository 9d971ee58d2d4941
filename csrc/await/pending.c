/* SPDX-License-Identifier: MIT */
/*
 * The two lists of an engine: the requests that are pending, and those that are to be woken.
 *
 * A request joins the first list when it is posted or goes to sleep, and leaves it when it has what
 * it was for, when it never will, or when its task has given up. If its task is to learn of it, the
 * request then joins the second list, and is woken when no completions are routed any more
 * (engine_wake.c). To take a request out, and to list it, runs no Python code.
 */

#include "await/pending.h"
#include "await/claims.h"
#include "await/lines.h"
#include "await/scope.h"

/* ---- those that are to be woken ---- */

/* Steals the reference, if there is one. The request is woken, or only released, when no
 * completions are routed any more. */
void cqn_engine_wake_later(cqn_request *request)
{
    if (request == NULL) {
        return;
    }
    if (request->to_wake) { /* the list has a reference already */
        Py_DECREF(request);
        return;
    }
    cqn_engine *self = request->engine;
    request->woken = request->to_wake = true;
    request->woken_next = NULL;
    request->event_at = self->channel->event_at;
    *(self->woken_last ? &self->woken_last->woken_next : &self->woken) = request;
    self->woken_last = request;
}

/* The first task in wait() goes on if the stash has something for it; as it goes on it wakes the
 * next. */
void cqn_engine_wake_first(cqn_engine *self)
{
    cqn_request *first = self->waiters.first;
    if (first != NULL && !first->woken && self->cq->stash_len > 0) {
        cqn_engine_wake_later(cqn_request_ref(first));
    }
}

void cqn_engine_drop_woken(cqn_engine *self)
{
    cqn_request *request;
    while ((request = cqn_engine_take_woken(self)) != NULL) {
        Py_DECREF(request);
    }
}

/* ---- those that are pending ---- */

/* The channel holds each engine that has pending requests which a task wants. The event loop holds
 * the channel, so by this way, and no other, it keeps the waiting tasks alive. What was abandoned
 * keeps nothing: an engine that is dropped then goes, and with it its QPs and their memory. */
static void see_if_busy(cqn_engine *self)
{
    cqn_channel *channel = self->channel;
    const bool busy = self->wanted > 0;
    assert(self->wanted >= 0 && self->wanted <= self->len);
    if (self->busy == busy) {
        return;
    }
    self->busy = busy;
    if (busy) {
        Py_INCREF(self);
        self->busy_prev = NULL;
        self->busy_next = channel->busy;
        if (channel->busy != NULL) {
            channel->busy->busy_prev = self;
        }
        channel->busy = self;
        return;
    }
    *(self->busy_prev ? &self->busy_prev->busy_next : &channel->busy) = self->busy_next;
    if (self->busy_next != NULL) {
        self->busy_next->busy_prev = self->busy_prev;
    }
    self->busy_prev = self->busy_next = NULL;
    Py_DECREF(self); /* not the last: a request has one */
}

int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg)
{
    for (cqn_engine *engine = channel->busy; engine != NULL; engine = engine->busy_next) {
        Py_VISIT(engine);
    }
    return 0;
}

/* The request is pending from now on. The engine does not own it: the task owns its request, and
 * what the task sleeps on, the anchor, owns the task. So a request that is forgotten goes away,
 * without a task or together with its task. */
void cqn_engine_hold(cqn_request *request)
{
    cqn_engine *self = request->engine;
    /* The end of a scope waits for operations that no task has begun: they will find it closed. */
    assert(!self->closed || request->kind == CQN_ENDS_SCOPE);
    assert(!request->held && !request->abandoned);
    request->held = true;
    request->next = NULL;
    request->prev = self->last;
    *(self->last ? &self->last->next : &self->first) = request;
    self->last = request;
    self->len++;
    self->wanted++;
    see_if_busy(self);
}

/* Where a request stands depends on its kind: a completion() in the table of claims, an abandoned
 * receive in the table of the forsaken, the others in a line. */
static void leave_line_or_table(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (request->line == NULL || request->stashed) {
        return;
    }
    if (request->kind == CQN_CLAIMS) {
        cqn_claims_remove(request);
    }
    else if (request->forsaken) {
        cqn_table_remove(&self->forsaken, request);
        request->forsaken = false;
    }
    else {
        cqn_line_remove(request);
        self->patient -= request->kind == CQN_WAITS && request->solicited_only;
    }
}

/* The task has given up, and the device goes on with the work request: so the engine keeps the
 * request. */
void cqn_engine_own(cqn_request *request)
{
    assert(request->held);
    if (!request->owned) {
        request->owned = true;
        Py_INCREF(request);
    }
    if (!request->abandoned) {
        request->abandoned = true;
        request->engine->wanted--;
        see_if_busy(request->engine);
    }
}

/* The books keep the wr_id of the work request, and know the request no more. */
static void detach_from_books(cqn_request *self)
{
    if (self->queue != NULL) {
        cqn_wr *wr = cqn_wr_at(self->queue, self->position);
        wr->wr_id = self->wr_id;
        wr->marks &= (uint8_t)~CQN_WR_AWAITED;
        self->queue = NULL;
    }
}

/* Takes the request out of all that lists it. Returns a reference: the engine's own, or a new one;
 * or NULL, if the request is being deallocated. */
cqn_request *cqn_engine_take_out(cqn_request *request)
{
    cqn_engine *self = request->engine;
    leave_line_or_table(request);
    detach_from_books(request);
    if (request->kind == CQN_ENDS_SCOPE) {
        request->scope->end = NULL;
    }
    *(request->prev ? &request->prev->next : &self->first) = request->next;
    *(request->next ? &request->next->prev : &self->last) = request->prev;
    request->prev = request->next = NULL;
    request->held = false;
    self->len--;
    self->wanted -= !request->abandoned;
    see_if_busy(self);
    if (request->owned) {
        request->owned = false;
        return request;
    }
    return cqn_request_ref(request);
}

/* A pending request has what it was for, or never will. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state)
{
    request->state = (uint8_t)state;
    /* Its own step runs, in its task, and looks at the state before the task sleeps. */
    const bool sees_it = request->stepping && !request->dozing;
    request = cqn_engine_take_out(request);
    if (sees_it) {
        Py_XDECREF(request);
    }
    else {
        cqn_engine_wake_later(request);
    }
}
