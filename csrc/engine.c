/* SPDX-License-Identifier: MIT */
/*
 * Engine: what an AsyncCQ is built on. Its completions go where they belong, and those whom
 * that concerns are woken; see engine.h.
 *
 * Two rules make lost wake-ups impossible. Before anybody sleeps the CQ is armed, and polled
 * after that, whatever lies unclaimed in the stash. And completions are put down before any
 * task is woken, so one that is cancelled at that very moment loses nothing: it gives back
 * what it was given, and sees to it that the CQ is armed for the others. An event can be
 * lost, to a program that reads the channel's descriptor for one; so after a wait that ended
 * without one the CQ is armed whatever it remembers.
 *
 * Tasks are woken by calls of Python code: so that is the last that is done, and done to the
 * end if a signal's handler raises in the midst of it.
 */

#include "engine.h"

#define BATCHES 4 /* that are looked at in a row: then the loop gets its turn */
#define STREAK 64 /* completions in one turn of the loop for which nobody slept */

/* ---- turns of the loop ---- */

/* What runs in one turn of the loops of this thread. No loop says when a turn begins. But when a
 * channel is dispatched for the second time, or a task goes on that went to sleep, there has been
 * a new turn since; that may be less often than there is one, never more often. */
static _Thread_local struct {
    uint64_t turn; /* 0: none yet */
    size_t streak;
} this_thread;

uint64_t cqn_turn_now(void)
{
    return this_thread.turn;
}

/* There has been a new turn since that one. */
void cqn_turn_passed(uint64_t since)
{
    if (this_thread.turn == since) {
        this_thread.turn++;
        this_thread.streak = 0;
    }
}

void cqn_turn_used(size_t n)
{
    this_thread.streak += n;
}

bool cqn_turn_is_over(void)
{
    return this_thread.streak >= STREAK;
}

/* The channel is dispatched, once in a turn. */
void cqn_engine_turn(cqn_channel *channel)
{
    cqn_turn_passed(channel->turn);
    channel->turn = this_thread.turn;
}

/* ---- requests that are under way ---- */

/* The channel's reader holds those in which somebody waits: of the tasks the loop knows nothing
 * else. */
static void set_busy(cqn_engine *self, bool busy)
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
    set_busy(self, true);
}

static void leave_line(cqn_request *request)
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
static cqn_request *take_out(cqn_request *request)
{
    cqn_engine *self = request->engine;
    leave_line(request);
    cqn_operation_detach(request);
    if (request->kind == CQN_ENDS_SCOPE) {
        request->scope->end = NULL;
    }
    *(request->prev ? &request->prev->next : &self->first) = request->next;
    *(request->next ? &request->next->prev : &self->last) = request->prev;
    request->prev = request->next = NULL;
    request->held = false;
    if (--self->len == 0) {
        set_busy(self, false);
    }
    if (request->owned) {
        request->owned = false;
        return request;
    }
    return cqn_try_ref_object((PyObject *)request) ? request : NULL;
}

/* Its task goes on, or never will. */
void cqn_engine_not_due(cqn_request *request)
{
    if (request->due) {
        request->due = false;
        request->engine->due--;
    }
}

void cqn_engine_let_go(cqn_request *request)
{
    cqn_scope_leave(request);
    Py_XDECREF(take_out(request));
}

/* Steals a reference, or gets none. Woken, or let go of, when no completions are routed any more.
 */
static void see_to_later(cqn_request *request)
{
    if (request == NULL) {
        return;
    }
    cqn_engine *self = request->engine;
    if (request->woken) { /* it is there already, and its task may not have run since */
        cqn_request **link = &self->woken;
        while (*link != NULL && *link != request) {
            link = &(*link)->woken_next;
        }
        if (*link != NULL) {
            Py_DECREF(request);
            return;
        }
    }
    request->woken = true;
    request->woken_next = NULL;
    *(self->woken_last ? &self->woken_last->woken_next : &self->woken) = request;
    self->woken_last = request;
}

/* One that is under way has what it was for, or never will. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state)
{
    request->state = (uint8_t)state;
    const bool sees_it = request->stepping; /* itself, and its task has a reference */
    request = take_out(request);
    if (sees_it) {
        Py_XDECREF(request);
    }
    else {
        see_to_later(request);
    }
}

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
    see_to_later(cqn_try_ref_object((PyObject *)request) ? request : NULL);
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

/* The completion of a work request that is awaited. Whether it is for nobody else. */
bool cqn_request_completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const bool wanted = request->state == CQN_POSTED && !request->abandoned;
    request->queue = NULL;
    wc->wr_id = request->wr_id;
    cqn_scope_leave(request);
    request->engine->cq->stats.completions += wanted;
    if (!wanted) {
        const bool taken = cqn_operation_abandoned(request, wc, extra);
        see_to_later(take_out(request));
        return taken;
    }
    request->wc = *wc;
    if (extra != NULL) {
        request->extra = *extra;
    }
    cqn_engine_settled(request, CQN_COMPLETE);
    return true;
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

