/* SPDX-License-Identifier: MIT */
/*
 * Waking: which tasks go on, when, and in which thread.
 *
 * Completions are given to their requests before any task is woken. So a task that is cancelled at
 * that very moment loses nothing: it gives its completion back, and sees to it that the CQ is armed
 * for the others. To wake a task is to call Python code: so waking comes last, and all tasks of the
 * list are woken, even if the handler of a signal raises in the midst of it.
 */

#include "await/engine_wake.h"
#include "await/loop.h"
#include "await/pending.h"
#include "await/room.h"
#include "await/wakeup.h"

/* Wakes the task, or with `resume` runs it here and now. The new reference keeps the wakeup alive
 * while the task runs, since the request may drop its own meanwhile. */
int cqn_request_wake(cqn_request *self, bool resume)
{
    PyObject *wakeup = self->wakeup;
    if (wakeup == NULL) { /* the code of the request runs, and sees its new state itself */
        return 0;
    }
    Py_INCREF(wakeup);
    if (resume && Py_IS_TYPE(wakeup, self->engine->state->Wakeup)) {
        self->turn = 0; /* the task goes on in this turn of the loop, not in the next */
    }
    const int rc = cqn_wakeup_of_any(self->engine->state, wakeup, resume);
    Py_DECREF(wakeup);
    return rc;
}

/* Wakes one task. If the handler of a signal raises meanwhile, that exception is kept for the
 * caller, and the task is woken all the same. */
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

/* A task that is resumed runs inside this call. So it is at most one task per CQ in a turn of the
 * loop, and none overtakes those that were woken earlier. */
static bool may_resume(cqn_engine *self)
{
    if (self->turn == cqn_turn_now() || self->due > 0 || cqn_turn_is_over()) {
        return false;
    }
    self->turn = cqn_turn_now();
    return true;
}

/* Wakes the tasks of all listed requests. They go on soon, in later steps of the event loop; but
 * with `resume` the first of them goes on at once, after the others were passed to the loop. Only
 * the callback of the loop may ask for that: everywhere else another task is running. */
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
        CQN_PLACE("wake");
        cqn_engine_post_queued(self);
    }
    if (first != NULL) {
        wake_task(first, interrupt == NULL, &interrupt);
        Py_DECREF(first);
    }
    Py_DECREF(self);
    return interrupt == NULL ? 0 : cqn_raise_interrupt(interrupt);
}
