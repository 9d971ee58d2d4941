/* SPDX-License-Identifier: MIT */
/*
 * The requests that are under way, and where completions go.
 *
 * A request joins when it is posted or goes to sleep, and leaves when it has what it was for, or
 * never will, or its task has given up. Its completion comes by the request that posted it, or by
 * the wr_id that a completion() asks for; all of that runs no Python code. Whom it concerns is
 * woken later, see engine_wake.c.
 */

#include "await/engine.h"

/* A method of the AsyncCQ, which is Python code. */
PyObject *cqn_engine_call(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result;
    CQN_UNLOCKED(
        result = PyObject_CallMethod((PyObject *)self, method, argument ? "O" : NULL, argument));
    return result;
}

int cqn_engine_do(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result = cqn_engine_call(self, method, argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* ---- the list of them ---- */

/* The channel holds the engines that have requests under way: the loop knows nothing else of the
 * tasks. */
static void set_engine_busy(cqn_engine *self, bool busy)
{
    cqn_channel *channel = self->channel;
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

/* It is under way. The engine does not own it: its task does, and that is held by what it sleeps
 * on, the anchor. So one that is forgotten without a task, or with it, goes away. */
void cqn_engine_hold(cqn_request *request)
{
    cqn_engine *self = request->engine;
    request->held = true;
    request->next = NULL;
    request->prev = self->last;
    *(self->last ? &self->last->next : &self->first) = request;
    self->last = request;
    self->len++;
    set_engine_busy(self, true);
}

/* Where a request stands depends on its kind: a completion() in the table of claims, an abandoned
 * receive in that of the forsaken, the others in a line. */
static void leave_line_or_table(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (request->line == NULL || request->stashed) {
        return;
    }
    if (request->kind == CQN_CLAIMS) {
        cqn_table_remove(&self->claims, request);
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

/* Its task has given up, and the device goes on with it. */
void cqn_engine_own(cqn_request *request)
{
    request->abandoned = true;
    if (!request->owned) {
        request->owned = true;
        Py_INCREF(request);
    }
}

/* Takes it out. Returns a reference, or NULL: it is being deallocated. */
static cqn_request *take_out_request(cqn_request *request)
{
    cqn_engine *self = request->engine;
    leave_line_or_table(request);
    cqn_operation_detach(request);
    if (request->kind == CQN_ENDS_SCOPE) {
        request->scope->end = NULL;
    }
    *(request->prev ? &request->prev->next : &self->first) = request->next;
    *(request->next ? &request->next->prev : &self->last) = request->prev;
    request->prev = request->next = NULL;
    request->held = false;
    if (--self->len == 0) {
        set_engine_busy(self, false);
    }
    if (request->owned) {
        request->owned = false;
        return request;
    }
    return cqn_request_ref(request);
}

void cqn_engine_let_go(cqn_request *request)
{
    cqn_scope_leave(request);
    Py_XDECREF(take_out_request(request));
}

/* One that is under way has what it was for, or never will. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state)
{
    request->state = (uint8_t)state;
    const bool sees_it = request->stepping; /* itself, and its task has a reference */
    request = take_out_request(request);
    if (sees_it) {
        Py_XDECREF(request);
    }
    else {
        cqn_engine_wake_later(request);
    }
}

/* ---- joining ---- */

/* A subclass can forget to. */
int cqn_engine_check_made(const cqn_engine *self)
{
    if (self->cq == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "AsyncCQ.__init__() was not called");
        return -1;
    }
    return 0;
}

/* At the start of whatever may wait, for a completion of that QP or of any. */
int cqn_engine_enter(cqn_engine *self, cqn_qp *qp)
{
    if (cqn_engine_check(self) < 0 || cqn_open(&self->cq->base) == NULL ||
        cqn_loop_attach(self) < 0 || cqn_engine_check(self) < 0) {
        return -1;
    }
    return self->reports == NULL || self->reports == Py_None
               ? 0
               : cqn_engine_do(self, "_raise_report", qp ? (PyObject *)qp : Py_None);
}

/* A completion(): it looks once, since what it asks for may be in the device or in the stash. */
static int join_claims(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (cqn_engine_look(request) < 0) {
        return -1;
    }
    if (cqn_stash_take(self->cq, request->wr_id, request->qp, &request->wc, &request->extra)) {
        request->state = CQN_COMPLETE;
        return 0;
    }
    if (cqn_table_add(&self->claims, request, request->wr_id) < 0) {
        return -1;
    }
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
    return 0;
}

/* A wait() stands in line even if there is something for it: so what comes is handed out in the
 * order of the waits. */
static int join_waiters(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (self->waiters.first == NULL && self->cq->stash_len == 0) {
        request->looked = true;
        const size_t max = request->max_entries;
        if (cqn_cq_look_for(self->cq, max > CQN_BATCH ? max : CQN_BATCH, request->spin) < 0 ||
            cqn_engine_check(self) < 0) { /* a signal's handler can have closed it while it spun */
            return -1;
        }
        cqn_engine_post_queued(self);
    }
    cqn_line_add(&self->waiters, request);
    self->patient += request->solicited_only;
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
    return 0;
}

/* One that is not an operation is under way from now on, or has what it is for already. */
int cqn_engine_join(cqn_request *request)
{
    if (request->kind == CQN_CLAIMS) {
        return join_claims(request);
    }
    if (request->kind == CQN_WAITS) {
        return join_waiters(request);
    }
    cqn_scope *scope = request->scope;
    if (scope->pending == 0) {
        request->state = CQN_COMPLETE;
        return 0;
    }
    scope->end = request;
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
    return 0;
}

/* ---- what becomes of them ---- */

/* The completion of a work request that is awaited. Returns whether it is for no other consumer:
 * neither a completion() nor the stash. */
static bool request_completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const bool wanted = request->state == CQN_POSTED && !request->abandoned;
    request->queue = NULL;
    wc->wr_id = request->wr_id;
    cqn_scope_leave(request);
    request->engine->cq->stats.completions += wanted;
    if (!wanted) {
        const bool taken = cqn_operation_abandoned(request, wc, extra);
        cqn_engine_wake_later(take_out_request(request));
        return taken;
    }
    request->wc = *wc;
    if (extra != NULL) {
        request->extra = *extra;
    }
    cqn_engine_settled(request, CQN_COMPLETE);
    return true;
}

/* An operation that the device still has stays in the books after its task was told. */
void cqn_request_fail(cqn_request *request, PyObject *error)
{
    if (!request->held || request->kind == CQN_ENDS_SCOPE) {
        return;
    }
    cqn_scope_fail(request, error);
    if (request->abandoned || request->state == CQN_FAILED) {
        return;
    }
    Py_XSETREF(request->error, Py_XNewRef(error));
    if (request->queue == NULL) {
        cqn_engine_settled(request, CQN_FAILED);
        return;
    }
    request->state = CQN_FAILED; /* the device goes on with it */
    cqn_engine_wake_later(cqn_request_ref(request));
}

/* It will not complete: its queue pair was closed or reset, or a later one has completed. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp)
{
    request->lost = qp == NULL                ? CQN_LOST_SKIPPED
                    : qp->base.handle == NULL ? CQN_LOST_CLOSED
                                              : CQN_LOST_RESET;
    cqn_scope_fail(request, NULL);
    cqn_engine_settled(request, CQN_FAILED);
}

/* Nothing here is awaited any more: what the device still has is for poll(). */
void cqn_engine_drop_all(cqn_engine *self)
{
    cqn_forsaken_forget_all(self);
    cqn_request *first;
    while ((first = self->first) != NULL) {
        cqn_scope_leave(first); /* which takes out no other than the scope's end */
        cqn_engine_wake_later(take_out_request(first));
    }
}

/* ---- completions that are looked for by wr_id ---- */

static cqn_request *find_claim(const cqn_engine *self, uint64_t wr_id, const uint32_t *qp_num)
{
    cqn_request *r = cqn_table_line(&self->claims, wr_id)->first;
    while (r != NULL &&
           (r->key != wr_id || (r->qp != NULL && qp_num != NULL && r->qp->qp_num != *qp_num))) {
        r = r->behind;
    }
    return r;
}

bool cqn_engine_is_claimed(const cqn_engine *self, uint64_t wr_id)
{
    return find_claim(self, wr_id, NULL) != NULL;
}

/* Whether a completion() has asked for it: it is that one's now. */
bool cqn_engine_claim(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const uint32_t qp_num = wc->qp_num;
    cqn_request *claim = find_claim(self, wc->wr_id, &qp_num);
    if (claim == NULL) {
        return false;
    }
    claim->wc = *wc;
    if (extra != NULL) {
        claim->extra = *extra;
    }
    self->cq->stats.completions++;
    cqn_engine_settled(claim, CQN_COMPLETE);
    return true;
}

/* One that its task did not take is for others again. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    self->cq->stats.completions--;
    if (!cqn_engine_claim(self, wc, extra)) {
        cqn_stash_put_back(self->cq, wc, extra);
    }
}

/* ---- what the folders below tell ---- */

static bool engine_wants(const cqn_engine *self)
{
    return cqn_engine_wants(self);
}

static bool engine_has_news(const cqn_engine *self)
{
    return cqn_engine_has_news(self);
}

const cqn_awaiting cqn_engine_awaiting = {
    .lost = cqn_request_lost,
    .completed = request_completed,
    .claim = cqn_engine_claim,
    .wants = engine_wants,
    .room = cqn_engine_room,
    .has_news = engine_has_news,
};
