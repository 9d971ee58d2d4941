/* SPDX-License-Identifier: MIT */
/*
 * CMWait: waits for an event of a CMConn, in the shape of a coroutine. A task awaits it, or a
 * generator of steps does; in a thread, its first step sleeps and has the result.
 *
 * A task is listed before it sleeps, so it can be woken, and then checks once more.
 */

#include "await/coroutine.h"
#include "cm/calls.h"
#include "cm/conn_state.h"

/* Events that end an attempt. UNREACHABLE does not end an established connection: it is only a
 * hint. */
#define ENDS                                                                        \
    (CQN_CM_BIT(ADDR_ERROR) | CQN_CM_BIT(ROUTE_ERROR) | CQN_CM_BIT(CONNECT_ERROR) | \
     CQN_CM_BIT(UNREACHABLE) | CQN_CM_BIT(REJECTED) | CQN_CM_BIT(DISCONNECTED) |    \
     CQN_CM_BIT(DEVICE_REMOVAL) | CQN_CM_BIT(MULTICAST_ERROR))

typedef struct {
    PyObject_HEAD
    cqn_cm_conn *conn; /* NULL: over */
    cqn_cm_sleep sleep;
    double end;          /* by the monotonic clock */
    unsigned int wanted; /* events */
    bool for_end;        /* waits for the end of an established connection, not for an event */
    bool stepping;
} cm_wait;

/* ---- checking ---- */

static bool has_news(const cm_wait *self)
{
    const cqn_cm_conn *conn = self->conn;
    return self->for_end ? conn->ended : conn->events_len > 0 || cqn_cm_conn_has_reason(conn);
}

/* Steals the exception, and clears its traceback, which would grow with each raise. */
static PySendResult raise_again(PyObject *error)
{
    if (error != NULL && PyExceptionInstance_Check(error)) {
        PyException_SetTraceback(error, Py_None);
        cqn_put_exception(error);
    }
    else if (error != NULL) {
        PyErr_Format(PyExc_SystemError, "no exception: %R", error);
        Py_DECREF(error);
    }
    return PYGEN_ERROR;
}

/* Raises the exception that a method of Python's Link returns. */
static PySendResult raise_by(cqn_cm_conn *conn, const char *method, PyObject *event)
{
    PyObject *error;
    CQN_UNLOCKED(
        error = PyObject_CallMethod((PyObject *)conn, method, event == NULL ? NULL : "(O)", event));
    return raise_again(error);
}

/* Whether a step failed because the peer is gone; an event reports that, or will. */
static bool peer_has_gone(const cqn_cm_conn *conn)
{
    const cqn_cm_id *id = cqn_cm_conn_id(conn);
    return id != NULL && cqn_is_open(&id->base) &&
           (id->state == CQN_CM_DISCONNECTED || id->state == CQN_CM_FAILED);
}

/* Steals the reference. PYGEN_NEXT: the event is not for this wait. */
static PySendResult handle_event(cm_wait *self, PyObject *event, PyObject **result)
{
    PyObject *error = PyTuple_GET_ITEM(event, CQN_CM_EVENT_ERROR);
    const long number = PyLong_AsLong(PyTuple_GET_ITEM(event, CQN_CM_EVENT_TYPE));
    const unsigned int type = number < 0 || number >= 32 ? 0 : 1u << number;
    PySendResult r = PYGEN_NEXT;
    if (error != Py_None) {
        r = peer_has_gone(self->conn) ? PYGEN_NEXT : raise_again(Py_NewRef(error));
    }
    else if (type & self->wanted) {
        *result = Py_NewRef(event);
        r = PYGEN_RETURN;
    }
    else if (type & ENDS) {
        r = raise_by(self->conn, "_error_of", event);
    }
    Py_DECREF(event);
    return r;
}

/* PYGEN_NEXT: nothing has happened that ends the wait. */
static PySendResult check(cm_wait *self, PyObject **result)
{
    cqn_cm_conn *conn = self->conn;
    if (self->for_end) {
        *result = conn->ended ? Py_NewRef(Py_None) : NULL;
        return conn->ended ? PYGEN_RETURN : PYGEN_NEXT;
    }
    while (conn->events_len > 0) {
        const PySendResult r = handle_event(self, cqn_cm_conn_pop(conn), result);
        if (r != PYGEN_NEXT) {
            return r;
        }
    }
    if (!cqn_cm_conn_has_reason(conn)) {
        return PYGEN_NEXT;
    }
    PyObject *error;
    CQN_UNLOCKED(error = PyObject_GetAttrString((PyObject *)conn, "error"));
    return raise_again(error);
}

/* ---- sleeping ---- */

static void wake_up(cm_wait *self)
{
    if (self->sleep.wakeup != NULL) {
        cqn_cm_conn_remove_sleeper(self->conn, self->sleep.wakeup);
        cqn_cm_sleep_end(&self->sleep);
    }
}

/* PYGEN_RETURN: there may be news. */
static PySendResult sleep_in_task(cm_wait *self, PyObject **result)
{
    const int rc = cqn_cm_sleep_prepare(&self->sleep, cqn_cm_conn_channel(self->conn), self->end);
    CQN_PLACE("cm prepare");
    if (rc < 0 || cqn_cm_conn_add_sleeper(self->conn, self->sleep.wakeup) < 0) {
        return PYGEN_ERROR;
    }
    if (has_news(self)) { /* a coroutine that never begins would give a warning */
        return cqn_cm_sleep_close(&self->sleep) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
    }
    const PySendResult r = cqn_cm_sleep_begin(&self->sleep, result);
    CQN_PLACE("cm sleep");
    return r;
}

