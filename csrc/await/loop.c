/* SPDX-License-Identifier: MIT */
/*
 * The event loops, as the core knows them: which loop reads the events of a channel, and when it is
 * in a new turn.
 *
 * No loop tells when a turn begins. But when a channel is dispatched for the second time, or when a
 * task goes on that went to sleep, there has been a new turn since. The core may count fewer turns
 * than there are, never more. What runs in one turn of the loops of a thread has one budget, so
 * that a task that never has to sleep does not keep all others from running.
 */

#include "await/loop.h"
#include "await/async_cq.h"
#include "await/await.h"

#define STREAK 64 /* completions in one turn of the loop for which no task slept */

/* ---- turns, and the budget ---- */

static _Thread_local struct {
    uint64_t turn; /* 0 is before all of them */
    size_t streak;
} this_thread = {.turn = 1};

uint64_t cqn_turn_now(void)
{
    return this_thread.turn;
}

/* If that turn is still the current one for the core, a new one begins now. */
void cqn_turn_passed(uint64_t since)
{
    if (this_thread.turn == since) {
        this_thread.turn++;
        this_thread.streak = 0;
    }
}

void cqn_turn_used(size_t n)
{
    this_thread.streak += n;
}

bool cqn_turn_is_over(void)
{
    return this_thread.streak >= STREAK;
}

/* The event loop dispatches a channel once in a turn. */
void cqn_turn_dispatched(cqn_channel *channel)
{
    cqn_turn_passed(channel->turn);
    channel->turn = this_thread.turn;
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

PyObject *cqn_channel_set_loop(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_channel *self = (cqn_channel *)op;
    PyObject *loop, *on_fail, *raw, *done = NULL;
    if (!PyArg_ParseTuple(args, "OO:_set_loop", &loop, &on_fail)) {
        return NULL;
    }
    cqn_channel_forget_loop(self);
    if (loop == Py_None) {
        Py_RETURN_NONE;
    }
    raw = PyObject_GetAttrString(loop, "asyncio");
    if (raw == NULL || (raw != Py_None && (done = make_done(raw)) == NULL)) {
        Py_XDECREF(raw);
        return NULL;
    }
    if (raw == Py_None) {
        Py_CLEAR(raw);
    }
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
    PyObject *running = PyObject_CallNoArgs(self->state->get_running_loop);
    if (running == NULL) {
        return -1;
    }
    const bool known = running != Py_None && running == self->channel->raw_loop;
    Py_DECREF(running);
    return known ? 0 : cqn_engine_do(self, "_attach", NULL);
}

/* A failure that no task was told of is raised in the one that waits now, if it concerns that QP;
 * NULL is any. */
static int raise_report(cqn_engine *self, cqn_qp *qp)
{
    if (self->reports == NULL || self->reports == Py_None) {
        return 0;
    }
    PyObject *error = cqn_engine_call(self, "_take_report", qp ? (PyObject *)qp : Py_None);
    if (error != NULL && !PyExceptionInstance_Check(error)) { /* None: it does not concern it */
        Py_DECREF(error);
        return 0;
    }
    if (error != NULL) {
        cqn_put_exception(error); /* which takes the reference */
    }
    return -1;
}

/* At the start of every wait, for a completion of that QP or of any. */
int cqn_engine_enter(cqn_engine *self, cqn_qp *qp)
{
    if (cqn_engine_check(self) < 0 || cqn_open(&self->cq->base) == NULL ||
        cqn_loop_attach(self) < 0 || cqn_engine_check(self) < 0) {
        return -1;
    }
    return raise_report(self, qp);
}
