/* SPDX-License-Identifier: MIT */
/*
 * The life of an awaitable: its creation, its owner, when it is pending, and how it ends. The steps
 * of its task are in step.c; the type is in awaitable_type.c.
 *
 * An engine has two lists. An awaitable joins the list of pending ones when it is posted or begins
 * to wait. It leaves this list when it has its result, when it will have none, or when its task
 * gives up. Then, unless the task knows already, it joins the list of awaitables to be woken after
 * the routing of completions (engine.c).
 *
 * A completion finds its awaitable by its work request, or by the wr_id that a completion() claims.
 * Completions are routed where no Python code may run. Nothing here wakes a task, therefore, and no
 * change of a list runs Python code.
 */

#include "await/awaitable.h"
#include "await/loop.h"
#include "await/waitlist.h"

/* ---- creation and end ---- */

/* The awaitable holds its engine; the engine does not hold the awaitable, see "What keeps an
 * awaitable alive" in docs/internals.md. */
cqn_awaitable *cqn_awaitable_new(cqn_engine *engine, cqn_awaitable_kind kind, const char *name)
{
    cqn_state *st = engine->state;
    if (cqn_engine_check_made(engine) < 0) {
        return NULL;
    }
    cqn_awaitable *self = (cqn_awaitable *)cqn_freelist_alloc(&st->free_awaitables, st->Awaitable);
    if (self != NULL) {
        cqn_enable_try_ref((PyObject *)self);
        self->engine = (cqn_engine *)Py_NewRef((PyObject *)engine);
        self->kind = (uint8_t)kind;
        self->name = name;
        CQN_STEP(new_awaitable, self, engine->cq, engine, kind);
    }
    return self;
}

/* Frees the memory owned by an awaitable: the work request of a QUEUED send and the SGEs of a
 * receive. */
static void free_kept(cqn_awaitable *self)
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

/* Releases all references except the one to the engine. Called by the garbage collector and at the
 * end of an awaitable, whose own memory goes to a freelist (base/freelist.c). */
int cqn_awaitable_clear(PyObject *op)
{
    cqn_awaitable *self = (cqn_awaitable *)op;
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

/* Called when the task has its result, or will never want one. */
void cqn_awaitable_finish(cqn_awaitable *self)
{
    assert(!cqn_awaitable_is_listed(self));
    cqn_awaitable_becomes(self, CQN_DONE);
    cqn_awaitable_leave_scope(self);
    if (self->owner != CQN_STASHED) { /* else the next recv() of the same memory needs it */
        cqn_awaitable_clear((PyObject *)self);
        self->cleared = true;
    }
}

/* ---- awaitables to be woken ---- */

/* After the routing of completions the awaitable is woken, or only released. */
void cqn_awaitable_wake_later(cqn_awaitable *awaitable)
{
    if (awaitable == NULL) {
        return;
    }
    if (awaitable->wake == CQN_LISTED || awaitable->wake == CQN_SCHEDULED_LISTED) {
        Py_DECREF(awaitable); /* the list already has a reference */
        return;
    }
    cqn_engine *self = awaitable->engine;
    awaitable->wake = awaitable->wake == CQN_SCHEDULED ? CQN_SCHEDULED_LISTED : CQN_LISTED;
    awaitable->woken_next = NULL;
    awaitable->event_at = self->channel->event_at;
    *(self->woken_last ? &self->woken_last->woken_next : &self->woken) = awaitable;
    self->woken_last = awaitable;
}

/* ---- pending awaitables ---- */

/* The channel owns a reference to each engine with a taker or with pending awaitables of tasks. The
 * event loop holds the channel, so only this keeps waiting tasks alive. Abandoned awaitables keep
 * nothing alive: an engine without references is deallocated, and with it its QPs and their
 * memory. */
void cqn_engine_see_if_busy(cqn_engine *self)
{
    cqn_channel *channel = self->channel;
    const bool busy = self->wanted > 0 || self->taker != NULL;
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
    Py_DECREF(self); /* not the last: an awaitable has one */
}

int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg)
{
    for (cqn_engine *engine = channel->busy; engine != NULL; engine = engine->busy_next) {
        Py_VISIT(engine);
    }
    return 0;
}

/* The engine does not own the awaitable: the task owns it, and the anchor, on which the task
 * sleeps, owns the task. So an awaitable without references is deallocated, with its task if it has
 * one. */
void cqn_awaitable_link(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    /* The end of a scope waits for operations that no task has begun; these will find the engine
     * closed. */
    assert(!self->closed || awaitable->kind == CQN_OF_SCOPE);
    assert(awaitable->owner == CQN_UNLISTED && awaitable->state != CQN_DONE);
    awaitable->owner = CQN_PENDING;
    awaitable->next = NULL;
    awaitable->prev = self->last;
    *(self->last ? &self->last->next : &self->first) = awaitable;
    self->last = awaitable;
    self->len++;
    self->wanted++;
    CQN_STEP(pending, awaitable, self->cq, 1, 0);
    cqn_engine_see_if_busy(self);
}

/* The list depends on the kind of the awaitable: the table of claims for a completion(), the table
 * of abandoned receives for one of these, otherwise a waitlist. */
