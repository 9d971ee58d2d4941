/* SPDX-License-Identifier: MIT */
/*
 * The polling methods of a CQ.
 *
 * They fetch completions (notify/fetch.c) and convert them (notify/to_python.c). The engine of an
 * AsyncCQ does both, so poll() shares the completions with waiting tasks; the two bulk methods are
 * refused.
 *
 * They hold only half of the lock (base/lock.h), unless the CQ has an AsyncCQ or queues of a queue
 * pair that was closed.
 */

#include "verbs/verbs.h"

/* Converts max_entries and, unless `spin` is NULL, spin. Returns -1 with an exception if the CQ is
 * closed or an argument is wrong. */
static int parse_poll(cqn_cq *self, const char *function, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, uint64_t *max, int64_t *spin)
{
    static const char *const both[] = {"max_entries", "spin", NULL};
    static const char *const only_max[] = {"max_entries", NULL};
    PyObject *in[2] = {NULL, NULL};
    *max = 16;
    return cqn_open(&self->base) == NULL ||
                   cqn_args(function, spin ? both : only_max, 1, 0, args, nargs, kwnames, in) < 0 ||
                   (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, max) < 0) ||
                   (in[1] != NULL && cqn_spin(in[1], spin) < 0) ||
                   !cqn_still_open(&self->base, in[0] != NULL || in[1] != NULL)
               ? -1
               : 0;
}

/* An engine, or releasing a queue, changes data outside the context. */
static inline bool needs_all(const cqn_cq *self)
{
    return self->engine != NULL || self->orphans != NULL;
}

/* Returns -1 with ValueError if the CQ has an AsyncCQ: only poll() is possible then. */
static int refuse_engine(const cqn_cq *self)
{
    if (self->engine == NULL) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "the completions of this CQ go to its AsyncCQ: use poll()");
    return -1;
}

/* The objects that requests kept alive are released last: that can run code that polls this CQ. */
static PyObject *poll_without_engine(cqn_cq *self, uint64_t max, int64_t spin)
{
    cqn_object *deferred = NULL;
    int rc = cqn_cq_fetch(self, max, &deferred);
    if (rc == 0 && spin != 0) {
        rc = cqn_cq_spin_after_fetch(self, max, spin, &deferred);
    }
    PyObject *list = rc < 0 ? NULL : cqn_cq_pop_wcs(self, max);
    cqn_decref_deferred(deferred);
    return list;
}

PyObject *cqn_cq_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    int64_t spin = 0;
    if (parse_poll(self, "poll", args, nargs, kwnames, &max, &spin) < 0) {
        return NULL;
    }
    if (needs_all(self) && !CQN_LOCK_ALL(op)) {
        return NULL;
    }
    cqn_engine *engine = cqn_engine_of(self);
    if (engine == NULL) {
        return poll_without_engine(self, max, spin);
    }
    PyObject *list = cqn_engine_poll(engine, max, spin);
    Py_DECREF(engine);
    return list;
}

PyObject *cqn_cq_poll_ids(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    if (parse_poll(self, "poll_ids", args, nargs, kwnames, &max, NULL) < 0 ||
        (needs_all(self) && !CQN_LOCK_ALL(op)) || refuse_engine(self) < 0) {
        return NULL;
    }
    cqn_object *deferred = NULL;
    PyObject *list = NULL;
    if (cqn_cq_fetch(self, max, &deferred) == 0) {
        list = cqn_cq_pop_ids(self, max);
    }
    cqn_decref_deferred(deferred);
    return list;
}

PyObject *cqn_cq_poll_into(PyObject *op, PyObject *array)
{
    CQN_HALF_LOCKED(op);
    cqn_cq *self = (cqn_cq *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(array, self->base.state->WCArray)) {
        return PyErr_Format(PyExc_TypeError, "wcs must be a cqnotify.WCArray, not %s",
                            Py_TYPE(array)->tp_name);
    }
    const bool alone = !needs_all(self) && cqn_wc_array_enter(array);
    if ((!alone && !CQN_LOCK_ALL(op)) || refuse_engine(self) < 0) {
        return NULL;
    }
    const size_t capacity = cqn_wc_array_free_rows(array);
    cqn_object *deferred = NULL;
    PyObject *count = NULL;
    if (cqn_cq_fetch(self, capacity, &deferred) == 0) {
        count = cqn_cq_pop_rows(self, array);
    }
    if (alone) {
        cqn_wc_array_leave(array);
    }
    cqn_decref_deferred(deferred);
    return count;
}
