/* SPDX-License-Identifier: MIT */
/*
 * What a task does that awaits a request: the steps from state to state, see engine.h.
 *
 * Before its task sleeps the CQ is armed and polled after that, and what came is routed, by
 * cqn_engine_prepare(); from there to the moment in which the task yields no Python code
 * runs that could take an event away.
 */

#include "await/engine.h"

/* The request holds its engine, and its engine does not hold it: see docs/internals.md. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name)
{
    cqn_state *st = engine->state;
    if (cqn_engine_check_made(engine) < 0) {
        return NULL;
    }
    cqn_request *self = (cqn_request *)cqn_spares_alloc(&st->spare_requests, st->Request);
    if (self != NULL) {
        cqn_enable_try_ref((PyObject *)self);
        self->engine = (cqn_engine *)Py_NewRef((PyObject *)engine);
        self->kind = (uint8_t)kind;
        self->name = name;
    }
    return self;
}

/* ---- its end ---- */

/* What a request owns beside its references: the copy of a send that waits for room, and the
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

/* Also for a request that is done: it lets go of all that it held, and can be kept for the next one
 * (base/spares.c). */
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

/* Its task has what it was for, or never will: nothing is left to do. */
void cqn_request_finish(cqn_request *self)
{
    self->state = CQN_DONE;
    cqn_scope_leave(self);
    if (!self->stashed) { /* else its memory is of use */
        cqn_request_clear((PyObject *)self);
        self->cleared = true;
    }
}

/* Its task will not go on: it is as if that had been cancelled, but that no other is woken. */
void cqn_request_abandon(cqn_request *self)
{
    cqn_engine_not_due(self);
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    if (self->kind <= CQN_RECEIVES) {
        cqn_operation_give_up(self);
    }
    else if (self->kind == CQN_CLAIMS && self->state == CQN_COMPLETE) {
        cqn_engine_return(self->engine, &self->wc, &self->extra);
    }
    else if (self->held) {
        cqn_engine_let_go(self);
    }
    if (!self->held) {
        cqn_request_finish(self);
    }
}

/* Its task goes on without it: it was cancelled, or has failed. What is meant for others goes to
 * them. An exception that is set stays so. */
void cqn_request_give_up(cqn_request *self)
{
    cqn_engine *engine = (cqn_engine *)Py_NewRef((PyObject *)self->engine);
    PyObject *pending = cqn_take_exception();
    if (self->slept) { /* without an event, which may have been lost */
        engine->cq->armed = CQN_UNARMED;
    }
    if (self->state == CQN_FAILED && self->error != NULL) {
        cqn_engine_report(engine, self->error);
    }
    cqn_request_abandon(self);
    cqn_engine_serve(engine);
    Py_DECREF(engine);
    cqn_put_exception(pending);
}

/* ---- what its task gets ---- */

/* Why a FAILED request will never complete. An exception that others share is raised as a copy,
 * since it collects the frames that it goes through. */
static void raise_own_failure(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *error = self->error;
    self->error = NULL;
    if (error == NULL) {
        const uint32_t qp_num = self->qp == NULL ? 0 : self->qp->qp_num;
        error = cqn_lost_error(engine->state, self->lost, qp_num);
    }
    else if (self->shares_error) {
        Py_SETREF(error, cqn_engine_call(engine, "_fresh", error));
    }
    if (error != NULL) {
        cqn_put_exception(error);
    }
}

static void count_woken(cqn_engine *engine, size_t completions)
{
    engine->wakeups++;
    if (engine->max_per_wake < completions) {
        engine->max_per_wake = completions;
    }
}

/* Where a whole batch came there may be more. */
static int look_for_more(cqn_cq *cq, size_t want)
{
    const size_t n = cqn_stash_len(cq);
    return n < CQN_BATCH || n >= want ? 0 : cqn_cq_look_for(cq, want, 0);
}

static PyObject *take_completions(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *list = look_for_more(engine->cq, self->max_entries) < 0
                         ? NULL
                         : cqn_cq_hand_out(engine->cq, self->max_entries);
    const size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    if (self->held) {
        cqn_engine_let_go(self);
    }
    if (self->slept) {
        count_woken(engine, n);
    }
    else {
        cqn_turn_used(n);
    }
    cqn_engine_serve(engine); /* something may be left, for the next one */
    return list;
}

/* The request has a copy of the completion. One that failed is an exception, except for
 * completion(), which returns it. */
static PyObject *make_completion(const cqn_request *self)
{
    const cqn_engine *engine = self->engine;
    const cqn_cq *cq = engine->cq;
    PyObject *wc =
        cqn_wc_new(engine->state, &self->wc, cq->extra != NULL ? &self->extra : NULL, cq->wc_flags);
    if (wc != NULL && self->kind != CQN_CLAIMS && self->wc.status != IBV_WC_SUCCESS) {
        cqn_completion_error(engine->state, wc, &self->wc, self->operation);
        Py_CLEAR(wc);
    }
    return wc;
}

