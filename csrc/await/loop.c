/* SPDX-License-Identifier: MIT */
/*
 * Calls of the event loop and of the AsyncCQ, which are Python code.
 *
 * The AsyncCQ is a class that derives from Engine (aio/_cq.py). The core calls its methods to have
 * the channel's events read, to keep a report, and to wake tasks in the thread of the loop. Each of
 * these calls can run arbitrary code.
 *
 * No loop reports the beginning of an iteration. A new iteration has begun when a channel is
 * dispatched for the second time, or when a task continues after a sleep. So the core may count
 * fewer iterations than there are, never more. Everything that runs in one iteration of a thread's
 * loops shares a budget, so a task that never has to sleep does not starve the others.
 */

#include "await/loop.h"

#define STREAK 64             /* completions per iteration for which no task slept */
#define SPINS INT64_C(200000) /* ns per iteration that tasks spin */

/* The iterations of a thread's loops, and the used part of the current one's budget. */
static _Thread_local struct {
    uint64_t iteration; /* 0: before all of them */
    size_t streak;
    int64_t spun; /* ns */
} this_thread = {.iteration = 1};

/* ---- calls of the AsyncCQ ---- */

/* A subclass can have an __init__() that does not call the one of AsyncCQ. */
int cqn_engine_check_made(const cqn_engine *self)
{
    if (self->cq == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "AsyncCQ.__init__() was not called");
        return -1;
    }
    return 0;
}

/* An exception collects the frames that it passes, so each task gets a copy. */
static void raise_copy(cqn_engine *self, PyObject *error)
{
    PyObject *copy = cqn_engine_call(self, "_fresh", error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

/* The AsyncCQ was closed, or has failed for good, see cqn_engine_check(). */
int cqn_engine_refuse(cqn_engine *self)
{
    if (self->closed) {
        PyErr_SetString(self->state->ClosedError, "this AsyncCQ is closed");
    }
    else {
        raise_copy(self, self->error);
    }
    return -1;
}

/* ---- waking in the thread of the loop ---- */

/* Only the thread of the event loop may wake tasks, and the caller may be another one, so the
 * AsyncCQ passes this on to the loop. */
int cqn_engine_wake_in_loop(cqn_engine *self)
{
    return cqn_engine_has_work(self) ? cqn_engine_do(self, "_wake_in_loop", NULL) : 0;
}

/* For callers that cannot raise: the event loop soon raises the exception of a signal handler; an
 * Exception is reported as unraisable. */
static void defer(cqn_engine *self)
{
    PyObject *error = cqn_take_exception(), *result = NULL;
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        result = cqn_engine_call(self, "_defer", error);
        Py_DECREF(error);
    }
    else {
        cqn_put_exception(error);
    }
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(result);
}

void cqn_engine_wake_in_loop_or_defer(cqn_engine *self)
{
    if (cqn_engine_wake_in_loop(self) < 0) {
        defer(self);
    }
}

/* Called after completions were routed outside the event loop's callback. */
int cqn_engine_wake_routed(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_has_work(cq->engine) ? cqn_engine_of(cq) : NULL;
    if (self == NULL) {
        return 0;
    }
    int rc = cqn_engine_wake_in_loop(self);
    Py_DECREF(self);
    return rc;
}

/* ---- the loop of a channel ---- */

/* Returns a new finished future of the loop, see call_task() in wakeup.c; NULL with an
 * exception. */
static PyObject *make_done(PyObject *raw_loop)
{
    PyObject *future = PyObject_CallMethod(raw_loop, "create_future", NULL);
    PyObject *result =
        future == NULL ? NULL : PyObject_CallMethod(future, "set_result", "O", Py_None);
    if (result == NULL) {
        Py_CLEAR(future);
    }
    Py_XDECREF(result);
    return future;
}

void cqn_channel_forget_loop(cqn_channel *self)
{
    /* `loop` goes first: with a loop and no raw_loop the channel would seem to have the loop of
     * another library. */
    Py_CLEAR(self->loop);
    Py_CLEAR(self->raw_loop);
    Py_CLEAR(self->done);
    Py_CLEAR(self->on_fail);
}

int cqn_loop_know_asyncio(cqn_state *st)
{
    if (st->get_running_loop == NULL) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        st->get_running_loop =
            asyncio == NULL ? NULL : PyObject_GetAttrString(asyncio, "_get_running_loop");
        Py_XDECREF(asyncio);
    }
    return st->get_running_loop == NULL ? -1 : 0;
}

