/* SPDX-License-Identifier: MIT */
/*
 * Request: what a task awaits, and what it does there. It is shaped like a coroutine, so
 * whatever takes one takes it; its states are in engine.h.
 *
 * Before its task sleeps the CQ is armed and polled after that, and what came is routed, by
 * cqn_engine_prepare(); from there to the moment in which the task yields no Python code
 * runs that could take an event away.
 */

#include "engine.h"

cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name)
{
    cqn_state *st = engine->state;
    if (cqn_engine_check_made(engine) < 0) {
        return NULL;
    }
    cqn_request *self = (cqn_request *)cqn_spares_alloc(&st->spare_requests, st->Request);
    if (self != NULL) {
        cqn_enable_try_ref((PyObject *)self);
        self->engine = (cqn_engine *)Py_NewRef((PyObject *)engine);
        self->kind = (uint8_t)kind;
        self->name = name;
    }
    return self;
}

/* ---- its end ---- */

static void free_kept(cqn_request *self)
{
    cqn_send *kept = self->kept;
    self->kept = NULL;
    if (kept != NULL) {
        cqn_sg_free(&kept->sg);
        PyMem_Free(kept);
    }
    if (self->sge != &self->one) {
        PyMem_Free(self->sge);
    }
    self->sge = NULL;
}

static int request_clear(PyObject *op)
{
    cqn_request *self = (cqn_request *)op;
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->error);
    for (int i = 0; i < self->given; i++) {
        Py_CLEAR(self->in[i]);
    }
    free_kept(self);
    Py_CLEAR(self->scope);
    Py_CLEAR(self->qp);
    return 0;
}

/* Its task has what it was for, or never will: nothing is left to do. */
static void finish(cqn_request *self)
{
    self->state = CQN_DONE;
    cqn_scope_leave(self);
    if (!self->stashed) { /* else its memory is of use */
        request_clear((PyObject *)self);
        self->cleared = true;
    }
}

/* Its task will not go on: it is as if that had been cancelled, but that no other is woken. */
void cqn_request_abandon(cqn_request *self)
{
    cqn_engine_not_due(self);
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    if (self->kind <= CQN_RECEIVES) {
        cqn_operation_give_up(self);
    }
    else if (self->kind == CQN_CLAIMS && self->state == CQN_COMPLETE) {
        cqn_engine_return(self->engine, &self->wc, &self->extra);
    }
    else if (self->held) {
        cqn_engine_let_go(self);
    }
    if (!self->held) {
        finish(self);
    }
}

/* Its task goes on without it: it was cancelled, or has failed. What is meant for others goes to
 * them. An exception that is set stays so. */
static void give_up(cqn_request *self)
{
    cqn_engine *engine = (cqn_engine *)Py_NewRef((PyObject *)self->engine);
    PyObject *pending = cqn_take_exception();
    if (self->slept) { /* without an event, which may have been lost */
        engine->cq->armed = CQN_UNARMED;
    }
    if (self->state == CQN_FAILED && self->error != NULL) {
        cqn_engine_report(engine, self->error);
    }
    cqn_request_abandon(self);
    cqn_engine_serve(engine);
    Py_DECREF(engine);
    cqn_put_exception(pending);
}

/* ---- what its task gets ---- */

static void raise_failure(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *error = self->error;
    self->error = NULL;
    if (error == NULL) {
        const uint32_t qp_num = self->qp == NULL ? 0 : self->qp->qp_num;
        error = cqn_lost_error(engine->state, self->lost, qp_num);
    }
    else if (self->shares_error) {
        PyObject *own;
        CQN_UNLOCKED(own = PyObject_CallMethod((PyObject *)engine, "_fresh", "O", error));
        Py_SETREF(error, own);
    }
    if (error != NULL) {
        cqn_put_exception(error);
    }
}

static void count_woken(cqn_engine *engine, size_t completions)
{
    engine->wakeups++;
    if (engine->max_per_wake < completions) {
        engine->max_per_wake = completions;
    }
}

/* Where a whole batch came there may be more. */
static int look_for_more(cqn_cq *cq, size_t want)
{
    const size_t n = cqn_stash_len(cq);
    return n < CQN_BATCH || n >= want ? 0 : cqn_cq_look_for(cq, want, 0);
}