/* Its completion, or the exception that is made of it. If that can't be made it stays COMPLETE, and
 * its completion is for others. */
static PyObject *deliver_completion(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *wc = make_completion(self);
    if (wc == NULL && !PyErr_ExceptionMatches(engine->state->CompletionError)) {
        return NULL;
    }
    if (self->slept) {
        count_woken(engine, 1);
    }
    else {
        cqn_turn_used(1);
    }
    cqn_request_finish(self);
    return wc;
}

/* Whether its task can go on. Of those in wait() the first one can when there is something. */
static bool is_request_ready(const cqn_request *self)
{
    return self->state == CQN_COMPLETE || self->state == CQN_FAILED ||
           (self->kind == CQN_WAITS && self->state == CQN_SLEEPING &&
            self->engine->waiters.first == self && self->engine->cq->stash_len > 0);
}

/* Ends the request: with its result, or with the exception that it failed with. */
static PySendResult deliver_result(cqn_request *self, PyObject **result)
{
    if (self->state == CQN_COMPLETE && self->kind != CQN_ENDS_SCOPE) {
        *result = deliver_completion(self);
        return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    *result = NULL;
    if (self->state == CQN_FAILED) {
        raise_own_failure(self);
    }
    else {
        *result = self->kind == CQN_WAITS ? take_completions(self) : Py_NewRef(Py_None);
    }
    if (self->held) { /* it has failed, and the device goes on with it */
        cqn_engine_own(self);
    }
    else {
        cqn_request_finish(self);
    }
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

/* ---- what its task does ---- */

/* The end of a scope first gives the loop a turn, in which tasks that were started in it take their
 * first step: trio shuffles those that are to run, so there it takes two. */
static int begin_end_of_scope(cqn_request *self)
{
    if (cqn_loop_attach(self->engine) == 0) {
        self->turns = self->engine->channel->raw_loop != NULL ? 1 : 2;
    }
    else if (self->scope->pending > 0) {
        return -1;
    }
    else {
        PyErr_Clear(); /* the channel is closed, say, and nothing to wait for */
    }
    self->state = CQN_SLEEPING;
    return 0;
}

/* What the first step of the task does; until then nothing was converted, checked or posted. */
static int begin_request(cqn_request *self)
{
    if (self->kind <= CQN_RECEIVES) {
        return cqn_operation_begin(self);
    }
    if (self->kind == CQN_ENDS_SCOPE) {
        return begin_end_of_scope(self);
    }
    if ((self->kind == CQN_WAITS ? cqn_wait_parse(self) : cqn_completion_parse(self)) < 0 ||
        cqn_engine_enter(self->engine, self->qp) < 0) {
        return -1;
    }
    return cqn_engine_join(self);
}

/* A task of asyncio sleeps on a Wakeup of the core, a task of another library on what its loop
 * makes. */
static int make_wakeup(cqn_request *self)
{
    const cqn_channel *channel = self->engine->channel;
    PyObject *wakeup, *loop;
    if (channel->raw_loop != NULL) {
        wakeup = cqn_wakeup_new(self->engine->state, channel->raw_loop, channel->done);
    }
    else if (channel->loop != NULL) {
        loop = Py_NewRef(channel->loop); /* another thread can take it from the channel */
        CQN_UNLOCKED(wakeup = PyObject_CallMethod(loop, "wakeup", NULL));
        Py_DECREF(loop);
    }
    else {
        cqn_refuse_closed(&channel->base);
        return -1;
    }
    Py_XSETREF(self->wakeup, wakeup);
    return wakeup == NULL ? -1 : 0;
}

/* What a task of another library than asyncio sleeps on. */
static PySendResult go_on_sleeping(cqn_request *self, PyObject *value, PyObject **result)
{
    PyObject *iterator = Py_NewRef(self->iterator);
    PySendResult r;
    CQN_UNLOCKED(r = PyIter_Send(iterator, value, result));
    Py_DECREF(iterator);
    if (r != PYGEN_NEXT) {
        Py_CLEAR(self->iterator);
        if (r == PYGEN_RETURN) {
            Py_CLEAR(*result);
        }
    }
    return r;
}

/* The request hands its wakeup to the task runner, which brings the task back. The anchor is the
 * engine's reference: it keeps the task alive while nothing else does. */
static PySendResult fall_asleep(cqn_request *self, PyObject **result)
{
    self->turn = cqn_turn_now();
    self->anchor = Py_NewRef(self->wakeup);
    if (Py_IS_TYPE(self->wakeup, self->engine->state->Wakeup)) {
        cqn_wakeup_yield(self->wakeup);
        *result = Py_NewRef(self->wakeup);
        return PYGEN_NEXT;
    }
    PyObject *wakeup = Py_NewRef(self->wakeup);
    CQN_UNLOCKED(self->iterator = PyObject_CallMethod(wakeup, "__await__", NULL));
    Py_DECREF(wakeup);
    return self->iterator == NULL ? PYGEN_ERROR : go_on_sleeping(self, Py_None, result);
}

/* A task that never has to sleep yields to the loop now and then, and keeps its place among the
 * waiters; and always to tasks whose completions came before its own. */
static PySendResult give_turn(cqn_request *self, PyObject **result)
{
    self->paused = true;
    return make_wakeup(self) < 0 || cqn_request_wake(self, false) < 0 ? PYGEN_ERROR
                                                                      : fall_asleep(self, result);
}

/* Makes it safe to sleep, wakes the others, and sleeps; or is ready after all, PYGEN_RETURN. */
static PySendResult sleep_unless_ready(cqn_request *self, PyObject **result)
{
    if (make_wakeup(self) < 0) {
        return PYGEN_ERROR;
    }
    cqn_engine_prepare(self->engine, self->looked);
    self->looked = false;
    if (cqn_engine_flush(self->engine, false) < 0) {
        return PYGEN_ERROR;
    }
    if (is_request_ready(self) || self->state == CQN_DONE) {
        Py_CLEAR(self->wakeup);
        return PYGEN_RETURN;
    }
    self->slept = true;
    return fall_asleep(self, result);
}

/* The task runs, until it sleeps or has what it awaits. */
static PySendResult run_request(cqn_request *self, PyObject **result)
{
    cqn_engine *engine = self->engine;
    for (;;) {
        PySendResult r;
        if (cqn_engine_has_news(engine) && cqn_engine_flush(engine, false) < 0) {
            return PYGEN_ERROR;
        }
        if (self->turns > 0) {
            self->turns--;
            r = give_turn(self, result);
        }
        else if (self->kind == CQN_ENDS_SCOPE && self->state == CQN_SLEEPING && !self->held) {
            r = cqn_engine_join(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
        }
        else if (!is_request_ready(self)) {
            r = sleep_unless_ready(self, result);
        }
        else if (!self->slept && !self->paused && (cqn_turn_is_over() || engine->due > 0)) {
            r = give_turn(self, result);
        }
        else {
            return deliver_result(self, result);
        }
        if (r != PYGEN_RETURN) {
            return r;
        }
    }
}

/* A request is awaited once, by one task at a time, as a coroutine is. */
static int refuse_to_run(const cqn_request *self, PyObject *value)
{
    if (self->stepping) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
    }
    else if (self->state == CQN_DONE || self->abandoned) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    }
    else if (self->state == CQN_NEW && value != Py_None) {
        PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
    }
    else if (self->wakeup != NULL && Py_IS_TYPE(self->wakeup, self->engine->state->Wakeup) &&
             !cqn_wakeup_is_done(self->wakeup)) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
    }
    else {
        return 0;
    }
    return -1;
}

