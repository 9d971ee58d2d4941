/* SPDX-License-Identifier: MIT */
/*
 * From the stash to Python: completions as objects, as wr_ids, or as rows of a WCArray. They leave
 * the stash only after all of their objects were created, so none is lost when memory is short or
 * when the garbage collector runs code that polls the same CQ.
 */

#include "notify/cq.h"

/* Returns entry i from the front of the stash, counting holes; borrowed. */
static const struct ibv_wc *stashed_at(const cqn_cq *self, size_t i)
{
    return &self->stash[self->stash_head + i];
}

/* Returns the number of completions to return; with only_ok, those before the first failed one. */
static size_t count_ready(cqn_cq *self, size_t max, bool only_ok)
{
    if (only_ok && self->holes > 0) { /* completion() leaves holes */
        cqn_stash_pack(self);
    }
    const size_t n = cqn_stash_len(self) < max ? cqn_stash_len(self) : max;
    size_t ready = only_ok ? 0 : n;
    while (ready < n && stashed_at(self, ready)->status == IBV_WC_SUCCESS) {
        ready++;
    }
    return ready;
}

/* Returns a new list with space for all completions to return. Its creation can run the garbage
 * collector, and so code that polls this CQ or closes it; if that took completions, the
 * function creates another list. */
static PyObject *new_list(cqn_cq *self, size_t max, bool only_ok)
{
    for (;;) {
        const uint64_t before = self->stats.completions;
        const size_t n = count_ready(self, max, only_ok);
        PyObject *list = PyList_New((Py_ssize_t)n);
        if (list == NULL || (self->stats.completions == before && n <= cqn_stash_len(self))) {
            return list;
        }
        Py_DECREF(list);
    }
}

/* Converts the first of n completions, and as many of the following as it can at once, to objects
 * or wr_ids. Runs no Python code. Returns the number of items, 0 with an exception. */
typedef size_t make(const cqn_cq *, const struct ibv_wc *wcs, size_t n, PyObject **items);

static inline PyObject *new_wc(const cqn_cq *self, const struct ibv_wc *wc)
{
    const cqn_wc_extra *extra = self->extra ? &self->extra[wc - self->stash] : NULL;
    return cqn_wc_new(self->base.state, wc, extra, self->wc_flags);
}

static inline size_t make_wcs(const cqn_cq *self, const struct ibv_wc *wcs, size_t n,
                              PyObject **items)
{
    size_t made = self->extra ? 0 : cqn_wc_new_run(self->base.state, wcs, n, items);
    if (made == 0) {
        items[0] = new_wc(self, wcs);
        made = items[0] != NULL;
    }
    return made;
}

static inline size_t make_ids(const cqn_cq *self, const struct ibv_wc *wcs, size_t n,
                              PyObject **items)
{
    (void)self;
    for (size_t i = 0; i < n; i++) {
        items[i] = PyLong_FromUnsignedLongLong(wcs[i].wr_id);
        if (items[i] == NULL) {
            return 0;
        }
    }
    return n;
}

/* Pops up to `max` completions from the stash into a new list of the items that `make` creates. */
static inline PyObject *pop_list(cqn_cq *self, size_t max, bool only_ok, make *make)
{
    PyObject *list = new_list(self, max, only_ok);
    const struct ibv_wc *wc = stashed_at(self, 0);
    const bool holes = self->holes > 0;
    const size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    for (size_t i = 0, made; i < n; i += made, wc += made) {
        while (holes && cqn_stash_is_hole(wc)) {
            wc++;
        }
        made = make(self, wc, holes ? 1 : n - i, PySequence_Fast_ITEMS(list) + i);
        if (made == 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    if (n > 0) {
        cqn_stash_drop(self, n);
    }
    return list;
}

PyObject *cqn_cq_pop_wcs(cqn_cq *self, uint64_t max)
{
    return pop_list(self, max, false, make_wcs);
}

/* Raises the first completion, which failed, and pops it. Creating the exception can fail, or run
 * code that pops the completion first: then it is not raised here. */
static void raise_first(cqn_cq *self)
{
    const struct ibv_wc failed = *stashed_at(self, 0);
    const uint64_t before = self->stats.completions;
    PyObject *wc = new_wc(self, stashed_at(self, 0));
    if (wc == NULL) {
        return;
    }
    cqn_completion_error(self->base.state, wc, &failed, NULL);
    Py_DECREF(wc);
    if (self->stats.completions != before) {
        PyErr_Clear();
    }
    else if (PyErr_ExceptionMatches(self->base.state->CompletionError)) {
        cqn_stash_drop(self, 1);
    }
}

PyObject *cqn_cq_pop_ids(cqn_cq *self, size_t max)
{
    while (self->stash_len > 0 && stashed_at(self, 0)->status != IBV_WC_SUCCESS &&
           !PyErr_Occurred()) {
        raise_first(self);
    }
    return PyErr_Occurred() ? NULL : pop_list(self, max, true, make_ids);
}

PyObject *cqn_cq_pop_rows(cqn_cq *self, PyObject *array)
{
    const size_t n = count_ready(self, cqn_wc_array_free_rows(array), false);
    PyObject *count = PyLong_FromSize_t(n);
    if (count == NULL) {
        return NULL;
    }
    if (self->holes > 0) { /* rows are copied in one piece */
        cqn_stash_pack(self);
    }
    cqn_wc_array_set(array, stashed_at(self, 0), n);
    if (n > 0) {
        cqn_stash_drop(self, n);
    }
    return count;
}