static PyObject *take_completions(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *list = look_for_more(engine->cq, self->max_entries) < 0
                         ? NULL
                         : cqn_cq_hand_out(engine->cq, self->max_entries);
    const size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    if (self->held) {
        cqn_engine_let_go(self);
    }
    if (self->slept) {
        count_woken(engine, n);
    }
    else {
        cqn_turn_used(n);
    }
    cqn_engine_serve(engine); /* something may be left, for the next one */
    return list;
}

static PyObject *make_completion(const cqn_request *self)
{
    const cqn_engine *engine = self->engine;
    const cqn_cq *cq = engine->cq;
    PyObject *wc =
        cqn_wc_new(engine->state, &self->wc, cq->extra != NULL ? &self->extra : NULL, cq->wc_flags);
    if (wc != NULL && self->kind != CQN_CLAIMS && self->wc.status != IBV_WC_SUCCESS) {
        cqn_completion_error(engine->state, wc, &self->wc, self->operation);
        Py_CLEAR(wc);
    }
    return wc;
}

/* Its completion, or the exception that is made of it. If that can't be made it stays COMPLETE, and
 * its completion is for others. */
static PyObject *completion(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    PyObject *wc = make_completion(self);
    if (wc == NULL && !PyErr_ExceptionMatches(engine->state->CompletionError)) {
        return NULL;
    }
    if (self->slept) {
        count_woken(engine, 1);
    }
    else {
        cqn_turn_used(1);
    }
    finish(self);
    return wc;
}

/* Whether its task can go on. Of those in wait() the first one can when there is something. */
static bool is_ready(const cqn_request *self)
{
    return self->state == CQN_COMPLETE || self->state == CQN_FAILED ||
           (self->kind == CQN_WAITS && self->state == CQN_SLEEPING &&
            self->engine->waiters.first == self && self->engine->cq->stash_len > 0);
}

