/* SPDX-License-Identifier: MIT */
/*
 * Selector: a selector for asyncio's event loop that calls the callbacks of channels itself.
 *
 * An iteration of asyncio's loop is Python code around select(): it computes when the next timer is
 * due, collects what is ready, and calls the callbacks. Usually the callback of a channel resumes
 * the one task that has a completion, and that task sleeps again; then the iteration costs more
 * than the task. So when only channels are ready, select() calls their callbacks, and sleeps again
 * for as long as the loop would, provided that:
 *
 *   - before and after the calls no callback is ready (`_ready`), the loop is not about to stop
 *     (`_stopping`), and it is not in debug mode, which times each callback (`_debug`);
 *   - the loop was about to sleep, and the first of its timers (`_scheduled`) is still the same.
 *
 * Otherwise select() returns, and the loop continues as with any other selector. So callbacks run
 * in the same order as with any other, in their contexts, and the loop reports their exceptions as
 * usual. Each round polls all descriptors and runs signal handlers; after a number of rounds the
 * loop continues in any case.
 *
 * The attributes named above, and those of a Handle, are private to asyncio. If one is missing, or
 * has another type than in the known versions, select() leaves all calls to the loop.
 *
 * The type is the base of a class (aio/_selector.py) that also derives from
 * selectors.EpollSelector, which owns the epoll instance and registers descriptors. The table here
 * records which of them have the callback of a channel.
 */

#include "await/await.h"
#include <limits.h>
#include <math.h>
#include <sys/epoll.h>

#define EVENTS 64 /* per epoll_wait(2), which begins with others the next time */
#define ROUNDS 64 /* in one call of select() */
#define FOR_EVER (-1)
#define EVENT_READ 1 /* as in the module selectors */
#define EVENT_WRITE 2

/* The attributes of the loop and of a Handle. */
enum { READY, SCHEDULED, STOPPING, DEBUG, LOOP, CALLBACK, ARGS, CANCELLED, CONTEXT, NAMES };
static const char *const names_of[NAMES] = {
    [READY] = "_ready", [SCHEDULED] = "_scheduled", [STOPPING] = "_stopping",
    [DEBUG] = "_debug", [LOOP] = "_loop",           [CALLBACK] = "_callback",
    [ARGS] = "_args",   [CANCELLED] = "_cancelled", [CONTEXT] = "_context",
};

/* The callback of a channel, with its Handle. All references are strong. */
typedef struct {
    PyObject *handle, *callback, *context;
} due;

/* A registered descriptor. */
typedef struct {
    PyObject *key; /* the SelectorKey: (fileobj, fd, events, data); strong, or NULL */
    due reader;    /* NULLs unless the callback of a channel is its only watcher */
} entry;

typedef struct {
    PyObject_HEAD
    cqn_state *state;
    entry *entries; /* by descriptor */
    size_t len;
    PyObject *deque, *handle; /* collections.deque and asyncio.Handle */
    PyObject *names[NAMES];
    int epoll_fd; /* the subclass's, which closes it; or -1 */
    bool calls;   /* callbacks are being called */
    unsigned long long called;
} selector;

/* ---- private attributes ---- */

/* Returns a new reference, or NULL without an exception if there is no such attribute. NULL with
 * any other exception. */
static PyObject *attribute(const selector *self, PyObject *op, int name)
{
    PyObject *value = PyObject_GetAttr(op, self->names[name]);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return value;
}

static bool is_false(const selector *self, PyObject *op, int name)
{
    PyObject *value = attribute(self, op, name);
    Py_XDECREF(value);
    return value == Py_False;
}

static bool nothing_is_ready(const selector *self, PyObject *loop)
{
    PyObject *ready = attribute(self, loop, READY);
    const bool nothing = ready != NULL && Py_IS_TYPE(ready, (PyTypeObject *)self->deque) &&
                         PyObject_Size(ready) == 0;
    Py_XDECREF(ready);
    return nothing;
}

/* Returns whether the timers have the known type; *timer: a new reference to the first one, or
 * NULL. */
static bool first_timer(const selector *self, PyObject *loop, PyObject **timer)
{
    PyObject *timers = attribute(self, loop, SCHEDULED);
    const bool known = timers != NULL && PyList_CheckExact(timers);
    *timer = known && PyList_GET_SIZE(timers) > 0 ? PySequence_GetItem(timers, 0) : NULL;
    Py_XDECREF(timers);
    return known && !PyErr_Occurred();
}

