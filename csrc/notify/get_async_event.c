/* SPDX-License-Identifier: MIT */
/*
 * The methods of Context that hand the device's reports out, once each; and the list for an
 * observer, who takes none.
 *
 * The waiting is done in a gate (base/wait.c), the reports are kept in reports.c.
 */

#include "notify/reports.h"

static PyObject *take_report(cqn_object *self)
{
    cqn_context *ctx = (cqn_context *)self;
    if (ctx->reports->queued == NULL && cqn_async_drain(ctx) < 0) {
        return NULL;
    }
    cqn_report *report = ctx->reports->queued;
    if (report == NULL) {
        return NULL;
    }
    /* The AsyncEvent is made first: making it can run code that takes this report, or drops it. */
    const cqn_report copy = *report;
    PyObject *event = cqn_async_event_new(self->state, &copy, cqn_report_own_element(&copy));
    if (event == NULL) {
        return NULL;
    }
    report = ctx->reports->queued;
    if (report == NULL || report->serial != copy.serial) {
        Py_DECREF(event);
        return cqn_open(self) == NULL ? NULL : take_report(self);
    }
    cqn_report *failure = cqn_report_find_same(ctx->reports->failures, report);
    if (failure != NULL && failure->serial == report->serial) {
        failure->taken_by = PyThread_get_thread_ident();
    }
    ctx->reports->queued = report->next;
    ctx->reports->queued_len--;
    PyMem_Free(report);
    cqn_reports_show(ctx);
    return event;
}

/* What was read and not handed out, and the failures: a list of AsyncEvents for an observer;
 * nothing is taken. To make an event can run code that drops reports, so all are copied first. */
CQN_RARE PyObject *cqn_async_known(cqn_context *ctx)
{
    cqn_report known[16];
    size_t n = 0;
    for (const cqn_report *r = ctx->reports->failures; r != NULL && n < Py_ARRAY_LENGTH(known);
         r = r->next) {
        known[n++] = *r;
    }
    for (const cqn_report *r = ctx->reports->queued; r != NULL && n < Py_ARRAY_LENGTH(known);
         r = r->next) {
        if (cqn_report_find_same(ctx->reports->failures, r) == NULL) {
            known[n++] = *r;
        }
    }
    PyObject *elements[Py_ARRAY_LENGTH(known)];
    for (size_t i = 0; i < n; i++) {
        elements[i] = cqn_report_own_element(&known[i]);
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < n; i++) {
        PyObject *event = cqn_async_event_new(ctx->base.state, &known[i], elements[i]);
        if (list != NULL && (event == NULL || PyList_Append(list, event) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(event);
    }
    return list;
}

/* A waiter for reports gets failures as reports, so they do not end its wait. */
static int check_nothing(cqn_object *Py_UNUSED(self), uint64_t *Py_UNUSED(told))
{
    return 0;
}

static int queued_fd(const cqn_object *self)
{
    return ((const cqn_context *)self)->reports->flag.raised_fd;
}

static void no_async_event(cqn_object *Py_UNUSED(self))
{
    PyErr_SetString(PyExc_TimeoutError, "no asynchronous event within the timeout");
}

static const cqn_wait_kind async_wait = {
    .take = take_report,
    .check = check_nothing,
    .fd = queued_fd,
    .drain = cqn_async_drain,
    .verb = "ibv_get_async_event",
    .time_out = no_async_event,
};

const char cqn_get_async_event_doc[] =
    "get_async_event($self, /, timeout=None)\n--\n\n"
    "Sleep until the device reports something besides completions, and return the AsyncEvent.\n\n"
    "It is acknowledged already. `timeout` is in seconds, None waits for ever; TimeoutError at "
    "its end, ClosedError if the context is closed meanwhile, DeviceRemovedError when the device "
    "has gone. Events that were there before the call count, each comes once.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_get_async_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    cqn_sleep sleep = {.timed = false};
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("get_async_event", names, 1, 0, args, nargs, kwnames, &timeout) < 0) {
        return NULL;
    }
    return cqn_gate_wait(CQN_OBJ(op), &((cqn_context *)op)->reports->gate, &async_wait, timeout, 0,
                         &sleep);
}

const char cqn_try_get_async_event_doc[] =
    "try_get_async_event($self, /)\n--\n\n"
    "The next AsyncEvent if there is one, or None; never sleeps.\n\n"
    "Wraps ibv_get_async_event(3).";

PyObject *cqn_try_get_async_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *event = cqn_open(CQN_OBJ(op)) == NULL ? NULL : take_report(CQN_OBJ(op));
    return event != NULL || PyErr_Occurred() ? event : Py_NewRef(Py_None);
}
