/* SPDX-License-Identifier: MIT */
/*
 * Calls of the event loop and of the AsyncCQ, which are Python code.
 *
 * The AsyncCQ is the class that is built on an Engine (aio/_cq.py). The core calls its methods to
 * have the channel's events read, to keep a report, and to wake tasks in the thread of the loop.
 * Each of these calls can run any code.
 *
 * No loop reports when an iteration begins. But when a channel is dispatched for the second time,
 * or when a task goes on after a sleep, a new iteration has begun. The core may count fewer
 * iterations than there are, never more. Everything that runs in one iteration of the loops of a
 * thread has one budget, so that a task that never has to sleep does not keep all others from
 * running.
 */

#include "await/loop.h"

#define STREAK 64             /* completions in one iteration of the loop for which no task slept */
#define SPINS INT64_C(200000) /* ns that tasks spin in one iteration of the loop */

/* The iterations of its loops, and what was used of the budget in the current one. */
static _Thread_local struct {
    uint64_t iteration; /* 0 is before all of them */
    size_t streak;
    int64_t spun; /* ns */
} this_thread = {.iteration = 1};

/* ---- asking the AsyncCQ ---- */

/* A subclass can have an __init__() that does not call the one of AsyncCQ. */
int cqn_engine_check_made(const cqn_engine *self)
{
    if (self->cq == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "AsyncCQ.__init__() was not called");
        return -1;
    }
    return 0;
}

/* An exception collects the frames through which it goes, so each task gets a copy of its own. */
static void raise_copy(cqn_engine *self, PyObject *error)
{
    PyObject *copy = cqn_engine_call(self, "_fresh", error);
    if (copy != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(copy), copy);
        Py_DECREF(copy);
    }
}

/* Raises why nothing can be awaited any more: the AsyncCQ was closed, or has failed for good. See
 * cqn_engine_check(). */
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

/* Only the thread of the event loop may wake tasks, and the caller may be another one: so the
 * AsyncCQ passes the waking on to the loop. */
int cqn_engine_wake_in_loop(cqn_engine *self)
{
    return cqn_engine_has_work(self) ? cqn_engine_do(self, "_wake_in_loop", NULL) : 0;
}

/* The caller can raise nothing here. If the handler of a signal has raised, the event loop raises
 * that soon; an Exception is reported as unraisable. */
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

/* The same for callers that can raise no exception. */
void cqn_engine_wake_in_loop_or_defer(cqn_engine *self)
{
    if (cqn_engine_wake_in_loop(self) < 0) {
        defer(self);
    }
}

/* Completions were routed by another caller than the callback of the event loop. */
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

/* A future of that loop that has a result already, see call_task() in wakeup.c. */
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
    /* The loop goes first: a channel without a raw_loop would pass for one of another library than
     * asyncio. */
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

/* Whether the caller runs in that loop of asyncio; NULL is none. -1 with an exception. */
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
    this_thread.spun = 0; /* mostly the loop is a new one */
    Py_XSETREF(self->raw_loop, raw);
    Py_XSETREF(self->done, done);
    Py_XSETREF(self->on_fail, Py_NewRef(on_fail));
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_RETURN_NONE;
}

/* From now on the running event loop reads the events of the channel. A loop of asyncio that does
 * so already is known, and the AsyncCQ is not asked again. */
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

/* ---- iterations, and the budget ---- */

uint64_t cqn_iteration_now(void)
{
    return this_thread.iteration;
}

/* If that iteration is still the current one for the core, a new one begins now. */
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

/* The last one may spin for as long as its program wants. */
bool cqn_budget_allows_spin(void)
{
    return this_thread.spun < SPINS;
}

void cqn_budget_use_spin(int64_t ns)
{
    this_thread.spun += ns;
}

/* The event loop dispatches a channel once in an iteration. */
void cqn_iteration_dispatched(cqn_channel *channel)
{
    cqn_iteration_passed(channel->iteration);
    channel->iteration = this_thread.iteration;
}
