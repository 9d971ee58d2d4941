/* SPDX-License-Identifier: MIT */
/*
 * Failures and ends: what the tasks that wait are told when a completion may never come.
 *
 * The device reports a failure, a queue pair is closed or reset, the CQ can not be polled, the
 * AsyncCQ is closed or its loop is. Each task gets the exception once, and what no task was told
 * of is kept for the next one that waits.
 */

#include "await/engine.h"

/* ---- exceptions ---- */

/* An exception collects the frames through which it goes: so each task gets its own. */
static void raise_copy(cqn_engine *self, PyObject *error)
{
    PyObject *copy = cqn_engine_call(self, "_fresh", error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

/* Why nothing can be awaited any more, see cqn_engine_check(). */
int cqn_engine_refuse(cqn_engine *self)
{
    if (self->closed) {
        PyErr_SetString(self->state->ClosedError, "this AsyncCQ is closed");
    }
    else {
        raise_copy(self, self->error);
    }
    return -1;
}

/* No task was told of this failure, so it is kept for the next one that waits. */
void cqn_engine_report(cqn_engine *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, self->state->AsyncEventError) &&
        cqn_engine_do(self, "_keep_report", error) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* ---- telling ---- */

/* Every task that waits, as far as it may be for this QP: whether there was one. Each is told
 * one error: of two in a row the second is for the next wait. */
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
        if (next != NULL && !next->held) { /* the end of a scope, all of which has failed now */
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

/* Every wait raises the exception that is set, and so does every later one, unless it is
 * memory that is missing. */
void cqn_engine_break_down(cqn_engine *self)
{
    PyObject *error = cqn_take_exception();
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) { /* for the loop */
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

/* For good. */
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

/* False: it was closed before. */
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

/* Their event loop was closed: the tasks that wait will never run again. */
PyObject *cqn_engine_forget_tasks(PyObject *op, PyObject *Py_UNUSED(unused))
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

/* For the engine of one CQ of that queue pair. Requests of the queue pair itself were told by the
 * books (cqn_request_lost()); this is for claims, for operations that wait for room, and for
 * arming. */
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
        cqn_engine_room(self, qp); /* operations that wait for room learn its state */
    }
    if (self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    if (PyErr_Occurred() || cqn_engine_hand_over(self) < 0) {
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