int cqn_loop_parts(cqn_state *st, PyObject *loop, PyObject **raw_loop, PyObject **done)
{
    PyObject *raw = PyObject_GetAttrString(loop, "asyncio");
    *raw_loop = *done = NULL;
    if (raw == Py_None) {
        Py_CLEAR(raw);
        return 0;
    }
    if (raw == NULL || cqn_loop_know_asyncio(st) < 0 || (*done = make_done(raw)) == NULL) {
        Py_XDECREF(raw);
        return -1;
    }
    *raw_loop = raw;
    return 0;
}

/* Returns whether the caller runs in this asyncio loop; NULL is no loop. -1 with an exception. */
static int runs_in(const cqn_state *st, const PyObject *raw_loop)
{
    PyObject *running = PyObject_CallNoArgs(st->get_running_loop);
    if (running == NULL) {
        return -1;
    }
    const int rc = running == raw_loop;
    Py_DECREF(running);
    return rc;
}

int cqn_loop_runs_here(const cqn_state *st, PyObject *loop, PyObject *raw_loop)
{
    PyObject *answer;
    if (raw_loop != NULL) {
        return runs_in(st, raw_loop);
    }
    Py_INCREF(loop);
    CQN_UNLOCKED(answer = PyObject_CallMethod(loop, "runs_here", NULL));
    Py_DECREF(loop);
    const int rc = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return rc;
}

PyObject *cqn_channel_set_loop(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_channel *self = (cqn_channel *)op;
    PyObject *loop, *on_fail, *raw, *done;
    if (!PyArg_ParseTuple(args, "OO:_set_loop", &loop, &on_fail)) {
        return NULL;
    }
    cqn_channel_forget_loop(self);
    if (loop == Py_None) {
        Py_RETURN_NONE;
    }
    if (cqn_loop_parts(self->base.state, loop, &raw, &done) < 0) {
        return NULL;
    }
    this_thread.spun = 0; /* usually a new loop */
    Py_XSETREF(self->raw_loop, raw);
    Py_XSETREF(self->done, done);
    Py_XSETREF(self->on_fail, Py_NewRef(on_fail));
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_RETURN_NONE;
}

/* An asyncio loop that already reads the channel is recognized without a call of the AsyncCQ. */
int cqn_loop_attach(cqn_engine *self)
{
    const int known = runs_in(self->state, self->channel->raw_loop);
    if (known != 0) {
        return known < 0 ? -1 : 0;
    }
    const int rc = cqn_engine_do(self, "_attach", NULL);
    CQN_PLACE("attach");
    return rc;
}

cqn_readiness cqn_loop_readiness(cqn_engine *self)
{
    PyObject *loop = self->channel->raw_loop, *ready;
    Py_ssize_t n = 0;
    if (loop == NULL || loop == self->silent_loop) {
        return CQN_READY_UNKNOWN;
    }
    Py_INCREF(loop);
    CQN_UNLOCKED((ready = PyObject_GetAttrString(loop, "_ready"),
                  n = ready == NULL ? -1 : PyObject_Size(ready)));
    if (n < 0) {
        PyErr_Clear();
        self->silent_loop = loop;
    }
    Py_XDECREF(ready);
    Py_DECREF(loop);
    return n < 0 ? CQN_READY_UNKNOWN : n == 0 ? CQN_NOTHING_READY : CQN_SOMETHING_READY;
}

/* ---- iterations and the budget ---- */

uint64_t cqn_iteration_now(void)
{
    return this_thread.iteration;
}

/* Begins a new iteration if `since` is still the core's current one. */
void cqn_iteration_passed(uint64_t since)
{
    if (this_thread.iteration == since) {
        this_thread.iteration++;
        this_thread.streak = 0;
        this_thread.spun = 0;
    }
}

void cqn_budget_use(size_t n)
{
    this_thread.streak += n;
}

bool cqn_budget_is_spent(void)
{
    return this_thread.streak >= STREAK;
}

/* The last spin may take as long as its program wants. */
bool cqn_budget_allows_spin(void)
{
    return this_thread.spun < SPINS;
}

void cqn_budget_use_spin(int64_t ns)
{
    this_thread.spun += ns;
}

/* The event loop dispatches a channel once per iteration. */
void cqn_iteration_dispatched(cqn_channel *channel)
{
    cqn_iteration_passed(channel->iteration);
    channel->iteration = this_thread.iteration;
}