static PySendResult deliver(cqn_request *self, PyObject **result)
{
    if (self->state == CQN_COMPLETE && self->kind != CQN_ENDS_SCOPE) {
        *result = completion(self);
        return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    *result = NULL;
    if (self->state == CQN_FAILED) {
        raise_failure(self);
    }
    else {
        *result = self->kind == CQN_WAITS ? take_completions(self) : Py_NewRef(Py_None);
    }
    if (self->held) { /* it has failed, and the device goes on with it */
        cqn_engine_own(self);
    }
    else {
        finish(self);
    }
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

/* ---- what its task does ---- */

/* The end of a scope first gives the loop a turn, in which tasks that were started in it take their
 * first step: trio shuffles those that are to run, so there it takes two. */
static int begin_end(cqn_request *self)
{
    if (cqn_engine_attach(self->engine) == 0) {
        self->turns = self->engine->channel->raw_loop != NULL ? 1 : 2;
    }
    else if (self->scope->pending > 0) {
        return -1;
    }
    else {
        PyErr_Clear(); /* the channel is closed, say, and nothing to wait for */
    }
    self->state = CQN_SLEEPING;
    return 0;
}

static int begin(cqn_request *self)
{
    if (self->kind <= CQN_RECEIVES) {
        return cqn_operation_begin(self);
    }
    if (self->kind == CQN_ENDS_SCOPE) {
        return begin_end(self);
    }
    if ((self->kind == CQN_WAITS ? cqn_wait_parse(self) : cqn_completion_parse(self)) < 0 ||
        cqn_engine_enter(self->engine, self->qp) < 0) {
        return -1;
    }
    return cqn_engine_join(self);
}

static int make_wakeup(cqn_request *self)
{
    const cqn_channel *channel = self->engine->channel;
    PyObject *wakeup, *loop;
    if (channel->raw_loop != NULL) {
        wakeup = cqn_wakeup_new(self->engine->state, channel->raw_loop, channel->done);
    }
    else if (channel->loop != NULL) {
        loop = Py_NewRef(channel->loop); /* another thread can take it from the channel */
        CQN_UNLOCKED(wakeup = PyObject_CallMethod(loop, "wakeup", NULL));
        Py_DECREF(loop);
    }
    else {
        cqn_refuse_closed(&channel->base);
        return -1;
    }
    Py_XSETREF(self->wakeup, wakeup);
    return wakeup == NULL ? -1 : 0;
}

/* What a task of another library than asyncio sleeps on. */
static PySendResult go_on_sleeping(cqn_request *self, PyObject *value, PyObject **result)
{
    PyObject *iterator = Py_NewRef(self->iterator);
    PySendResult r;
    CQN_UNLOCKED(r = PyIter_Send(iterator, value, result));
    Py_DECREF(iterator);
    if (r != PYGEN_NEXT) {
        Py_CLEAR(self->iterator);
        if (r == PYGEN_RETURN) {
            Py_CLEAR(*result);
        }
    }
    return r;
}

static PySendResult fall_asleep(cqn_request *self, PyObject **result)
{
    self->turn = cqn_turn_now();
    self->anchor = Py_NewRef(self->wakeup);
    if (Py_IS_TYPE(self->wakeup, self->engine->state->Wakeup)) {
        cqn_wakeup_yield(self->wakeup);
        *result = Py_NewRef(self->wakeup);
        return PYGEN_NEXT;
    }
    PyObject *wakeup = Py_NewRef(self->wakeup);
    CQN_UNLOCKED(self->iterator = PyObject_CallMethod(wakeup, "__await__", NULL));
    Py_DECREF(wakeup);
    return self->iterator == NULL ? PYGEN_ERROR : go_on_sleeping(self, Py_None, result);
}

/* One that never has to sleep lets the others run now and then, where it has its place; and always
 * those whose completions came before its own. */
static PySendResult give_turn(cqn_request *self, PyObject **result)
{
    self->paused = true;
    return make_wakeup(self) < 0 || cqn_request_wake(self, false) < 0 ? PYGEN_ERROR
                                                                      : fall_asleep(self, result);
}

/* Makes it safe to sleep, wakes the others, and sleeps; or is ready after all, PYGEN_RETURN. */
static PySendResult sleep_unless_ready(cqn_request *self, PyObject **result)
{
    if (make_wakeup(self) < 0) {
        return PYGEN_ERROR;
    }
    cqn_engine_prepare(self->engine, self->looked);
    self->looked = false;
    if (cqn_engine_flush(self->engine, false) < 0) {
        return PYGEN_ERROR;
    }
    if (is_ready(self) || self->state == CQN_DONE) {
        Py_CLEAR(self->wakeup);
        return PYGEN_RETURN;
    }
    self->slept = true;
    return fall_asleep(self, result);
}

/* The task runs, until it sleeps or has what it awaits. */
static PySendResult run(cqn_request *self, PyObject **result)
{
    cqn_engine *engine = self->engine;
    for (;;) {
        PySendResult r;
        if (cqn_engine_has_news(engine) && cqn_engine_flush(engine, false) < 0) {
            return PYGEN_ERROR;
        }
        if (self->turns > 0) {
            self->turns--;
            r = give_turn(self, result);
        }
        else if (self->kind == CQN_ENDS_SCOPE && self->state == CQN_SLEEPING && !self->held) {
            r = cqn_engine_join(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
        }
        else if (!is_ready(self)) {
            r = sleep_unless_ready(self, result);
        }
        else if (!self->slept && !self->paused && (cqn_turn_is_over() || engine->due > 0)) {
            r = give_turn(self, result);
        }
        else {
            return deliver(self, result);
        }
        if (r != PYGEN_RETURN) {
            return r;
        }
    }
}

static int refuse_to_run(const cqn_request *self, PyObject *value)
{
    if (self->stepping) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
    }
    else if (self->state == CQN_DONE || self->abandoned) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    }
    else if (self->state == CQN_NEW && value != Py_None) {
        PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
    }
    else if (self->wakeup != NULL && Py_IS_TYPE(self->wakeup, self->engine->state->Wakeup) &&
             !cqn_wakeup_is_done(self->wakeup)) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
    }
    else {
        return 0;
    }
    return -1;
}

static PySendResult step(cqn_request *self, PyObject *value, PyObject **result)
{
    PySendResult r = PYGEN_RETURN;
    self->woken = false;
    cqn_engine_not_due(self);
    if (self->state == CQN_NEW) {
        r = begin(self) < 0 ? PYGEN_ERROR : PYGEN_RETURN;
    }
    else if (self->iterator != NULL) {
        r = go_on_sleeping(self, value, result);
    }
    if (r == PYGEN_RETURN) {
        Py_CLEAR(self->wakeup);
        Py_CLEAR(self->anchor);
        cqn_turn_passed(self->turn);
        r = run(self, result);
    }
    return r;
}

static PySendResult request_send(PyObject *op, PyObject *value, PyObject **result)
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    *result = NULL;
    if (refuse_to_run(self, value) < 0) {
        return PYGEN_ERROR;
    }
    self->stepping = true;
    PySendResult r = step(self, value, result);
    self->stepping = false;
    if (r == PYGEN_ERROR && self->state != CQN_DONE) {
        give_up(self);
    }
    return r;
}

