/* SPDX-License-Identifier: MIT */
/* The end of an object without references: the garbage collector's slots of all types, and closing
 * at the last moment. */

#include "base/errors.h"
#include "base/object.h"

/* ---- the garbage collector ---- */

int cqn_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_object *self = CQN_OBJ(op);
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->on_close);
    for (int i = 0; i < CQN_MAX_USES; i++) {
        Py_VISIT(self->uses[i]);
    }
    return 0;
}

/* An object that is still open (its close failed) keeps what it uses: the
 * device would otherwise be closed under it. */
int cqn_clear(PyObject *op)
{
    cqn_object *self = CQN_OBJ(op);
    Py_CLEAR(self->on_close);
    if (self->handle == NULL && self->closing == 0) {
        cqn_unlist(self);
        for (int i = 0; i < CQN_MAX_USES; i++) {
            Py_CLEAR(self->uses[i]);
        }
    }
    return 0;
}

int cqn_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    return CQN_OBJ(op)->kind->clear(op);
}

/* ---- the last reference ---- */

/* The repr() shows which device it was. Python drops the warning unless it is asked for. */
static void warn_unclosed(cqn_object *self)
{
    PyObject *op = (PyObject *)self;
    if (PyErr_ResourceWarning(op, 1, "unclosed %s %R", self->kind->name, op) < 0) {
        PyErr_WriteUnraisable(op);
    }
}

/* Still open when the last reference goes: close, and never raise. Its users are unreachable as
 * well, and are closed with it. Only an unclosed context is a mistake, and warned of: all that was
 * made on one is closed with it. */
void cqn_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    if (self->handle == NULL) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    if (!cqn_forked(self) && CQN_OBJ(self->context) == self && self->closing == 0 &&
        !self->kind->closes_with_parent) {
        CQN_UNLOCKED(warn_unclosed(self));
    }
    if (cqn_close(self, true) < 0) {
        /* Something that is closed later can still need it: the window of a bind in flight, or the
         * table of a WQ. Then close_at_last() succeeds. */
        if (self->pins > 0 || PyErr_ExceptionMatches(self->state->BusyError)) {
            PyErr_Clear();
        }
        else {
            CQN_UNLOCKED(PyErr_WriteUnraisable(op));
        }
    }
    cqn_put_exception(pending);
}

/* Open even after it was finalized: a subclass has a __del__ that did not call ours, or the close
 * failed. No user is left, since users hold it, so this is the last chance. What can't be closed
 * now is leaked, because tables and the device still point to it. */
static bool close_at_last(cqn_object *self)
{
    PyObject *pending = cqn_take_exception();
    if (cqn_close(self, true) < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(NULL));
    }
    cqn_put_exception(pending);
    if (self->handle == NULL) {
        return true;
    }
    self->handle = NULL;
    cqn_unlist(self);
    for (int i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        self->uses[i]->users--;
    }
    return false;
}

/* Whether it is to go: its finalizer can make it live on, and then it must be tracked. A
 * subclass in Python has called it before. */
static bool finalize_object(PyObject *op)
{
    if (PyObject_GC_IsFinalized(op)) {
        return true;
    }
    PyObject_GC_Track(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return false;
    }
    PyObject_GC_UnTrack(op); /* before the lock: while we wait for it the collector can run */
    return true;
}

static void dealloc_object(PyObject *op)
{
    if (!finalize_object(op)) {
        return;
    }
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    PyTypeObject *type = Py_TYPE(op);
    self->refs.dying = true;
    if (self->weakrefs != NULL) { /* first, since code that runs from here on must not find it */
        CQN_UNLOCKED(PyObject_ClearWeakRefs(op));
    }
    while (self->closing > 0 && !cqn_is_ending()) {
        cqn_wait_until_left(self->state); /* its context is closing it in another thread */
    }
    if (self->handle != NULL && !close_at_last(self)) {
        return;
    }
    self->kind->clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* The deallocations of a long chain, for example by user_data, would nest: CPython's trashcan
 * defers the deep ones, and needs them untracked. */
void cqn_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, cqn_dealloc);
    dealloc_object(op);
    Py_TRASHCAN_END;
}