bool cqn_engine_wants(const cqn_engine *self)
{
    return self->claims.len > 0;
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

/* ---- looking ---- */

/* There may be room now for those who wait for it. */
void cqn_engine_room(cqn_engine *self, cqn_qp *qp)
{
    if (!qp->to_serve) {
        qp->to_serve = true;
        qp->serve_next = self->to_serve;
        self->to_serve = (cqn_qp *)Py_NewRef((PyObject *)qp);
    }
}

/* Something of that queue pair has failed: it may work no more. */
void cqn_engine_failed(cqn_cq *cq, cqn_wr_queue *queue, const struct ibv_wc *wc)
{
    cqn_qp *qp = queue == NULL ? NULL : queue->qp;
    if (qp == NULL) { /* of an SRQ only the number tells, while the queue pair is open */
        cqn_object *o = cq->base.context->first[CQN_RANK_QP];
        while (o != NULL && ((cqn_qp *)o)->qp_num != wc->qp_num) {
            o = o->next;
        }
        qp = (cqn_qp *)o;
    }
    if (qp != NULL) {
        qp->suspicions++;
    }
}

/* The other queue of that queue pair can be another engine's: what was posted there can have
 * failed. */
static void tell_other(const cqn_engine *self, cqn_cq *cq)
{
    if (cq->engine != self && cqn_routed(cq) < 0) {
        PyErr_WriteUnraisable((PyObject *)cq);
    }
}

static void serve_rooms(cqn_engine *self)
{
    cqn_qp *qp;
    while ((qp = self->to_serve) != NULL) {
        self->to_serve = qp->serve_next;
        qp->to_serve = false;
        cqn_operations_serve(qp);
        if (cqn_is_open(&qp->base)) { /* else its closing has told */
            tell_other(self, qp->send_cq);
        }
        if (cqn_is_open(&qp->base)) {
            tell_other(self, qp->recv_cq);
        }
        Py_DECREF(qp);
    }
}

bool cqn_engine_has_news(const cqn_engine *self)
{
    return self->woken != NULL || self->to_serve != NULL;
}

/* Looks once, for a request that has just begun. */
int cqn_engine_look(cqn_request *request)
{
    cqn_engine *self = request->engine;
    cqn_object *trash = NULL;
    bool more;
    int got = cqn_cq_look_once(self->cq, CQN_BATCH, &more, &trash);
    request->looked = !more;
    cqn_trash_empty(trash);
    serve_rooms(self);
    return got < 0 ? -1 : 0;
}

/* The first in wait() goes on if there is something for it. It wakes the next one. */
static void wake_first(cqn_engine *self)
{
    cqn_request *first = self->waiters.first;
    if (first != NULL && !first->woken && self->cq->stash_len > 0) {
        see_to_later(cqn_try_ref_object((PyObject *)first) ? first : NULL);
    }
}

/* Whether it will be looked again soon. */
static bool look_later(cqn_engine *self)
{
    PyObject *result;
    if (!self->looks_later) {
        self->looks_later = true;
        CQN_UNLOCKED(result = PyObject_CallMethod((PyObject *)self, "_look_later", NULL));
        if (result == NULL) {
            self->looks_later = false;
            PyErr_WriteUnraisable((PyObject *)self);
        }
        Py_XDECREF(result);
        return result != NULL;
    }
    return true;
}

static bool only_solicited(const cqn_engine *self)
{
    /* What is flushed raises no solicited event on some devices, and concerns everybody. */
    return self->len == self->patient && self->cq->flushing == 0;
}

/* Nobody is about to sleep: or one in wait() is to be woken, which sees to the rest as it goes on.
 */
static bool has_no_sleeper(const cqn_engine *self)
{
    return self->len == 0 || (self->waiters.first != NULL && self->cq->stash_len > 0) ||
           !cqn_is_open(&self->cq->base);
}

/* One look, unless that was the last that was done. 1: it is safe to sleep; 0: look again; or -1.
 */
static int look_and_arm(cqn_engine *self, bool looked, cqn_object **trash)
{
    cqn_cq *cq = self->cq;
    bool more = false;
    if (has_no_sleeper(self)) {
        return 1;
    }
    if (!looked && cqn_cq_look_once(cq, CQN_BATCH, &more, trash) < 0) {
        return -1;
    }
    const bool solicited = only_solicited(self);
    if (has_no_sleeper(self) || (!more && cqn_cq_is_armed(cq, solicited))) {
        return 1;
    }
    return more ? 0 : cqn_cq_arm(cq, solicited);
}

static int prepare(cqn_engine *self, bool looked)
{
    cqn_object *trash = NULL;
    int safe = 0;
    for (int i = 0; safe == 0 && (i < BATCHES || !look_later(self)); i++) {
        safe = look_and_arm(self, looked && i == 0, &trash);
        cqn_trash_empty(trash);
        trash = NULL;
    }
    return safe < 0 ? -1 : 0;
}

/* Every wait raises the exception that is set, and so does every later one, unless it is
 * memory that is missing. */
static void break_down(cqn_engine *self)
{
    PyObject *error = cqn_take_exception();
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) { /* for the loop */
        cqn_put_exception(error);
        return;
    }
    PyObject *result;
    const char *tell = PyErr_GivenExceptionMatches(error, PyExc_MemoryError) ? "_tell" : "_fail";
    CQN_UNLOCKED(result = PyObject_CallMethod((PyObject *)self, tell, "O", error));
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(result);
    Py_DECREF(error);
}

/* Makes it safe to sleep for all that are under way, and those that have something are to be woken.
 * `looked`: since then nothing has been posted. */
void cqn_engine_prepare(cqn_engine *self, bool looked)
{
    if (prepare(self, looked) < 0) {
        break_down(self);
    }
    serve_rooms(self);
    wake_first(self);
}

