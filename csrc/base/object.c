/* SPDX-License-Identifier: MIT */
/*
 * The lifetime of everything that owns a handle; object.h states the rules.
 *
 * close() in the order of its steps:
 *   1. in a forked child, forget the handle and touch nothing;
 *   2. while open objects use this one: BusyError, or close them first;
 *   3. while another thread is inside a call on it, or is just destroying one
 *      of its users: wait (every such call is bounded, nothing sleeps in one),
 *      and let no new call begin, or there might always be another;
 *   4. take the handle out, release the GIL, destroy, take the GIL;
 *   5. unlink from the context, release what the object kept, and last the
 *      objects that it used.
 * Since step 3 lets others run, the loop starts anew after it.
 */

#include "base/errors.h"
#include "base/object.h"

const char cqn_close_doc[] =
    "close($self, /)\n--\n\n"
    "Destroy it. Closing twice is fine; BusyError says what still needs it.";

const char cqn_add_close_callback_doc[] =
    "add_close_callback($self, callback, /)\n--\n\n"
    "Call `callback()` as soon as this is closed, in the thread that closes it.\n\n"
    "For event loops that watch it: they get to know at once. An Exception in it is reported as "
    "unraisable; close() raises another, such as KeyboardInterrupt, when all is closed.";

const char cqn_remove_close_callback_doc[] =
    "remove_close_callback($self, callback, /)\n--\n\n"
    "Take back an add_close_callback(); returns how many were taken back.";

const char cqn_enter_doc[] = "__enter__($self, /)\n--\n\nReturn the object itself.";

const char cqn_exit_doc[] =
    "__exit__($self, exc_type, exc, tb, /)\n--\n\n"
    "Close it; a Context with all that was made from it. An exception that leaves the block is "
    "worth more than BusyError.";

/* Makes an object without a handle yet, which uses the given open ones. What
 * was learned of them before this call can be out of date after it. */
