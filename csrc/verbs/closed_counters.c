/* SPDX-License-Identifier: MIT */
/*
 * The counters of a context: for each name of CQs, the sums over all CQs of that name, including
 * closed ones.
 *
 * The sums of a context therefore never decrease, and closed CQs use memory per name, not per CQ.
 * The counters of a name are allocated with the first CQ of that name and freed with the
 * context.
 */

#include "verbs/context.h"

struct cqn_closed_counters {
    cqn_closed_counters *next;
    PyObject *name;      /* a str */
    cqn_counters closed; /* of the closed CQs */
};

/* ---- counters of a CQ ---- */

/* No other code runs between the search and the insertion. */
cqn_closed_counters *cqn_closed_counters_of(cqn_context *ctx, PyObject *name)
{
    cqn_closed_counters **link = &((cqn_device_context *)ctx)->closed_counters;
    while (*link != NULL && PyUnicode_Compare((*link)->name, name) != 0) {
        link = &(*link)->next;
    }
    if (*link == NULL && (*link = PyMem_Calloc(1, sizeof(**link))) != NULL) {
        (*link)->name = Py_NewRef(name);
    }
    return *link != NULL ? *link : (cqn_closed_counters *)PyErr_NoMemory();
}

/* Every counter is a 64-bit number. */
static void add_numbers(void *sum, const void *more, size_t size)
{
    uint64_t *to = sum;
    const uint64_t *from = more;
    for (size_t i = 0; i < size / sizeof(*to); i++) {
        to[i] += from[i];
    }
}

static void add_counters(cqn_counters *sum, const cqn_cq *cq)
{
    add_numbers(&sum->counts, &cq->stats, sizeof(cq->stats));
    for (size_t i = 0; i < CQN_HISTOGRAMS; i++) {
        if (cq->histograms[i] != NULL) {
            add_numbers(&sum->histograms[i], cq->histograms[i], sizeof(cqn_histogram));
        }
    }
}

/* Called when the CQ is closed. Its context owns the counters and is still open. */
void cqn_closed_counters_add(cqn_cq *cq)
{
    cqn_cq_event_is_over(cq);
    add_counters(&cq->closed_counters->closed, cq);
}

void cqn_closed_counters_free(cqn_closed_counters **list)
{
    cqn_closed_counters *of_name;
    while ((of_name = *list) != NULL) {
        *list = of_name->next;
        Py_DECREF(of_name->name);
        PyMem_Free(of_name);
    }
}

/* ---- rows of numbers ---- */

/* Returns counters of `size` bytes as a tuple of 64-bit numbers; NULL with an exception. */
static PyObject *row_of(const void *counters, size_t size)
{
    const uint64_t *numbers = counters;
    const Py_ssize_t n = (Py_ssize_t)(size / sizeof(*numbers));
    PyObject *row = PyTuple_New(n);
    for (Py_ssize_t i = 0; row != NULL && i < n; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(row);
            break;
        }
        PyTuple_SET_ITEM(row, i, number);
    }
    return row;
}

PyObject *cqn_cq_counters(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_counters copy = {.counts.events = 0};
    add_counters(&copy, (cqn_cq *)op);
    return row_of(&copy, sizeof(copy));
}

/* The sums for one name. */
typedef struct {
    PyObject *name; /* owned by the closed counters */
    Py_ssize_t open;
    cqn_counters sum;
} total;

/* Adds the counters of the CQs of this name that are open or being closed. Returns their number. */
static Py_ssize_t add_open(const cqn_context *ctx, const cqn_closed_counters *of_name,
                           cqn_counters *sum)
{
    Py_ssize_t n = 0;
    for (const cqn_object *o = ctx->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        if (((const cqn_cq *)o)->closed_counters == of_name) {
            add_counters(sum, (const cqn_cq *)o);
            n++;
        }
    }
    return n;
}

/* Creating an object can run code that creates or closes CQs, so all sums are computed first. */
static total *add_up(const cqn_context *ctx, size_t *n)
{
    const cqn_closed_counters *first = ((const cqn_device_context *)ctx)->closed_counters;
    *n = 0;
    for (const cqn_closed_counters *of_name = first; of_name != NULL; of_name = of_name->next) {
        ++*n;
    }
    total *totals = PyMem_Calloc(*n + 1, sizeof(*totals));
    size_t i = 0;
    for (const cqn_closed_counters *of_name = first; totals != NULL && of_name != NULL;
         of_name = of_name->next) {
        total *t = &totals[i++];
        t->name = of_name->name;
        t->sum = of_name->closed;
        t->open = add_open(ctx, of_name, &t->sum);
    }
    return totals != NULL ? totals : (total *)PyErr_NoMemory();
}

/* The counters of the channels, as a row of numbers. */
typedef struct {
    uint64_t timeouts, thread_wakeups;
    cqn_histogram per_wake;
} channel_row;

static channel_row row_of_channels(const cqn_channel_counters *channels)
{
    channel_row row = {channels->timeouts, channels->thread_wakeups, {.sum = 0}};
    if (channels->per_wake != NULL) {
        row.per_wake = *channels->per_wake;
    }
    return row;
}

/* Returns the name of the device; for each name of CQs the name, the number of open ones and the
 * sums; and the counters of the channels. Works on a closed context as well. */
CQN_RARE PyObject *cqn_context_counters(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    size_t n;
    const channel_row channels = row_of_channels(&((cqn_device_context *)op)->channels);
    total *totals = add_up((cqn_context *)op, &n);
    PyObject *list = totals == NULL ? NULL : PyList_New(0);
    for (size_t i = 0; list != NULL && i < n; i++) {
        PyObject *row = row_of(&totals[i].sum, sizeof(totals[i].sum));
        PyObject *item =
            row == NULL ? NULL : Py_BuildValue("(OnN)", totals[i].name, totals[i].open, row);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    PyMem_Free(totals);
    PyObject *row = list == NULL ? NULL : row_of(&channels, sizeof(channels));
    if (row == NULL) {
        Py_XDECREF(list);
        return NULL;
    }
    return Py_BuildValue("(sNN)", ((cqn_device_context *)op)->name, list, row);
}