/* ---- waking ---- */

static cqn_request *take_woken(cqn_engine *self)
{
    cqn_request *request = self->woken;
    if (request != NULL) {
        self->woken = request->woken_next;
        if (self->woken == NULL) {
            self->woken_last = NULL;
        }
        request->woken_next = NULL;
    }
    return request;
}

/* To the end, whatever a handler of signals raises: that is kept. */
static void wake(cqn_request *request, bool resume, PyObject **interrupt)
{
    if (!resume && request->wakeup != NULL && !request->due) {
        request->due = true;
        request->engine->due++;
    }
    for (int tries = 0; tries < 2 && cqn_request_wake(request, resume) < 0; tries++) {
        if (*interrupt == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            *interrupt = cqn_take_exception();
        }
        else {
            PyErr_WriteUnraisable((PyObject *)request);
        }
    }
}

/* A task that is resumed goes on in here: at most one of a CQ in a turn of the loop, and none
 * before those that were woken earlier. */
static bool may_resume(cqn_engine *self)
{
    if (self->turn == this_thread.turn || self->due > 0 || cqn_turn_is_over()) {
        return false;
    }
    self->turn = this_thread.turn;
    return true;
}

/* Wakes those that have something: all soon, but with `resume` the first one at once, which only
 * the loop's callback may do. */
int cqn_engine_flush(cqn_engine *self, bool resume)
{
    PyObject *interrupt = NULL;
    serve_rooms(self);
    if (self->woken == NULL) {
        return 0;
    }
    Py_INCREF(self);
    cqn_request *first = resume && may_resume(self) ? take_woken(self) : NULL, *request;
    while ((request = take_woken(self)) != NULL) {
        wake(request, false, &interrupt);
        Py_DECREF(request);
        serve_rooms(self);
    }
    if (first != NULL) {
        wake(first, interrupt == NULL, &interrupt);
        Py_DECREF(first);
    }
    Py_DECREF(self);
    return interrupt == NULL ? 0 : cqn_raise_interrupt(interrupt);
}

/* Leaves waking to the loop's thread, whichever that is. */
static int hand_over(cqn_engine *self)
{
    if (!cqn_engine_has_news(self)) {
        return 0;
    }
    PyObject *result;
    CQN_UNLOCKED(result = PyObject_CallMethod((PyObject *)self, "_hand_over", NULL));
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Completions were routed outside of the loop's callbacks. */
int cqn_engine_wake(cqn_cq *cq)
{
    cqn_engine *self = cq->engine;
    if (self == NULL || !cqn_engine_has_news(self) || !cqn_try_ref_object((PyObject *)self)) {
        return 0;
    }
    int rc = hand_over(self);
    Py_DECREF(self);
    return rc;
}

/* What a handler of signals has raised where it can't be raised: the loop raises it soon. */
static void put_off(cqn_engine *self)
{
    PyObject *error = cqn_take_exception(), *result = NULL;
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        CQN_UNLOCKED(result = PyObject_CallMethod((PyObject *)self, "_put_off", "O", error));
        Py_DECREF(error);
    }
    else {
        cqn_put_exception(error);
    }
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(result);
}

/* For all that are under way, after anything that may have changed something; an exception is
 * not set. */
