/* SPDX-License-Identifier: MIT */
/*
 * The steps of a task in its awaitable, from state to state (await.h), and the end of an awaitable
 * whose task gives up.
 *
 * Before the task sleeps, cqn_engine_prepare() arms the CQ, then polls it and routes the
 * completions. From there until the task yields, no Python code runs that could take an event away.
 *
 * A task gives up when it is cancelled, fails, or will never run again. Its completion then goes to
 * other code that may want it, and the engine owns the awaitable as long as the device has its work
 * request.
 */

#include "await/step.h"
#include "await/abandoned.h"
#include "await/calls.h"
#include "await/coroutine.h"
#include "await/engine.h"
#include "await/loop.h"
#include "await/post.h"
#include "await/awaitable.h"
#include "await/scope.h"
#include "await/wakeup.h"

/* ---- giving up ---- */

/* Like a cancellation, except that no other task is woken. */
void cqn_awaitable_abandon(cqn_awaitable *self)
{
    CQN_STEP(cancel, self, self->engine->cq, self->state, 0);
    cqn_awaitable_goes_on(self);
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    if (cqn_awaitable_is_abandoned(self)) {
        return;
    }
    if (self->kind <= CQN_OF_RECV) {
        cqn_operation_abandon(self);
    }
    else if (self->kind == CQN_OF_COMPLETION && self->state == CQN_COMPLETE) {
        cqn_engine_return_wc(self->engine, &self->wc, &self->extra);
    }
    else if (cqn_awaitable_is_listed(self)) {
        cqn_awaitable_drop(self);
    }
    if (!cqn_awaitable_is_listed(self)) {
        cqn_awaitable_finish(self);
    }
}

/* Keeps a failure that no task got for the next task that waits. Errors of other types are no
 * failures of the device, and are dropped. */
static void keep_report(cqn_engine *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, self->state->AsyncEventError) &&
        cqn_engine_do(self, "_keep_report", error) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* What a task of a closed AsyncCQ gave back is for the next one, or for a thread that has armed the
 * CQ and sleeps. */
static void tell_others(cqn_cq *cq)
{
    if (!cqn_engine_poll_again(cq) && cq->armed != CQN_UNARMED && cqn_stash_len(cq) > 0 &&
        cq->base.handle != NULL) {
        cqn_cq_forget_arming(cq);
        cqn_cq_add_event(cq);
    }
}

/* The task continues without its awaitable, because it was cancelled or failed. */
void cqn_awaitable_give_up(cqn_awaitable *self)
{
    cqn_engine *engine = (cqn_engine *)Py_NewRef((PyObject *)self->engine);
    PyObject *pending = cqn_take_exception();
    if (self->pause == CQN_SLEPT && !engine->closed) { /* no event woke it: one may be lost */
        cqn_cq_forget_arming(engine->cq);
    }
    if (self->state == CQN_FAILED && self->error != NULL) {
        keep_report(engine, self->error);
    }
    cqn_awaitable_abandon(self);
    CQN_PLACE("give up");
    cqn_engine_update(engine);
    if (engine->closed) {
        tell_others(engine->cq);
    }
    Py_DECREF(engine);
    cqn_put_exception(pending);
}

/* ---- the task's result ---- */

/* Raises the exception of a FAILED awaitable, and returns NULL. One that other awaitables share is
 * raised as a copy, because an exception collects the frames that it passes. */
static void *raise_own_failure(cqn_awaitable *self)
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
    return NULL;
}

/* If the stash has a whole batch, the device may have more. */
static int poll_for_more(cqn_cq *cq, size_t want)
{
    const size_t n = cqn_stash_len(cq);
    return n < CQN_BATCH || n >= want ? 0 : cqn_cq_fetch_or_spin(cq, want, 0);
}

