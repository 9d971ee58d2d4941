/* SPDX-License-Identifier: MIT */
/* What is open, and what a device has reported, for cqnotify.report(). To look changes nothing, and
 * asks nothing of the device. */

#include "verbs/verbs.h"

static Py_ssize_t count_below(const cqn_context *ctx)
{
    Py_ssize_t n = 0;
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        for (const cqn_object *o = ctx->first[rank]; o != NULL; o = o->next) {
            n++;
        }
    }
    return n;
}

/* To make the list can run the garbage collector, and so close some: only what is there when the
 * list is filled gets into it, and no more than were there before. */
CQN_RARE PyObject *cqn_open_objects(PyObject *module, PyObject *context)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    if (cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    const cqn_context *ctx = (cqn_context *)context;
    const Py_ssize_t room = count_below(ctx);
    PyObject *list = PyList_New(room);
    Py_ssize_t n = 0;
    for (int rank = 0; list != NULL && rank < CQN_RANKS; rank++) {
        for (cqn_object *o = ctx->first[rank]; o != NULL && n < room; o = o->next) {
            if (o->handle != NULL && cqn_try_ref(o)) {
                PyList_SET_ITEM(list, n++, (PyObject *)o);
            }
        }
    }
    if (list != NULL && PyList_SetSlice(list, n, room, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* Those of the parent of a forked process are not among them. */
CQN_RARE PyObject *cqn_open_contexts(PyObject *module, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_state *st = PyModule_GetState(module);
    Py_ssize_t room = 0, n = 0;
    for (const cqn_object *o = st->contexts; o != NULL; o = o->next) {
        room++;
    }
    PyObject *list = PyList_New(room);
    for (cqn_object *o = st->contexts; list != NULL && o != NULL && n < room; o = o->next) {
        if (cqn_is_open(o) && cqn_try_ref(o)) {
            PyList_SET_ITEM(list, n++, (PyObject *)o);
        }
    }
    if (list != NULL && PyList_SetSlice(list, n, room, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *cqn_known_async_events(PyObject *module, PyObject *context)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    return cqn_expect(context, st->Context, "context") < 0
               ? NULL
               : cqn_async_known((cqn_context *)context);
}
