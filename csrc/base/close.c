/* SPDX-License-Identifier: MIT */
/*
 * Closing, for objects of all types; object.h states the rules.
 *
 * close() in the order of its steps:
 *   1. in a forked child, forget the handle and touch nothing;
 *   2. while open objects use this one: BusyError, or close them first, except those that pin it,
 *      which it does not know;
 *   3. while another thread is inside a call on it, or is just destroying one
 *      of its users: wait (every such call is bounded, nothing sleeps in one),
 *      and let no new call begin, or there might always be another;
 *   4. take the handle out, release the GIL, destroy, take the GIL;
 *   5. unlink from the context, release what the object kept, and last the
 *      objects that it used.
 * Since step 3 lets others run, the loop starts anew after it.
 */

#include "base/object.h"
#include "base/errors.h"
#include "base/library.h"

/* ---- the dependents: the next to close ---- */

/* The latest of a rank that is open, of all that were made on the context. */
static cqn_object *latest_below(const cqn_context *ctx, int rank)
{
    cqn_object *o = ctx->last[rank];
    while (o != NULL && o->handle == NULL) { /* other threads are closing it */
        o = o->prev;
    }
    return o;
}

/* The same of those that use the object. */
static cqn_object *latest_user(const cqn_object *self, int rank)
{
    const cqn_dependent *entry = self->latest[rank];
    while (entry != NULL && entry->user->handle == NULL) {
        entry = entry->older;
    }
    return entry == NULL ? NULL : entry->user;
}

/* The open object to close first if `self` is to go: the latest of the
 * lowest rank. NULL: no open object uses it. */
static cqn_object *next_user(const cqn_object *self)
{
    const cqn_context *ctx = self->context;
    cqn_object *user = NULL;
    for (int rank = 0; self->users > 0 && user == NULL && rank < CQN_RANKS; rank++) {
        user = CQN_OBJ(ctx) == self ? latest_below(ctx, rank) : latest_user(self, rank);
    }
    return user;
}

/* ---- the dependents: the BusyError that counts them ---- */

typedef struct {
    const cqn_kind *kind;
    uint64_t first; /* serial of the oldest */
    size_t count;
} users_of_kind;

#define KINDS 8 /* more than there are among the users of one object */

/* Counts an open user, but only once if it uses `self` in several places. */
static void count_user(users_of_kind *kinds, const cqn_object *self, const cqn_dependent *entry)
{
    const cqn_object *user = entry->user;
    size_t slot = 0, i = 0;
    while (user->uses[slot] != self) {
        slot++;
    }
    if (user->handle == NULL || &user->as_dependent[slot] != entry) {
        return;
    }
    while (i < KINDS - 1 && kinds[i].kind != NULL && kinds[i].kind != user->kind) {
        i++;
    }
    kinds[i].kind = user->kind;
    kinds[i].first = user->serial; /* the oldest comes last */
    kinds[i].count++;
}

/* Pops the kind whose oldest is the oldest; its count is 0 if there is none. */
static users_of_kind pop_oldest(users_of_kind *kinds)
{
    users_of_kind *oldest = &kinds[0];
    for (size_t i = 1; i < KINDS; i++) {
        if (oldest->count == 0 || (kinds[i].count > 0 && kinds[i].first < oldest->first)) {
            oldest = &kinds[i];
        }
    }
    users_of_kind taken = *oldest;
    oldest->count = 0;
    return taken;
}

/* "this PD is still used by 2 QPs, 1 MR: close that first". */
CQN_RARE static int refuse_users(cqn_object *self)
{
    users_of_kind kinds[KINDS] = {{.kind = NULL}}, one;
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        for (const cqn_dependent *entry = self->latest[rank]; entry != NULL; entry = entry->older) {
            count_user(kinds, self, entry);
        }
    }
    PyObject *names = PyUnicode_FromString("");
    for (const char *comma = ""; names != NULL && (one = pop_oldest(kinds)).count > 0;
         comma = ", ") {
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%zu %s%s", names, comma, one.count,
                                              one.kind->name, one.count > 1 ? "s" : ""));
    }
    PyObject *message = names == NULL
                            ? NULL
                            : PyUnicode_FromFormat("this %s is still used by %U: close that first",
                                                   self->kind->name, names);
    Py_XDECREF(names);
    cqn_busy_error(self->state, self->kind->destroy_verb, message);
    return -1;
}

static int refuse_pins(cqn_object *self)
{
    if (self->kind->pinned_by != NULL) {
        cqn_busy_error(self->state, self->kind->destroy_verb,
                       PyUnicode_FromFormat("this %s is still used by %zu %s%s: close that first",
                                            self->kind->name, self->pins, self->kind->pinned_by,
                                            self->pins == 1 ? "" : "s"));
        return -1;
    }
    cqn_busy_error(
        self->state, self->kind->destroy_verb,
        PyUnicode_FromFormat("this %s is still needed by %zu work request%s in flight: poll the "
                             "completion, or close the QP or SRQ that it was posted to",
                             self->kind->name, self->pins, self->pins == 1 ? "" : "s"));
    return -1;
}

/* ---- closing ---- */

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

/* Unlists a closed object. The references that it held are released last, since one can be the last
 * to the context. */
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
    if (self->kind->notify_closed != NULL) {
        self->kind->notify_closed(self, interrupt);
    }
    run_close_callbacks(self, interrupt);
    memset(self->uses, 0, sizeof(self->uses));
    for (int i = 0; i < CQN_MAX_USES && used[i]; i++) {
        Py_DECREF(used[i]);
    }
}

/* The handle leaves the object before the GIL is released, so that no other thread can destroy it
 * as well. The objects that it uses are entered, and can't be closed meanwhile. */
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

/* One step of closing: 1 it is closed, 0 check again, -1 an exception is set, REFUSED. */
static int close_step(cqn_object *self, bool cascade, PyObject **interrupt)
{
    bool forked = cqn_forked(self);
    cqn_object *user = next_user(self);
    if (user != NULL) {
        if (!cascade && !forked && !user->kind->closes_with_parent) {
            return REFUSED;
        }
        /* A user that is being deallocated waits for us there. */
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
    /* In a forked child no thread waits, and the lock may be held by a thread that the child does
     * not have. */
    if (--self->closing == 0 && !cqn_forked(self)) {
        cqn_notify_idle(self->state);
    }
    if (done == REFUSED) {
        /* Others must find it open by now: making the exception can let them run. */
        return next_user(self) != NULL ? refuse_users(self) : refuse_pins(self);
    }
    return done < 0 ? -1 : 0;
}

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