static PyObject *take_completions(cqn_awaitable *self)
{
    cqn_engine *engine = self->engine;
    int rc = poll_for_more(engine->cq, self->max_entries);
    CQN_PLACE("stash");
    if (rc == 0 && cqn_stash_len(engine->cq) == 0) { /* gone with the CQ, or after a close */
        rc = cqn_engine_check_open(engine);
        assert(rc < 0);
    }
    PyObject *list = rc < 0 ? NULL : cqn_cq_pop_wcs(engine->cq, self->max_entries);
    const size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    if (cqn_awaitable_is_listed(self)) {
        cqn_awaitable_drop(self);
    }
    if (self->pause == CQN_SLEPT) {
        cqn_engine_count_wakeup(engine, n);
    }
    else {
        cqn_budget_use(n);
    }
    cqn_engine_update(engine); /* other tasks may get what is left */
    return list;
}

/* Returns the WorkCompletion, a new reference. A failed operation raises CompletionError; a
 * completion() returns the completion whatever its status. */
static PyObject *make_completion(const cqn_awaitable *self)
{
    const cqn_engine *engine = self->engine;
    const cqn_cq *cq = engine->cq;
    PyObject *wc =
        cqn_wc_new(engine->state, &self->wc, cq->extra != NULL ? &self->extra : NULL, cq->wc_flags);
    if (wc != NULL && self->kind != CQN_OF_COMPLETION && self->wc.status != IBV_WC_SUCCESS) {
        cqn_completion_error(engine->state, wc, &self->wc, self->operation);
        Py_CLEAR(wc);
    }
    return wc;
}

/* Returns the completion, or raises its CompletionError. If creating either fails, the awaitable
 * stays COMPLETE, and its completion goes to other code. */
static PyObject *deliver_completion(cqn_awaitable *self)
{
    cqn_engine *engine = self->engine;
    assert(self->owner == CQN_UNLISTED);
    PyObject *wc = make_completion(self);
    if (wc == NULL && !PyErr_ExceptionMatches(engine->state->CompletionError)) {
        return NULL;
    }
    if (self->pause == CQN_SLEPT) {
        cqn_engine_count_wakeup(engine, 1);
    }
    else {
        cqn_budget_use(1);
    }
    cqn_awaitable_finish(self);
    return wc;
}

/* Returns whether the task can go on. If only the stash has something, just the first of the tasks
 * in wait() can. */
static bool is_ready(const cqn_awaitable *self)
{
    return self->state == CQN_COMPLETE || self->state == CQN_FAILED ||
           (self->kind == CQN_OF_WAIT && self->state == CQN_WAITING &&
            self->engine->waiters.first == self && self->engine->cq->stash_len > 0);
}

