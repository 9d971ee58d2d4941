/* SPDX-License-Identifier: MIT */
/*
 * The sleeper of a CQ, and what its events do.
 *
 * Most of the time one task waits for whatever completes next, and nothing else
 * is going on. Then the CQ's consumer leaves it to the CQ: an event costs no more
 * than to look for completions and to resume that task, which takes them. It has
 * its place until it does, or until the consumer forgets it. All other events go
 * to the consumer.
 */

#include "core.h"

const char cqn_cq_sleep_doc[] =
    "sleep($self, /, loop, max_entries, solicited_only)\n--\n\n"
    "For the consumer: completions if there are some, or else a Wakeup for the task to await.\n\n"
    "It is safe_to_sleep(), and CompletionChannel.dispatch() resumes the task when an event comes "
    "with completions; what it awaits returns them. None if this CQ has such a sleeper already. "
    "Wraps ibv_poll_cq(3) and ibv_req_notify_cq(3).";

const char cqn_cq_forget_sleeper_doc[] =
    "forget_sleeper($self, /)\n--\n\n"
    "For the consumer: return the sleeper, or None; it is for you to wake, and gets nothing.\n\n"
    "Events go to consumer.on_event() then.";

typedef struct {
    PyObject *loop;
    uint32_t max_entries;
    bool solicited_only;
} sleep_args;

static int parse(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, sleep_args *out)
{
    static const char *const names[] = {"loop", "max_entries", "solicited_only", NULL};
    PyObject *in[3] = {NULL, NULL, NULL};
    uint64_t max_entries;
    if (cqn_args("sleep", names, 3, 3, args, nargs, kwnames, in) < 0 ||
        cqn_range(in[1], "max_entries", 1, INT32_MAX, &max_entries) < 0) {
        return -1;
    }
    int solicited_only = PyObject_IsTrue(in[2]);
    *out = (sleep_args){in[0], (uint32_t)max_entries, solicited_only > 0};
    return solicited_only < 0 ? -1 : 0;
}

/* The task is held by what it sleeps on, and nothing else: so that is held by
 * the channel, which its reader holds. */
static int settle_down(cqn_cq *self, PyObject *sleeper)
{
    PyObject *sleepers = self->channel->sleepers;
    if (sleepers == NULL) { /* the collector has been there */
        cqn_refuse_closed(&self->channel->base);
        return -1;
    }
    if (PySet_Add(sleepers, sleeper) < 0) {
        return -1;
    }
    cqn_wakeup_set_cq(sleeper, self);
    self->sleepers = Py_NewRef(sleepers); /* the channel can be gone before he is */
    self->sleeper = Py_NewRef(sleeper);
    return 0;
}

/* A new reference, or NULL: there was none. */
static PyObject *take_out(cqn_cq *self)
{
    PyObject *sleeper = self->sleeper, *sleepers = self->sleepers;
    self->sleeper = self->sleepers = NULL;
    if (sleeper != NULL) {
        (void)PySet_Discard(sleepers, sleeper); /* a set never shrinks */
        Py_DECREF(sleepers);
        cqn_wakeup_set_cq(sleeper, NULL);
    }
    return sleeper;
}

PyObject *cqn_cq_sleep(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    sleep_args a;
    if (parse(args, nargs, kwnames, &a) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->channel == NULL) {
        PyErr_SetString(PyExc_ValueError, "this CQ was made without a channel");
        return NULL;
    }
    /* Made first, since it can run the garbage collector, and so any code. */
    PyObject *sleeper =
        cqn_wakeup_new(self->base.state->Wakeup, a.loop, a.max_entries, a.solicited_only);
    if (sleeper == NULL || cqn_open(&self->base) == NULL) {
        Py_XDECREF(sleeper);
        return NULL;
    }
    if (self->sleeper != NULL) {
        Py_DECREF(sleeper);
        Py_RETURN_NONE;
    }
    int safe = cqn_cq_safe_to_sleep(self, a.solicited_only);
    if (safe >= 0 && cqn_open(&self->base) == NULL) { /* what it let go of can run any code */
        safe = -1;
    }
    if (safe > 0 && self->sleeper != NULL) {
        Py_DECREF(sleeper);
        Py_RETURN_NONE;
    }
    if (safe > 0 && settle_down(self, sleeper) == 0) {
        return sleeper;
    }
    Py_DECREF(sleeper);
    return safe == 0 ? cqn_cq_take_found(self, a.max_entries) : NULL;
}