void *cqn_new(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *uses, size_t n)
{
    cqn_object *self = (cqn_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = cqn_state_of(type);
    self->kind = kind;
    self->born = *self->state->epoch;
    cqn_enable_try_ref((PyObject *)self);
    for (size_t i = 0; i < n; i++) {
        /* The allocation can have run the garbage collector, and so any code. */
        if (cqn_open(uses[i]) == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        self->uses[i] = (cqn_object *)Py_NewRef((PyObject *)uses[i]);
        self->context = uses[i]->context;
    }
    return self;
}

/* The links of an object are in the object, one for each that it uses: listing needs no memory. */
static void add_link(cqn_object *self, size_t slot)
{
    cqn_link **latest = &self->uses[slot]->latest[self->kind->rank];
    cqn_link *link = &self->links[slot];
    *link = (cqn_link){.user = self, .older = *latest};
    if (*latest != NULL) {
        (*latest)->newer = link;
    }
    *latest = link;
}

static void remove_link(cqn_object *self, size_t slot)
{
    const cqn_link *link = &self->links[slot];
    *(link->newer ? &link->newer->older : &self->uses[slot]->latest[self->kind->rank]) =
        link->older;
    if (link->older != NULL) {
        link->older->newer = link->newer;
    }
}

/* At the end of the list of its rank, so that each list is in the order of creation. */
static void enlist_object(cqn_object *self, cqn_context *ctx)
{
    cqn_object **first = &ctx->first[self->kind->rank], **last = &ctx->last[self->kind->rank];
    self->listed = true;
    self->serial = ++ctx->last_serial;
    self->prev = *last;
    *(*last ? &(*last)->next : first) = self;
    *last = self;
}

/* It is in no list any more. What it uses still counts it. */
static void unlist_object(cqn_object *self)
{
    if (!self->listed) {
        return;
    }
    cqn_context *ctx = self->context;
    const int rank = self->kind->rank;
    *(self->prev ? &self->prev->next : &ctx->first[rank]) = self->next;
    *(self->next ? &self->next->prev : &ctx->last[rank]) = self->prev;
    self->prev = self->next = NULL;
    for (size_t i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        remove_link(self, i);
    }
    self->listed = false;
    self->context = NULL;
}

/* Gives a new object its handle: from here on it must be closed. */
void cqn_adopt(cqn_object *self, void *handle)
{
    self->handle = handle;
    cqn_context *ctx = self->context;
    if (CQN_OBJ(ctx) == self) {
        return;
    }
    enlist_object(self, ctx);
    for (size_t i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        self->uses[i]->users++;
        add_link(self, i);
    }
}

void *cqn_refuse_closed(const cqn_object *self)
{
    const char *why = cqn_forked(self) ? "was opened before a fork, by the parent process: open "
                                         "the device anew in the child"
                                       : "is closed";
    PyErr_Format(self->state->ClosedError, "this %s %s", self->kind->name, why);
    return NULL;
}

/* `value` must be an open object of `type`. */
int cqn_expect(PyObject *value, PyTypeObject *type, const char *name)
{
    if (!PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s must be a %s, not %s", name, type->tp_name,
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    return cqn_open(CQN_OBJ(value)) == NULL ? -1 : 0;
}

/* Around work on the handle without the GIL: close() waits until it is over. */
void cqn_enter(cqn_object *self)
{
    self->in_use++;
}

/* All sleepers look: they may wait for different objects. */
static void tell_idle(cqn_state *st)
{
    pthread_mutex_lock(&st->idle_lock);
    pthread_cond_broadcast(&st->idle);
    pthread_mutex_unlock(&st->idle_lock);
}

void cqn_leave(cqn_object *self)
{
    self->in_use--;
    tell_idle(self->state);
}

/* Then other threads never come back from where they are. */
bool cqn_is_ending(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* Sleeps until some call has left some object. The lock is taken before the
 * GIL is released, and tell_idle() holds both: no wake-up can be missed. */
void cqn_wait_until_left(cqn_state *st)
{
    pthread_mutex_lock(&st->idle_lock);
    PyThreadState *ts = PyEval_SaveThread();
    pthread_cond_wait(&st->idle, &st->idle_lock);
    pthread_mutex_unlock(&st->idle_lock);
    PyEval_RestoreThread(ts);
}

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
    const cqn_link *link = self->latest[rank];
    while (link != NULL && link->user->handle == NULL) {
        link = link->older;
    }
    return link == NULL ? NULL : link->user;
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

typedef struct {
    const cqn_kind *kind;
    uint64_t first; /* serial of the oldest */
    size_t count;
} users_of_kind;

#define KINDS 8 /* more than use one object */

/* Counts an open user, but only once if it uses `self` in several places. */
static void count_user(users_of_kind *kinds, const cqn_object *self, const cqn_link *link)
{
    const cqn_object *user = link->user;
    size_t slot = 0, i = 0;
    while (user->uses[slot] != self) {
        slot++;
    }
    if (user->handle == NULL || &user->links[slot] != link) {
        return;
    }
    while (i < KINDS - 1 && kinds[i].kind != NULL && kinds[i].kind != user->kind) {
        i++;
    }
    kinds[i].kind = user->kind;
    kinds[i].first = user->serial; /* the oldest comes last */
    kinds[i].count++;
}

/* Takes out the kind whose oldest is the oldest; its count is 0 if there is none. */
static users_of_kind take_oldest(users_of_kind *kinds)
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
static int refuse_users(cqn_object *self)
{
    users_of_kind kinds[KINDS] = {{.kind = NULL}}, one;
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        for (const cqn_link *link = self->latest[rank]; link != NULL; link = link->older) {
            count_user(kinds, self, link);
        }
    }
    PyObject *names = PyUnicode_FromString("");
    for (const char *comma = ""; names != NULL && (one = take_oldest(kinds)).count > 0;
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
    cqn_busy_error(
        self->state, self->kind->destroy_verb,
        PyUnicode_FromFormat("this %s is still needed by %zu work request%s in flight: poll the "
                             "completion, or close the QP or SRQ that it was posted to",
                             self->kind->name, self->pins, self->pins == 1 ? "" : "s"));
    return -1;
}

/* What failed has no caller of its own, so its Exception is reported. Another, such as
 * KeyboardInterrupt, is meant for the program: the first is kept, to be raised when all
 * that must be done is done. */
void cqn_callback_failed(PyObject *callback, PyObject **interrupt)
{
    if (*interrupt == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        *interrupt = cqn_take_exception();
    }
    else {
        CQN_UNLOCKED(PyErr_WriteUnraisable(callback));
    }
}

/* Raises what was kept, and takes it over; an exception that is set becomes its context. */
int cqn_raise_interrupt(PyObject *interrupt)
{
    PyObject *set = cqn_take_exception(), *context = PyException_GetContext(interrupt);
    if (set != NULL && context == NULL) {
        PyException_SetContext(interrupt, set);
    }
    else {
        Py_XDECREF(set);
    }
    Py_XDECREF(context);
    cqn_put_exception(interrupt);
    return -1;
}

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
    unlist_object(self);
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
    cqn_object *user = next_user(self);
    if (user != NULL) {
        if (!cascade && !forked) {
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
    if (self->pins > 0 && !cascade) {
        return REFUSED;
    }
    if (self->users == 0 && self->in_use == 0) {
        return destroy_handle(self, interrupt) < 0 ? -1 : 1;
    }
    if (cqn_is_ending()) {
        /* That thread will never come back. The kernel cleans up, and what
         * this object uses, which still counts it, stays open. */
        self->handle = NULL;
        unlist_object(self);
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
        tell_idle(self->state);
    }
    if (done == REFUSED) {
        /* Others must find it open by now: to make the exception can let them run. */
        return next_user(self) != NULL ? refuse_users(self) : refuse_pins(self);
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

/* Only a context takes down what was made on it. */
static PyObject *close_whole(cqn_object *self)
{
    bool is_context = CQN_OBJ(self->context) == self;
    return cqn_close(self, is_context) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *cqn_method_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return close_whole(CQN_OBJ(self));
}

PyObject *cqn_method_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(self)) == NULL ? NULL : Py_NewRef(self);
}

/* If the block raised, that exception wins over the BusyError of a failing close, but not over an
 * interrupt, which gets it as its context. */
PyObject *cqn_method_exit(PyObject *self, PyObject *args)
{
    CQN_LOCKED;
    PyObject *result = close_whole(CQN_OBJ(self));
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception) && PyTuple_GET_SIZE(args) > 0 &&
        PyTuple_GET_ITEM(args, 0) != Py_None) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return result;
}

/* The list is made before the object is asked whether it is open, since to make it can run code
 * that closes the object. */
PyObject *cqn_method_add_close_callback(PyObject *op, PyObject *callback)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    if (!PyCallable_Check(callback)) {
        PyErr_Format(PyExc_TypeError, "callback must be callable, not %s",
                     Py_TYPE(callback)->tp_name);
        return NULL;
    }
    PyObject *list = self->on_close ? Py_NewRef(self->on_close) : PyList_New(0);
    if (list == NULL || cqn_open(self) == NULL) { /* a new list can run code that closes */
        Py_XDECREF(list);
        return NULL;
    }
    if (self->on_close == NULL) {
        self->on_close = Py_NewRef(list);
    }
    int rc = PyList_Append(self->on_close, callback);
    Py_DECREF(list);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* To compare can run any code: the list is copied, and replaced only if it is still the object's.
 */
PyObject *cqn_method_remove_close_callback(PyObject *op, PyObject *callback)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    PyObject *kept = PyList_New(0);
    PyObject *old = self->on_close ? Py_NewRef(self->on_close) : NULL;
    int rc = kept == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && old != NULL && i < PyList_GET_SIZE(old); i++) {
        PyObject *one = Py_NewRef(PyList_GET_ITEM(old, i));
        int same = PyObject_RichCompareBool(one, callback, Py_EQ);
        rc = same < 0 ? -1 : same ? 0 : PyList_Append(kept, one);
        Py_DECREF(one);
    }
    PyObject *removed = NULL;
    if (rc == 0 && old != NULL && self->on_close == old) {
        removed = PyLong_FromSsize_t(PyList_GET_SIZE(old) - PyList_GET_SIZE(kept));
        Py_SETREF(self->on_close, Py_NewRef(kept));
    }
    else if (rc == 0) {
        removed = PyLong_FromLong(0); /* it was closed meanwhile, or never had one */
    }
    Py_XDECREF(old);
    Py_XDECREF(kept);
    return removed;
}

PyObject *cqn_get_closed(PyObject *self, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(!cqn_is_open(CQN_OBJ(self)));
}

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
        unlist_object(self);
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

/* The repr() shows which device it was. Python drops the warning unless it is asked for. */
static void warn_unclosed(cqn_object *self)
{
    PyObject *op = (PyObject *)self;
    if (PyErr_ResourceWarning(op, 1, "unclosed %s %R", self->kind->name, op) < 0) {
        PyErr_WriteUnraisable(op);
    }
}

/* Still open when the last reference goes: close, and never raise. What uses it is unreachable as
 * well, and closed with it. Only an unclosed context is a mistake, and warned of: what was made on
 * one is closed with it. */
void cqn_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    if (self->handle == NULL) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    if (!cqn_forked(self) && CQN_OBJ(self->context) == self && self->closing == 0) {
        CQN_UNLOCKED(warn_unclosed(self));
    }
    if (cqn_close(self, true) < 0) {
        CQN_UNLOCKED(PyErr_WriteUnraisable(op));
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
    unlist_object(self);
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
    if (self->weakrefs != NULL) { /* first of all: what runs from here on must not find it */
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

/* Of a long chain, by user_data for one, each would nest in the one before: the trashcan
 * puts off those that are deep, and needs them untracked. */
void cqn_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, cqn_dealloc);
    dealloc_object(op);
    Py_TRASHCAN_END;
}

const char *cqn_device_name(const cqn_object *self)
{
    const struct ibv_context *device = self->context->base.handle;
    return device != NULL ? ibv_get_device_name(device->device) : "a closing device";
}

PyObject *cqn_short_repr(PyObject *op)
{
    cqn_object *self = CQN_OBJ(op);
    return self->handle == NULL
               ? PyUnicode_FromFormat("<%s closed>", self->kind->name)
               : PyUnicode_FromFormat("<%s on %s>", self->kind->name, cqn_device_name(self));
}

PyObject *cqn_repr(PyObject *op)
{
    CQN_LOCKED;
    return cqn_short_repr(op);
}

PyObject *cqn_get_context(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef((PyObject *)CQN_OBJ(op)->context) : NULL;
}

/* The closure is the index in `uses`. */
PyObject *cqn_get_used(PyObject *op, void *index)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    return cqn_open(self) ? Py_NewRef((PyObject *)self->uses[(uintptr_t)index]) : NULL;
}