/* Ends the awaitable, with its result or the exception of its failure. */
static PySendResult deliver_result(cqn_awaitable *self, PyObject **result)
{
    if (self->state == CQN_COMPLETE && self->kind != CQN_OF_SCOPE) {
        *result = deliver_completion(self);
        return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    *result = self->state == CQN_FAILED   ? raise_own_failure(self)
              : self->kind == CQN_OF_WAIT ? take_completions(self)
                                          : Py_NewRef(Py_None);
    if (!cqn_awaitable_is_listed(self)) { /* else the device still has its work request */
        cqn_awaitable_finish(self);
    }
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

/* ---- sleeping ---- */

/* Reports to the observer which task is about to sleep. Returns -1 with an exception. */
CQN_RARE static int observe_task(const cqn_awaitable *self)
{
    PyObject *found = cqn_engine_call(self->engine, "_running_task", NULL);
    Py_ssize_t id;
    const char *name;
    const int ok = found != NULL && PyArg_ParseTuple(found, "ny", &id, &name);
    if (ok) {
        cqn_observe(CQN_TASK_RUNS, (const void *)id, NULL, name);
    }
    Py_XDECREF(found);
    return ok ? 0 : -1;
}

/* An asyncio task sleeps on a Wakeup of the core, a task of another library on an object of its
 * event loop (aio/_trio.py). Returns -1 with an exception. */
static int make_wakeup(cqn_awaitable *self)
{
    const cqn_channel *channel = self->engine->channel;
    PyObject *wakeup, *loop;
    if (channel->raw_loop != NULL) {
        wakeup = cqn_wakeup_new(self->engine->state, channel->raw_loop, channel->done);
    }
    else if (channel->loop != NULL) {
        loop = Py_NewRef(channel->loop); /* another thread can release the channel's */
        CQN_UNLOCKED(wakeup = PyObject_CallMethod(loop, "wakeup", NULL));
        Py_DECREF(loop);
    }
    else { /* the reader left the loop, after a close or a failure */
        if (cqn_engine_check(self->engine) == 0 && cqn_open(&channel->base) != NULL) {
            PyErr_SetString(PyExc_RuntimeError,
                            "another thread has closed the event loop that read this channel");
        }
        return -1;
    }
    Py_XSETREF(self->wakeup, wakeup);
    CQN_PLACE("wakeup");
    if (wakeup == NULL) {
        return -1;
    }
    return cqn_observe == NULL ? 0 : observe_task(self);
}

/* Passes a step of the task on to a wakeup that is not asyncio's. PYGEN_RETURN: the sleep is over.
 * Other threads can run meanwhile. A change of the state then wakes the wakeup, possibly before the
 * task sleeps on it. */
static PySendResult go_on_sleeping(cqn_awaitable *self, PyObject *value, PyObject **result)
{
    self->activity = CQN_FALLING_ASLEEP;
    const PySendResult r = cqn_send_into(self->iterator, value, result);
    CQN_PLACE("iterate");
    self->activity = CQN_STEPPING;
    if (r != PYGEN_NEXT) {
        Py_CLEAR(self->iterator);
    }
    return r;
}

/* The first such step: creates the iterator. */
static PySendResult begin_sleeping(cqn_awaitable *self, PyObject **result)
{
    PyObject *wakeup = Py_NewRef(self->wakeup);
    self->activity = CQN_FALLING_ASLEEP;
    CQN_UNLOCKED(self->iterator = PyObject_CallMethod(wakeup, "__await__", NULL));
    CQN_PLACE("iterator");
    self->activity = CQN_STEPPING;
    Py_DECREF(wakeup);
    return self->iterator == NULL ? PYGEN_ERROR : go_on_sleeping(self, Py_None, result);
}

/* The event loop gets the wakeup, and runs the task again after the wakeup was woken. The anchor is
 * the engine's reference, which keeps the task alive if nothing else does. */
static PySendResult fall_asleep(cqn_awaitable *self, PyObject **result)
{
    self->iteration = cqn_iteration_now();
    self->event_at = 0;
    CQN_TRACE_N(sleep, self->engine->cq, (intptr_t)self);
    CQN_STEP(sleep, self, self->engine->cq, self->pause == CQN_SLEPT, 0);
    if (cqn_observe != NULL) {
        cqn_observe(CQN_TASK_SLEEPS, self, self->engine->cq->base.handle, self->name);
    }
    self->anchor = Py_NewRef(self->wakeup);
    if (Py_IS_TYPE(self->wakeup, self->engine->state->Wakeup)) {
        cqn_wakeup_yield(self->wakeup);
        *result = Py_NewRef(self->wakeup);
        return PYGEN_NEXT;
    }
    const PySendResult r = begin_sleeping(self, result);
    if (r == PYGEN_RETURN) { /* woken before it slept */
        cqn_awaitable_goes_on(self);
        Py_CLEAR(self->wakeup);
        Py_CLEAR(self->anchor);
    }
    return r;
}

/* A task that never has to sleep yields to the event loop now and then, and keeps its place in its
 * waitlist. It always yields to tasks whose completions arrived before its own. */
static PySendResult yield_to_loop(cqn_awaitable *self, PyObject **result)
{
    self->pause = CQN_PAUSED;
    if (make_wakeup(self) < 0 || cqn_wakeup_of_any(self->engine->state, self->wakeup, false) < 0) {
        return PYGEN_ERROR;
    }
    CQN_PLACE("yield");
    return fall_asleep(self, result);
}

/* Makes it safe to sleep, wakes the other tasks, and sleeps. PYGEN_RETURN: the awaitable is ready
 * after all. */
static PySendResult sleep_unless_ready(cqn_awaitable *self, PyObject **result)
{
    if (make_wakeup(self) < 0) {
        return PYGEN_ERROR;
    }
    /* A poll before the latest arming does not count: a completion in between raised no event. */
    cqn_engine_prepare(self->engine, self->polled_at == self->engine->cq->stats.arms + 1);
    self->polled_at = 0;
    if (cqn_engine_wake_listed(self->engine, false) < 0) {
        return PYGEN_ERROR;
    }
    CQN_PLACE("prepare");
    if (is_ready(self) || self->state == CQN_DONE) {
        Py_CLEAR(self->wakeup);
        return PYGEN_RETURN;
    }
    self->pause = CQN_SLEPT;
    const PySendResult r = fall_asleep(self, result);
    assert(r != PYGEN_NEXT || self->wake != CQN_UNWOKEN || !is_ready(self));
    return r;
}

/* ---- spinning ---- */

/* Spins without the GIL for up to ns; stores the time that it took, and whether the task can go on.
 * Returns -1 with an exception. */
static int spin_for(cqn_awaitable *self, int64_t ns, int64_t *took, bool *found)
{
    cqn_engine *engine = self->engine;
    cqn_object *deferred = NULL;
    const int64_t began = cqn_now_ns();
    const int rc = cqn_cq_spin(engine->cq, CQN_BATCH, ns, true, &deferred);
    *took = cqn_now_ns() - began;
    *found = rc == 0 && is_ready(self);
    engine->spins++;
    engine->spared += *found;
    cqn_budget_use_spin(*took);
    cqn_decref_deferred(deferred);
    CQN_PLACE("fetch");
    cqn_engine_post_queued(engine);
    return rc;
}

/* Returns for how many ns the awaitable is to spin; 0: not at all; -1 with an exception. */
static int64_t spin_limit(const cqn_awaitable *self, int64_t spin, cqn_spin_kind kind)
{
    return spin == CQN_SPIN_AUTO ? cqn_cq_spin_begin(self->engine->cq, kind) : spin;
}

/* Spins once before the task sleeps, if that was requested. The event loop stands still meanwhile,
 * so an awaitable spins only if nothing else is ready, and all tasks together spin for a limited
 * time per iteration. Then they sleep; or, if nothing else is known to be ready, one yields to the
 * loop and spins in the next iteration. Any completion ends the spin. Returns -1 with an
 * exception. */
static int spin_before_sleep(cqn_awaitable *self)
{
    cqn_engine *engine = self->engine;
    const cqn_spin_kind kind = self->kind == CQN_OF_SEND ? CQN_SPIN_FOR_OWN : CQN_SPIN_FOR_PEER;
    const int64_t spin = self->spin;
    self->spin = 0;
    const cqn_readiness others = cqn_loop_readiness(engine);
    if (others == CQN_SOMETHING_READY || engine->closed || engine->error != NULL ||
        is_ready(self) || !cqn_is_open(&engine->cq->base)) {
        return 0;
    }
    const int64_t limit = spin_limit(self, spin, kind);
    if (limit <= 0) {
        return limit < 0 ? -1 : 0;
    }
    if (!cqn_budget_allows_spin()) {
        self->spin = others == CQN_NOTHING_READY ? spin : 0;
        self->iterations = others == CQN_NOTHING_READY;
        return 0;
    }
    int64_t took;
    bool found;
    const int rc = spin_for(self, limit, &took, &found);
    if (rc == 0 && spin == CQN_SPIN_AUTO && (found || took >= limit)) {
        cqn_cq_spin_end(engine->cq, kind, limit, found, took); /* else another one ended it */
    }
    return rc;
}

/* ---- the steps of the task ---- */

/* The first step of the task; nothing was converted, checked or posted before. */
static int begin(cqn_awaitable *self)
{
    return self->kind == CQN_OF_SCOPE ? cqn_scope_end_begin(self) : cqn_call_begin(self);
}

/* Runs the task until it sleeps or has its result. */
static PySendResult run(cqn_awaitable *self, PyObject **result)
{
    cqn_engine *engine = self->engine;
    for (;;) {
        PySendResult r;
        if (cqn_engine_has_work(engine) && cqn_engine_wake_listed(engine, false) < 0) {
            return PYGEN_ERROR;
        }
        if (self->iterations > 0) {
            self->iterations--;
            r = yield_to_loop(self, result);
        }
        else if (self->kind == CQN_OF_SCOPE && self->state == CQN_WAITING &&
                 self->owner == CQN_UNLISTED) {
            cqn_scope_end_join(self);
            r = PYGEN_RETURN;
        }
        else if (!is_ready(self) && self->spin != 0) {
            r = spin_before_sleep(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
        }
        else if (!is_ready(self)) {
            r = sleep_unless_ready(self, result);
        }
        else if (self->pause == CQN_NO_PAUSE && (cqn_budget_is_spent() || engine->scheduled > 0)) {
            r = yield_to_loop(self, result);
        }
        else {
            return deliver_result(self, result);
        }
        if (r != PYGEN_RETURN) {
            return r;
        }
    }
}

/* An awaitable is awaited once, by one task at a time, like a coroutine. */
static int refuse_to_run(const cqn_awaitable *self, PyObject *value)
{
    if (cqn_refuse_step(self->activity != CQN_RESTING,
                        self->state == CQN_DONE || cqn_awaitable_is_abandoned(self)) < 0) {
        return -1;
    }
    if (self->state == CQN_NEW && value != Py_None) {
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

/* Called when the task continues where it slept. */
static void woke_up(cqn_awaitable *self)
{
    cqn_cq *cq = self->engine->cq;
    CQN_TRACE_N(wake, cq, (intptr_t)self);
    if (cqn_observe != NULL) {
        cqn_observe(CQN_TASK_WAKES, self, cq->base.handle, NULL);
    }
    if (self->event_at != 0) {
        cqn_histogram_add(&cq->histograms[CQN_TASK_LATENCY],
                          (uint64_t)(cqn_now_ns() - self->event_at));
        self->event_at = 0;
    }
}

/* One step of the task: it begins, or goes on where it slept; then it sleeps again, or has its
 * result. */
static PySendResult run_step(cqn_awaitable *self, PyObject *value, PyObject **result)
{
    PySendResult r = PYGEN_RETURN;
    cqn_awaitable_goes_on(self);
    if (self->state == CQN_NEW) {
        r = begin(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
    }
    else {
        woke_up(self);
        r = self->iterator != NULL ? go_on_sleeping(self, value, result) : r;
    }
    if (r == PYGEN_RETURN) {
        Py_CLEAR(self->wakeup);
        Py_CLEAR(self->anchor);
        cqn_iteration_passed(self->iteration);
        r = run(self, result);
    }
    return r;
}

PySendResult cqn_awaitable_send(PyObject *op, PyObject *value, PyObject **result)
{
    CQN_LOCKED;
    cqn_awaitable *self = (cqn_awaitable *)op;
    *result = NULL;
    if (refuse_to_run(self, value) < 0) {
        return PYGEN_ERROR;
    }
    self->activity = CQN_STEPPING;
    PySendResult r = run_step(self, value, result);
    self->activity = CQN_RESTING;
    if (r == PYGEN_ERROR && self->state != CQN_DONE) {
        cqn_awaitable_give_up(self);
    }
    CQN_CHECK_ENGINE(self->engine);
    return r;
}
