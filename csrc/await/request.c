/* SPDX-License-Identifier: MIT */
/*
 * The life of a request: how it is made, when it is pending, and what becomes of it. What its task
 * does with it is in step.c; the type is in request_type.c.
 *
 * An engine has two lists. A request joins the first one when it is posted or goes to sleep, and
 * leaves it when it has what it was for, when it never will, or when its task has given up. If its
 * task is to learn of it, the request then joins the second list, and is woken when no completions
 * are routed any more (engine.c).
 *
 * A completion finds its request by the work request that it completes, or by the wr_id that a
 * completion() asks for. It comes where no Python code may run: so nothing here wakes a task, and
 * to take a request out of a list, and to list it, runs no Python code.
 */

#include "await/request.h"
#include "await/loop.h"
#include "await/waitlist.h"

/* ---- its begin and its end ---- */

/* The request holds its engine; the engine does not hold the request, see "What keeps a request
 * alive" in docs/internals.md. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name)
{
    cqn_state *st = engine->state;
    if (cqn_engine_check_made(engine) < 0) {
        return NULL;
    }
    cqn_request *self = (cqn_request *)cqn_freelist_alloc(&st->free_requests, st->Request);
    if (self != NULL) {
        cqn_enable_try_ref((PyObject *)self);
        self->engine = (cqn_engine *)Py_NewRef((PyObject *)engine);
        self->kind = (uint8_t)kind;
        self->name = name;
    }
    return self;
}

/* What a request owns beside its references: the copy of a send that waits for room, and the memory
 * elements of a receive. */
static void free_kept(cqn_request *self)
{
    cqn_send *kept = self->kept;
    self->kept = NULL;
    if (kept != NULL) {
        cqn_sg_free(&kept->sg);
        PyMem_Free(kept);
    }
    if (self->sge != &self->one) {
        PyMem_Free(self->sge);
    }
    self->sge = NULL;
}

/* Not only for the garbage collector: a request that is done lets go of all that it held, and its
 * memory is kept for the next request (base/freelist.c). */
int cqn_request_clear(PyObject *op)
{
    cqn_request *self = (cqn_request *)op;
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->error);
    for (int i = 0; i < self->given; i++) {
        Py_CLEAR(self->in[i]);
    }
    free_kept(self);
    Py_CLEAR(self->scope);
    Py_CLEAR(self->qp);
    return 0;
}

/* The task has its result, or never will: nothing is left to do. */
void cqn_request_finish(cqn_request *self)
{
    assert(!cqn_request_is_listed(self));
    cqn_request_becomes(self, CQN_DONE);
    cqn_request_leave_scope(self);
    if (self->owner != CQN_STASHED) { /* else the next recv() of the same memory looks at it */
        cqn_request_clear((PyObject *)self);
        self->cleared = true;
    }
}

/* ---- requests to be woken ---- */

/* Steals the reference, if there is one. The request is woken, or only released, when no
 * completions are routed any more. */
void cqn_engine_wake_later(cqn_request *request)
{
    if (request == NULL) {
        return;
    }
    if (request->wake == CQN_LISTED || request->wake == CQN_DUE_LISTED) {
        Py_DECREF(request); /* the list has a reference already */
        return;
    }
    cqn_engine *self = request->engine;
    request->wake = request->wake == CQN_DUE ? CQN_DUE_LISTED : CQN_LISTED;
    request->woken_next = NULL;
    request->event_at = self->channel->event_at;
    *(self->woken_last ? &self->woken_last->woken_next : &self->woken) = request;
    self->woken_last = request;
}