/* One step of the task: it begins, or goes on where it slept, and sleeps again or has its result.
 */
static PySendResult step_request(cqn_request *self, PyObject *value, PyObject **result)
{
    PySendResult r = PYGEN_RETURN;
    self->woken = false;
    cqn_engine_not_due(self);
    if (self->state == CQN_NEW) {
        r = begin_request(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
    }
    else if (self->iterator != NULL) {
        r = go_on_sleeping(self, value, result);
    }
    if (r == PYGEN_RETURN) {
        Py_CLEAR(self->wakeup);
        Py_CLEAR(self->anchor);
        cqn_turn_passed(self->turn);
        r = run_request(self, result);
    }
    return r;
}

PySendResult cqn_request_send(PyObject *op, PyObject *value, PyObject **result)
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    *result = NULL;
    if (refuse_to_run(self, value) < 0) {
        return PYGEN_ERROR;
    }
    self->stepping = true;
    PySendResult r = step_request(self, value, result);
    self->stepping = false;
    if (r == PYGEN_ERROR && self->state != CQN_DONE) {
        cqn_request_give_up(self);
    }
    return r;
}

/* ---- waking its task ---- */

/* The reference keeps the wakeup while the task runs: the request may drop its own meanwhile. */
int cqn_request_wake(cqn_request *self, bool resume)
{
    PyObject *wakeup = self->wakeup;
    if (wakeup == NULL) { /* its code runs, and sees it */
        return 0;
    }
    Py_INCREF(wakeup);
    int rc;
    if (Py_IS_TYPE(wakeup, self->engine->state->Wakeup)) {
        if (resume) {
            self->turn = 0; /* in this turn of the loop, not in the next */
        }
        rc = resume ? cqn_wakeup_resume(wakeup) : cqn_wakeup_wake(wakeup);
    }
    else {
        PyObject *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(wakeup, "wake", NULL));
        rc = result == NULL ? -1 : 0;
        Py_XDECREF(result);
    }
    Py_DECREF(wakeup);
    return rc;
}