/* Returns whether the loop would sleep in its next iteration; *timer: a new reference to its first
 * timer, or NULL. False may come with an exception. (Reading the dict of the loop would be faster
 * here, but once an object's dict was created, Python 3.11 is slower with it elsewhere.) */
static bool would_sleep(const selector *self, PyObject *loop, PyObject **timer)
{
    return nothing_is_ready(self, loop) && is_false(self, loop, STOPPING) &&
           is_false(self, loop, DEBUG) && first_timer(self, loop, timer);
}

/* ---- registered descriptors ---- */

static long events_of(PyObject *key)
{
    return PyLong_AsLong(PyTuple_GET_ITEM(key, 2));
}

static bool is_of_channel(const selector *self, PyObject *callback)
{
    return PyCFunction_CheckExact(callback) && PyCFunction_GET_SELF(callback) != NULL &&
           PyObject_TypeCheck(PyCFunction_GET_SELF(callback), self->state->CompletionChannel) &&
           strcmp(((PyCFunctionObject *)callback)->m_ml->ml_name, "_on_event") == 0;
}

/* Returns the Handle of a descriptor that asyncio watches only for reading; borrowed, or NULL. */
static PyObject *reader_of(const selector *self, PyObject *key)
{
    PyObject *data = PyTuple_GET_ITEM(key, 3);
    if (!PyTuple_CheckExact(data) || PyTuple_GET_SIZE(data) != 2 ||
        PyTuple_GET_ITEM(data, 1) != Py_None || events_of(key) != EVENT_READ) {
        return NULL;
    }
    PyObject *reader = PyTuple_GET_ITEM(data, 0);
    return Py_IS_TYPE(reader, (PyTypeObject *)self->handle) ? reader : NULL;
}

static void drop(due *one)
{
    Py_CLEAR(one->context);
    Py_CLEAR(one->callback);
    Py_CLEAR(one->handle);
}

/* Finds the callback of a channel in a key, or NULLs. Returns -1 with an exception. */
static int find_reader(const selector *self, PyObject *key, due *found)
{
    PyObject *handle = reader_of(self, key), *args = NULL;
    *found = (due){NULL, NULL, NULL};
    if (handle == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    *found = (due){.handle = Py_NewRef(handle),
                   .callback = attribute(self, handle, CALLBACK),
                   .context = attribute(self, handle, CONTEXT)};
    args = attribute(self, handle, ARGS);
    const bool is = found->callback != NULL && is_of_channel(self, found->callback) &&
                    found->context != NULL && PyContext_CheckExact(found->context) &&
                    args != NULL && PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) == 0;
    Py_XDECREF(args);
    if (!is) {
        drop(found);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int grow(selector *self, size_t fd)
{
    size_t len = Py_MAX(self->len, 32);
    while (len <= fd) {
        len *= 2;
    }
    if (len == self->len) {
        return 0;
    }
    entry *entries = PyMem_Realloc(self->entries, len * sizeof(entry));
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(entries + self->len, 0, (len - self->len) * sizeof(entry));
    self->entries = entries;
    self->len = len;
    return 0;
}

/* Steals the references, and releases the old ones. */
static void put(selector *self, size_t fd, PyObject *key, due reader)
{
    entry old = self->entries[fd];
    self->entries[fd] = (entry){.key = key, .reader = reader};
    Py_XDECREF(old.key);
    drop(&old.reader);
}

static PyObject *selector_watch(PyObject *op, PyObject *key)
{
    CQN_LOCKED;
    selector *self = (selector *)op;
    due reader;
    if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 4) {
        PyErr_SetString(PyExc_TypeError, "key must be a SelectorKey");
        return NULL;
    }
    const int fd = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(key, 1));
    if (fd < 0 || grow(self, (size_t)fd) < 0 || find_reader(self, key, &reader) < 0) {
        return NULL;
    }
    put(self, (size_t)fd, Py_NewRef(key), reader);
    Py_RETURN_NONE;
}

static void forget(selector *self, size_t fd)
{
    if (fd < self->len) {
        put(self, fd, NULL, (due){NULL, NULL, NULL});
    }
}