/* ---- pending requests ---- */

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
    assert(request->owner == CQN_UNLISTED && request->state != CQN_DONE);
    request->owner = CQN_PENDING;
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
    if (request->line == NULL) {
        return;
    }
    if (request->kind == CQN_CLAIMS) {
        cqn_claims_remove(request);
    }
    else if (request->owner == CQN_ABANDONED) {
        cqn_table_remove(&self->forsaken, request);
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
    assert(request->owner == CQN_PENDING && request->queue != NULL);
    request->owner = CQN_ABANDONED;
    Py_INCREF(request);
    request->engine->wanted--;
    see_if_busy(request->engine);
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

static void unlist(cqn_request *request)
{
    cqn_engine *self = request->engine;
    *(request->prev ? &request->prev->next : &self->first) = request->next;
    *(request->next ? &request->next->prev : &self->last) = request->prev;
    request->prev = request->next = NULL;
    self->len--;
}

/* Takes the request out of all that lists it. Returns a reference: the engine's own, or a new one;
 * or NULL, if the request is being deallocated. */
static cqn_request *take_out(cqn_request *request)
{
    cqn_engine *self = request->engine;
    const bool is_abandoned = request->owner == CQN_ABANDONED;
    assert(cqn_request_is_listed(request));
    leave_line_or_table(request);
    detach_from_books(request);
    if (request->kind == CQN_ENDS_SCOPE) {
        request->scope->end = NULL;
    }
    unlist(request);
    self->wanted -= !is_abandoned;
    request->owner = is_abandoned ? CQN_ORPHANED : CQN_UNLISTED;
    see_if_busy(self);
    return is_abandoned ? request : cqn_request_ref(request);
}

/* A pending request has what it was for, or never will. */
static void settle(cqn_request *request, cqn_request_state state)
{
    cqn_request_becomes(request, state);
    /* Its own step runs, in its task, and looks at the state before the task sleeps. */
    const bool sees_it = request->activity == CQN_STEPPING;
    request = take_out(request);
    if (sees_it) {
        Py_XDECREF(request);
    }
    else {
        cqn_engine_wake_later(request);
    }
}

void cqn_engine_let_go(cqn_request *request)
{
    cqn_request_leave_scope(request);
    Py_XDECREF(take_out(request));
}

void cqn_engine_drop(cqn_request *request)
{
    cqn_request_leave_scope(request);
    cqn_engine_wake_later(take_out(request));
}

/* ---- its scope ---- */

/* The operation is over, or will never begin. The request keeps its reference to the scope until it
 * is cleared. */
void cqn_request_left_scope(cqn_request *request)
{
    cqn_scope *scope = request->scope;
    request->left_scope = true;
    if (--scope->pending == 0 && scope->end != NULL) {
        settle(scope->end, CQN_COMPLETE);
    }
}

/* The operation may never complete. If it was posted, its scope is told. The first error stays,
 * because to drop an error can run any code. */
static void fail_scope(cqn_request *request, PyObject *error)
{
    cqn_scope *scope = request->scope;
    if (scope != NULL && !request->left_scope && request->state == CQN_POSTED &&
        scope->error == NULL && scope->lost == CQN_NOT_LOST) {
        scope->error = Py_XNewRef(error);
        scope->lost = request->lost;
        scope->lost_of = request->qp->qp_num;
    }
    cqn_request_leave_scope(request);
}

/* The exception is made when it is raised, because no Python code may run where operations are
 * lost. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num)
{
    switch (lost) {
    case CQN_LOST_CLOSED:
        PyErr_SetString(st->ClosedError, "the QP was closed: its work requests were dropped");
        break;
    case CQN_LOST_RESET:
        PyErr_Format(st->ClosedError, "QP %u was reset: its work requests were dropped", qp_num);
        break;
    default:
        PyErr_SetString(st->ClosedError,
                        "the device has lost its completion: that of a later one came first");
    }
    return cqn_take_exception();
}

/* ---- completions that are looked for by wr_id ---- */

/* The first completion() that asks for this wr_id, and for this QP if it names one, gets the
 * completion. */
static bool claim(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    cqn_request *first = cqn_claims_find(self, wc->wr_id, wc->qp_num);
    if (first == NULL) {
        return false;
    }
    first->wc = *wc;
    if (extra != NULL) {
        first->extra = *extra;
    }
    self->cq->stats.completions++;
    settle(first, CQN_COMPLETE);
    return true;
}

/* The task did not take its completion, so others can have it again. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    self->cq->stats.completions--;
    if (!claim(self, wc, extra)) {
        cqn_stash_put_back(self->cq, wc, extra);
    }
}

/* ---- completions of operations ---- */

/* Whether others want the completion of an operation whose task has given up: it tells of a message
 * that came, or has a wr_id that the user chose. */
static bool is_for_others(const cqn_request *self)
{
    return self->kind == CQN_RECEIVES || self->own_id;
}

/* The task did not take this completion, or does not want it any more. */
bool cqn_operation_offer(const cqn_request *self, const struct ibv_wc *wc,
                         const cqn_wc_extra *extra)
{
    if (!is_for_others(self)) {
        self->engine->cq->stats.completions++;
        return true;
    }
    return claim(self->engine, wc, extra);
}

/* An abandoned receive has completed, and its completion goes into the stash. If the table knows
 * it, the table owns it from now on, by the reference of the engine. Returns whether it does. */
static bool stays_in_table(cqn_request *self, const struct ibv_wc *wc)
{
    cqn_engine *engine = self->engine;
    if (self->line == NULL || wc->status != IBV_WC_SUCCESS) {
        return false;
    }
    assert(self->owner == CQN_ABANDONED && self->kind == CQN_RECEIVES);
    unlist(self);
    self->owner = CQN_STASHED;
    engine->stashed++;
    return true;
}

/* The completion of a work request that a task awaits, or has awaited. Returns whether it goes to
 * no one else: neither to a completion() nor to the stash. */
static bool completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const bool wanted = request->state == CQN_POSTED && request->owner == CQN_PENDING;
    assert(request->queue != NULL && cqn_request_is_listed(request));
    request->queue = NULL;
    wc->wr_id = request->wr_id;
    cqn_request_leave_scope(request);
    request->engine->cq->stats.completions += wanted;
    if (!wanted) {
        const bool taken = cqn_operation_offer(request, wc, extra);
        if (taken || !stays_in_table(request, wc)) {
            cqn_engine_wake_later(take_out(request));
        }
        return taken;
    }
    request->wc = *wc;
    if (extra != NULL) {
        request->extra = *extra;
    }
    settle(request, CQN_COMPLETE);
    return true;
}

