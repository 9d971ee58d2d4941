/* SPDX-License-Identifier: MIT */
/*
 * Closing, for objects of all types; object.h states the rules.
 *
 * close() runs these steps:
 *   1. in a forked child: forget the handle and do nothing else;
 *   2. while open objects use this one: raise BusyError, or close them first; objects that pin it
 *      are unknown to it, so BusyError only counts them;
 *   3. while another thread is inside a call on it, or is destroying one of its users: wait. Each
 *      of these calls is bounded, none of them sleeps. New calls are refused from here on, since
 *      they could go on forever;
 *   4. take the handle out of the object, release the GIL, destroy the handle, take the GIL;
 *   5. unlink the object from the context, release what it kept, and finally the objects that it
 *      used.
 * Other threads run during step 3, so close() then repeats the steps from the first one.
 */

#include "base/object.h"
#include "base/errors.h"
#include "base/library.h"

/* ---- dependents: the next one to close ---- */

/* Returns the newest open object of a rank on the context, or NULL; borrowed. */
static cqn_object *latest_below(const cqn_context *ctx, int rank)
{
    cqn_object *o = ctx->last[rank];
    while (o != NULL && o->handle == NULL) { /* another thread is closing it */
        o = o->prev;
    }
    return o;
}

/* Returns the newest open object of a rank that uses `self`, or NULL; borrowed. */
static cqn_object *latest_user(const cqn_object *self, int rank)
{
    const cqn_dependent *entry = self->latest[rank];
    while (entry != NULL && entry->user->handle == NULL) {
        entry = entry->older;
    }
    return entry == NULL ? NULL : entry->user;
}

/* Returns the open object that has to be closed first before `self`: the newest of the lowest rank.
 * NULL: no open object uses it. */
static cqn_object *next_user(const cqn_object *self)
{
    const cqn_context *ctx = self->context;
    cqn_object *user = NULL;
    for (int rank = 0; self->users > 0 && user == NULL && rank < CQN_RANKS; rank++) {
        user = CQN_OBJ(ctx) == self ? latest_below(ctx, rank) : latest_user(self, rank);
    }
    return user;
}

/* ---- dependents: the BusyError that counts them ---- */

typedef struct {
    const cqn_kind *kind;
    uint64_t first; /* serial of the oldest user */
    size_t count;
} users_of_kind;

#define KINDS 8 /* more than the users of one object can have */

/* Counts an open user; one that uses `self` in several places is counted once. */
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
    kinds[i].first = user->serial; /* the list ends with the oldest */
    kinds[i].count++;
}

/* Removes and returns the kind whose first user is the oldest; its count is 0 if no kind is
 * left. */
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

/* Raises BusyError: "this PD is still used by 2 QPs, 1 MR: close that first". */
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

/* The list is detached first; a callback that is added during the loop finds a closed object. */
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

/* Removes a closed object from all lists. Its references are released last, since one of them can
 * be the last reference to the context. */
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

/* The handle is taken out of the object before the GIL is released, so no other thread can
 * destroy it, too. The objects that `self` uses are entered, so they cannot be closed meanwhile. */
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

/* Runs one step of closing. Returns 1 if the object is closed, 0 to check again, -1 with an
 * exception, or REFUSED. */
static int close_step(cqn_object *self, bool cascade, PyObject **interrupt)
{
    bool forked = cqn_forked(self);
    cqn_object *user = next_user(self);
    if (user != NULL) {
        if (!cascade && !forked && !user->kind->closes_with_parent) {
            return REFUSED;
        }
        /* If the user is being deallocated, cqn_dealloc() waits for this close. */
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
        /* The other thread never returns from its call. The kernel cleans up; the objects used by
         * this one still count it and stay open. */
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
    /* In a forked child no thread waits, and the lock may be held by a thread that exists only in
     * the parent. */
    if (--self->closing == 0 && !cqn_forked(self)) {
        cqn_notify_idle(self->state);
    }
    if (done == REFUSED) {
        /* `closing` is 0 again by now: creating the exception can let other threads run, and they
         * must find an open object. */
        return next_user(self) != NULL ? refuse_users(self) : refuse_pins(self);
    }
    return done < 0 ? -1 : 0;
}

int cqn_close(cqn_object *self, bool cascade)
{
    PyObject *interrupt = NULL;
    if (self->kind->before_cascade != NULL && self->handle != NULL && cascade &&
        !cqn_forked(self) && !cqn_is_ending()) {
        self->closing++; /* other threads use nothing of it meanwhile */
        self->kind->before_cascade(self);
        self->closing--;
    }
    int rc = close_with(self, cascade, &interrupt);
    return interrupt != NULL ? cqn_raise_interrupt(interrupt) : rc;
}