/* As send() of a generator. */
static PyObject *result_of(PySendResult r, PyObject *result)
{
    if (r == PYGEN_RETURN) {
        if (result == Py_None) {
            PyErr_SetNone(PyExc_StopIteration);
        }
        else {
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop != NULL) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        }
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *request_method_send(PyObject *op, PyObject *value)
{
    PyObject *result;
    PySendResult r = request_send(op, value, &result);
    return result_of(r, result);
}

static PyObject *request_next(PyObject *op)
{
    return request_method_send(op, Py_None);
}

/* Raises what was given to throw(): an exception, or a type with what goes with it. */
static void raise_given(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *type = args[0], *value = nargs > 1 ? args[1] : Py_None;
    if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    }
    else if (!PyExceptionClass_Check(type)) {
        PyErr_Format(PyExc_TypeError,
                     "exceptions must be classes or instances deriving from BaseException, not %s",
                     Py_TYPE(type)->tp_name);
    }
    else if (value == Py_None) {
        PyErr_SetNone(type);
    }
    else {
        PyErr_SetObject(type, value);
    }
}

static PyObject *throw_into_iterator(cqn_request *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *iterator = Py_NewRef(self->iterator), *result = NULL;
    PyObject *method = PyObject_GetAttrString(iterator, "throw");
    if (method != NULL) {
        CQN_UNLOCKED(result = PyObject_Vectorcall(method, args, (size_t)nargs, NULL));
    }
    Py_XDECREF(method);
    Py_DECREF(iterator);
    return result;
}

static PyObject *request_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    if (nargs < 1 || nargs > 3) {
        PyErr_Format(PyExc_TypeError, "throw expected 1 to 3 arguments, got %zd", nargs);
        return NULL;
    }
    if (self->stepping) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return NULL;
    }
    if (self->state == CQN_DONE || self->abandoned) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return NULL;
    }
    if (self->state == CQN_NEW) {
        finish(self);
        raise_given(args, nargs);
        return NULL;
    }
    PyObject *yielded = NULL;
    if (self->iterator != NULL) {
        self->stepping = true;
        yielded = throw_into_iterator(self, args, nargs);
        self->stepping = false;
    }
    else {
        raise_given(args, nargs);
    }
    if (yielded == NULL) {
        give_up(self);
    }
    return yielded;
}

static PyObject *request_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    if (self->stepping) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return NULL;
    }
    if (self->iterator != NULL) {
        PyObject *iterator = Py_NewRef(self->iterator), *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(iterator, "close", NULL));
        Py_DECREF(iterator);
        if (result == NULL) {
            PyErr_WriteUnraisable(op);
        }
        Py_XDECREF(result);
    }
    if (self->state == CQN_NEW) {
        finish(self);
    }
    else if (self->state != CQN_DONE && !self->abandoned) {
        give_up(self);
    }
    Py_RETURN_NONE;
}

/* ---- waking its task ---- */

int cqn_request_wake(cqn_request *self, bool resume)
{
    PyObject *wakeup = self->wakeup;
    if (wakeup == NULL) { /* its code runs, and sees it */
        return 0;
    }
    Py_INCREF(wakeup);
    int rc;
    if (Py_IS_TYPE(wakeup, self->engine->state->Wakeup)) {
        if (resume) {
            self->turn = 0; /* in this turn of the loop, not in the next */
        }
        rc = resume ? cqn_wakeup_resume(wakeup) : cqn_wakeup_wake(wakeup);
    }
    else {
        PyObject *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(wakeup, "wake", NULL));
        rc = result == NULL ? -1 : 0;
        Py_XDECREF(result);
    }
    Py_DECREF(wakeup);
    return rc;
}

/* ---- the type ---- */

static void warn_never_awaited(cqn_request *self)
{
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine 'AsyncCQ.%s' was never awaited",
                         self->name) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

static void request_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    self->finalized = true; /* Python does so once in its life */
    if (self->state == CQN_DONE || self->engine == NULL || self->abandoned) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    if (self->state == CQN_NEW) {
        const bool counted = self->scope != NULL && !self->left_scope;
        if (self->kind != CQN_ENDS_SCOPE && !self->is_wrapped) {
            CQN_UNLOCKED(warn_never_awaited(self));
        }
        if (self->state == CQN_NEW) { /* sys.unraisablehook() can have awaited it after all */
            finish(self);
        }
        if (counted) {
            cqn_routed(self->engine->cq);
        }
    }
    else {
        give_up(self);
    }
    cqn_put_exception(pending);
}

