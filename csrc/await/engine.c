/* SPDX-License-Identifier: MIT */
/*
 * The engine: polling and arming the CQ, waking tasks, and notifying them of failures; and the
 * functions for the other folders (await.h).
 *
 * Before a task sleeps, the CQ is armed, then polled, even if the stash holds unclaimed
 * completions, so no wake-up is lost. An event can be lost, for example to another program that
 * reads the channel's descriptor. So after a wait that ended without an event, the CQ is armed
 * again, whatever its record says. When completions free slots of a queue, queued operations are
 * posted before any task runs.
 *
 * All completions are given to their awaitables before any task is woken. So a task that is
 * cancelled at that moment loses nothing: its completion goes back, and the CQ is armed for the
 * others. Waking a task calls Python code. So waking comes last, and all listed tasks are woken
 * even if a signal handler raises in between.
 *
 * If the device reports a failure, the CQ cannot be polled, or the AsyncCQ is closed, each task
 * gets the exception once. A failure that no task got is kept for the next task that waits.
 */

#include "await/engine.h"
#include "await/abandoned.h"
#include "await/loop.h"
#include "await/post.h"
#include "await/awaitable.h"
#include "await/taker.h"
#include "await/wakeup.h"

#define BATCHES 4 /* polled in a row before the event loop continues */

/* ---- failures ---- */

/* A task gets one error; after a second failure the next wait gets that one. */
bool cqn_engine_notify(cqn_engine *self, PyObject *error, const PyObject *qp)
{
    bool notified = false;
    for (cqn_awaitable *r = self->first, *next; r != NULL; r = next) {
        next = r->next;
        const bool concerned = qp == NULL || r->qp == NULL || (PyObject *)r->qp == qp;
        if (concerned) {
            const bool is_notified =
                r->kind != CQN_OF_SCOPE && r->owner == CQN_PENDING && r->state != CQN_FAILED;
            notified |= is_notified;
            r->shares_error |= is_notified;
            cqn_awaitable_fail(r, error);
        }
        if (next != NULL &&
            !cqn_awaitable_is_listed(next)) { /* the end of a scope that failed as a whole */
            next = self->first;
        }
    }
    return cqn_taker_fail(self, error) || notified;
}

/* Afterwards poll() returns the completions that the device still has. Dropping an awaitable can
 * remove only one other from the list: the end of its scope. */
void cqn_engine_drop_all(cqn_engine *self)
{
    cqn_abandoned_forget_all(self);
    while (self->first != NULL) {
        cqn_awaitable_drop_later(self->first);
    }
}

int cqn_engine_fail_for_good(cqn_engine *self, PyObject *error)
{
    if (self->error == NULL) {
        self->error = Py_NewRef(error);
    }
    cqn_engine_notify(self, error, NULL);
    cqn_engine_drop_all(self);
    return cqn_engine_wake_in_loop(self);
}

/* Makes every waiting task raise the current exception, and every later wait, except after a
 * MemoryError. An exception that is no Exception, such as KeyboardInterrupt, stays set, for the
 * event loop. */
void cqn_engine_fail_with_exception(cqn_engine *self)
{
    PyObject *error = cqn_take_exception();
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) { /* the caller raises it */
        cqn_put_exception(error);
        return;
    }
    int rc;
    if (PyErr_GivenExceptionMatches(error, PyExc_MemoryError)) {
        cqn_engine_notify(self, error, NULL);
        rc = cqn_engine_wake_in_loop(self);
    }
    else {
        rc = cqn_engine_fail_for_good(self, error);
    }
    if (rc < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_DECREF(error);
}

/* ---- waking ---- */

/* Wakes the task, or with `resume` runs it here and now. Returns -1 with an exception. */
static int wake(cqn_awaitable *self, bool resume)
{
    const cqn_state *st = self->engine->state;
    if (self->wakeup == NULL) { /* a running step sees the new state itself */
        return 0;
    }
    if (resume && Py_IS_TYPE(self->wakeup, st->Wakeup)) {
        self->iteration = 0; /* the task continues in this iteration of the loop, not in the next */
    }
    return cqn_wakeup_of_any(st, self->wakeup, resume);
}

/* Wakes one task. If a signal handler raises meanwhile, its exception is kept for the caller, and
 * the task is woken nevertheless. */
static void wake_task(cqn_awaitable *awaitable, bool resume, PyObject **interrupt)
{
    if (!resume && awaitable->wakeup != NULL && awaitable->wake < CQN_SCHEDULED) {
        awaitable->wake = awaitable->wake == CQN_LISTED ? CQN_SCHEDULED_LISTED : CQN_SCHEDULED;
        awaitable->engine->scheduled++;
        CQN_STEP(wake, awaitable, awaitable->engine->cq, 0, 0);
    }
    for (int tries = 0; tries < 2 && wake(awaitable, resume) < 0; tries++) {
        if (*interrupt == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            *interrupt = cqn_take_exception();
        }
        else {
            PyErr_WriteUnraisable((PyObject *)awaitable);
        }
    }
}

/* A resumed task runs inside this call. So at most one task per CQ is resumed in an iteration of
 * the loop, and none overtakes tasks that were woken earlier. */
