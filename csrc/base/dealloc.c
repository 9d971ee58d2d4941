/* SPDX-License-Identifier: MIT */
/* Deallocation: the garbage collector's slots of all types, and the close of an object whose last
 * reference is gone. */

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

/* An object that is still open, because its close failed, keeps the objects that it uses: otherwise
 * the device could be closed before it. */
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

/* The repr() in the warning names the device. Python ignores ResourceWarning by default. */
static void warn_unclosed(cqn_object *self)
{
    PyObject *op = (PyObject *)self;
    if (PyErr_ResourceWarning(op, 1, "unclosed %s %R", self->kind->name, op) < 0) {
        PyErr_WriteUnraisable(op);
    }
}

/* Closes an object that is still open when its last reference goes; never raises. Its users are
 * unreachable as well, and are closed with it. Only an unclosed context gets a ResourceWarning,
 * because it closes everything that was created on it. */
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
        /* An object that is closed later can still need this one: a bind in flight its memory
         * window, or an indirection table its WQ. close_at_last() then succeeds. */
        if (self->pins > 0 || PyErr_ExceptionMatches(self->state->BusyError)) {
            PyErr_Clear();
        }
        else {
            CQN_UNLOCKED(PyErr_WriteUnraisable(op));
        }
    }
    cqn_put_exception(pending);
}

/* Closes an object that is open even after its finalizer ran, because the close failed or a
 * subclass has a __del__ that does not call ours. This is the last chance, and users hold
 * references, so none is left. Returns false if the close fails again: the object is then leaked,
 * because tables and the device still point to it. */
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

/* Returns whether the object is still to be deallocated: its finalizer can resurrect it, and then
 * it must be tracked. For a subclass written in Python, CPython has already run the finalizer. */
static bool finalize_object(PyObject *op)
{
    if (PyObject_GC_IsFinalized(op)) {
        return true;
    }
    PyObject_GC_Track(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return false;
    }
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
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
    if (self->weakrefs != NULL) { /* first, so no code finds the object from here on */
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

/* Deallocation of a long chain, linked by user_data for example, would recurse. CPython's trashcan
 * defers the deep levels; it requires untracked objects. */
void cqn_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, cqn_dealloc);
    dealloc_object(op);
    Py_TRASHCAN_END;
}
