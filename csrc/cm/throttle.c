/* SPDX-License-Identifier: MIT */
/*
 * CMCall: a slow call. Few of these are made in one iteration of an event loop, so other tasks
 * are not delayed, however many connections are closed at once. A task awaits it like a coroutine.
 *
 * An iteration makes calls until they have taken CQN_CM_BUDGET. Later calls wait in a queue, and
 * each of the next iterations makes some. If a task is cancelled while its call waits, the call is
 * made at once.
 */

#include "await/coroutine.h"
#include "await/loop.h"
#include "await/wakeup.h"
#include "cm/sleep.h"

typedef struct cqn_cm_call {
    PyObject_HEAD
    cqn_cm_channel *channel;  /* NULL: over */
    PyObject *call;           /* NULL: already made */
    PyObject *error;          /* raised by the call, or NULL */
    cqn_cm_sleep sleep;       /* the task's, from queueing the call until the task continues */
    struct cqn_cm_call *next; /* in the queue, which holds no references: a call leaves it before it
                                 is deallocated */
    bool stepping;
} cm_call;

/* ---- the queue ---- */

static void enqueue_call(cm_call *self)
{
    cqn_cm_channel *channel = self->channel;
    *(channel->last_call != NULL ? &channel->last_call->next : &channel->first_call) = self;
    channel->last_call = self;
}

static void dequeue_call(cm_call *self)
{
    cqn_cm_channel *channel = self->channel;
    cm_call *before = NULL;
    for (cm_call *one = channel->first_call; one != NULL; before = one, one = one->next) {
        if (one == self) {
            *(before != NULL ? &before->next : &channel->first_call) = self->next;
            channel->last_call = channel->last_call == self ? before : channel->last_call;
            self->next = NULL;
            return;
        }
    }
}

/* ---- calling ---- */

static int make_call(cm_call *self)
{
    PyObject *call = self->call, *result;
    self->call = NULL;
    CQN_UNLOCKED(result = PyObject_CallNoArgs(call));
    Py_DECREF(call);
    Py_XDECREF(result);
    CQN_PLACE("cm call");
    return result == NULL ? -1 : 0;
}

/* In a task woken by an event, the time is measured together with the event. */
static int make_now(cm_call *self)
{
    cqn_cm_channel *channel = self->channel;
    if (channel->timed > 0) {
        channel->timed--;
        return make_call(self);
    }
    const double start = cqn_cm_now();
    const int rc = make_call(self);
    channel->spent += cqn_cm_now() - start;
    return rc;
}

/* Returns whether this iteration of the loop has no time left for the call. Only tasks of the
 * connection's own loop are throttled. -1 with an exception. */
static int must_wait(const cm_call *self)
{
    const cqn_cm_channel *channel = self->channel;
    if (channel->loop == NULL || (channel->first_call == NULL && channel->spent < CQN_CM_BUDGET)) {
        return 0;
    }
    return cqn_loop_runs_here(channel->root.base.state, channel->loop, channel->raw_loop);
}