void cqn_engine_serve(cqn_engine *self)
{
    if (!self->closed && self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    if (hand_over(self) < 0) {
        put_off(self);
    }
}

/* An event of that CQ was read. Returns -1 for what must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq)
{
    cqn_engine *self = cq->engine;
    if (self == NULL || !cqn_try_ref_object((PyObject *)self)) {
        return 0;
    }
    cqn_cq_dispatched(cq);
    cqn_engine_prepare(self, false);
    int rc = PyErr_Occurred() ? -1 : cqn_engine_flush(self, true);
    Py_DECREF(self);
    return rc;
}

/* ---- what the requests do ---- */

static PyObject *call(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result;
    CQN_UNLOCKED(
        result = PyObject_CallMethod((PyObject *)self, method, argument ? "O" : NULL, argument));
    return result;
}

static int call_for_effect(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result = call(self, method, argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* An exception collects the frames through which it goes: so each task gets its own. */
static void raise_copy(cqn_engine *self, PyObject *error)
{
    PyObject *copy = call(self, "_fresh", error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

/* A subclass can forget to. */
int cqn_engine_check_made(const cqn_engine *self)
{
    if (self->cq == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "AsyncCQ.__init__() was not called");
        return -1;
    }
    return 0;
}

static int check(cqn_engine *self)
{
    if (self->closed) {
        PyErr_SetString(self->state->ClosedError, "this AsyncCQ is closed");
        return -1;
    }
    if (self->error != NULL) {
        raise_copy(self, self->error);
        return -1;
    }
    return 0;
}

/* The channel's events are read by the running loop from now on. */
int cqn_engine_attach(cqn_engine *self)
{
    PyObject *running = PyObject_CallNoArgs(self->state->get_running_loop);
    if (running == NULL) {
        return -1;
    }
    const bool known = running != Py_None && running == self->channel->raw_loop;
    Py_DECREF(running);
    return known ? 0 : call_for_effect(self, "_attach", NULL);
}

/* At the start of whatever may wait, for a completion of that QP or of any. */
int cqn_engine_enter(cqn_engine *self, cqn_qp *qp)
{
    if (check(self) < 0 || cqn_open(&self->cq->base) == NULL || cqn_engine_attach(self) < 0 ||
        check(self) < 0) {
        return -1;
    }
    return self->reports == NULL || self->reports == Py_None
               ? 0
               : call_for_effect(self, "_raise_report", qp ? (PyObject *)qp : Py_None);
}

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

static int join_waiters(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (self->waiters.first == NULL && self->cq->stash_len == 0) {
        request->looked = true;
        const size_t max = request->max_entries;
        if (cqn_cq_look_for(self->cq, max > CQN_BATCH ? max : CQN_BATCH, request->spin) < 0 ||
            check(self) < 0) { /* a signal's handler can have closed it while it spun */
            return -1;
        }
        serve_rooms(self);
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

/* Nobody was told of it. */
void cqn_engine_report(cqn_engine *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, self->state->AsyncEventError) &&
        call_for_effect(self, "_keep_report", error) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* anyio that is older than its TaskHandle takes only what Python itself made a coroutine of. */
static int wants_coroutines(cqn_engine *self)
{
    cqn_state *st = self->state;
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GET_SIZE(modules) == st->modules_seen) {
        return st->anyio_is_old;
    }
    st->modules_seen = PyDict_GET_SIZE(modules);
    PyObject *anyio = PyDict_GetItemWithError(modules, st->anyio_name);
    if (anyio == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (anyio != st->anyio) {
        PyObject *wants = call(self, "_wants_coroutines", anyio);
        if (wants == NULL) {
            return -1;
        }
        st->anyio_is_old = wants == Py_True;
        Py_DECREF(wants);
        Py_XSETREF(st->anyio, Py_NewRef(anyio));
    }
    return st->anyio_is_old;
}

/* What a method returns for a request. Steals it. */
PyObject *cqn_engine_shaped(cqn_engine *self, cqn_request *request)
{
    int wanted = request == NULL ? -1 : wants_coroutines(self);
    if (wanted == 0) {
        return (PyObject *)request;
    }
    PyObject *coroutine = NULL, *name = NULL;
    if (wanted > 0) {
        coroutine = call(self, "_coroutine", (PyObject *)request);
        name =
            coroutine == NULL ? NULL : PyObject_GetAttrString((PyObject *)request, "__qualname__");
    }
    if (name == NULL || PyObject_SetAttrString(coroutine, "__qualname__", name) < 0) {
        Py_CLEAR(coroutine);
    }
    if (request != NULL) {
        request->is_wrapped = true; /* the coroutine warns if it is never awaited */
    }
    Py_XDECREF(name);
    Py_XDECREF(request);
    return coroutine;
}

/* ---- polling ---- */

PyObject *cqn_engine_poll(cqn_engine *self, uint64_t max, double spin)
{
    cqn_cq *cq = self->cq;
    PyObject *list = NULL;
    Py_INCREF(self);
    if ((self->len > 0 && call_for_effect(self, "_leave_closed_loop", NULL) < 0) ||
        (self->error != NULL && cq->stash_len == 0 && check(self) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    const size_t want = max > CQN_BATCH ? (size_t)max : CQN_BATCH;
    const bool ready = self->waiters.first == NULL && cq->stash_len > 0;
    if (ready || cqn_cq_look_for(cq, want, self->waiters.first != NULL ? 0 : spin) == 0) {
        wake_first(self);
        list =
            self->waiters.first != NULL && !self->closed ? PyList_New(0) : cqn_cq_hand_out(cq, max);
    }
    PyObject *pending = list == NULL ? cqn_take_exception() : NULL;
    if (hand_over(self) < 0) {
        put_off(self);
    }
    if (pending != NULL) {
        cqn_put_exception(pending);
    }
    Py_DECREF(self);
    return list;
}

static PyObject *poll_closed(cqn_engine *self, uint64_t max)
{
    if (cqn_is_open(&self->cq->base) && self->cq->stash_len > 0) {
        return cqn_cq_hand_out(self->cq, max);
    }
    check(self);
    return NULL;
}

static PyObject *engine_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_entries", "spin", NULL};
    cqn_engine *self = (cqn_engine *)op;
    PyObject *in[2] = {NULL, NULL};
    uint64_t max = CQN_BATCH;
    double spin = 0;
    if (cqn_engine_check_made(self) < 0 ||
        cqn_args("poll", names, 1, 0, args, nargs, kwnames, in) < 0 ||
        (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, &max) < 0) ||
        (in[1] != NULL && cqn_spin(in[1], &spin) < 0)) {
        return NULL;
    }
    if (self->closed) {
        return poll_closed(self, max);
    }
    if (self->error == NULL && cqn_open(&self->cq->base) == NULL) {
        return NULL;
    }
    return cqn_engine_poll(self, max, spin);
}

/* ---- the other methods that are awaited ---- */

static PyObject *engine_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_entries", "spin", "solicited_only", NULL};
    PyObject *in[3] = {NULL, NULL, NULL};
    if (cqn_args("wait", names, 1, 0, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_request *request = cqn_request_new((cqn_engine *)op, CQN_WAITS, "wait");
    for (int i = 0; request != NULL && i < 3; i++) {
        request->in[i] = Py_XNewRef(in[i]);
        request->given = i + 1;
    }
    return cqn_engine_shaped((cqn_engine *)op, request);
}

int cqn_wait_parse(cqn_request *self)
{
    PyObject *const *in = self->in;
    uint64_t max = CQN_BATCH;
    int solicited_only = in[2] == NULL ? 0 : PyObject_IsTrue(in[2]);
    if (solicited_only < 0 ||
        (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, &max) < 0) ||
        (in[1] != NULL && cqn_spin(in[1], &self->spin) < 0)) {
        return -1;
    }
    self->max_entries = (uint32_t)max;
    self->solicited_only = solicited_only;
    return 0;
}

static PyObject *engine_completion(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"wr_id", "qp", NULL};
    PyObject *in[2] = {NULL, NULL};
    if (cqn_args("completion", names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_request *request = cqn_request_new((cqn_engine *)op, CQN_CLAIMS, "completion");
    if (request != NULL) {
        request->in[0] = Py_NewRef(in[0]);
        request->given = 1;
        request->qp = in[1] == NULL || in[1] == Py_None ? NULL : (cqn_qp *)Py_NewRef(in[1]);
    }
    return cqn_engine_shaped((cqn_engine *)op, request);
}

int cqn_completion_parse(cqn_request *self)
{
    if (PyBool_Check(self->in[0])) {
        PyErr_SetString(PyExc_TypeError, "wr_id must be an integer, not bool");
        return -1;
    }
    return cqn_uint(self->in[0], "wr_id", UINT64_MAX, &self->wr_id) < 0 ||
                   (self->qp != NULL && cqn_request_check_qp(self) < 0)
               ? -1
               : 0;
}

/* ---- what happens meanwhile ---- */

/* Every task that waits, as far as it may be for this QP: whether there was one. Each is told
 * one error: of two in a row the second is for the next wait. */
static bool tell(cqn_engine *self, PyObject *error, PyObject *qp)
{
    bool told = false;
    for (cqn_request *r = self->first, *next; r != NULL; r = next) {
        next = r->next;
        const bool concerned = qp == NULL || r->qp == NULL || (PyObject *)r->qp == qp;
        if (concerned) {
            const bool is_told =
                r->kind != CQN_ENDS_SCOPE && !r->abandoned && r->state != CQN_FAILED;
            told |= is_told;
            r->shares_error |= is_told;
            cqn_request_fail(r, error);
        }
        if (next != NULL && !next->held) { /* the end of a scope, all of which has failed now */
            next = self->first;
        }
    }
    return told;
}

/* Nothing here is awaited any more: what the device still has is for poll(). */
static void drop_all(cqn_engine *self)
{
    cqn_operations_forget(self);
    cqn_request *first;
    while ((first = self->first) != NULL) {
        cqn_scope_leave(first); /* which takes out no other than the scope's end */
        see_to_later(take_out(first));
    }
}

static PyObject *engine_tell(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyObject *error, *qp = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:_tell", &error, &qp)) {
        return NULL;
    }
    bool told = tell((cqn_engine *)op, error, qp == Py_None ? NULL : qp);
    return hand_over((cqn_engine *)op) < 0 ? NULL : PyBool_FromLong(told);
}

static PyObject *engine_fail(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    if (self->error == NULL) {
        self->error = Py_NewRef(error);
    }
    tell(self, error, NULL);
    drop_all(self);
    return hand_over(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static void leave_cq(cqn_engine *self)
{
    if (self->cq != NULL && self->cq->engine == self) {
        self->cq->engine = NULL;
        if (cqn_is_open(&self->cq->base)) {
            cqn_cq_ack_dispatched(self->cq);
        }
    }
}

/* False: it was closed before. */
static PyObject *engine_shut(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    if (self->closed) {
        Py_RETURN_FALSE;
    }
    self->closed = true;
    leave_cq(self);
    tell(self, error, NULL);
    drop_all(self);
    Py_RETURN_TRUE;
}

static PyObject *engine_wake(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_engine_flush((cqn_engine *)op, false) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *engine_look(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    self->looks_later = false;
    if (!self->closed) {
        cqn_engine_prepare(self, false);
    }
    return cqn_engine_flush(self, false) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Takes what the device has; everything that is left over after it has not completed. */
static PyObject *engine_drain(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    cqn_object *trash = NULL;
    if (cqn_engine_check_made(self) < 0) {
        return NULL;
    }
    int rc = self->closed || !cqn_is_open(&self->cq->base) ? 0 : cqn_cq_settle(self->cq, &trash);
    cqn_trash_empty(trash);
    if (rc < 0) {
        break_down(self);
    }
    cqn_engine_serve(self);
    Py_RETURN_NONE;
}

/* Their event loop was closed: the tasks that wait will never run again. */
static PyObject *engine_forget_tasks(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    self->looks_later = false;
    cqn_request *r = self->first;
    while (r != NULL) {
        if (r->abandoned || !cqn_try_ref_object((PyObject *)r)) {
            r = r->next;
            continue;
        }
        cqn_request_abandon(r);
        Py_DECREF(r);
        r = self->first;
    }
    Py_RETURN_NONE;
}

/* Requests of the queue pair may be gone: it was moved to an error state, or closed, or reset. */
static void fail_claims(cqn_engine *self, cqn_qp *qp)
{
    for (cqn_request *r = self->first, *next; r != NULL; r = next) {
        next = r->next;
        if (r->kind == CQN_CLAIMS && r->qp == qp) {
            cqn_request_lost(r, qp);
        }
    }
}

static void qp_changed(cqn_cq *cq, cqn_qp *qp, PyObject **interrupt)
{
    cqn_engine *self = cq->engine;
    if (self == NULL || !cqn_try_ref_object((PyObject *)self)) {
        return;
    }
    const bool gone = qp->base.handle == NULL || qp->state == IBV_QPS_RESET;
    if (gone) {
        fail_claims(self, qp);
    }
    else {
        cqn_engine_room(self, qp); /* those who wait for room get to know its state */
    }
    if (self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    if (PyErr_Occurred() || hand_over(self) < 0) {
        cqn_callback_failed((PyObject *)self, interrupt);
    }
    Py_DECREF(self);
}

void cqn_engines_tell(cqn_qp *qp, PyObject **interrupt)
{
    if (cqn_forked(&qp->base) || PyErr_Occurred()) {
        return;
    }
    qp_changed(qp->send_cq, qp, interrupt);
    if (qp->recv_cq != qp->send_cq) {
        qp_changed(qp->recv_cq, qp, interrupt);
    }
}

/* The CQ may be armed no more. Whether there is an engine, which sees to it. */
bool cqn_engine_resized(cqn_cq *cq)
{
    cqn_engine *self = cq->engine;
    if (self == NULL || !cqn_try_ref_object((PyObject *)self)) {
        return false;
    }
    cqn_engine_serve(self);
    Py_DECREF(self);
    return true;
}

/* ---- the loop ---- */

/* A future of that loop that has a result. */
static PyObject *make_done(PyObject *raw_loop)
{
    PyObject *future = PyObject_CallMethod(raw_loop, "create_future", NULL);
    PyObject *result =
        future == NULL ? NULL : PyObject_CallMethod(future, "set_result", "O", Py_None);
    if (result == NULL) {
        Py_CLEAR(future);
    }
    Py_XDECREF(result);
    return future;
}

void cqn_channel_forget_loop(cqn_channel *self)
{
    Py_CLEAR(self->raw_loop);
    Py_CLEAR(self->done);
    Py_CLEAR(self->on_fail);
    Py_CLEAR(self->loop);
}

PyObject *cqn_channel_set_loop(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_channel *self = (cqn_channel *)op;
    PyObject *loop, *on_fail, *raw, *done = NULL;
    if (!PyArg_ParseTuple(args, "OO:_set_loop", &loop, &on_fail)) {
        return NULL;
    }
    cqn_channel_forget_loop(self);
    if (loop == Py_None) {
        Py_RETURN_NONE;
    }
    raw = PyObject_GetAttrString(loop, "asyncio");
    if (raw == NULL || (raw != Py_None && (done = make_done(raw)) == NULL)) {
        Py_XDECREF(raw);
        return NULL;
    }
    if (raw == Py_None) {
        Py_CLEAR(raw);
    }
    Py_XSETREF(self->raw_loop, raw);
    Py_XSETREF(self->done, done);
    Py_XSETREF(self->on_fail, Py_NewRef(on_fail));
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static int get_asyncio(cqn_state *st)
{
    if (st->get_running_loop == NULL) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        st->get_running_loop =
            asyncio == NULL ? NULL : PyObject_GetAttrString(asyncio, "_get_running_loop");
        Py_XDECREF(asyncio);
    }
    if (st->anyio_name == NULL) {
        st->anyio_name = PyUnicode_InternFromString("anyio");
    }
    return st->get_running_loop == NULL || st->anyio_name == NULL ? -1 : 0;
}

static int check_cq(cqn_state *st, PyObject *value)
{
    if (!PyObject_TypeCheck(value, st->CQ)) {
        PyErr_Format(PyExc_TypeError, "cq must be a CQ, not %s", Py_TYPE(value)->tp_name);
        return -1;
    }
    const cqn_cq *cq = (cqn_cq *)value;
    if (cqn_open(&cq->base) == NULL) {
        return -1;
    }
    if (cq->channel == NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "this CQ has no completion channel: nothing can wake a waiter");
        return -1;
    }
    if (cq->engine != NULL) {
        PyErr_SetString(PyExc_ValueError, "this CQ has an open AsyncCQ already");
        return -1;
    }
    return 0;
}

static int engine_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"cq", NULL};
    CQN_COPY copy = NULL;
    cqn_engine *self = (cqn_engine *)op;
    cqn_state *st = cqn_state_of(Py_TYPE(op));
    PyObject *cq;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O:AsyncCQ", names, &cq) ||
        get_asyncio(st) < 0 || check_cq(st, cq) < 0) {
        return -1;
    }
    if (self->cq != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this AsyncCQ was made before");
        return -1;
    }
    if (this_thread.turn == 0) {
        this_thread.turn = 1;
    }
    cqn_enable_try_ref(op);
    self->state = st;
    self->cq = (cqn_cq *)Py_NewRef(cq);
    self->channel = (cqn_channel *)Py_NewRef((PyObject *)self->cq->channel);
    cqn_cq_ack_dispatched(self->cq);
    self->cq->engine = self;
    return 0;
}

static int engine_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_engine *self = (cqn_engine *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->cq);
    Py_VISIT(self->channel);
    Py_VISIT(self->error);
    Py_VISIT(self->reports);
    for (cqn_request *r = self->first; r != NULL; r = r->next) {
        if (r->owned) {
            Py_VISIT(r);
        }
        else {
            Py_VISIT(r->anchor);
        }
    }
    for (cqn_request *r = self->woken; r != NULL; r = r->woken_next) {
        Py_VISIT(r);
    }
    for (size_t i = 0; i < self->forsaken.room; i++) {
        for (cqn_request *r = self->forsaken.lines[i].first; r != NULL; r = r->behind) {
            if (r->stashed) {
                Py_VISIT(r);
            }
        }
    }
    for (cqn_qp *qp = self->to_serve; qp != NULL; qp = qp->serve_next) {
        Py_VISIT(qp);
    }
    return 0;
}

static void drop_to_serve(cqn_engine *self)
{
    cqn_qp *qp;
    while ((qp = self->to_serve) != NULL) {
        self->to_serve = qp->serve_next;
        qp->to_serve = false;
        Py_DECREF(qp);
    }
}

static int engine_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    cqn_request *request;
    self->closed = true;
    leave_cq(self);
    drop_all(self);
    while ((request = take_woken(self)) != NULL) {
        Py_DECREF(request);
    }
    drop_to_serve(self);
    Py_CLEAR(self->error);
    Py_CLEAR(self->reports);
    return 0;
}

static void engine_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: while we wait for it the collector can run */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_engine *self = (cqn_engine *)op;
    self->closed = true;
    leave_cq(self); /* before anybody hears that it is gone */
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    engine_clear(op);
    cqn_table_free(&self->claims);
    cqn_table_free(&self->forsaken);
    Py_CLEAR(self->channel);
    Py_CLEAR(self->cq);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *engine_get_woken(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_engine *self = (cqn_engine *)op;
    return Py_BuildValue("(KK)", (unsigned long long)self->wakeups,
                         (unsigned long long)self->max_per_wake);
}

static PyMethodDef engine_methods[] = {
    {"poll", (PyCFunction)(void (*)(void))engine_poll, METH_FASTCALL | METH_KEYWORDS,
     "poll($self, /, max_entries=16, *, spin=0.0)\n--\n\n"
     "The completions that are there, without waiting; those that tasks wait for go to them, and "
     "while one is in wait() all others do.\n\n"
     "After close() it returns what had been taken from the CQ and not been handed out by then, "
     "and raises ClosedError when nothing is left. It may be called from other threads, as "
     "CQ.poll(), which comes here. Wraps ibv_poll_cq(3)."},
    {"wait", (PyCFunction)(void (*)(void))engine_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait($self, /, max_entries=16, *, spin=0.0, solicited_only=False)\n--\n\n"
     "Await the next completions, at least one and at most `max_entries`.\n\n"
     "Those that a task awaits by completion(), send() and so on are not among them. Completions "
     "that are there already are returned at once. Otherwise it polls for up to `spin` seconds "
     "without the GIL (the loop stands still meanwhile), and then sleeps until the CQ raises an "
     "event. With `solicited_only` only a solicited completion wakes it, together with all that "
     "came before; some devices (rxe among them) count a failed one as unsolicited, so such a "
     "waiter can sleep through the death of its QP, unless the program itself moved it to ERR. It "
     "is woken by others, too, while some other task waits for any completion.\n\n"
     "Several tasks may wait: they are served in the order in which they came. It can be cancelled "
     "and put under a timeout: a completion that no task took stays queued.\n\n"
     "Raises ClosedError when this, the CQ or the channel is closed, also while waiting and by "
     "another thread; AsyncEventError when the device reports a failure after which completions "
     "may be missing, once, and when it is a fatal one from then on; RuntimeError while another "
     "event loop that is not closed uses the channel, VerbsError for what the device refuses.\n\n"
     "Wraps ibv_req_notify_cq(3), ibv_get_cq_event(3) and ibv_poll_cq(3)."},
    {"completion", (PyCFunction)(void (*)(void))engine_completion, METH_FASTCALL | METH_KEYWORDS,
     "completion($self, /, wr_id, *, qp=None)\n--\n\n"
     "Await the completion of this work request, whatever its status; leave all others.\n\n"
     "For work requests that were posted with QP.post_send() and post_recv(). With `qp` only those "
     "of that QP count. It may be there already, and goes before wait(). Of several tasks that "
     "await the same the first one gets it.\n\n"
     "Errors and cancellation are as for wait(), and with `qp` it is ClosedError, too, when that "
     "QP is closed or reset. Wraps the same verbs."},
    {"send", (PyCFunction)(void (*)(void))cqn_engine_sends, METH_FASTCALL | METH_KEYWORDS,
     "send($self, /, qp, sg, *, imm_data=None, send_flags=2, wr_id=None, ah=None, "
     "remote_qpn=None, remote_qkey=None)\n--\n\n"
     "Post a SEND, or a SEND_WITH_IMM if `imm_data` is given, and await its completion.\n\n"
     "`qp` must send on this CQ. The arguments are those of QP.post_send(); SIGNALED is always "
     "set. Where the send queue is full it waits for room, first come, first served.\n\n"
     "Without `wr_id` one is chosen (`2**63` and above) that no other request has. If the awaiting "
     "task is cancelled, the device goes on: the memory is kept until the completion, which is "
     "dropped then, or, if you gave a `wr_id`, stays in the queue.\n\n"
     "Raises CompletionError (with status, qp_num, wr_id) if it failed, ValueError and VerbsError "
     "for what cannot be posted, AsyncEventError and ClosedError as wait(), ClosedError also when "
     "the QP is closed or reset. Wraps ibv_post_send(3) and ibv_poll_cq(3)."},
    {"recv", (PyCFunction)(void (*)(void))cqn_engine_receives, METH_FASTCALL | METH_KEYWORDS,
     "recv($self, /, qp, sg, *, wr_id=None)\n--\n\n"
     "Post a receive, and await the message.\n\n"
     "`qp` must receive on this CQ, and not from an SRQ. As send(), but a receive whose task was "
     "cancelled stays posted, and the next recv() of the same memory on that QP goes on with it "
     "instead of posting another: so a recv() under a timeout can be called again and again, and "
     "no message is lost. Until then the completion of a message that comes for it goes to "
     "wait(). If you gave a `wr_id` it is for recv() of the same `wr_id`, and for "
     "completion(wr_id).\n\n"
     "Wraps ibv_post_recv(3) and ibv_poll_cq(3)."},
    {"write", (PyCFunction)(void (*)(void))cqn_engine_writes, METH_FASTCALL | METH_KEYWORDS,
     "write($self, /, qp, sg, remote_addr, rkey, *, imm_data=None, send_flags=2, "
     "wr_id=None)\n--\n\n"
     "Post an RDMA_WRITE (with `imm_data` RDMA_WRITE_WITH_IMM), and await its completion.\n\n"
     "See send()."},
    {"read", (PyCFunction)(void (*)(void))cqn_engine_reads, METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, qp, sg, remote_addr, rkey, *, send_flags=2, wr_id=None)\n--\n\n"
     "Post an RDMA_READ into `sg`, and await its completion. See send()."},
    {"atomic_cmp_and_swp", (PyCFunction)(void (*)(void))cqn_engine_swaps,
     METH_FASTCALL | METH_KEYWORDS,
     "atomic_cmp_and_swp($self, /, qp, sg, remote_addr, rkey, compare_add, swap, *, send_flags=2, "
     "wr_id=None)\n--\n\n"
     "Post an ATOMIC_CMP_AND_SWP, and await its completion.\n\n"
     "If the 8 bytes at `remote_addr` equal `compare_add` they become `swap`; what they were "
     "before is in `sg`, 8 bytes. See send()."},
    {"atomic_fetch_and_add", (PyCFunction)(void (*)(void))cqn_engine_adds,
     METH_FASTCALL | METH_KEYWORDS,
     "atomic_fetch_and_add($self, /, qp, sg, remote_addr, rkey, compare_add, *, send_flags=2, "
     "wr_id=None)\n--\n\n"
     "Post an ATOMIC_FETCH_AND_ADD, and await its completion.\n\n"
     "`compare_add` is added to the 8 bytes at `remote_addr`; what they were before is in `sg`, 8 "
     "bytes. See send()."},
    {"_tell", engine_tell, METH_VARARGS,
     "_tell($self, error, qp=None, /)\n--\n\n"
     "Let every task that waits raise `error`, as far as it may be for `qp`; was there one?"},
    {"_fail", engine_fail, METH_O,
     "_fail($self, error, /)\n--\n\n"
     "For good: every wait, and every later one, raises `error`."},
    {"_shut", engine_shut, METH_O,
     "_shut($self, error, /)\n--\n\n"
     "Leave the CQ; every task that waits is to raise `error`. False if it was closed before."},
    {"_wake", engine_wake, METH_NOARGS,
     "_wake($self, /)\n--\n\nIn the loop's thread: wake those that have something."},
    {"_look", engine_look, METH_NOARGS,
     "_look($self, /)\n--\n\nIn the loop's thread: look for completions, and wake."},
    {"_drain", engine_drain, METH_NOARGS,
     "_drain($self, /)\n--\n\nTake all that the device has. Wraps ibv_poll_cq(3)."},
    {"_forget_tasks", engine_forget_tasks, METH_NOARGS,
     "_forget_tasks($self, /)\n--\n\nTheir loop was closed: none of them will run again."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef engine_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(cqn_engine, weakrefs), READONLY, NULL},
    {"closed", T_BOOL, offsetof(cqn_engine, closed), READONLY, "True once close() was called."},
    {"_awaited", T_PYSSIZET, offsetof(cqn_engine, len), READONLY,
     "Tasks that wait, and operations whose completion is due."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef engine_getset[] = {
    {"cq", cqn_get_object, NULL, "The CQ that it was made for.", (void *)offsetof(cqn_engine, cq)},
    {"_channel", cqn_get_object, NULL, "Of its CQ.", (void *)offsetof(cqn_engine, channel)},
    {"_error", cqn_get_object, NULL, "What every wait raises, or None.",
     (void *)offsetof(cqn_engine, error)},
    {"_reports", cqn_get_object, cqn_set_object, "The failures of which nobody was told, or None.",
     (void *)offsetof(cqn_engine, reports)},
    {"_woken", engine_get_woken, NULL,
     "How many tasks slept and got completions, and the most that one of them got.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, "Engine(cq)\n--\n\nWhat an AsyncCQ is built on."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, engine_init},
    {Py_tp_traverse, engine_traverse},
    {Py_tp_clear, engine_clear},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_members, engine_members},
    {Py_tp_getset, engine_getset},
    {0, NULL},
};

PyType_Spec cqn_engine_spec = {
    .name = "cqnotify.Engine",
    .basicsize = sizeof(cqn_engine),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};
