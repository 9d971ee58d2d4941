/* SPDX-License-Identifier: MIT */
/*
 * Waking: which tasks go on, when, and in which thread.
 *
 * Completions are put down before any task is woken, so one that is cancelled at that very moment
 * loses nothing: it gives back what it was given, and sees to it that the CQ is armed for the
 * others. To wake a task is to call Python code: so that is the last that is done, and done to the
 * end if a signal's handler raises in the midst of it.
 */

#include "await/engine_wake.h"
#include "await/loop.h"
#include "await/pending.h"
#include "await/room.h"
#include "await/wakeup.h"

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
    cqn_request *first = resume && may_resume(self) ? cqn_engine_take_woken(self) : NULL, *request;
    while ((request = cqn_engine_take_woken(self)) != NULL) {
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