static void leave_waitlist_or_table(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    if (awaitable->waitlist == NULL) {
        return;
    }
    if (awaitable->kind == CQN_OF_COMPLETION) {
        cqn_claims_remove(awaitable);
    }
    else if (awaitable->owner == CQN_ABANDONED) {
        cqn_table_remove(&self->abandoned_recvs, awaitable);
    }
    else {
        cqn_waitlist_remove(awaitable);
        self->solicited_waiters -= awaitable->kind == CQN_OF_WAIT && awaitable->solicited_only;
    }
}

/* Called when the task gave up while the device has the work request: the engine owns the awaitable
 * until it completes. */
void cqn_awaitable_adopt(cqn_awaitable *awaitable)
{
    assert(awaitable->owner == CQN_PENDING && awaitable->queue != NULL);
    awaitable->owner = CQN_ABANDONED;
    Py_INCREF(awaitable);
    awaitable->engine->wanted--;
    cqn_engine_see_if_busy(awaitable->engine);
}

/* The WR queue keeps the wr_id of the work request, without the awaitable. */
static void detach_from_wr_queue(cqn_awaitable *self)
{
    if (self->queue != NULL) {
        cqn_wr *wr = cqn_wr_at(self->queue, self->position);
        wr->wr_id = self->wr_id;
        wr->marks &= (uint8_t)~CQN_WR_AWAITED;
        self->queue = NULL;
    }
}

static void unlist(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    *(awaitable->prev ? &awaitable->prev->next : &self->first) = awaitable->next;
    *(awaitable->next ? &awaitable->next->prev : &self->last) = awaitable->prev;
    awaitable->prev = awaitable->next = NULL;
    self->len--;
    CQN_STEP(pending, awaitable, self->cq, 0, 0);
}

/* Removes the awaitable from all lists and tables. Returns the engine's reference or a new one;
 * NULL if the awaitable is being deallocated. */
static cqn_awaitable *unlink_all(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    const bool is_abandoned = awaitable->owner == CQN_ABANDONED;
    assert(cqn_awaitable_is_listed(awaitable));
    leave_waitlist_or_table(awaitable);
    detach_from_wr_queue(awaitable);
    if (awaitable->kind == CQN_OF_SCOPE) {
        awaitable->scope->end = NULL;
    }
    unlist(awaitable);
    self->wanted -= !is_abandoned;
    awaitable->owner = is_abandoned ? CQN_ORPHANED : CQN_UNLISTED;
    cqn_engine_see_if_busy(self);
    return is_abandoned ? awaitable : cqn_awaitable_ref(awaitable);
}

/* Ends a pending awaitable that has its result (COMPLETE) or will have none (FAILED). */
static void resolve(cqn_awaitable *awaitable, cqn_awaitable_state state)
{
    cqn_awaitable_becomes(awaitable, state);
    /* a running step of its task checks the state before the task sleeps */
    const bool sees_it = awaitable->activity == CQN_STEPPING;
    awaitable = unlink_all(awaitable);
    if (sees_it) {
        Py_XDECREF(awaitable);
    }
    else {
        cqn_awaitable_wake_later(awaitable);
    }
}

void cqn_awaitable_drop(cqn_awaitable *awaitable)
{
    cqn_awaitable_leave_scope(awaitable);
    Py_XDECREF(unlink_all(awaitable));
}

void cqn_awaitable_drop_later(cqn_awaitable *awaitable)
{
    cqn_awaitable_leave_scope(awaitable);
    cqn_awaitable_wake_later(unlink_all(awaitable));
}

/* ---- its scope ---- */

/* The awaitable keeps its reference to the scope until it is cleared. */
void cqn_awaitable_left_scope(cqn_awaitable *awaitable)
{
    cqn_scope *scope = awaitable->scope;
    awaitable->left_scope = true;
    if (--scope->pending == 0 && scope->end != NULL) {
        resolve(scope->end, CQN_COMPLETE);
    }
}

/* Records in the scope that a posted operation may never complete. The first error stays, because
 * releasing an error can run arbitrary code. */
static void fail_scope(cqn_awaitable *awaitable, PyObject *error)
{
    cqn_scope *scope = awaitable->scope;
    if (scope != NULL && !awaitable->left_scope && awaitable->state == CQN_POSTED &&
        scope->error == NULL && scope->lost == CQN_NOT_LOST) {
        scope->error = Py_XNewRef(error);
        scope->lost = awaitable->lost;
        scope->lost_of = awaitable->qp->qp_num;
    }
    cqn_awaitable_leave_scope(awaitable);
}

/* The exception is created when it is raised, because no Python code may run where operations are
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
                        "the device has lost its completion: that of a later request came first");
    }
    return cqn_take_exception();
}

/* ---- completions claimed by wr_id ---- */

/* Gives the completion to the first completion() that claims its wr_id, of this QP or of any.
 * Returns false if there is none. */
static bool claim(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    cqn_awaitable *first = cqn_claims_find(self, wc->wr_id, wc->qp_num);
    if (first == NULL) {
        return false;
    }
    first->wc = *wc;
    if (extra != NULL) {
        first->extra = *extra;
    }
    self->cq->stats.completions++;
    resolve(first, CQN_COMPLETE);
    return true;
}

