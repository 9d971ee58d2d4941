/* SPDX-License-Identifier: MIT */
/*
 * What the core asks of the AsyncCQ, the class in Python that is built on an Engine (aio/_cq.py):
 * to have the channel's events read, to keep a report, to wake tasks in the thread of the loop, to
 * wrap a request in a coroutine. Each of these calls can run any code.
 */

#include "await/async_cq.h"

/* Calls a method of the AsyncCQ, without the lock of lock.h: the method is Python code. */
PyObject *cqn_engine_call(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result;
    CQN_UNLOCKED(
        result = PyObject_CallMethod((PyObject *)self, method, argument ? "O" : NULL, argument));
    return result;
}

int cqn_engine_do(cqn_engine *self, const char *method, PyObject *argument)
{
    PyObject *result = cqn_engine_call(self, method, argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* A subclass can have an __init__() that does not call the one of AsyncCQ. */
int cqn_engine_check_made(const cqn_engine *self)
{
    if (self->cq == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "AsyncCQ.__init__() was not called");
        return -1;
    }
    return 0;
}

/* ---- exceptions ---- */

/* An exception collects the frames through which it goes, so each task gets a copy of its own. */
static void raise_copy(cqn_engine *self, PyObject *error)
{
    PyObject *copy = cqn_engine_call(self, "_fresh", error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

/* Raises why nothing can be awaited any more: the AsyncCQ was closed, or has failed for good. See
 * cqn_engine_check(). */
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

/* No task was told of this failure, so the AsyncCQ keeps it for the next task that waits. Errors of
 * other types are not failures of the device, and are dropped. */
void cqn_engine_report(cqn_engine *self, PyObject *error)
{
    if (PyErr_GivenExceptionMatches(error, self->state->AsyncEventError) &&
        cqn_engine_do(self, "_keep_report", error) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* ---- waking in the thread of the loop ---- */

/* The calling thread need not be that of the event loop, and only that one may wake tasks: so the
 * AsyncCQ passes the waking on to it. */
int cqn_engine_hand_over(cqn_engine *self)
{
    return cqn_engine_has_news(self) ? cqn_engine_do(self, "_hand_over", NULL) : 0;
}

/* The caller can raise nothing here. What the handler of a signal has raised goes to the event
 * loop, which raises it soon; an Exception is reported as unraisable. */
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

/* The same for callers that can raise no exception. */
void cqn_engine_hand_over_or_put_off(cqn_engine *self)
{
    if (cqn_engine_hand_over(self) < 0) {
        put_off(self);
    }
}

/* Completions were routed by another caller than the callback of the event loop. */
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

/* ---- what a method returns ---- */

/* anyio that is older than its TaskHandle takes only what Python itself made a coroutine of. Each
 * call asks, so what tells that anyio may have come must cost nothing: the size of sys.modules.
 * Python tells no version of a dict, and a look-up of the name in each call costs more. The size
 * does not tell of an import by which as many modules went as came; until the next import an old
 * anyio then refuses to start what is no coroutine, and says so. */
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
        PyObject *wants = cqn_engine_call(self, "_wants_coroutines", anyio);
        if (wants == NULL) {
            return -1;
        }
        st->anyio_is_old = wants == Py_True;
        Py_DECREF(wants);
        Py_XSETREF(st->anyio, Py_NewRef(anyio));
    }
    return st->anyio_is_old;
}

/* What a method of the AsyncCQ returns for a request, whose reference is stolen. */
PyObject *cqn_engine_shaped(cqn_engine *self, cqn_request *request)
{
    int wanted = request == NULL ? -1 : wants_coroutines(self);
    if (wanted == 0) {
        return (PyObject *)request;
    }
    PyObject *coroutine = NULL, *name = NULL;
    if (wanted > 0) {
        coroutine = cqn_engine_call(self, "_coroutine", (PyObject *)request);
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