/* ---- failures ---- */

/* While the device still has the work request of an operation, the request stays in the books, also
 * after its task was told of the failure. */
void cqn_request_fail(cqn_request *request, PyObject *error)
{
    if (!cqn_request_is_listed(request) || request->kind == CQN_ENDS_SCOPE) {
        return;
    }
    fail_scope(request, error);
    if (request->owner == CQN_ABANDONED || request->state == CQN_FAILED) {
        return;
    }
    Py_XSETREF(request->error, Py_XNewRef(error));
    if (request->queue == NULL) {
        settle(request, CQN_FAILED);
        return;
    }
    cqn_request_becomes(
        request, CQN_FAILED); /* and stays pending: the device goes on with the work request */
    cqn_engine_wake_later(cqn_request_ref(request));
}

/* The work request will not complete: its queue pair was closed or reset, or a later work request
 * of the same queue has completed. The exception is made when the task goes on. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp)
{
    request->lost = qp == NULL                ? CQN_LOST_SKIPPED
                    : qp->base.handle == NULL ? CQN_LOST_CLOSED
                                              : CQN_LOST_RESET;
    fail_scope(request, NULL);
    settle(request, CQN_FAILED);
}

/* ---- what the folders below tell it ---- */

static bool engine_wants(const cqn_engine *self)
{
    return self->claims.len > 0 || self->qp_claims.len > 0;
}

static bool engine_has_news(const cqn_engine *self)
{
    return cqn_engine_has_news(self);
}

/* Notes that a queue of this queue pair may have room now. The list holds the queue pair. */
void cqn_engine_room(cqn_engine *self, cqn_qp *qp)
{
    if (!qp->to_serve) {
        qp->to_serve = true;
        qp->serve_next = self->to_serve;
        self->to_serve = (cqn_qp *)Py_NewRef((PyObject *)qp);
    }
}

const cqn_awaiting cqn_engine_awaiting = {
    .lost = cqn_request_lost,
    .completed = completed,
    .claim = claim,
    .wants = engine_wants,
    .room = cqn_engine_room,
    .has_news = engine_has_news,
};