static PySendResult sleep_in_thread(cm_wait *self)
{
    PyObject *notifier = Py_NewRef(self->conn->notifier), *result;
    PyObject *predicate =
        PyObject_GetAttrString((PyObject *)self->conn, self->for_end ? "is_over" : "has_news");
    PyObject *end = self->end == CQN_CM_NEVER ? Py_NewRef(Py_None) : PyFloat_FromDouble(self->end);
    CQN_UNLOCKED(result = predicate == NULL || end == NULL
                              ? NULL
                              : PyObject_CallMethod(notifier, "sleep", "OO", predicate, end));
    Py_XDECREF(end);
    Py_XDECREF(predicate);
    Py_XDECREF(result);
    Py_DECREF(notifier);
    return result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

/* ---- steps ---- */

static PySendResult run(cm_wait *self, PyObject **result)
{
    for (;;) {
        PySendResult r = check(self, result);
        if (r != PYGEN_NEXT) {
            return r;
        }
        if (self->end < CQN_CM_NEVER && cqn_cm_now() >= self->end) {
            return raise_by(self->conn, "_no_answer", NULL);
        }
        r = self->conn->notifier != NULL ? sleep_in_thread(self) : sleep_in_task(self, result);
        if (r != PYGEN_RETURN) {
            return r;
        }
        wake_up(self);
    }
}

static void finish(cm_wait *self)
{
    if (self->conn != NULL) {
        wake_up(self);
        Py_CLEAR(self->conn);
    }
}

static PySendResult cm_wait_am_send(PyObject *op, PyObject *value, PyObject **result)
{
    CQN_LOCKED;
    cm_wait *self = (cm_wait *)op;
    *result = NULL;
    if (cqn_refuse_step(self->stepping, self->conn == NULL) < 0) {
        return PYGEN_ERROR;
    }
    self->stepping = true;
    PySendResult r = self->sleep.wakeup == NULL ? PYGEN_RETURN
                                                : cqn_cm_sleep_resume(&self->sleep, value, result);
    if (r == PYGEN_RETURN) {
        wake_up(self);
        r = run(self, result);
    }
    self->stepping = false;
    if (r != PYGEN_NEXT) {
        finish(self);
    }
    return r;
}

/* Called usually because the task was cancelled. */
static PyObject *cm_wait_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cm_wait *self = (cm_wait *)op;
    if (cqn_check_throw(nargs) < 0 || cqn_refuse_step(self->stepping, self->conn == NULL) < 0) {
        return NULL;
    }
    self->stepping = true;
    PyObject *yielded = cqn_cm_sleep_throw(&self->sleep, args, nargs);
    PySendResult r = yielded == NULL ? PYGEN_ERROR : PYGEN_NEXT;
    if (yielded == NULL && self->sleep.iterator != NULL &&
        PyErr_ExceptionMatches(
            PyExc_StopIteration)) { /* the deadline, which is part of the sleep */
        PyErr_Clear();
        wake_up(self);
        r = run(self, &yielded);
    }
    self->stepping = false;
    if (r != PYGEN_NEXT) {
        finish(self);
    }
    return cqn_send_result(r, yielded);
}

static PyObject *cm_wait_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cm_wait *self = (cm_wait *)op;
    if (cqn_refuse_step(self->stepping, false) < 0) {
        return NULL;
    }
    if (self->conn != NULL && cqn_cm_sleep_close(&self->sleep) < 0) {
        return NULL;
    }
    finish(self);
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *new_wait(cqn_cm_conn *conn, unsigned int wanted, bool for_end, PyObject *end)
{
    const double at = end == Py_None ? CQN_CM_NEVER : PyFloat_AsDouble(end);
    if (at == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyTypeObject *type = conn->state->CMWait;
    cm_wait *self = (cm_wait *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->conn = (cqn_cm_conn *)Py_NewRef((PyObject *)conn);
        self->wanted = wanted;
        self->for_end = for_end;
        self->end = at;
    }
    return (PyObject *)self;
}

PyObject *cqn_cm_conn_expect(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned int wanted;
    PyObject *end;
    return PyArg_ParseTuple(args, "IO:expect", &wanted, &end)
               ? new_wait((cqn_cm_conn *)op, wanted, false, end)
               : NULL;
}

PyObject *cqn_cm_conn_over(PyObject *op, PyObject *end)
{
    CQN_LOCKED;
    return new_wait((cqn_cm_conn *)op, 0, true, end);
}

static int cm_wait_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cm_wait *self = (cm_wait *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->conn);
    return cqn_cm_sleep_traverse(&self->sleep, visit, arg);
}

static int cm_wait_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    cm_wait *self = (cm_wait *)op;
    if (self->conn != NULL && self->sleep.wakeup != NULL) {
        cqn_cm_conn_remove_sleeper(self->conn, self->sleep.wakeup);
    }
    cqn_cm_sleep_clear(&self->sleep);
    Py_CLEAR(self->conn);
    return 0;
}

static void cm_wait_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    finish((cm_wait *)op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef cm_wait_methods[] = {
    CQN_COROUTINE_METHODS(cm_wait_throw, cm_wait_close),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot cm_wait_slots[] = {
    {Py_tp_doc, "Waits for something to happen to a CMConn, for one `await`: a coroutine."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, cm_wait_am_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_traverse, cm_wait_traverse},
    {Py_tp_clear, cm_wait_tp_clear},
    {Py_tp_dealloc, cm_wait_dealloc},
    {Py_tp_methods, cm_wait_methods},
    {0, NULL},
};

PyType_Spec cqn_cm_wait_spec = {
    .name = "cqnotify._core.CMWait",
    .basicsize = sizeof(cm_wait),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = cm_wait_slots,
};
