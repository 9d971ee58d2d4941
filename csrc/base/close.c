/* SPDX-License-Identifier: MIT */
/*
 * Closing, for objects of all types; object.h states the rules.
 *
 * close() in the order of its steps:
 *   1. in a forked child, forget the handle and touch nothing;
 *   2. while open objects use this one: BusyError, or close them first, but for those that pin it,
 *      which it does not know;
 *   3. while another thread is inside a call on it, or is just destroying one
 *      of its users: wait (every such call is bounded, nothing sleeps in one),
 *      and let no new call begin, or there might always be another;
 *   4. take the handle out, release the GIL, destroy, take the GIL;
 *   5. unlink from the context, release what the object kept, and last the
 *      objects that it used.
 * Since step 3 lets others run, the loop starts anew after it.
 */

#include "base/close.h"
#include "base/errors.h"

/* The callbacks are taken out first: one that is added while they run finds a closed object. */
static void run_close_callbacks(cqn_object *self, PyObject **interrupt)
{
    PyObject *callbacks = self->on_close;
    self->on_close = NULL;
    for (Py_ssize_t i = 0; callbacks != NULL && i < PyList_GET_SIZE(callbacks); i++) {
        PyObject *callback = Py_NewRef(PyList_GET_ITEM(callbacks, i));
        PyObject *result = NULL;
        if (!cqn_forked(self)) {
            CQN_UNLOCKED(result = PyObject_CallNoArgs(callback));
        }
        if (result == NULL && PyErr_Occurred()) {
            cqn_callback_failed(callback, interrupt);
        }
        Py_XDECREF(result);
        Py_DECREF(callback);
    }
    Py_XDECREF(callbacks);
}

/* Takes a closed object out of the books. What it used is released last: that
 * can be the last reference to the context. */
static void retire_object(cqn_object *self, PyObject **interrupt)
{
    cqn_object *used[CQN_MAX_USES];
    memcpy(used, self->uses, sizeof(used));
    cqn_unlist(self);
    for (int i = 0; i < CQN_MAX_USES && used[i]; i++) {
        used[i]->users--;
    }
    if (self->kind->after_destroy != NULL) {
        self->kind->after_destroy(self);
    }
    if (self->kind->tell != NULL) {
        self->kind->tell(self, interrupt);
    }
    run_close_callbacks(self, interrupt);
    memset(self->uses, 0, sizeof(self->uses));
    for (int i = 0; i < CQN_MAX_USES && used[i]; i++) {
        Py_DECREF(used[i]);
    }
}

/* The handle leaves the object before the GIL is released, so that no other thread can destroy it
 * as well. What the object uses is entered, and can't be closed meanwhile. */
static int destroy_handle(cqn_object *self, PyObject **interrupt)
{
    void *handle = self->handle;
    if (self->kind->before_destroy != NULL) {
        self->kind->before_destroy(self);
    }
    self->handle = NULL;
    cqn_enter_used(self);
    int err;
    Py_BEGIN_ALLOW_THREADS
        err = self->kind->destroy(handle);
    Py_END_ALLOW_THREADS
    cqn_leave_used(self);
    if (err != 0) {
        self->handle = handle;
        if (self->kind->destroy_failed != NULL) {
            self->kind->destroy_failed(self);
        }
        cqn_verbs_error(self->state, err, self->kind->destroy_verb, "this %s stays open",
                        self->kind->name);
        return -1;
    }
    retire_object(self, interrupt);
    return 0;
}

enum { REFUSED = -2 };

static int close_with(cqn_object *self, bool cascade, PyObject **interrupt);

/* One step of closing: 1 it is closed, 0 look again, -1 an exception is set, REFUSED. */
static int close_step(cqn_object *self, bool cascade, PyObject **interrupt)
{
    bool forked = cqn_forked(self);
    cqn_object *user = cqn_next_user(self);
    if (user != NULL) {
        if (!cascade && !forked && !user->kind->goes_along) {
            return REFUSED;
        }
        /* One that is being deallocated waits for us there. */
        bool alive = cqn_try_ref(user);
        int rc = close_with(user, true, interrupt);
        if (alive) {
            Py_DECREF(user);
        }
        return rc;
    }
    if (forked) {
        self->handle = NULL;
        retire_object(self, interrupt);
        return 1;
    }
    if (self->pins > 0 && (!cascade || self->kind->pinned_by != NULL)) {
        return REFUSED;
    }
    if (self->users == 0 && self->in_use == 0) {
        return destroy_handle(self, interrupt) < 0 ? -1 : 1;
    }
    if (cqn_is_ending()) {
        /* That thread will never come back. The kernel cleans up, and what
         * this object uses, which still counts it, stays open. */
        self->handle = NULL;
        cqn_unlist(self);
        return 1;
    }
    cqn_wait_until_left(self->state);
    return 0;
}

static int close_with(cqn_object *self, bool cascade, PyObject **interrupt)
{
    int done = 0;
    self->closing++;
    while (done == 0 && self->handle != NULL) {
        done = close_step(self, cascade, interrupt);
    }
    /* In a forked child no thread waits, and the lock may be held for ever by one that is not
     * there. */
    if (--self->closing == 0 && !cqn_forked(self)) {
        cqn_tell_idle(self->state);
    }
    if (done == REFUSED) {
        /* Others must find it open by now: to make the exception can let them run. */
        return cqn_next_user(self) != NULL ? cqn_refuse_users(self) : cqn_refuse_pins(self);
    }
    return done < 0 ? -1 : 0;
}

/* Closes; with `cascade` everything that uses it, too. -1: it stays open, or a callback
 * was interrupted, and then it is closed all the same. */
int cqn_close(cqn_object *self, bool cascade)
{
    PyObject *interrupt = NULL;
    if (self->kind->before_cascade != NULL && self->handle != NULL && cascade &&
        !cqn_forked(self) && !cqn_is_ending()) {
        self->kind->before_cascade(self);
    }
    int rc = close_with(self, cascade, &interrupt);
    return interrupt != NULL ? cqn_raise_interrupt(interrupt) : rc;
}
