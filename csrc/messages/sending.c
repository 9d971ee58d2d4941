/* SPDX-License-Identifier: MIT */
/*
 * MessageSend: a message that has to wait, and the awaitable of its send(), in the shape of a
 * coroutine.
 *
 * A message of simple buffers that is small enough to be copied is sent at once, if there are a
 * credit and memory, and nothing waits before it. Otherwise it waits in a list of the session, with
 * its buffers, until the code that takes completions sends it, and its task continues. If the task
 * gives up meanwhile, the message is never sent. An offered message continues without its task,
 * until the peer has read it.
 */

#include "messages/sending.h"
#include "await/coroutine.h"
#include "messages/offer.h"
#include "messages/outbox.h"
#include "messages/post.h"
#include "messages/send.h"
#include "messages/task.h"

#define FEW 8 /* buffers whose views are on the stack */

/* ---- sending, or beginning to wait ---- */

/* Whether messages can be sent at all; otherwise the Session raises what is wrong. */
static bool is_open(const cqn_session *self)
{
    return !self->is_closing && !self->may_not_send && !cqn_session_is_over(self);
}

/* Whether a message need not wait. */
static bool may_go(const cqn_session *self)
{
    return self->waiting.first == NULL && cqn_flow_credits(self->flow) > 0;
}

/* Called after a message was sent. Returns -1 with an exception. */
static int sent(cqn_session *self)
{
    if (cqn_flow_is_low(self->flow) && cqn_session_look(self, self->recv_engine) < 0) {
        return -1; /* credits may have arrived without an event */
    }
    return self->is_watched ? cqn_session_do(self, "_update", NULL) : 0;
}

/* Copies the message, and posts it. Returns 1; 0 if there is no free memory; -1 with an
 * exception. */
static int send_now(cqn_session *self, const cqn_frame *frames, Py_ssize_t n, uint64_t nbytes)
{
    bool failed;
    uint8_t *into = cqn_send_reserve(self, cqn_data_size((uint64_t)n, nbytes), &failed);
    if (into == NULL) {
        return failed ? -1 : 0;
    }
    if (!is_open(self) || !may_go(self)) {
        cqn_send_queue_drop_frame(&self->queue);
        return 0;
    }
    return cqn_send_frames(self, into, frames, n) < 0 ? -1 : 1;
}

static cqn_sending *new_sending(cqn_session *session)
{
    PyTypeObject *type = session->state->MessageSend;
    cqn_sending *self = (cqn_sending *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->task.session = (cqn_session *)Py_NewRef(session);
        self->state = CQN_SEND_OVER;
    }
    return self;
}

/* Returns a new MessageSend that takes over the frames; *got is then 0. NULL with an exception. */
static cqn_sending *new_of_frames(cqn_session *session, PyObject *buffers, const cqn_frame *frames,
                                  Py_ssize_t *got, uint64_t nbytes)
{
    const Py_ssize_t n = *got;
    cqn_sending *self = new_sending(session);
    cqn_frame *own = self == NULL ? NULL : PyMem_New(cqn_frame, (size_t)n + 1);
    if (own == NULL) {
        PyErr_NoMemory();
        Py_XDECREF(self);
        return NULL;
    }
    cqn_frames_move(own, frames, n);
    *got = 0;
    self->frames = own;
    self->frames_len = n;
    self->nbytes = nbytes;
    self->buffers = Py_NewRef(buffers);
    return self;
}

/* Adds the message to the waiting ones, and tries to send it, since credits may have arrived
 * without an event. Pending frames are posted first. Returns -1 with an exception. */
static int begin(cqn_session *session, cqn_sending *self)
{
    self->state = CQN_SEND_WAITING;
    cqn_outbox_wait(session, self);
    if (cqn_session_flush(session) < 0 || cqn_outbox_post(session) < 0 ||
        (cqn_flow_is_low(session->flow) && cqn_session_look(session, session->recv_engine) < 0) ||
        cqn_outbox_post(session) < 0) {
        return -1;
    }
    if (self->state != CQN_SEND_OVER) {
        cqn_session_expect_sends(session);
        return cqn_session_see_to_probes(session);
    }
    return 0;
}

