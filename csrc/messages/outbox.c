/* SPDX-License-Identifier: MIT */
/*
 * Waiting messages, in the order of send(): they wait for credits or free memory, and then, if they
 * were offered, for the peer to read them. No message overtakes another one.
 *
 * A message leaves its list before its task is woken and before its buffers are released, because
 * both can run arbitrary code. If a task was cancelled but has yet to go on when its message could
 * be sent, the message is not sent.
 */

#include "messages/outbox.h"
#include "messages/offer.h"
#include "messages/post.h"
#include "messages/send.h"
#include "messages/task.h"

/* Removes a message from its list; the caller gets the list's reference. The message is over,
 * unless it is offered next. */
static cqn_sending *unlist(cqn_session *self, cqn_sending *one)
{
    assert(one->state != CQN_SEND_OVER);
    cqn_task_unlist(one->state == CQN_SEND_WAITING ? &self->waiting : &self->offered, &one->task);
    one->state = CQN_SEND_OVER;
    return one;
}

void cqn_sending_drop(cqn_sending *self)
{
    PyObject *outgoing = self->outgoing, *buffers = self->buffers;
    cqn_frame *frames = self->frames;
    const Py_ssize_t n = self->frames_len;
    self->outgoing = self->buffers = NULL;
    self->frames = NULL;
    self->frames_len = 0;
    if (frames != NULL) {
        cqn_frames_drop(frames, n);
        PyMem_Free(frames);
    }
    Py_CLEAR(self->registrations);
    Py_XDECREF(outgoing);
    Py_XDECREF(buffers);
}

/* Releases the memory of a message that is over. Keeps the current exception. */
static void release(cqn_sending *self)
{
    PyObject *pending = cqn_take_exception();
    cqn_offer_release(self);
    if (self->outgoing != NULL &&
        cqn_do_method((PyObject *)self->task.session, "_release", self->outgoing) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    cqn_sending_drop(self);
    cqn_put_exception(pending);
}

/* ---- waiting messages ---- */

void cqn_outbox_wait(cqn_session *self, cqn_sending *sending)
{
    assert(sending->state == CQN_SEND_WAITING && sending->task.session == self);
    cqn_task_append(&self->waiting, &sending->task);
}

void cqn_outbox_withdraw(cqn_session *self, cqn_sending *sending)
{
    if (sending->state == CQN_SEND_WAITING) {
        cqn_sending *one = unlist(self, sending);
        release(one);
        Py_DECREF(one);
    }
}

/* Ends a message that was sent, or failed with an error, which the task gets. Returns -1 with an
 * exception that must end the loop. */
static int finish(cqn_session *self, cqn_sending *sending, PyObject *error, bool shared)
{
    cqn_sending *one = unlist(self, sending);
    if (error != NULL && !one->is_ended && one->task.error == NULL) {
        one->task.error = Py_NewRef(error);
        one->shares_error = shared;
    }
    release(one);
    const int rc = one->task.wakeup == NULL ? 0 : cqn_task_deliver(&one->task);
    Py_DECREF(one);
    return rc;
}

/* Returns 1; 0 if there is no free memory; -1 with an exception. */
static int post_copy(cqn_session *self, cqn_sending *one)
{
    bool failed;
    const uint64_t size = cqn_data_size((uint64_t)one->frames_len, one->nbytes);
    uint8_t *into = cqn_send_reserve(self, size, &failed);
    if (into == NULL) {
        return failed ? -1 : 0;
    }
    if (one->state != CQN_SEND_WAITING) {
        cqn_send_queue_drop_frame(&self->queue);
        return 1;
    }
    if (cqn_send_frames(self, into, one->frames, one->frames_len) < 0) {
        return -1;
    }
    return finish(self, one, NULL, false) < 0 ? -1 : 1;
}

/* The peer has to read it now. */
static void move_to_offered(cqn_session *self, cqn_sending *one)
{
    cqn_sending *moved = unlist(self, one);
    moved->state = CQN_SEND_OFFERED;
    cqn_task_append(&self->offered, &moved->task);
    Py_DECREF(moved);
}

/* Has the Session offer a message. Returns whether it did, or -1 with an exception; *error: a new
 * reference to an exception for the task. */
static int offer_by_session(cqn_session *self, const cqn_sending *one, PyObject **error)
{
    PyObject *offered = cqn_call_method((PyObject *)self, "_post_offer", one->outgoing);
    *error = NULL;
    if (offered == NULL || offered == Py_False || offered == Py_True) {
        Py_XDECREF(offered);
        return offered == NULL ? -1 : offered == Py_True;
    }
    *error = offered;
    return 0;
}

static int post_offer(cqn_session *self, cqn_sending *one)
{
    PyObject *error;
    int rc = one->outgoing != NULL ? offer_by_session(self, one, &error)
                                   : cqn_offer_post(self, one, &error);
    if (rc == 1 && one->state == CQN_SEND_WAITING) {
        move_to_offered(self, one);
    }
    if (error != NULL) {
        rc = one->state == CQN_SEND_WAITING && finish(self, one, error, false) < 0 ? -1 : 1;
        Py_DECREF(error);
    }
    return rc;
}

static int post_first(cqn_session *self)
{
    int rc = 1;
    cqn_sending *one = (cqn_sending *)Py_NewRef(self->waiting.first);
    if (cqn_task_is_cancelled(&one->task)) {
        cqn_outbox_withdraw(self, one);
    }
    else {
        rc = one->is_offer ? post_offer(self, one) : post_copy(self, one);
    }
    Py_DECREF(one);
    return rc;
}

int cqn_outbox_post(cqn_session *self)
{
    int rc = 1;
    if (self->is_posting) { /* the outer call continues */
        return 0;
    }
    self->is_posting = true;
    while (rc == 1 && self->waiting.first != NULL && !cqn_session_is_over(self) &&
           cqn_flow_credits(self->flow) > 0) {
        rc = post_first(self);
    }
    self->is_posting = false;
    return rc < 0 ? -1 : 0;
}

/* ---- offered messages, and the end ---- */

int cqn_outbox_offers_read(cqn_session *self, uint64_t count)
{
    int rc = 0;
    assert(count <= self->offered.len);
    for (; count > 0 && self->offered.first != NULL; count--) {
        rc = finish(self, (cqn_sending *)self->offered.first, NULL, false) < 0 ? -1 : rc;
    }
    return rc;
}

/* Messages sent meanwhile by code that runs here do not fail. */
int cqn_outbox_fail(cqn_session *self, PyObject *error)
{
    int rc = 0;
    cqn_task_list *const lists[] = {&self->offered, &self->waiting};
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t n = lists[i]->len; n > 0 && lists[i]->first != NULL; n--) {
            if (finish(self, (cqn_sending *)lists[i]->first, error, true) < 0) {
                if (rc < 0) {
                    PyErr_WriteUnraisable((PyObject *)self);
                }
                rc = -1;
            }
        }
    }
    return rc;
}

void cqn_outbox_forget(cqn_session *self, cqn_sending *sending)
{
    if (sending->state != CQN_SEND_OVER) {
        Py_DECREF(unlist(self, sending));
    }
}