static int schedule_callback(cqn_cm_channel *channel)
{
    if (channel->callback_scheduled) {
        return 0;
    }
    PyObject *loop = Py_NewRef(channel->raw_loop != NULL ? channel->raw_loop : channel->loop);
    PyObject *result = NULL;
    PyObject *callback = PyObject_GetAttrString((PyObject *)channel, "_run_throttled");
    if (callback != NULL) {
        CQN_UNLOCKED(result = PyObject_CallMethod(loop, "call_soon", "O", callback));
        Py_DECREF(callback);
    }
    Py_DECREF(loop);
    channel->callback_scheduled = result != NULL;
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Called by the loop, where no task runs, so tasks go on in this call. */
PyObject *cqn_cm_run_throttled(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_channel *channel = (cqn_cm_channel *)op;
    const double start = cqn_cm_now();
    int rc = 0;
    channel->callback_scheduled = false;
    channel->spent = 0;
    while (rc == 0 && channel->first_call != NULL && channel->spent < CQN_CM_BUDGET) {
        cm_call *one = (cm_call *)Py_NewRef((PyObject *)channel->first_call);
        dequeue_call(one);
        if (make_call(one) < 0) {
            one->error = cqn_take_exception();
        }
        if (one->sleep.wakeup != NULL) {
            PyObject *wakeup = Py_NewRef(one->sleep.wakeup);
            rc = cqn_wakeup_of_any(channel->root.base.state, wakeup, true);
            Py_DECREF(wakeup);
        }
        Py_DECREF(one);
        channel->spent = cqn_cm_now() - start;
    }
    PyObject *pending = rc < 0 ? cqn_take_exception() : NULL;
    if (channel->first_call != NULL && schedule_callback(channel) < 0) {
        rc = -1;
    }
    if (pending != NULL) {
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(op);
        }
        cqn_put_exception(pending);
    }
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- steps ---- */

static PySendResult begin(cm_call *self, PyObject **result)
{
    const int waits = must_wait(self);
    if (waits <= 0) {
        if (waits < 0 || make_now(self) < 0) {
            return PYGEN_ERROR;
        }
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
    if (cqn_cm_sleep_prepare(&self->sleep, self->channel, CQN_CM_NEVER) < 0) {
        return PYGEN_ERROR;
    }
    enqueue_call(self);
    return schedule_callback(self->channel) < 0 ? PYGEN_ERROR
                                                : cqn_cm_sleep_begin(&self->sleep, result);
}

/* Makes the call even if its task was cancelled. Returns -1 with an exception. */
static int finish(cm_call *self)
{
    int rc = 0;
    if (self->channel != NULL) {
        PyObject *pending = cqn_take_exception();
        if (self->call != NULL && self->sleep.wakeup != NULL) {
            dequeue_call(self);
            rc = make_call(self);
        }
        cqn_cm_sleep_end(&self->sleep);
        if (pending != NULL) {
            if (rc < 0) {
                PyErr_WriteUnraisable((PyObject *)self);
            }
            cqn_put_exception(pending);
            rc = 0;
        }
        Py_CLEAR(self->call);
        Py_CLEAR(self->channel);
    }
    return rc;
}

static PySendResult resume(cm_call *self, PyObject *value, PyObject **result)
{
    if (self->sleep.wakeup == NULL) {
        return begin(self, result);
    }
    const PySendResult r = cqn_cm_sleep_resume(&self->sleep, value, result);
    if (r != PYGEN_RETURN) {
        return r;
    }
    PyObject *error = self->error;
    self->error = NULL;
    if (error != NULL) {
        cqn_put_exception(error);
        return PYGEN_ERROR;
    }
    *result = Py_NewRef(Py_None);
    return PYGEN_RETURN;
}

static PySendResult cm_call_am_send(PyObject *op, PyObject *value, PyObject **result)
{
    CQN_LOCKED;
    cm_call *self = (cm_call *)op;
    *result = NULL;
    if (cqn_refuse_step(self->stepping, self->channel == NULL) < 0) {
        return PYGEN_ERROR;
    }
    assert(self->channel != NULL);
    self->stepping = true;
    PySendResult r = resume(self, value, result);
    self->stepping = false;
    if (r != PYGEN_NEXT && finish(self) < 0) {
        Py_CLEAR(*result);
        r = PYGEN_ERROR;
    }
    return r;
}

static PyObject *cm_call_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cm_call *self = (cm_call *)op;
    if (cqn_check_throw(nargs) < 0 || cqn_refuse_step(self->stepping, self->channel == NULL) < 0) {
        return NULL;
    }
    self->stepping = true;
    PyObject *yielded = cqn_cm_sleep_throw(&self->sleep, args, nargs);
    self->stepping = false;
    if (yielded == NULL) {
        (void)finish(self);
    }
    return yielded;
}

static PyObject *cm_call_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cm_call *self = (cm_call *)op;
    if (cqn_refuse_step(self->stepping, false) < 0) {
        return NULL;
    }
    if (self->channel != NULL && cqn_cm_sleep_close(&self->sleep) < 0) {
        return NULL;
    }
    return finish(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the type ---- */

const char cqn_cm_throttled_doc[] =
    "throttled($self, call, /)\n--\n\n"
    "An awaitable that makes a call that takes the kernel some time, in an iteration of the loop "
    "that has time for it, and at once if its task is cancelled.";

PyObject *cqn_cm_throttled(PyObject *channel, PyObject *call)
{
    CQN_LOCKED;
    PyTypeObject *type = CQN_OBJ(channel)->state->CMCall;
    cm_call *self = (cm_call *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->channel = (cqn_cm_channel *)Py_NewRef(channel);
        self->call = Py_NewRef(call);
    }
    return (PyObject *)self;
}

static int cm_call_traverse(PyObject *op, visitproc visit, void *arg)
{
    const cm_call *self = (cm_call *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->channel);
    Py_VISIT(self->call);
    Py_VISIT(self->error);
    return cqn_cm_sleep_traverse(&self->sleep, visit, arg);
}

static void cm_call_finalize(PyObject *op)
{
    CQN_LOCKED;
    PyObject *pending = cqn_take_exception();
    if (finish((cm_call *)op) < 0) {
        PyErr_WriteUnraisable(op);
    }
    cqn_put_exception(pending);
}

static int cm_call_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    cm_call *self = (cm_call *)op;
    if (self->channel != NULL) {
        dequeue_call(self);
    }
    cqn_cm_sleep_clear(&self->sleep);
    Py_CLEAR(self->call);
    Py_CLEAR(self->error);
    Py_CLEAR(self->channel);
    return 0;
}

static void cm_call_dealloc(PyObject *op)
{
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return;
    }
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    PyTypeObject *type = Py_TYPE(op);
    cm_call_tp_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef cm_call_methods[] = {
    CQN_COROUTINE_METHODS(cm_call_throw, cm_call_close),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot cm_call_slots[] = {
    {Py_tp_doc,
     "A call that is made in an iteration of the loop that has time for it: a coroutine."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, cm_call_am_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_finalize, cm_call_finalize},
    {Py_tp_traverse, cm_call_traverse},
    {Py_tp_clear, cm_call_tp_clear},
    {Py_tp_dealloc, cm_call_dealloc},
    {Py_tp_methods, cm_call_methods},
    {0, NULL},
};

PyType_Spec cqn_cm_call_spec = {
    .name = "cqnotify._core.CMCall",
    .basicsize = sizeof(cm_call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = cm_call_slots,
};
