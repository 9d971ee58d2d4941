/* SPDX-License-Identifier: MIT */
/*
 * A taker gets all completions of a CQ that no awaitable claims, in place of tasks in wait(). It is
 * written in C, and called where tasks are woken: after the routing, when the CQ is armed. It needs
 * no task, no future and no list of completions. It can wake tasks of its own, one of them within
 * the callback of the event loop.
 *
 * To the engine it is like a task that always waits: while there is a taker the CQ is armed, and
 * the channel holds the engine. The taker may run arbitrary code.
 */

#include "await/taker.h"
#include "await/awaitable.h"
#include "await/engine.h"
#include "await/loop.h"

int cqn_taker_set(cqn_engine *self, PyObject *taker, const cqn_taker_calls *calls,
                  bool solicited_only)
{
    if (cqn_engine_check_made(self) < 0 || cqn_loop_attach(self) < 0 ||
        cqn_engine_check_open(self) < 0) {
        return -1;
    }
    if (self->taker != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the completions of this AsyncCQ are taken already");
        return -1;
    }
    self->taker = Py_NewRef(taker);
    self->taker_calls = calls;
    self->taker_solicited = solicited_only;
    cqn_engine_see_if_busy(self);
    return 0;
}

void cqn_taker_drop(cqn_engine *self)
{
    PyObject *taker = self->taker, *error = self->taker_error;
    self->taker = self->taker_error = NULL;
    if (taker != NULL) {
        Py_INCREF(self);
        cqn_engine_see_if_busy(self);
        Py_DECREF(taker);
        Py_XDECREF(error);
        Py_DECREF(self);
    }
}

/* The first failure stays until the taker gets it. */
bool cqn_taker_fail(cqn_engine *self, PyObject *error)
{
    if (self->taker != NULL && self->taker_error == NULL) {
        self->taker_error = Py_NewRef(error);
    }
    return self->taker != NULL;
}

/* Completions that arrived before a failure are taken first. */
static int run(cqn_engine *self, PyObject *taker, bool resume)
{
    int rc = 0;
    if (self->cq->stash_len > 0) {
        if (resume) { /* called for an event, by the loop's callback */
            cqn_engine_count_wakeup(self, cqn_stash_len(self->cq));
        }
        rc = self->taker_calls->take(taker, self, resume);
    }
    PyObject *error = self->taker_error;
    self->taker_error = NULL;
    if (error != NULL && rc == 0) {
        rc = self->taker_calls->failed(taker, error);
    }
    Py_XDECREF(error);
    return rc;
}

void cqn_taker_run(cqn_engine *self, bool resume, PyObject **interrupt)
{
    if (!cqn_taker_has_work(self)) {
        return;
    }
    PyObject *taker = Py_NewRef(self->taker);
    if (run(self, taker, resume) < 0) {
        cqn_callback_failed(taker, interrupt);
    }
    Py_DECREF(taker);
}