/* Handles a failed post, which ends the connection; the caller gets the reason. Returns NULL. */
static PyObject *fail(cqn_session *self)
{
    PyObject *error = cqn_take_exception();
    cqn_put_exception(Py_NewRef(error));
    if (cqn_session_failed(self) == 0 && cqn_session_do(self, "check_open", NULL) == 0) {
        /* the resources were closed, and the connection is not over */
        cqn_put_exception(Py_NewRef(error));
    }
    Py_DECREF(error);
    return NULL;
}

/* Begins to wait. Returns the MessageSend, or True if it was sent; NULL with an exception. Steals
 * the reference. */
static PyObject *begun(cqn_session *session, cqn_sending *self)
{
    if (begin(session, self) < 0) {
        PyObject *pending = cqn_take_exception();
        cqn_outbox_withdraw(session, self);
        Py_DECREF(self);
        cqn_put_exception(pending);
        return fail(session);
    }
    if (self->state == CQN_SEND_OVER && self->task.error == NULL) {
        Py_DECREF(self);
        Py_RETURN_TRUE;
    }
    return (PyObject *)self;
}

/* Getting a buffer can run arbitrary code, so afterwards it is checked again whether messages can
 * be sent. */
static PyObject *send_frames(cqn_session *self, PyObject *buffers, cqn_frame *frames,
                             Py_ssize_t *got)
{
    const Py_ssize_t n = PyTuple_GET_SIZE(buffers);
    uint64_t nbytes;
    const bool is_simple = cqn_frames_get(&PyTuple_GET_ITEM(buffers, 0), n, frames, got, &nbytes);
    const bool is_copied = is_simple && cqn_send_is_copied(self, (uint64_t)n, nbytes);
    if (!is_copied && !(is_simple && cqn_offer_is_simple(self, frames, n, nbytes))) {
        return cqn_session_flush(self) < 0 ? fail(self) : Py_NewRef(Py_False);
    }
    int rc = is_copied && is_open(self) && may_go(self) ? send_now(self, frames, n, nbytes) : 0;
    if (rc == 1) {
        rc = sent(self) < 0 ? -1 : 1;
    }
    if (rc != 0) {
        return rc < 0 ? fail(self) : Py_NewRef(Py_True);
    }
    if (!is_open(self)) {
        Py_RETURN_FALSE;
    }
    cqn_sending *sending = new_of_frames(self, buffers, frames, got, nbytes);
    if (sending == NULL) {
        return NULL;
    }
    sending->is_offer = !is_copied;
    return begun(self, sending);
}

