/* SPDX-License-Identifier: MIT */
/*
 * Waking: which tasks go on, when, and in which thread.
 *
 * Completions are put down before any task is woken, so one that is cancelled at that very moment
 * loses nothing: it gives back what it was given, and sees to it that the CQ is armed for the
 * others. To wake a task is to call Python code: so that is the last that is done, and done to the
 * end if a signal's handler raises in the midst of it.
 */

#include "await/engine.h"

/* ---- those that are to be woken ---- */

/* Steals a reference, or gets none. Woken, or let go of, when no completions are routed any more.
 */
void cqn_engine_wake_later(cqn_request *request)
{
    if (request == NULL) {
        return;
    }
    if (request->to_wake) { /* it is in the list */
        Py_DECREF(request);
        return;
    }
    cqn_engine *self = request->engine;
    request->woken = request->to_wake = true;
    request->woken_next = NULL;
    *(self->woken_last ? &self->woken_last->woken_next : &self->woken) = request;
    self->woken_last = request;
}

/* The first in wait() goes on if there is something for it. It wakes the next one. */
void cqn_engine_wake_first(cqn_engine *self)
{
    cqn_request *first = self->waiters.first;
    if (first != NULL && !first->woken && self->cq->stash_len > 0) {
        cqn_engine_wake_later(cqn_request_ref(first));
    }
}

static cqn_request *take_woken(cqn_engine *self)
{
    cqn_request *request = self->woken;
    if (request != NULL) {
        self->woken = request->woken_next;
        if (self->woken == NULL) {
            self->woken_last = NULL;
        }
        request->woken_next = NULL;
        request->to_wake = false;
    }
    return request;
}

void cqn_engine_drop_woken(cqn_engine *self)
{
    cqn_request *request;
    while ((request = take_woken(self)) != NULL) {
        Py_DECREF(request);
    }
}

/* ---- in the thread of the loop ---- */

/* Its task goes on, or never will. */
void cqn_engine_not_due(cqn_request *request)
{
    if (request->due) {
        request->due = false;
        request->engine->due--;
    }
}

/* To the end, whatever a handler of signals raises: that is kept. */
static void wake_task(cqn_request *request, bool resume, PyObject **interrupt)
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
    if (self->turn == cqn_turn_now() || self->due > 0 || cqn_turn_is_over()) {
        return false;
    }
    self->turn = cqn_turn_now();
    return true;
}

/* Wakes those that have something: all soon, but with `resume` the first one at once, which only
 * the loop's callback may do. */
int cqn_engine_flush(cqn_engine *self, bool resume)
{
    PyObject *interrupt = NULL;
    cqn_engine_post_queued(self);
    if (self->woken == NULL) {
        return 0;
    }
    Py_INCREF(self);
    cqn_request *first = resume && may_resume(self) ? take_woken(self) : NULL, *request;
    while ((request = take_woken(self)) != NULL) {
        wake_task(request, false, &interrupt);
        Py_DECREF(request);
        cqn_engine_post_queued(self);
    }
    if (first != NULL) {
        wake_task(first, interrupt == NULL, &interrupt);
        Py_DECREF(first);
    }
    Py_DECREF(self);
    return interrupt == NULL ? 0 : cqn_raise_interrupt(interrupt);
}

/* An event of that CQ was read. Returns -1 for what must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return 0;
    }
    cqn_cq_dispatched(cq);
    cqn_engine_prepare(self, false);
    int rc = PyErr_Occurred() ? -1 : cqn_engine_flush(self, true);
    Py_DECREF(self);
    return rc;
}

/* ---- elsewhere ---- */

/* Leaves waking to the loop's thread, whichever that is. */
int cqn_engine_hand_over(cqn_engine *self)
{
    return cqn_engine_has_news(self) ? cqn_engine_do(self, "_hand_over", NULL) : 0;
}

/* What a handler of signals has raised where it can't be raised: the loop raises it soon. */
static void put_off(cqn_engine *self)
{
    PyObject *error = cqn_take_exception(), *result = NULL;
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        result = cqn_engine_call(self, "_put_off", error);
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

/* The same, where no exception can be raised. */
void cqn_engine_hand_over_or_put_off(cqn_engine *self)
{
    if (cqn_engine_hand_over(self) < 0) {
        put_off(self);
    }
}

/* Completions were routed outside of the loop's callbacks. */
int cqn_engine_wake(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_has_news(cq->engine) ? cqn_engine_of(cq) : NULL;
    if (self == NULL) {
        return 0;
    }
    int rc = cqn_engine_hand_over(self);
    Py_DECREF(self);
    return rc;
}

/* For all that are under way, after anything that may have changed something; an exception is
 * not set. */
void cqn_engine_serve(cqn_engine *self)
{
    if (!self->closed && self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    cqn_engine_hand_over_or_put_off(self);
}

/* The CQ may be armed no more. Whether there is an engine, which sees to it. */
bool cqn_engine_resized(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return false;
    }
    cqn_engine_serve(self);
    Py_DECREF(self);
    return true;
}