PyObject *cqn_cq_forget_sleeper(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *sleeper = take_out((cqn_cq *)op);
    return sleeper != NULL ? sleeper : Py_NewRef(Py_None);
}

PyObject *cqn_cq_get_sleeper(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    PyObject *sleeper = ((cqn_cq *)op)->sleeper;
    return Py_NewRef(sleeper != NULL ? sleeper : Py_None);
}

PyObject *cqn_cq_get_woken(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_cq *self = (cqn_cq *)op;
    return Py_BuildValue("(nn)", (Py_ssize_t)self->woken, (Py_ssize_t)self->most);
}

/* The sleeper goes on, and is none any more: what it gets. */
PyObject *cqn_cq_serve_sleeper(cqn_cq *self, uint32_t max_entries)
{
    Py_INCREF(self);
    Py_XDECREF(take_out(self));
    PyObject *list = cqn_cq_take_found(self, max_entries);
    if (list != NULL && PyList_GET_SIZE(list) > 0) {
        size_t n = (size_t)PyList_GET_SIZE(list);
        self->woken++;
        self->most = self->most > n ? self->most : n;
    }
    Py_DECREF(self);
    return list;
}

/* Whom completions resume, as a new reference; None: he sleeps rightly; NULL
 * without an exception: it is the consumer's to say. What is wrong with the CQ
 * he will see, too. */
static PyObject *look_for_sleeper(cqn_cq *self)
{
    if (self->sleeper == NULL || cqn_wakeup_is_done(self->sleeper) || !cqn_is_open(&self->base)) {
        return NULL;
    }
    int safe = cqn_cq_safe_to_sleep(self, cqn_wakeup_solicited_only(self->sleeper));
    if (safe < 0) {
        PyErr_Clear();
        return NULL;
    }
    return Py_XNewRef(safe > 0 ? Py_None : self->sleeper);
}

static PyObject *ask_consumer(cqn_cq *self)
{
    PyObject *consumer = cqn_consumer_of(self);
    if (consumer == NULL) {
        return Py_NewRef(Py_None);
    }
    PyObject *who;
    CQN_UNLOCKED(who = PyObject_CallMethod(consumer, "on_event", NULL));
    Py_DECREF(consumer);
    return who;
}

/* The task goes on in here, but not twice in one turn of the loop. */
static int wake(cqn_cq *self, PyObject *who, uint64_t turn)
{
    const bool resumed = self->turn == turn;
    if (Py_IS_TYPE(who, self->base.state->Wakeup)) {
        self->turn = turn;
        return resumed ? cqn_wakeup_wake(who) : cqn_wakeup_resume(who);
    }
    PyObject *result;
    CQN_UNLOCKED(result = PyObject_CallMethod(who, "wake", NULL));
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* An event was read. Returns -1 for what must end the loop, no other exception. */
int cqn_cq_dispatch(cqn_cq *self, uint64_t turn)
{
    if (self->consumer != NULL) {
        cqn_cq_dispatched(self);
    }
    PyObject *who = look_for_sleeper(self);
    if (who == NULL) {
        who = ask_consumer(self);
    }
    int rc = who == NULL ? -1 : who == Py_None ? 0 : wake(self, who, turn);
    Py_XDECREF(who);
    if (rc < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        CQN_UNLOCKED(PyErr_WriteUnraisable((PyObject *)self));
        rc = 0;
    }
    return rc;
}