static int request_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_request *self = (cqn_request *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->engine);
    Py_VISIT(self->qp);
    Py_VISIT(self->scope);
    Py_VISIT(self->wakeup);
    Py_VISIT(self->iterator);
    Py_VISIT(self->error);
    if (!self->held || self->owned) {
        Py_VISIT(self->anchor);
    }
    for (int i = 0; i < self->given; i++) {
        Py_VISIT(self->in[i]);
    }
    return self->kept == NULL ? 0 : cqn_sg_traverse(&self->kept->sg, visit, arg);
}

static int request_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_request *self = (cqn_request *)op;
    if (self->held) {
        cqn_engine_let_go(self);
    }
    self->state = CQN_DONE;
    cqn_engine_not_due(self);
    cqn_scope_leave(self);
    return request_clear(op);
}

/* Whether it is to go: the engine holds one that the device goes on with, and it is tracked. */
static bool finalize(PyObject *op)
{
    PyObject_GC_Track(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return false;
    }
    PyObject_GC_UnTrack(op);
    return true;
}

static void request_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: while we wait for it the collector can run */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_request *self = (cqn_request *)op;
    const bool over = self->state == CQN_DONE && !self->finalized;
    if (!over && !PyObject_GC_IsFinalized(op) && !finalize(op)) {
        return;
    }
    Py_TRASHCAN_BEGIN(op, request_dealloc);
    cqn_state *st = self->engine != NULL ? self->engine->state : cqn_state_of(type);
    if (self->held) { /* it was begun after its finalizer ran */
        cqn_engine_let_go(self);
    }
    if (!self->cleared) {
        request_clear(op);
    }
    Py_CLEAR(self->engine);
    if (over) {
        cqn_spares_free(&st->spare_requests, op);
    }
    else {
        type->tp_free(op);
    }
    Py_DECREF(type);
    Py_TRASHCAN_END;
}

static PyObject *request_repr(PyObject *op)
{
    static const char *const states[] = {
        [CQN_NEW] = "not awaited yet", [CQN_QUEUED] = "waits for room", [CQN_POSTED] = "posted",
        [CQN_SLEEPING] = "waits",      [CQN_COMPLETE] = "complete",     [CQN_FAILED] = "failed",
        [CQN_DONE] = "done",
    };
    CQN_LOCKED;
    const cqn_request *self = (cqn_request *)op;
    return PyUnicode_FromFormat("<coroutine AsyncCQ.%s at %p, %s>", self->name, op,
                                self->abandoned ? "abandoned" : states[self->state]);
}

static PyObject *request_get_name(PyObject *op, void *qualified)
{
    const cqn_request *self = (cqn_request *)op;
    return PyUnicode_FromFormat(qualified ? "AsyncCQ.%s" : "%s", self->name);
}

static PyObject *request_get_running(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(((cqn_request *)op)->stepping);
}

static PyMethodDef request_methods[] = {
    {"send", request_method_send, METH_O, "send($self, value, /)\n--\n\nAs of a coroutine."},
    {"throw", (PyCFunction)(void (*)(void))request_throw, METH_FASTCALL,
     "throw($self, type, value=None, traceback=None, /)\n--\n\nAs of a coroutine."},
    {"close", request_close, METH_NOARGS, "close($self, /)\n--\n\nAs of a coroutine."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef request_getset[] = {
    {"__name__", request_get_name, NULL, "The name of the method that made it.", NULL},
    {"__qualname__", request_get_name, NULL, "The same, with its class.", (void *)1},
    {"cr_running", request_get_running, NULL, "As of a coroutine.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot request_slots[] = {
    {Py_tp_doc, "What a method of AsyncCQ returns, for one `await`: a coroutine."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, request_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, request_next},
    {Py_tp_repr, request_repr},
    {Py_tp_finalize, request_finalize},
    {Py_tp_traverse, request_traverse},
    {Py_tp_clear, request_tp_clear},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_getset},
    {0, NULL},
};

PyType_Spec cqn_request_spec = {
    .name = "cqnotify.Request",
    .basicsize = sizeof(cqn_request),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = request_slots,
};