static bool may_resume(cqn_engine *self)
{
    if (self->iteration == cqn_iteration_now() || self->scheduled > 0 || cqn_budget_is_spent()) {
        return false;
    }
    self->iteration = cqn_iteration_now();
    return true;
}

/* The tasks continue in later steps of the event loop. With `resume` the first one continues at
 * once, after the others were passed to the loop; this is only for the loop's callback, because
 * everywhere else another task is running. */
int cqn_engine_wake_listed(cqn_engine *self, bool resume)
{
    PyObject *interrupt = NULL;
    cqn_engine_post_queued(self);
    if (self->woken == NULL && !cqn_taker_has_work(self)) {
        return 0;
    }
    Py_INCREF(self);
    const bool resumes = resume && self->woken != NULL && may_resume(self);
    cqn_awaitable *first = resumes ? cqn_engine_pop_woken(self) : NULL, *awaitable;
    if (first != NULL) {
        CQN_STEP(wake, first, self->cq, 1, 0);
    }
    while ((awaitable = cqn_engine_pop_woken(self)) != NULL) {
        wake_task(awaitable, false, &interrupt);
        Py_DECREF(awaitable);
        CQN_PLACE("wake");
        cqn_engine_post_queued(self);
    }
    if (first != NULL) {
        wake_task(first, interrupt == NULL, &interrupt);
        Py_DECREF(first);
    }
    cqn_taker_run(self, resume && first == NULL && interrupt == NULL, &interrupt);
    Py_DECREF(self);
    return interrupt == NULL ? 0 : cqn_raise_interrupt(interrupt);
}

/* Lists the first task in wait() if the stash has completions; it then wakes the next one. */
static void wake_first(cqn_engine *self)
{
    cqn_awaitable *first = self->waiters.first;
    if (first != NULL && first->wake == CQN_UNWOKEN && self->cq->stash_len > 0) {
        cqn_awaitable_wake_later(cqn_awaitable_ref(first));
    }
}

/* ---- polling and arming ---- */

/* The device may already have the completion of a new awaitable. */
int cqn_engine_poll_for(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    cqn_object *deferred = NULL;
    bool more;
    int got = cqn_cq_poll_once(self->cq, CQN_BATCH, &more, &deferred);
    awaitable->polled_at = more ? 0 : self->cq->stats.arms + 1;
    cqn_decref_deferred(deferred);
    CQN_PLACE("fetch");
    cqn_engine_post_queued(self);
    return got < 0 ? -1 : 0;
}

/* Makes the AsyncCQ poll in the next iteration of the event loop. Returns whether it will. */
static bool poll_later(cqn_engine *self)
{
    if (!self->polls_later) {
        self->polls_later = true;
        if (cqn_engine_do(self, "_poll_later", NULL) < 0) {
            self->polls_later = false;
            PyErr_WriteUnraisable((PyObject *)self);
        }
    }
    CQN_STEP(later, self->cq, self, self->polls_later, 0);
    return self->polls_later;
}

static bool only_solicited(const cqn_engine *self)
{
    /* On some devices a flushed completion raises no solicited event, and every waiting task must
     * get its own. */
    return self->len == self->solicited_waiters && (self->taker == NULL || self->taker_solicited) &&
           self->cq->flushing == 0;
}

/* Returns whether the CQ need not be armed: no task is about to sleep, or a task in wait() will be
 * woken and arm it. A CQ that is being destroyed cannot be armed; the engine is notified at the end
 * of that. */
static bool has_no_sleeper(const cqn_engine *self)
{
    const cqn_object *cq = &self->cq->base;
    return !cqn_engine_is_awaited(self) ||
           (self->waiters.first != NULL && self->cq->stash_len > 0) || cq->handle == NULL ||
           cqn_forked(cq);
}

/* Polls once, unless the caller just did, and arms the CQ if the device has no more completions.
 * Returns 1 if it is safe to sleep, 0 to poll again, -1 with an exception. */
static int poll_and_arm(cqn_engine *self, bool polled, cqn_object **deferred)
{
    cqn_cq *cq = self->cq;
    bool more = false;
    if (has_no_sleeper(self)) {
        return 1;
    }
    if (!polled && cqn_cq_poll_once(cq, CQN_BATCH, &more, deferred) < 0) {
        return -1;
    }
    const bool solicited = only_solicited(self);
    if (has_no_sleeper(self) || (!more && cqn_cq_is_armed(cq, solicited))) {
        return 1;
    }
    return more ? 0 : cqn_cq_arm(cq, solicited);
}

/* Polls a few times in a row. If completions still arrive then, the event loop continues first. */
static int poll_until_safe(cqn_engine *self, bool polled)
{
    cqn_object *deferred = NULL;
    int safe = 0;
    for (int i = 0; safe == 0 && (i < BATCHES || !poll_later(self)); i++) {
        safe = poll_and_arm(self, polled && i == 0, &deferred);
        cqn_decref_deferred(deferred);
        deferred = NULL;
        CQN_PLACE("arm");
    }
    return safe < 0 ? -1 : 0;
}