static PyObject *selector_unwatch(PyObject *op, PyObject *number)
{
    CQN_LOCKED;
    const int fd = PyObject_AsFileDescriptor(number);
    if (fd < 0) {
        return NULL;
    }
    forget((selector *)op, (size_t)fd);
    Py_RETURN_NONE;
}

static PyObject *selector_unwatch_all(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    selector *self = (selector *)op;
    self->epoll_fd = -1;
    for (size_t fd = 0; fd < self->len; fd++) {
        forget(self, fd);
    }
    Py_RETURN_NONE;
}

/* ---- ready descriptors ---- */

/* Returns the entry of a descriptor; borrowed, or NULL. */
static entry *entry_of(const selector *self, const struct epoll_event *event)
{
    const size_t fd = (size_t)event->data.fd;
    return fd < self->len && self->entries[fd].key != NULL ? &self->entries[fd] : NULL;
}

static void drop_all(due *found, int n)
{
    for (int i = 0; i < n; i++) {
        drop(&found[i]);
    }
}

/* Finds the callbacks of all ready descriptors. Returns false if one is not a channel's. */
static bool find_all_due(const selector *self, const struct epoll_event *events, int n, due *found)
{
    for (int i = 0; i < n; i++) {
        const entry *entry = entry_of(self, &events[i]);
        if (entry == NULL || entry->reader.handle == NULL ||
            !is_false(self, entry->reader.handle, CANCELLED)) {
            drop_all(found, i);
            return false;
        }
        found[i] = (due){.handle = Py_NewRef(entry->reader.handle),
                         .callback = Py_NewRef(entry->reader.callback),
                         .context = Py_NewRef(entry->reader.context)};
    }
    return n > 0;
}

static int append_ready(const selector *self, PyObject *list, const struct epoll_event *event)
{
    const entry *entry = entry_of(self, event);
    if (entry == NULL) { /* just unregistered */
        return 0;
    }
    const long mask = ((event->events & ~(uint32_t)EPOLLIN) != 0 ? EVENT_WRITE : 0) |
                      ((event->events & ~(uint32_t)EPOLLOUT) != 0 ? EVENT_READ : 0);
    PyObject *key = Py_NewRef(entry->key); /* the next call can run the garbage collector */
    PyObject *pair = Py_BuildValue("(Nl)", key, mask & events_of(key));
    const int rc = pair == NULL ? -1 : PyList_Append(list, pair);
    Py_XDECREF(pair);
    return rc;
}