/* Offers a completion that its task does not take to claims of the CQ's engine: after a close that
 * is another one than the task's. */
static bool claim_again(const cqn_cq *cq, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    return cq->engine != NULL && claim(cq->engine, wc, extra);
}

/* Called when the task does not take its completion. */
void cqn_engine_return_wc(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    self->cq->stats.completions--;
    if (!claim_again(self->cq, wc, extra)) {
        cqn_stash_put_back(self->cq, wc, extra);
    }
}

/* ---- completions of operations ---- */

/* Returns whether other code may want the completion of an abandoned operation: a receive brings a
 * message, and a program can wait for a wr_id that it chose. */
static bool is_for_others(const cqn_awaitable *self)
{
    return self->kind == CQN_OF_RECV || self->own_id;
}

bool cqn_operation_offer(const cqn_awaitable *self, const struct ibv_wc *wc,
                         const cqn_wc_extra *extra)
{
    if (!is_for_others(self)) {
        self->engine->cq->stats.completions++;
        return true;
    }
    return claim_again(self->engine->cq, wc, extra);
}

/* Called when the completion of an abandoned receive goes into the stash. A receive in the table
 * stays there, owned by the table through the engine's reference. Returns whether it is. */
static bool stays_in_table(cqn_awaitable *self, const struct ibv_wc *wc)
{
    cqn_engine *engine = self->engine;
    if (self->waitlist == NULL || wc->status != IBV_WC_SUCCESS) {
        return false;
    }
    assert(self->owner == CQN_ABANDONED && self->kind == CQN_OF_RECV);
    unlist(self);
    self->owner = CQN_STASHED;
    engine->stashed++;
    return true;
}

/* Routes the completion of a work request whose awaitable is in the WR queue. Returns false if it
 * goes into the stash. */
static bool completed(cqn_awaitable *awaitable, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const bool wanted = awaitable->state == CQN_POSTED && awaitable->owner == CQN_PENDING;
    assert(awaitable->queue != NULL && cqn_awaitable_is_listed(awaitable));
    awaitable->queue = NULL;
    wc->wr_id = awaitable->wr_id;
    cqn_awaitable_leave_scope(awaitable);
    awaitable->engine->cq->stats.completions += wanted;
    if (!wanted) {
        const bool taken = cqn_operation_offer(awaitable, wc, extra);
        if (taken || !stays_in_table(awaitable, wc)) {
            cqn_awaitable_wake_later(unlink_all(awaitable));
        }
        return taken;
    }
    awaitable->wc = *wc;
    if (extra != NULL) {
        awaitable->extra = *extra;
    }
    resolve(awaitable, CQN_COMPLETE);
    return true;
}

/* ---- failures ---- */

/* While the device has the work request, the awaitable stays in the WR queue, even after its task
 * got the failure. */
void cqn_awaitable_fail(cqn_awaitable *awaitable, PyObject *error)
{
    if (!cqn_awaitable_is_listed(awaitable) || awaitable->kind == CQN_OF_SCOPE) {
        return;
    }
    fail_scope(awaitable, error);
    if (awaitable->owner == CQN_ABANDONED || awaitable->state == CQN_FAILED) {
        return;
    }
    Py_XSETREF(awaitable->error, Py_XNewRef(error));
    if (awaitable->queue == NULL) {
        resolve(awaitable, CQN_FAILED);
        return;
    }
    cqn_awaitable_becomes(awaitable,
                          CQN_FAILED); /* it stays pending while the device has the work request */
    cqn_awaitable_wake_later(cqn_awaitable_ref(awaitable));
}

/* The exception is created when the task continues, because no Python code may run here. */
void cqn_awaitable_lost(cqn_awaitable *awaitable, const cqn_qp *qp)
{
    awaitable->lost = qp == NULL                ? CQN_LOST_SKIPPED
                      : qp->base.handle == NULL ? CQN_LOST_CLOSED
                                                : CQN_LOST_RESET;
    fail_scope(awaitable, NULL);
    resolve(awaitable, CQN_FAILED);
}

/* ---- called by the folders below ---- */

static bool engine_wants(const cqn_engine *self)
{
    return self->claims.len > 0 || self->qp_claims.len > 0;
}

static bool engine_has_news(const cqn_engine *self)
{
    return cqn_engine_has_work(self);
}

/* The list owns a reference to the queue pair. */
void cqn_engine_note_capacity(cqn_engine *self, cqn_qp *qp)
{
    if (!qp->has_capacity) {
        qp->has_capacity = true;
        qp->next_with_capacity = self->qps_with_capacity;
        self->qps_with_capacity = (cqn_qp *)Py_NewRef((PyObject *)qp);
    }
}

const cqn_awaiting cqn_engine_awaiting = {
    .lost = cqn_awaitable_lost,
    .completed = completed,
    .claim = claim,
    .wants = engine_wants,
    .has_capacity = cqn_engine_note_capacity,
    .has_work = engine_has_news,
};