/* The closure is the offset of a field of 32 bits. */
PyObject *cqn_get_u32(PyObject *op, void *offset)
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op))
               ? PyLong_FromUnsignedLong(*(uint32_t *)((char *)op + (uintptr_t)offset))
               : NULL;
}

/* The closure is the offset of a reference, which is NULL once it was deleted. */
PyObject *cqn_get_object(PyObject *op, void *offset)
{
    CQN_LOCKED;
    PyObject *value = *(PyObject **)((char *)op + (uintptr_t)offset);
    return Py_NewRef(value != NULL ? value : Py_None);
}

int cqn_set_object(PyObject *op, PyObject *value, void *offset)
{
    CQN_LOCKED;
    PyObject **place = (PyObject **)((char *)op + (uintptr_t)offset);
    Py_XSETREF(*place, Py_XNewRef(value));
    return 0;
}

/* What an open object uses in that place from now on; NULL: nothing. */
void cqn_use(cqn_object *self, size_t slot, cqn_object *other, cqn_object **trash)
{
    cqn_object *before = self->uses[slot];
    if (before != NULL) {
        remove_link(self, slot);
        before->users--;
    }
    self->uses[slot] = other;
    if (other != NULL) {
        Py_INCREF(other);
        other->users++;
        add_link(self, slot);
    }
    if (before != NULL) {
        cqn_trash_add(trash, before);
    }
}

/* To drop the last reference to an object can run any code. Where that must
 * wait, n references go to a chain, which the caller owns and empties when all is in
 * order. */
void cqn_trash_add_many(cqn_object **trash, cqn_object *object, size_t n)
{
    if (cqn_refs_defer(&object->refs, (PyObject *)object, n)) {
        object->trash_next = *trash;
        *trash = object;
    }
}

void cqn_trash_add(cqn_object **trash, cqn_object *object)
{
    cqn_trash_add_many(trash, object, 1);
}

void cqn_trash_empty(cqn_object *trash)
{
    while (trash != NULL) {
        cqn_object *object = trash;
        trash = object->trash_next;
        object->trash_next = NULL;
        cqn_refs_drop_deferred(&object->refs, (PyObject *)object);
    }
}