PyObject *cqn_session_send(cqn_session *self, PyObject *buffers)
{
    cqn_frame few[FEW], *frames = few;
    const Py_ssize_t n = PyTuple_GET_SIZE(buffers);
    const int here = is_open(self) ? cqn_session_runs_here(self) : 0;
    Py_ssize_t got = 0;
    if (here <= 0) {
        return here < 0 ? NULL : Py_NewRef(Py_False);
    }
    if (n > FEW && (frames = PyMem_New(cqn_frame, (size_t)n)) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = send_frames(self, buffers, frames, &got);
    cqn_frames_drop(frames, got);
    if (frames != few) {
        PyMem_Free(frames);
    }
    return result;
}

PyObject *cqn_session_offer(cqn_session *self, PyObject *outgoing)
{
    cqn_sending *sending = new_sending(self);
    if (sending == NULL) {
        return NULL;
    }
    sending->outgoing = Py_NewRef(outgoing);
    sending->is_offer = true;
    return begun(self, sending);
}

/* ---- the steps of the task ---- */

/* Called when the task has its result, or goes on without it. */
static void end(cqn_sending *self)
{
    self->is_ended = true;
    cqn_task_finish(&self->task);
}

static PySendResult deliver(cqn_sending *self, PyObject **result)
{
    *result = NULL;
    if (self->task.error == NULL) {
        *result = Py_NewRef(Py_None);
    }
    else if (self->shares_error) {
        cqn_task_raise(&self->task);
    }
    else {
        PyErr_SetObject((PyObject *)Py_TYPE(self->task.error), self->task.error);
    }
    end(self);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PySendResult step(cqn_sending *self, PyObject **result)
{
    cqn_task_goes_on(&self->task);
    if (self->state == CQN_SEND_OVER || self->task.error != NULL) {
        return deliver(self, result);
    }
    const PySendResult r = cqn_task_sleep(&self->task, result);
    self->task.session->waits += r == PYGEN_NEXT;
    return r;
}

static PySendResult sending_send(PyObject *op, PyObject *Py_UNUSED(value), PyObject **result)
{
    CQN_LOCKED;
    cqn_sending *self = (cqn_sending *)op;
    *result = NULL;
    if (cqn_refuse_step(self->task.is_stepping, self->is_ended) < 0) {
        return PYGEN_ERROR;
    }
    self->task.is_stepping = true;
    const PySendResult r = step(self, result);
    self->task.is_stepping = false;
    return r;
}

/* The task continues without the message. Keeps the current exception. */
static void give_up(cqn_sending *self)
{
    cqn_session *session = self->task.session;
    PyObject *pending = cqn_take_exception();
    end(self);
    cqn_outbox_withdraw(session, self);
    if (session->has_pending && cqn_session_do(session, "wake", NULL) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    cqn_put_exception(pending);
}

static PyObject *sending_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_sending *self = (cqn_sending *)op;
    if (cqn_check_throw(nargs) < 0 || cqn_refuse_step(self->task.is_stepping, self->is_ended) < 0) {
        return NULL;
    }
    cqn_raise_given(args, nargs);
    give_up(self);
    return NULL;
}

static PyObject *sending_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_sending *self = (cqn_sending *)op;
    if (cqn_refuse_step(self->task.is_stepping, false) < 0) {
        return NULL;
    }
    if (!self->is_ended) {
        give_up(self);
    }
    Py_RETURN_NONE;
}

static bool sleeps(const cqn_sending *self)
{
    return !self->is_ended && self->state != CQN_SEND_OVER && self->task.error == NULL &&
           self->task.wakeup != NULL && !cqn_task_is_cancelled(&self->task);
}

/* The time is up: wakes the task, unless it was woken already. The Session makes the exception. */
static PyObject *sending_expire(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_sending *self = (cqn_sending *)op;
    if (!sleeps(self)) {
        Py_RETURN_NONE;
    }
    PyObject *error = cqn_call_method((PyObject *)self->task.session, "_timeout",
                                      self->state == CQN_SEND_WAITING ? Py_True : Py_False);
    if (error == NULL) {
        return NULL;
    }
    if (!sleeps(self)) {
        Py_DECREF(error);
        Py_RETURN_NONE;
    }
    Py_INCREF(self);
    self->task.error = error;
    cqn_outbox_withdraw(self->task.session, self);
    const int rc = cqn_task_wake(&self->task, false);
    Py_DECREF(self);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static int sending_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_sending *self = (cqn_sending *)op;
    Py_VISIT(self->buffers);
    Py_VISIT(self->outgoing);
    Py_VISIT(self->registrations);
    for (Py_ssize_t i = 0; i < self->frames_len; i++) {
        Py_VISIT(self->frames[i].view.obj);
    }
    return cqn_task_traverse(&self->task, visit, arg);
}

static int sending_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_sending *self = (cqn_sending *)op;
    cqn_outbox_forget(self->task.session, self);
    cqn_sending_drop(self);
    end(self);
    return 0;
}

/* The session's lists have references, so this message is not in them. */
static void sending_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_sending *self = (cqn_sending *)op;
    assert(self->state == CQN_SEND_OVER);
    cqn_sending_drop(self);
    end(self);
    Py_CLEAR(self->task.session);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef sending_methods[] = {
    CQN_COROUTINE_METHODS(sending_throw, sending_close),
    {"expire", sending_expire, METH_NOARGS,
     "expire($self, /)\n--\n\nThe time is up: raise TimeoutError in the task, if it still waits."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef sending_members[] = {
    {"wakeup", T_OBJECT, offsetof(cqn_sending, task.wakeup), READONLY,
     "What the task sleeps on, or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot sending_slots[] = {
    {Py_tp_doc, "A message that waits, and what the task in Connection.send() awaits."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, sending_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_traverse, sending_traverse},
    {Py_tp_clear, sending_clear},
    {Py_tp_dealloc, sending_dealloc},
    {Py_tp_methods, sending_methods},
    {Py_tp_members, sending_members},
    {0, NULL},
};

PyType_Spec cqn_sending_spec = {
    .name = "cqnotify.MessageSend",
    .basicsize = sizeof(cqn_sending),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sending_slots,
};
