/* SPDX-License-Identifier: MIT */
/*
 * MessageReceive: the awaitable of recv(), in the shape of a coroutine. Its result is the list of a
 * message's frames, if the message arrived as a whole and its frames can simply be copied, into new
 * memory or into simple buffers that are large enough. In all other cases the result is a tuple
 * that identifies the message, which the caller owns until it takes it or puts it back.
 *
 * Its task sleeps on a Wakeup. When a message arrives, the event loop's callback resumes the task
 * at once. The frames are copied in the step of the task, so code of the caller's buffers runs
 * there.
 */

#include "messages/receive.h"
#include "await/coroutine.h"
#include "messages/copy.h"
#include "messages/inbox.h"
#include "messages/post.h"
#include "messages/session.h"
#include "messages/task.h"

PyObject *cqn_receive_new(cqn_session *session, PyObject *into, bool copies)
{
    PyTypeObject *type = session->state->MessageReceive;
    cqn_receive *self = (cqn_receive *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->task.session = (cqn_session *)Py_NewRef(session);
        self->into = Py_XNewRef(into);
        self->copies = copies;
    }
    return (PyObject *)self;
}

static void finish(cqn_receive *self)
{
    self->state = CQN_RECEIVE_DONE;
    cqn_task_finish(&self->task);
    Py_CLEAR(self->into);
}

/* ---- the result ---- */

/* Passes the message to the caller as a tuple; puts it back and returns NULL if there is no
 * memory. */
static PyObject *hand_over(cqn_session *session, const cqn_message *message)
{
    PyObject *result = Py_BuildValue("(KKIIO)", (unsigned long long)message->number,
                                     (unsigned long long)message->offer_number, message->slot,
                                     message->length, message->is_offer ? Py_True : Py_False);
    if (result == NULL) {
        PyObject *pending = cqn_take_exception();
        if (cqn_inbox_put_back(session, message) < 0) {
            PyErr_WriteUnraisable((PyObject *)session);
        }
        cqn_put_exception(pending);
    }
    return result;
}

/* Returns the result of recv() for a message that is in no list any more; NULL with an
 * exception. */
static PyObject *result_of(cqn_session *session, const cqn_message *message, PyObject *into,
                           bool copies)
{
    PyObject *frames = copies ? cqn_copy_message(session, message, into) : NULL;
    if (frames == NULL) {
        PyErr_Clear();
        return hand_over(session, message);
    }
    if (cqn_session_message_taken(session, message) < 0) {
        Py_CLEAR(frames);
    }
    return frames;
}

PyObject *cqn_session_try_receive(cqn_session *self, PyObject *into)
{
    const bool is_simple = PyList_CheckExact(into) || PyTuple_CheckExact(into);
    const int here = self->messages_len > 0 && !self->is_closing ? cqn_session_runs_here(self) : 0;
    if (here <= 0) {
        return here < 0 ? NULL : Py_NewRef(Py_None);
    }
    const cqn_message message = cqn_inbox_pop(self);
    return result_of(self, &message, is_simple ? into : NULL, is_simple || into == Py_None);
}

/* ---- the steps of the task ---- */

