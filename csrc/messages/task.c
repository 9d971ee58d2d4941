/* SPDX-License-Identifier: MIT */
/*
 * A task of the program that sleeps in recv() or send(): the common head of MessageReceive,
 * MessageSend and MessageReading.
 *
 * The event loop's callback resumes one task for each event, as its last action, within the budget
 * of the iteration; all others are passed to the loop, and none overtakes them.
 */

#include "messages/task.h"
#include "await/loop.h"
#include "await/wakeup.h"

int cqn_session_runs_here(const cqn_session *session)
{
    PyObject *running = PyObject_CallNoArgs(session->state->get_running_loop);
    Py_XDECREF(running);
    return running == NULL ? -1 : running == session->loop;
}

/* ---- lists ---- */

void cqn_task_append(cqn_task_list *list, cqn_task *self)
{
    self->next = NULL;
    self->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = (cqn_task *)Py_NewRef(self);
    list->last = self;
    list->len++;
}

void cqn_task_unlist(cqn_task_list *list, cqn_task *self)
{
    assert(list->len > 0);
    *(self->prev ? &self->prev->next : &list->first) = self->next;
    *(self->next ? &self->next->prev : &list->last) = self->prev;
    self->prev = self->next = NULL;
    list->len--;
}

int cqn_task_list_traverse(const cqn_task_list *list, visitproc visit, void *arg)
{
    for (cqn_task *one = list->first; one != NULL; one = one->next) {
        Py_VISIT(one);
    }
    return 0;
}

/* ---- sleeping ---- */

int cqn_task_prepare(cqn_task *self)
{
    const cqn_session *session = self->session;
    Py_XSETREF(self->wakeup,
               cqn_wakeup_new(session->state, session->loop, session->recv_engine->channel->done));
    return self->wakeup == NULL ? -1 : 0;
}

PyObject *cqn_task_yield(cqn_task *self)
{
    cqn_wakeup_yield(self->wakeup);
    return Py_NewRef(self->wakeup);
}

PySendResult cqn_task_sleep(cqn_task *self, PyObject **result)
{
    if (self->wakeup != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        return PYGEN_ERROR;
    }
    if (cqn_task_prepare(self) < 0) {
        return PYGEN_ERROR;
    }
    *result = cqn_task_yield(self);
    return PYGEN_NEXT;
}

bool cqn_task_is_cancelled(const cqn_task *self)
{
    return self->wakeup != NULL && cqn_wakeup_is_done(self->wakeup);
}

/* ---- waking ---- */

static void note_scheduled(cqn_task *self)
{
    if (!self->is_scheduled && self->wakeup != NULL) {
        self->is_scheduled = true;
        self->session->scheduled++;
    }
}

void cqn_task_goes_on(cqn_task *self)
{
    if (self->is_scheduled) {
        assert(self->session->scheduled > 0);
        self->is_scheduled = false;
        self->session->scheduled--;
    }
}

/* If a signal handler raises meanwhile, the task is woken nevertheless, and the caller gets the
 * exception. */
int cqn_task_wake(cqn_task *self, bool resume)
{
    PyObject *interrupt = NULL;
    if (!resume) {
        note_scheduled(self);
    }
    for (int tries = 0; tries < 2 && self->wakeup != NULL; tries++) {
        if (cqn_wakeup_of_any(self->session->state, self->wakeup, resume) == 0) {
            break;
        }
        if (interrupt == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            interrupt = cqn_take_exception();
        }
        else {
            PyErr_WriteUnraisable((PyObject *)self);
        }
    }
    return interrupt == NULL ? 0 : cqn_raise_interrupt(interrupt);
}

int cqn_task_deliver(cqn_task *self)
{
    cqn_session *session = self->session;
    if (session->may_resume && session->resumed == NULL) {
        session->resumed = (cqn_task *)Py_NewRef(self);
        return 0;
    }
    return cqn_task_wake(self, false);
}

int cqn_session_resume_first(cqn_session *session, bool resume)
{
    cqn_task *task = session->resumed;
    session->resumed = NULL;
    if (task == NULL) {
        return 0;
    }
    PyObject *pending = cqn_take_exception();
    resume = resume && pending == NULL && session->scheduled == 0 && !cqn_budget_is_spent();
    if (resume) {
        cqn_budget_use(1);
    }
    int rc = cqn_task_wake(task, resume);
    if (pending != NULL) {
        if (rc < 0) {
            PyErr_WriteUnraisable((PyObject *)task);
        }
        cqn_put_exception(pending);
        rc = -1;
    }
    Py_DECREF(task);
    return rc;
}

/* ---- the end ---- */

void cqn_task_raise(cqn_task *self)
{
    assert(self->error != NULL);
    PyObject *copy = cqn_call_method((PyObject *)self->session, "_fresh", self->error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

int cqn_task_traverse(cqn_task *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->session);
    Py_VISIT(self->wakeup);
    Py_VISIT(self->error);
    return 0;
}

/* The session stays, because it is needed as long as one of its lists may have this task. */
void cqn_task_finish(cqn_task *self)
{
    cqn_task_goes_on(self);
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->error);
}
