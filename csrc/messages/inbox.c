/* SPDX-License-Identifier: MIT */
/*
 * Messages that have arrived, in order, and the receives that wait for the next one.
 *
 * A message occupies a receive's memory, so there are never more messages than receives. A receive
 * that gets a message leaves the list, and its task is woken. If that task is cancelled before it
 * goes on, the message goes to the next receive, or back to its place.
 */

#include "messages/inbox.h"
#include "messages/task.h"

static cqn_message *message_at(const cqn_session *self, uint32_t i)
{
    return &self->messages[(self->first_message + i) % self->receives];
}

/* ---- waiting receives ---- */

void cqn_inbox_wait(cqn_session *self, cqn_receive *receive)
{
    assert(self->messages_len == 0 && !receive->is_listed);
    receive->is_listed = true;
    cqn_task_append(&self->receiving, &receive->task);
}

/* Removes a receive from the list; the caller gets the list's reference. */
static cqn_receive *unlist(cqn_session *self, cqn_receive *receive)
{
    assert(receive->is_listed);
    cqn_task_unlist(&self->receiving, &receive->task);
    receive->is_listed = false;
    return receive;
}

void cqn_inbox_leave(cqn_session *self, cqn_receive *receive)
{
    if (receive->is_listed) {
        Py_DECREF(unlist(self, receive));
    }
}

/* Returns a reference to the first waiting receive whose task is not being cancelled; or NULL. */
static cqn_receive *pop_waiting(cqn_session *self)
{
    while (self->receiving.first != NULL) {
        cqn_receive *receive = unlist(self, (cqn_receive *)self->receiving.first);
        if (!cqn_task_is_cancelled(&receive->task)) {
            return receive;
        }
        Py_DECREF(receive);
    }
    return NULL;
}

/* Gives the message to the first waiting receive. Returns 1 if there is none, -1 with an
 * exception. */
static int deliver(cqn_session *self, const cqn_message *message)
{
    cqn_receive *receive = pop_waiting(self);
    if (receive == NULL) {
        return 1;
    }
    receive->message = *message;
    receive->state = CQN_RECEIVE_HAS;
    const int rc = cqn_task_deliver(&receive->task);
    Py_DECREF(receive);
    return rc;
}

/* Each receive is removed first, since waking can run arbitrary code. */
int cqn_inbox_fail(cqn_session *self, PyObject *error)
{
    int rc = 0;
    cqn_receive *receive;
    while ((receive = pop_waiting(self)) != NULL) {
        Py_XSETREF(receive->task.error, Py_NewRef(error));
        receive->state = CQN_RECEIVE_FAILED;
        if (cqn_task_wake(&receive->task, false) < 0) {
            if (rc < 0) {
                PyErr_WriteUnraisable((PyObject *)receive);
            }
            rc = -1;
        }
        Py_DECREF(receive);
    }
    return rc;
}

/* ---- messages ---- */

int cqn_inbox_put(cqn_session *self, cqn_message *message)
{
    message->number = self->messages_come++;
    const int rc = deliver(self, message);
    if (rc == 1) {
        assert(self->messages_len < self->receives);
        *message_at(self, self->messages_len++) = *message;
    }
    return rc < 0 ? -1 : 0;
}

int cqn_inbox_put_back(cqn_session *self, const cqn_message *message)
{
    const int rc = deliver(self, message);
    if (rc == 1) {
        assert(self->messages_len < self->receives);
        uint32_t i = self->messages_len++;
        for (; i > 0 && message_at(self, i - 1)->number > message->number; i--) {
            *message_at(self, i) = *message_at(self, i - 1);
        }
        *message_at(self, i) = *message;
    }
    return rc < 0 ? -1 : 0;
}

cqn_message cqn_inbox_pop(cqn_session *self)
{
    assert(self->messages_len > 0);
    const cqn_message message = *message_at(self, 0);
    self->first_message = (self->first_message + 1) % self->receives;
    self->messages_len--;
    return message;
}
