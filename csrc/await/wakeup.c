/* SPDX-License-Identifier: MIT */
/*
 * Wakeup: one sleep of one task of an asyncio loop.
 *
 * To the task a Wakeup is a future: it has what asyncio.Task needs, the protocol of
 * `_asyncio_future_blocking`. It does less than a future, because it carries no result: the
 * awaitable has that. It also does more: the callback that reads the channel's events can resume
 * the task at once. With a future the loop would first finish its iteration and enter the kernel
 * again, which is most of the cost of a wake-up.
 *
 * A task can be resumed only where no other task runs. All other callers use wake(), which leaves
 * the task to the loop, as futures do.
 */

#include "await/wakeup.h"
#include "await/await.h"

typedef struct {
    PyObject_HEAD
    cqn_state *state;
    PyObject *loop, *done_future; /* done_future: a finished future of the loop, or NULL */
    PyObject *callback, *context; /* the task's while it sleeps, or NULL */
    PyObject *cancelled;          /* the CancelledError if the task was cancelled, or NULL */
    PyObject *interrupt;          /* an exception for the loop, or NULL */
    char blocking;
    bool done;
} wakeup;

/* Uses a freelist, because a task creates and drops a Wakeup for each sleep. */
PyObject *cqn_wakeup_new(cqn_state *st, PyObject *loop, PyObject *done)
{
    wakeup *self = (wakeup *)cqn_freelist_alloc(&st->free_wakeups, st->Wakeup);
    if (self != NULL) {
        self->state = st;
        self->loop = Py_NewRef(loop);
        self->done_future = Py_XNewRef(done);
    }
    return (PyObject *)self;
}

static PyObject *wakeup_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"loop", NULL};
    PyObject *loop;
    return cqn_freeze_keywords(&kwargs, &copy) == 0 &&
                   PyArg_ParseTupleAndKeywords(args, kwargs, "O:Wakeup", names, &loop)
               ? cqn_wakeup_new(cqn_state_of(type), loop, NULL)
               : NULL;
}

bool cqn_wakeup_is_done(const PyObject *op)
{
    return ((const wakeup *)op)->done;
}

/* asyncio.Task gets the Wakeup next, and checks this flag before the task sleeps on it. */
void cqn_wakeup_yield(PyObject *op)
{
    ((wakeup *)op)->blocking = 1;
}

/* ---- waking ---- */

