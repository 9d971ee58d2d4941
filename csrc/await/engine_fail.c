/* SPDX-License-Identifier: MIT */
/*
 * Failures and ends: what the waiting tasks are told when a completion may never come.
 *
 * The device reports a failure, the CQ can not be polled, or the AsyncCQ is closed. Each task gets
 * the exception once. A failure that no task was told of is kept for the next task that waits.
 */

#include "await/engine_fail.h"
#include "await/async_cq.h"
#include "await/forsaken.h"
#include "await/outcome.h"
#include "await/pending.h"
#include "await/scope.h"

/* ---- telling ---- */

/* Tells every task whose wait may be for this QP (NULL: for any), and returns whether there was
 * one. A task is told one error: of two failures in a row, the second is for its next wait. */
static bool tell_tasks(cqn_engine *self, PyObject *error, PyObject *qp)
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
        if (next != NULL && !next->held) { /* the end of a scope, all of which has failed */
            next = self->first;
        }
    }
    return told;
}

PyObject *cqn_engine_tell(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyObject *error, *qp = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:_tell", &error, &qp)) {
        return NULL;
    }
    bool told = tell_tasks((cqn_engine *)op, error, qp == Py_None ? NULL : qp);
    return cqn_engine_hand_over((cqn_engine *)op) < 0 ? NULL : PyBool_FromLong(told);
}

/* Nothing of this engine is awaited any more: completions that the device still has are for poll().
 */
void cqn_engine_drop_all(cqn_engine *self)
{
    cqn_forsaken_forget_all(self);
    cqn_request *first;
    while ((first = self->first) != NULL) {
        cqn_scope_leave(first); /* which takes out no other request than the end of the scope */
        cqn_engine_wake_later(cqn_engine_take_out(first));
    }
}

static int fail_for_good(cqn_engine *self, PyObject *error)
{
    if (self->error == NULL) {
        self->error = Py_NewRef(error);
    }
    tell_tasks(self, error, NULL);
    cqn_engine_drop_all(self);
    return cqn_engine_hand_over(self);
}

PyObject *cqn_engine_fail(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    return fail_for_good((cqn_engine *)op, error) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Every task that waits raises the exception that is set. So does every later wait, unless only
 * memory was missing. What is no Exception, such as KeyboardInterrupt, is left set, for the event
 * loop. */
void cqn_engine_break_down(cqn_engine *self)
{
    PyObject *error = cqn_take_exception();
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) { /* the caller raises it */
        cqn_put_exception(error);
        return;
    }
    int rc;
    if (PyErr_GivenExceptionMatches(error, PyExc_MemoryError)) {
        tell_tasks(self, error, NULL);
        rc = cqn_engine_hand_over(self);
    }
    else {
        rc = fail_for_good(self, error);
    }
    if (rc < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_DECREF(error);
}

/* ---- ends ---- */

/* The engine takes no more completions, and acknowledges the events that were read for it. */
void cqn_engine_leave_cq(cqn_engine *self)
{
    self->closed = true;
    if (self->cq != NULL && self->cq->engine == self) {
        self->cq->engine = NULL;
        if (cqn_is_open(&self->cq->base)) {
            cqn_cq_ack_dispatched(self->cq);
        }
    }
}

/* Returns False if the AsyncCQ was closed before. */
PyObject *cqn_engine_shut(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    if (self->closed) {
        Py_RETURN_FALSE;
    }
    cqn_engine_leave_cq(self);
    tell_tasks(self, error, NULL);
    cqn_engine_drop_all(self);
    Py_RETURN_TRUE;
}
