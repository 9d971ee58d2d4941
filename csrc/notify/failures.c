/* SPDX-License-Identifier: MIT */
/*
 * Telling of failures: to the waits for completions that may never come now, and to the watches of
 * event loops.
 *
 * Each failure has a serial number. A channel, a waiter and a watch each remember up to which one
 * they were told (reports.c), so a failure is told once to each.
 */

#include "notify/reports.h"

/* ---- telling those that wait ---- */

/* Raises AsyncEventError. Returns -1. */
static int raise_failure(cqn_state *st, const cqn_report *report)
{
    const char *name = ibv_event_type_str(report->type);
    PyObject *event = cqn_async_event_new(st, report, cqn_report_own_element(report));
    PyObject *exc = event == NULL
                        ? NULL
                        : PyObject_CallFunction(
                              st->AsyncEventError, "N",
                              PyUnicode_FromFormat("the device reports \"%s\": completions that "
                                                   "are awaited here may never come; see the "
                                                   "attribute event",
                                                   name));
    if (exc != NULL && PyObject_SetAttrString(exc, "event", event) == 0) {
        PyErr_SetObject(st->AsyncEventError, exc);
    }
    Py_XDECREF(exc);
    Py_XDECREF(event);
    return -1;
}

/* The oldest failure after `told` that concerns the channel, or NULL. */
static const cqn_report *next_failure(const cqn_channel *channel, uint64_t told)
{
    const cqn_report *found = NULL;
    for (const cqn_report *r = channel->base.context->reports->failures; r != NULL; r = r->next) {
        if (r->serial > told && (found == NULL || r->serial < found->serial) &&
            cqn_report_concerns(r, channel)) {
            found = r;
        }
    }
    return found;
}

/* A waiter and its channel each remember the latest failure that they were told. */
static void advance_told(cqn_channel *channel, uint64_t *told, uint64_t serial)
{
    *told = serial;
    channel->told = channel->told > serial ? channel->told : serial;
}

/* -1 with AsyncEventError if a failure concerns this channel of which a waiter,
 * which was `told` of all up to there, does not know. */
int cqn_async_check(cqn_channel *channel, uint64_t *told)
{
    const uint64_t all = channel->concerned;
    const cqn_report *failure;
    while (*told < all && (failure = next_failure(channel, *told)) != NULL) {
        const cqn_report copy = *failure;
        if (copy.taken_by != PyThread_get_thread_ident()) {
            cqn_state *st = channel->base.state;
            raise_failure(st, &copy);
            if (PyErr_ExceptionMatches(st->AsyncEventError)) {
                advance_told(channel, told, copy.serial);
            }
            return -1;
        }
        advance_told(channel, told, copy.serial);
    }
    if (*told < all) {
        advance_told(channel, told, all);
    }
    return 0;
}

/* ---- telling those that watch ---- */

/* An object that is being closed or deallocated can not be held any more. */
static bool is_due(const cqn_report *failure, uint64_t told)
{
    const cqn_object *element = failure->element;
    return failure->serial > told &&
           (element == NULL ||
            (element->handle != NULL && cqn_refs_may_live(&element->refs, (PyObject *)element)));
}

/* So many pairs are made before the first is filled in. */
static Py_ssize_t count_due(const cqn_context *ctx, uint64_t told)
{
    Py_ssize_t n = 0;
    for (const cqn_report *r = ctx->reports->failures; r != NULL; r = r->next) {
        n += is_due(r, told);
    }
    return n;
}

/* An AsyncEvent of nothing and an empty list, to be filled in. */
static PyObject *new_pair(cqn_state *st)
{
    const cqn_report nothing = {.next = NULL};
    PyObject *event = cqn_async_event_new(st, &nothing, NULL);
    PyObject *cqs = event == NULL ? NULL : PyList_New(0);
    PyObject *pair = cqs == NULL ? NULL : PyTuple_Pack(2, event, cqs);
    Py_XDECREF(cqs);
    Py_XDECREF(event);
    return pair;
}

/* Steals the reference to the element. */
static int fill_pair(PyObject *pair, const cqn_context *ctx, const cqn_report *failure,
                     PyObject *element)
{
    cqn_async_event *event = (cqn_async_event *)PyTuple_GET_ITEM(pair, 0);
    PyObject *cqs = PyTuple_GET_ITEM(pair, 1);
    event->type = failure->type;
    event->port_num = failure->port_num;
    event->element = element;
    const int rc = cqn_report_add_cqs(ctx, failure, cqs);
    if (rc == 0) {
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(Py_None));
        Py_DECREF(cqs);
    }
    return rc < 0 ? -1 : 0;
}

/* Makes the list one pair longer, or as short as it should be. */
static int adjust_pairs(cqn_state *st, PyObject *pairs, Py_ssize_t wanted)
{
    Py_ssize_t size = PyList_GET_SIZE(pairs);
    if (size > wanted) {
        return PyList_SetSlice(pairs, wanted, size, NULL);
    }
    PyObject *pair = new_pair(st);
    int rc = pair == NULL ? -1 : PyList_Append(pairs, pair);
    Py_XDECREF(pair);
    return rc;
}

/* Fills in the pairs that were made, one for each failure that is still due. */
static int fill_pairs(PyObject *pairs, const cqn_context *ctx, uint64_t told)
{
    int rc = 0;
    Py_ssize_t i = 0;
    for (const cqn_report *r = ctx->reports->failures; rc == 0 && r != NULL; r = r->next) {
        if (!is_due(r, told)) {
            continue;
        }
        PyObject *element = cqn_report_own_element(r);
        if (element != NULL || r->element == NULL) {
            rc = fill_pair(PyList_GET_ITEM(pairs, i++), ctx, r, element);
        }
    }
    /* Without a GIL an element can have gone since the failures were counted. */
    const Py_ssize_t size = PyList_GET_SIZE(pairs);
    return rc < 0 || i == size ? rc : PyList_SetSlice(pairs, i, size, NULL);
}

/* The failures after *told, which is advanced; for FailureWatch.read(), `self`
 * is the watch. To make an object can run any code, which can close this one or
 * enter another failure: so all are made before the first is filled in, and
 * from there to the end nothing changes. Without memory nothing is told. */
CQN_RARE PyObject *cqn_async_failures(cqn_object *self, uint64_t *told)
{
    cqn_state *st = self->state;
    PyObject *pairs = PyList_New(0);
    int rc = pairs == NULL ? -1 : 0;
    while (rc == 0 && cqn_open(self) != NULL) {
        const cqn_context *ctx = self->context;
        Py_ssize_t wanted = count_due(ctx, *told);
        if (PyList_GET_SIZE(pairs) != wanted) {
            rc = adjust_pairs(st, pairs, wanted);
        }
        else if ((rc = fill_pairs(pairs, ctx, *told)) == 0) {
            *told = ctx->reports->serial;
            return pairs;
        }
    }
    Py_XDECREF(pairs);
    return NULL;
}