/* Ends the receive, with its result or an exception. */
static PySendResult end(cqn_receive *self, PyObject **result)
{
    cqn_task_goes_on(&self->task);
    if (self->state == CQN_RECEIVE_HAS) {
        self->state = CQN_RECEIVE_DONE; /* it no longer owns the message */
        *result = result_of(self->task.session, &self->message, self->into, self->copies);
    }
    else if (self->state == CQN_RECEIVE_FAILED) {
        cqn_task_raise(&self->task);
        *result = NULL;
    }
    else {
        PyErr_SetString(PyExc_TimeoutError, "no message came in time");
        *result = NULL;
    }
    finish(self);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PySendResult refused(cqn_receive *self, const char *method)
{
    if (cqn_session_do(self->task.session, method, NULL) == 0) {
        PyErr_SetString(PyExc_RuntimeError, "this connection cannot receive");
    }
    finish(self);
    return PYGEN_ERROR;
}

/* The first step: returns a message, or the task sleeps. */
static PySendResult begin(cqn_receive *self, PyObject **result)
{
    cqn_session *session = self->task.session;
    const int here = cqn_session_runs_here(session);
    if (here <= 0) {
        return here < 0 ? PYGEN_ERROR : refused(self, "_check_loop");
    }
    if (session->is_closing) {
        return refused(self, "_refuse_to_receive");
    }
    if (session->messages_len > 0) {
        self->message = cqn_inbox_pop(session);
        self->state = CQN_RECEIVE_HAS;
        return end(self, result);
    }
    if (cqn_session_is_over(session)) {
        return refused(self, "check_open");
    }
    if (cqn_task_prepare(&self->task) < 0 || cqn_session_flush_or_fail(session) < 0) {
        return PYGEN_ERROR;
    }
    if (cqn_session_is_over(session)) {
        return refused(self, "check_open");
    }
    self->state = CQN_RECEIVE_WAITING;
    cqn_inbox_wait(session, self);
    *result = cqn_task_yield(&self->task);
    return PYGEN_NEXT;
}

static PySendResult step(cqn_receive *self, PyObject **result)
{
    switch ((cqn_receive_state)self->state) {
    case CQN_RECEIVE_NEW:
        return begin(self, result);
    case CQN_RECEIVE_WAITING:
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        return PYGEN_ERROR;
    default:
        return end(self, result);
    }
}

static PySendResult receive_send(PyObject *op, PyObject *Py_UNUSED(value), PyObject **result)
{
    CQN_LOCKED;
    cqn_receive *self = (cqn_receive *)op;
    *result = NULL;
    if (cqn_refuse_step(self->task.is_stepping, self->state == CQN_RECEIVE_DONE) < 0) {
        return PYGEN_ERROR;
    }
    self->task.is_stepping = true;
    const PySendResult r = step(self, result);
    self->task.is_stepping = false;
    return r;
}

/* The task continues without the receive. A message that it has goes to the next one. Keeps the
 * current exception. */
static void give_up(cqn_receive *self)
{
    const bool has = self->state == CQN_RECEIVE_HAS;
    PyObject *pending = cqn_take_exception();
    cqn_inbox_leave(self->task.session, self);
    self->state = CQN_RECEIVE_DONE;
    if (has && cqn_inbox_put_back(self->task.session, &self->message) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    finish(self);
    cqn_put_exception(pending);
}

static PyObject *receive_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_receive *self = (cqn_receive *)op;
    if (cqn_check_throw(nargs) < 0 ||
        cqn_refuse_step(self->task.is_stepping, self->state == CQN_RECEIVE_DONE) < 0) {
        return NULL;
    }
    cqn_raise_given(args, nargs);
    give_up(self);
    return NULL;
}

static PyObject *receive_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_receive *self = (cqn_receive *)op;
    if (cqn_refuse_step(self->task.is_stepping, false) < 0) {
        return NULL;
    }
    if (self->state != CQN_RECEIVE_DONE) {
        give_up(self);
    }
    Py_RETURN_NONE;
}

/* The time is up: wakes the task, unless it was woken already. */
static PyObject *receive_expire(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_receive *self = (cqn_receive *)op;
    if (self->state != CQN_RECEIVE_WAITING || !self->is_listed) {
        Py_RETURN_NONE;
    }
    Py_INCREF(self);
    cqn_inbox_leave(self->task.session, self);
    self->state = CQN_RECEIVE_EXPIRED;
    const int rc = cqn_task_wake(&self->task, false);
    Py_DECREF(self);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static int receive_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_receive *self = (cqn_receive *)op;
    Py_VISIT(self->into);
    return cqn_task_traverse(&self->task, visit, arg);
}

/* The session is not cleared, because it is needed as long as its list may have this receive. */
static int receive_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_receive *self = (cqn_receive *)op;
    cqn_inbox_leave(self->task.session, self);
    finish(self);
    return 0;
}

/* The session's list has references, so this receive is not in it. */
static void receive_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_receive *self = (cqn_receive *)op;
    assert(!self->is_listed);
    if (self->state == CQN_RECEIVE_HAS) { /* its task was dropped */
        PyObject *pending = cqn_take_exception();
        if (cqn_inbox_put_back(self->task.session, &self->message) < 0) {
            PyErr_WriteUnraisable(NULL);
        }
        cqn_put_exception(pending);
    }
    finish(self);
    Py_CLEAR(self->task.session);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef receive_methods[] = {
    CQN_COROUTINE_METHODS(receive_throw, receive_close),
    {"expire", receive_expire, METH_NOARGS,
     "expire($self, /)\n--\n\nThe time is up: raise TimeoutError in the task, if it still waits."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef receive_members[] = {
    {"wakeup", T_OBJECT, offsetof(cqn_receive, task.wakeup), READONLY,
     "What the task sleeps on, or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot receive_slots[] = {
    {Py_tp_doc, "What the task in Connection.recv() awaits."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, receive_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_traverse, receive_traverse},
    {Py_tp_clear, receive_clear},
    {Py_tp_dealloc, receive_dealloc},
    {Py_tp_methods, receive_methods},
    {Py_tp_members, receive_members},
    {0, NULL},
};

PyType_Spec cqn_receive_spec = {
    .name = "cqnotify.MessageReceive",
    .basicsize = sizeof(cqn_receive),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = receive_slots,
};