/* Returns the result of select(): a new list of (key, mask). */
static PyObject *list_ready(const selector *self, const struct epoll_event *events, int n)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; i < n && list != NULL; i++) {
        if (append_ready(self, list, &events[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* ---- calling ---- */

/* Reports the exception of a callback as the loop does. Returns -1 with an exception that must end
 * the loop. */
static int report(PyObject *loop, const due *one)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) ||
        PyErr_ExceptionMatches(PyExc_SystemExit)) {
        return -1;
    }
    PyObject *error = cqn_take_exception(), *result = NULL;
    PyObject *name = PyObject_GetAttrString(one->callback, "__qualname__");
    PyObject *message =
        name == NULL ? NULL : PyUnicode_FromFormat("Exception in callback %S()", name);
    if (message != NULL) {
        CQN_UNLOCKED(result = PyObject_CallMethod(loop, "call_exception_handler", "{s:O,s:O,s:O}",
                                                  "message", message, "exception", error, "handle",
                                                  one->handle));
    }
    Py_XDECREF(message);
    Py_XDECREF(name);
    Py_DECREF(error);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Leaves the context, and keeps the current exception. */
static void leave(PyObject *context)
{
    PyObject *pending = cqn_take_exception();
    if (PyContext_Exit(context) < 0) {
        PyErr_WriteUnraisable(context);
    }
    cqn_put_exception(pending);
}

/* Calls one callback in its context, as a Handle does. Returns -1 with an exception that must end
 * the loop. */
static int call(selector *self, PyObject *loop, const due *one)
{
    PyObject *result = NULL;
    if (PyContext_Enter(one->context) == 0) {
        self->called++;
        CQN_UNLOCKED(result = PyObject_CallNoArgs(one->callback));
        leave(one->context);
    }
    Py_XDECREF(result);
    return result == NULL ? report(loop, one) : 0;
}

/* Calls each callback, unless an earlier one cancelled it. */
static int call_all(selector *self, PyObject *loop, const due *found, int n)
{
    int rc = 0;
    self->calls = true;
    for (int i = 0; i < n && rc == 0; i++) {
        if (i == 0 || is_false(self, found[i].handle, CANCELLED)) {
            rc = call(self, loop, &found[i]);
        }
    }
    if (rc == 0) {
        CQN_UNLOCKED(rc = PyErr_CheckSignals());
    }
    self->calls = false;
    return rc;
}

/* The loop that called select(), once it is known: strong references, or NULL. */
typedef struct {
    PyObject *loop;  /* from the first round with callbacks */
    PyObject *timer; /* its first timer, the same in all rounds */
} caller;

/* The outcome of a round. */
typedef enum {
    FAILED, /* with an exception */
    LEFT,   /* nothing was called: the events are for the loop */
    DONE,   /* the events were handled, and the loop must go on */
    SLEEPS_AGAIN
} outcome;

static outcome call_found(selector *self, caller *caller, const due *found, int n)
{
    if (caller->loop == NULL) {
        caller->loop = attribute(self, found[0].handle, LOOP);
        if (caller->loop == NULL || !would_sleep(self, caller->loop, &caller->timer)) {
            return LEFT;
        }
    }
    PyObject *timer;
    const bool sleeps =
        call_all(self, caller->loop, found, n) == 0 && would_sleep(self, caller->loop, &timer);
    const bool same = sleeps && timer == caller->timer;
    if (sleeps) {
        Py_XDECREF(timer);
    }
    return same ? SLEEPS_AGAIN : DONE;
}

/* Calls the callbacks of ready descriptors, if an iteration of the loop would do nothing else. */
static outcome handle_ready(selector *self, caller *caller, const struct epoll_event *events, int n)
{
    due found[EVENTS];
    outcome result = LEFT;
    if (!self->calls && find_all_due(self, events, n, found)) {
        result = call_found(self, caller, found, n);
        drop_all(found, n);
    }
    return PyErr_Occurred() ? FAILED : result;
}

/* ---- sleeping ---- */

/* Converts a timeout to a deadline; 0: not to sleep at all. Returns -1 with an exception. */
static int deadline_of(PyObject *timeout, int64_t *deadline)
{
    *deadline = FOR_EVER;
    if (timeout == NULL || timeout == Py_None) {
        return 0;
    }
    const double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (!(seconds > 0)) {
        *deadline = 0;
    }
    else if (seconds < 1e9) { /* more than 30 years: no deadline */
        *deadline = cqn_now_ns() + (int64_t)ceil(seconds * 1e9);
    }
    return 0;
}

/* The result is rounded up, so no timer is early. */
static int milliseconds_until(int64_t deadline)
{
    if (deadline <= 0) {
        return (int)deadline;
    }
    const int64_t ns = deadline - cqn_now_ns();
    return ns <= 0 ? 0 : (int)Py_MIN((ns + 999999) / 1000000, INT_MAX);
}

/* Sleeps until descriptors are ready or the deadline has passed, and runs signal handlers. Returns
 * the number of ready descriptors, or a negative number with an exception. */
static int wait_until(const selector *self, int64_t deadline, struct epoll_event *events)
{
    int n, err, rc = 0;
    do {
        const int epoll_fd = self->epoll_fd, ms = milliseconds_until(deadline);
        if (epoll_fd < 0) {
            PyErr_SetString(PyExc_ValueError, "this selector is closed");
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
            n = epoll_wait(epoll_fd, events, EVENTS, ms);
            err = n < 0 ? errno : 0;
        Py_END_ALLOW_THREADS
        if (err == EINTR) {
            CQN_UNLOCKED(rc = PyErr_CheckSignals());
        }
    } while (err == EINTR && rc == 0);
    if (err != 0 && rc == 0) {
        errno = err;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return n;
}

/* Sleeps and calls in rounds, until the loop has something to do. */
static PyObject *select_until(selector *self, int64_t deadline, caller *caller)
{
    struct epoll_event events[EVENTS];
    for (int round = 1;; round++) {
        const int n = wait_until(self, deadline, events);
        const outcome result = n < 0                     ? FAILED
                               : n == 0 || deadline == 0 ? LEFT
                                                         : handle_ready(self, caller, events, n);
        if (result == FAILED) {
            return NULL;
        }
        if (result == LEFT) {
            return list_ready(self, events, n);
        }
        if (result == DONE || round == ROUNDS || milliseconds_until(deadline) == 0) {
            return PyList_New(0);
        }
    }
}

static PyObject *selector_select(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    int64_t deadline;
    if (cqn_args("select", names, 1, 0, args, nargs, kwnames, &timeout) < 0 ||
        deadline_of(timeout, &deadline) < 0) {
        return NULL;
    }
    caller caller = {NULL, NULL};
    PyObject *list = select_until((selector *)op, deadline, &caller);
    Py_XDECREF(caller.timer);
    Py_XDECREF(caller.loop);
    return list;
}

/* ---- the type ---- */

static PyObject *import_from(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *value = imported == NULL ? NULL : PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return value;
}

static PyObject *selector_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                              PyObject *Py_UNUSED(kwargs))
{
    CQN_LOCKED;
    selector *self = (selector *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = cqn_state_of(type);
    self->epoll_fd = -1;
    bool ok = (self->deque = import_from("collections", "deque")) != NULL &&
              (self->handle = import_from("asyncio", "Handle")) != NULL;
    for (int i = 0; ok && i < NAMES; i++) {
        ok = (self->names[i] = PyUnicode_InternFromString(names_of[i])) != NULL;
    }
    if (!ok) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int selector_traverse(PyObject *op, visitproc visit, void *arg)
{
    const selector *self = (selector *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->deque);
    Py_VISIT(self->handle);
    for (size_t fd = 0; fd < self->len; fd++) {
        Py_VISIT(self->entries[fd].key);
        Py_VISIT(self->entries[fd].reader.handle);
        Py_VISIT(self->entries[fd].reader.callback);
        Py_VISIT(self->entries[fd].reader.context);
    }
    return 0;
}

/* The types stay, because the methods need them. */
static int selector_clear(PyObject *op)
{
    CQN_LOCKED;
    selector *self = (selector *)op;
    for (size_t fd = 0; fd < self->len; fd++) {
        forget(self, fd);
    }
    return 0;
}

static void selector_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    selector *self = (selector *)op;
    PyObject_GC_UnTrack(op);
    selector_clear(op);
    PyMem_Free(self->entries);
    Py_XDECREF(self->deque);
    Py_XDECREF(self->handle);
    for (int i = 0; i < NAMES; i++) {
        Py_XDECREF(self->names[i]);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef selector_methods[] = {
    {"select", (PyCFunction)(void (*)(void))selector_select, METH_FASTCALL | METH_KEYWORDS,
     "select($self, /, timeout=None)\n--\n\n"
     "As selectors.BaseSelector.select(), but callbacks of channels are called at once, if the "
     "event loop would do nothing else in this iteration and then sleep again."},
    {"_watch", selector_watch, METH_O,
     "_watch($self, key, /)\n--\n\nThat SelectorKey was registered, or modified."},
    {"_unwatch", selector_unwatch, METH_O,
     "_unwatch($self, fd, /)\n--\n\nThat descriptor was unregistered."},
    {"_unwatch_all", selector_unwatch_all, METH_NOARGS,
     "_unwatch_all($self, /)\n--\n\nThe epoll instance is about to be closed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef selector_members[] = {
    {"_epoll_fd", T_INT, offsetof(selector, epoll_fd), 0, "The epoll instance, or -1."},
    {"_called", T_ULONGLONG, offsetof(selector, called), READONLY,
     "How many callbacks select() has called."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot selector_slots[] = {
    {Py_tp_doc, "Selector()\n--\n\n"
                "A selector for asyncio's loop that calls the callbacks of channels itself."},
    {Py_tp_new, selector_new},
    {Py_tp_traverse, selector_traverse},
    {Py_tp_clear, selector_clear},
    {Py_tp_dealloc, selector_dealloc},
    {Py_tp_methods, selector_methods},
    {Py_tp_members, selector_members},
    {0, NULL},
};

PyType_Spec cqn_selector_spec = {
    .name = "cqnotify.Selector",
    .basicsize = sizeof(selector),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = selector_slots,
};