/* Awaitables that got something are listed to be woken. */
void cqn_engine_prepare(cqn_engine *self, bool polled)
{
    if (poll_until_safe(self, polled) < 0) {
        cqn_engine_fail_with_exception(self);
    }
    cqn_engine_post_queued(self);
    wake_first(self);
}

void cqn_engine_update(cqn_engine *self)
{
    if (!self->closed && cqn_engine_is_awaited(self)) {
        cqn_engine_prepare(self, false);
    }
    cqn_engine_wake_in_loop_or_defer(self);
}

int cqn_engine_look(cqn_engine *self)
{
    cqn_object *deferred = NULL;
    bool more;
    if (self->closed || self->error != NULL || !cqn_is_open(&self->cq->base)) {
        return 0;
    }
    const int got = cqn_cq_poll_once(self->cq, CQN_BATCH, &more, &deferred);
    cqn_decref_deferred(deferred);
    CQN_PLACE("fetch");
    if (got < 0) {
        cqn_engine_fail_with_exception(self);
    }
    return PyErr_Occurred() ? -1 : cqn_engine_wake_listed(self, false);
}

/* ---- events ---- */

/* No task is running in this callback, so one may be resumed at once. */
int cqn_engine_dispatch(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return 0;
    }
    CQN_STEP(dispatched, cq, 0, 0, 0);
    cqn_cq_dispatched(cq);
    if (cq->base.handle != NULL && cq->base.context->measure_latency) {
        self->channel->event_at = cqn_now_ns();
    }
    cqn_engine_prepare(self, false);
    CQN_PLACE("event");
    self->channel->event_at = 0;
    int rc = PyErr_Occurred() ? -1 : cqn_engine_wake_listed(self, true);
    CQN_CHECK_ENGINE(self);
    Py_DECREF(self);
    return rc;
}

/* Called after a failed attempt to destroy the CQ, for example. Returns whether it has an
 * engine. */
bool cqn_engine_poll_again(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return false;
    }
    cqn_engine_update(self);
    Py_DECREF(self);
    return true;
}

/* ---- queue pairs ---- */

/* Fails the completions() that name a closed or reset queue pair. The queue pair's other engine
 * fails its own. */
static void fail_claims(const cqn_engine *self, const cqn_qp *qp)
{
    for (cqn_awaitable *r = qp->first_claim, *next; r != NULL; r = next) {
        next = r->qp_behind;
        if (r->engine == self) {
            cqn_awaitable_lost(r, qp);
        }
    }
}

/* Notifies the engine of one CQ of a queue pair. The posted operations have failed already
 * (cqn_awaitable_lost()); this is for claims, queued operations and arming. */
static void qp_changed(cqn_cq *cq, cqn_qp *qp, PyObject **interrupt)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return;
    }
    const bool gone = qp->base.handle == NULL || qp->state == IBV_QPS_RESET;
    if (gone) {
        fail_claims(self, qp);
    }
    else {
        cqn_engine_note_capacity(self, qp); /* queued operations fail */
    }
    if (cqn_engine_is_awaited(self)) {
        cqn_engine_prepare(self, false);
    }
    if (PyErr_Occurred() || cqn_engine_wake_in_loop(self) < 0) {
        cqn_callback_failed((PyObject *)self, interrupt);
    }
    Py_DECREF(self);
}

void cqn_engines_notify(cqn_qp *qp, PyObject **interrupt)
{
    if (cqn_forked(&qp->base) || PyErr_Occurred() || qp->send_cq == NULL) {
        return;
    }
    qp_changed(qp->send_cq, qp, interrupt);
    if (qp->recv_cq != qp->send_cq) {
        qp_changed(qp->recv_cq, qp, interrupt);
    }
}

/* ---- poll() ---- */

/* Returns whether tasks in wait(), or the taker, get all unclaimed completions. Then poll() returns
 * an empty list. */
static bool others_get_all(const cqn_engine *self)
{
    return self->waiters.first != NULL || self->taker != NULL;
}

PyObject *cqn_engine_poll(cqn_engine *self, uint64_t max, int64_t spin)
{
    cqn_cq *cq = self->cq;
    PyObject *list = NULL;
    Py_INCREF(self);
    const int rc =
        cqn_engine_is_awaited(self) ? cqn_engine_do(self, "_leave_closed_loop", NULL) : 0;
    CQN_PLACE("poll");
    if (rc < 0 || (self->error != NULL && cq->stash_len == 0 && cqn_engine_check(self) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    const size_t want = max > CQN_BATCH ? (size_t)max : CQN_BATCH;
    const bool ready = !others_get_all(self) && cq->stash_len > 0;
    if (ready || cqn_cq_fetch_or_spin(cq, want, others_get_all(self) ? 0 : spin) == 0) {
        wake_first(self);
        list = others_get_all(self) && !self->closed ? PyList_New(0) : cqn_cq_pop_wcs(cq, max);
    }
    PyObject *pending = list == NULL ? cqn_take_exception() : NULL;
    cqn_engine_wake_in_loop_or_defer(self);
    if (pending != NULL) {
        cqn_put_exception(pending);
    }
    Py_DECREF(self);
    return list;
}