/* The task continues in its own context, which asyncio passed with the callback. */
static int call_soon(wakeup *self)
{
    PyObject *method = PyObject_GetAttrString(self->loop, "call_soon");
    PyObject *args = method == NULL ? NULL : PyTuple_Pack(1, self);
    PyObject *kwargs = args == NULL ? NULL : Py_BuildValue("{s:O}", "context", self->context);
    PyObject *handle = NULL;
    if (kwargs != NULL) {
        CQN_UNLOCKED(handle = PyObject_Call(method, args, kwargs));
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(method);
    Py_XDECREF(handle);
    return handle == NULL ? -1 : 0;
}

/* Passes the Wakeup to call_soon() of the loop: the loop calls the Wakeup, and the Wakeup calls the
 * task. A closed loop will not call, so the callback is dropped. The Wakeup is done at once,
 * because the calls of the loop can run arbitrary code, such as a signal handler, which may cancel
 * the task. If they raise, this function can be called again; if the loop then calls twice, the
 * task continues only once. */
static int schedule_task(wakeup *self)
{
    self->done = true;
    if (self->callback == NULL) { /* the task is not asleep */
        return 0;
    }
    PyObject *closed;
    CQN_UNLOCKED(closed = PyObject_CallMethod(self->loop, "is_closed", NULL));
    int is_closed = closed == NULL ? -1 : PyObject_IsTrue(closed);
    Py_XDECREF(closed);
    if (is_closed > 0) {
        Py_CLEAR(self->callback);
        Py_CLEAR(self->context);
    }
    if (is_closed < 0 || (is_closed == 0 && call_soon(self) < 0)) {
        self->done = self->callback == NULL; /* the task may have gone on nevertheless */
        return -1;
    }
    return 0;
}

/* Calls the task with a future, whose result() it calls. asyncio reads an asyncio.Future faster
 * than a Wakeup, so the task gets the finished future of the loop, unless it was cancelled. */
static PyObject *call_task(wakeup *self, PyObject *callback)
{
    PyObject *with =
        self->cancelled == NULL && self->done_future != NULL ? self->done_future : (PyObject *)self;
    PyObject *result;
    Py_INCREF(with);
    CQN_UNLOCKED(result = PyObject_CallOneArg(callback, with));
    Py_DECREF(with);
    return result;
}

/* Called by the loop, in the context of the task. A kept interrupt is raised after the task ran. */
static PyObject *wakeup_call(PyObject *op, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    CQN_LOCKED;
    wakeup *self = (wakeup *)op;
    PyObject *callback = self->callback, *interrupt = self->interrupt;
    self->callback = self->interrupt = NULL;
    Py_CLEAR(self->context);
    PyObject *result = callback == NULL ? Py_NewRef(Py_None) : call_task(self, callback);
    Py_XDECREF(callback);
    if (interrupt != NULL && result != NULL) {
        Py_CLEAR(result);
        cqn_put_exception(interrupt);
    }
    else {
        Py_XDECREF(interrupt);
    }
    return result;
}

/* Like schedule_task(), called by the task itself. If a signal handler raises meanwhile, its
 * exception would be lost in the task: it is kept for the loop. */
static int schedule_at_once(wakeup *self)
{
    int rc = schedule_task(self);
    if (rc == 0 || PyErr_ExceptionMatches(PyExc_Exception)) {
        return rc;
    }
    Py_XSETREF(self->interrupt, cqn_take_exception());
    return schedule_task(self);
}

static int wake_soon(PyObject *op)
{
    wakeup *self = (wakeup *)op;
    return self->done ? 0 : schedule_task(self);
}

static PyObject *wakeup_wake(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return wake_soon(op) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Reports an exception of the task as the loop reports one of a callback. */
static int report_failure(wakeup *self)
{
    PyObject *error = cqn_take_exception();
    PyObject *result;
    CQN_UNLOCKED(result = PyObject_CallMethod(self->loop, "call_exception_handler", "{s:s,s:O,s:O}",
                                              "message", "a task could not be resumed", "exception",
                                              error, "future", self));
    Py_DECREF(error);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Runs the task here and now, until it waits again. Returns -1 only with an exception that must end
 * the loop. */
static int resume_now(PyObject *op)
{
    wakeup *self = (wakeup *)op;
    if (self->done) {
        return 0;
    }
    /* A task written in Python may run a loop within the loop, as under nest_asyncio, which
     * replaces the C tasks because these refuse that. The inner loop could not call the callback
     * that is running. */
    if (self->callback == NULL || PyMethod_Check(self->callback)) {
        return schedule_task(self);
    }
    if (PyContext_Enter(self->context) < 0) { /* the caller is in this context */
        PyErr_Clear();
        return schedule_task(self);
    }
    self->done = true;
    PyObject *callback = self->callback, *context = self->context;
    self->callback = self->context = NULL;
    Py_INCREF(op);
    PyObject *result = call_task(self, callback);
    int rc = result == NULL ? -1 : 0;
    Py_XDECREF(result);
    PyObject *pending = rc < 0 ? cqn_take_exception() : NULL;
    if (PyContext_Exit(context) < 0) {
        PyErr_WriteUnraisable(context);
    }
    if (pending != NULL) {
        cqn_put_exception(pending);
    }
    if (rc < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        rc = report_failure(self);
    }
    Py_DECREF(callback);
    Py_DECREF(context);
    Py_DECREF(op);
    return rc;
}

static PyObject *wakeup_resume(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return resume_now(op) < 0 ? NULL : Py_NewRef(Py_None);
}

/* The reference keeps the wakeup alive while the task runs, which may drop its own. */
int cqn_wakeup_of_any(const cqn_state *st, PyObject *op, bool resume)
{
    int rc;
    Py_INCREF(op);
    if (Py_IS_TYPE(op, st->Wakeup)) {
        rc = resume ? resume_now(op) : wake_soon(op);
    }
    else {
        PyObject *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(op, "wake", NULL));
        rc = result == NULL ? -1 : 0;
        Py_XDECREF(result);
    }
    Py_DECREF(op);
    return rc;
}

/* ---- for the task ---- */

static PyObject *wakeup_add_done_callback(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                          PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"callback", "context", NULL};
    wakeup *self = (wakeup *)op;
    PyObject *in[2] = {NULL, NULL};
    if (cqn_args("add_done_callback", names, 1, 2, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    if (self->callback != NULL || !PyContext_CheckExact(in[1])) {
        PyErr_SetString(PyExc_RuntimeError, "a Wakeup is for one task to await");
        return NULL;
    }
    self->callback = Py_NewRef(in[0]);
    self->context = Py_NewRef(in[1]);
    if (self->done && schedule_at_once(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *make_cancelled(PyObject *message)
{
    PyObject *module = PyImport_ImportModule("asyncio.exceptions");
    PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, "CancelledError");
    PyObject *error = type == NULL                            ? NULL
                      : message == NULL || message == Py_None ? PyObject_CallNoArgs(type)
                                                              : PyObject_CallOneArg(type, message);
    Py_XDECREF(type);
    Py_XDECREF(module);
    return error;
}

/* A task is cancelled through the object that it sleeps on, as with futures. */
static PyObject *wakeup_cancel(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"msg", NULL};
    wakeup *self = (wakeup *)op;
    PyObject *message = NULL;
    if (cqn_args("cancel", names, 1, 0, args, nargs, kwnames, &message) < 0) {
        return NULL;
    }
    if (self->done) {
        Py_RETURN_FALSE;
    }
    PyObject *error = make_cancelled(message); /* can run arbitrary code */
    if (error == NULL) {
        return NULL;
    }
    if (self->done) {
        Py_DECREF(error);
        Py_RETURN_FALSE;
    }
    Py_XSETREF(self->cancelled, error);
    if (schedule_task(self) < 0) {
        Py_CLEAR(self->cancelled);
        return NULL;
    }
    Py_RETURN_TRUE;
}

static PyObject *wakeup_done(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(((wakeup *)op)->done);
}

static PyObject *wakeup_result(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *cancelled = ((wakeup *)op)->cancelled;
    if (cancelled != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(cancelled), cancelled);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Returns at once if the Wakeup is done; otherwise the task sleeps on it. */
static PySendResult wakeup_send(PyObject *op, PyObject *Py_UNUSED(sent), PyObject **result)
{
    CQN_LOCKED;
    wakeup *self = (wakeup *)op;
    if (self->done) {
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
    if (self->blocking || self->callback != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "only a task of asyncio can await a Wakeup");
        *result = NULL;
        return PYGEN_ERROR;
    }
    self->blocking = 1;
    *result = Py_NewRef(op);
    return PYGEN_NEXT;
}

static PyObject *wakeup_next(PyObject *op)
{
    PyObject *result;
    if (wakeup_send(op, Py_None, &result) == PYGEN_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_CLEAR(result);
    }
    return result;
}

static int wakeup_traverse(PyObject *op, visitproc visit, void *arg)
{
    wakeup *self = (wakeup *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->loop);
    Py_VISIT(self->done_future);
    Py_VISIT(self->callback);
    Py_VISIT(self->context);
    Py_VISIT(self->cancelled);
    Py_VISIT(self->interrupt);
    return 0;
}

static int wakeup_clear(PyObject *op)
{
    wakeup *self = (wakeup *)op;
    Py_CLEAR(self->loop);
    Py_CLEAR(self->done_future);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->context);
    Py_CLEAR(self->cancelled);
    Py_CLEAR(self->interrupt);
    return 0;
}

static void wakeup_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, wakeup_dealloc); /* it may be the end of a long chain */
    wakeup_clear(op);
    cqn_freelist_free(&((wakeup *)op)->state->free_wakeups, op);
    Py_DECREF(type);
    Py_TRASHCAN_END;
}

static PyMethodDef wakeup_methods[] = {
    {"wake", wakeup_wake, METH_NOARGS,
     "wake($self, /)\n--\n\nThe task goes on in the next iteration of the loop, unless it does "
     "already."},
    {"resume", wakeup_resume, METH_NOARGS,
     "resume($self, /)\n--\n\n"
     "The task goes on here and now, until it waits again: for callbacks of the loop, where no "
     "task runs."},
    {"done", wakeup_done, METH_NOARGS,
     "done($self, /)\n--\n\nWhether it was woken, or its task cancelled."},
    {"add_done_callback", (PyCFunction)(void (*)(void))wakeup_add_done_callback,
     METH_FASTCALL | METH_KEYWORDS,
     "add_done_callback($self, callback, /, *, context)\n--\n\nFor asyncio.Task."},
    {"cancel", (PyCFunction)(void (*)(void))wakeup_cancel, METH_FASTCALL | METH_KEYWORDS,
     "cancel($self, /, msg=None)\n--\n\nFor asyncio.Task."},
    {"result", wakeup_result, METH_NOARGS, "result($self, /)\n--\n\nFor asyncio.Task."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef wakeup_members[] = {
    {"_loop", T_OBJECT, offsetof(wakeup, loop), READONLY, "For asyncio.Task."},
    {"_asyncio_future_blocking", T_BOOL, offsetof(wakeup, blocking), 0, "For asyncio.Task."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot wakeup_slots[] = {
    {Py_tp_doc, "Wakeup(loop)\n--\n\n"
                "One sleep of one task of an asyncio loop: the task awaits it."},
    {Py_tp_new, wakeup_new},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, wakeup_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, wakeup_next},
    {Py_tp_call, wakeup_call},
    {Py_tp_traverse, wakeup_traverse},
    {Py_tp_clear, wakeup_clear},
    {Py_tp_dealloc, wakeup_dealloc},
    {Py_tp_methods, wakeup_methods},
    {Py_tp_members, wakeup_members},
    {0, NULL},
};

PyType_Spec cqn_wakeup_spec = {
    .name = "cqnotify.Wakeup",
    .basicsize = sizeof(wakeup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = wakeup_slots,
};
