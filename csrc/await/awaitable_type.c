/* SPDX-License-Identifier: MIT */
/* Awaitable: the type of the objects that the methods of an AsyncCQ return. It has the shape of a
 * coroutine and can be used wherever a coroutine can. The steps of its task are in step.c. */

#include "await/coroutine.h"
#include "await/loop.h"
#include "await/awaitable.h"
#include "await/step.h"

/* ---- as a coroutine ---- */

/* An exception thrown into the task, usually by a cancellation, makes the task give up. */
static PyObject *awaitable_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_awaitable *self = (cqn_awaitable *)op;
    if (cqn_check_throw(nargs) < 0 ||
        cqn_refuse_step(self->activity != CQN_RESTING,
                        self->state == CQN_DONE || cqn_awaitable_is_abandoned(self)) < 0) {
        return NULL;
    }
    if (self->state == CQN_NEW) {
        cqn_awaitable_finish(self);
        cqn_raise_given(args, nargs);
        return NULL;
    }
    PyObject *yielded = NULL;
    if (self->iterator != NULL) {
        self->activity = CQN_FALLING_ASLEEP;
        yielded = cqn_throw_into(self->iterator, args, nargs);
        CQN_PLACE("throw");
        self->activity = CQN_RESTING;
    }
    else {
        cqn_raise_given(args, nargs);
    }
    if (yielded == NULL) {
        cqn_awaitable_give_up(self);
    }
    return yielded;
}

static PyObject *awaitable_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_awaitable *self = (cqn_awaitable *)op;
    if (cqn_refuse_step(self->activity != CQN_RESTING, false) < 0) {
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
        cqn_awaitable_finish(self);
    }
    else if (self->state != CQN_DONE && !cqn_awaitable_is_abandoned(self)) {
        cqn_awaitable_give_up(self);
    }
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static void warn_never_awaited(cqn_awaitable *self)
{
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine 'AsyncCQ.%s' was never awaited",
                         self->name) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
}

/* An awaitable that was never awaited gets the warning that Python gives for coroutines. */
static void awaitable_finalize(PyObject *op)
{
    CQN_LOCKED;
    cqn_awaitable *self = (cqn_awaitable *)op;
    self->finalized = true; /* Python finalizes an object only once */
    if (self->state == CQN_DONE || cqn_awaitable_is_abandoned(self)) {
        return;
    }
    PyObject *pending = cqn_take_exception();
    if (self->state == CQN_NEW) {
        if (!self->is_wrapped) {
            CQN_UNLOCKED(warn_never_awaited(self));
        }
        if (self->state == CQN_NEW) { /* else sys.unraisablehook() awaited it */
            cqn_awaitable_finish(self);
        }
        cqn_engine_wake_in_loop_or_defer(self->engine); /* it may have been the last of a scope */
    }
    else {
        cqn_awaitable_give_up(self);
    }
    cqn_put_exception(pending);
}

static int awaitable_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_awaitable *self = (cqn_awaitable *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->engine);
    Py_VISIT(self->qp);
    Py_VISIT(self->scope);
    Py_VISIT(self->wakeup);
    Py_VISIT(self->iterator);
    Py_VISIT(self->error);
    if (self->owner != CQN_PENDING) { /* else the engine owns it */
        Py_VISIT(self->anchor);
    }
    for (int i = 0; i < self->given; i++) {
        Py_VISIT(self->in[i]);
    }
    return self->kept == NULL ? 0 : cqn_sg_traverse(&self->kept->sg, visit, arg);
}

static int awaitable_tp_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_awaitable *self = (cqn_awaitable *)op;
    if (cqn_awaitable_is_listed(self)) {
        cqn_awaitable_drop(self);
    }
    cqn_awaitable_becomes(self, CQN_DONE);
    cqn_awaitable_goes_on(self);
    cqn_awaitable_leave_scope(self);
    return cqn_awaitable_clear(op);
}

/* Returns whether to deallocate the awaitable. While the device has its work request, the engine
 * owns it, and the garbage collector must track it. */
static bool finalize_from_dealloc(PyObject *op)
{
    PyObject_GC_Track(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return false;
    }
    PyObject_GC_UnTrack(op);
    return true;
}

static void awaitable_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_awaitable *self = (cqn_awaitable *)op;
    const bool over = self->state == CQN_DONE && !self->finalized;
    if (!over && !PyObject_GC_IsFinalized(op) && !finalize_from_dealloc(op)) {
        return;
    }
    Py_TRASHCAN_BEGIN(op, awaitable_dealloc);
    cqn_state *st = self->engine->state;
    if (cqn_awaitable_is_listed(self)) { /* a task began it after its finalizer ran */
        cqn_awaitable_drop(self);
    }
    if (!self->cleared) {
        cqn_awaitable_clear(op);
    }
    Py_CLEAR(self->engine);
    if (over) {
        cqn_freelist_free(&st->free_awaitables, op);
    }
    else {
        type->tp_free(op);
    }
    Py_DECREF(type);
    Py_TRASHCAN_END;
}

static PyObject *awaitable_repr(PyObject *op)
{
    static const char *const states[] = {
        [CQN_NEW] = "not awaited yet", [CQN_QUEUED] = "queued",     [CQN_POSTED] = "posted",
        [CQN_WAITING] = "waits",       [CQN_COMPLETE] = "complete", [CQN_FAILED] = "failed",
        [CQN_DONE] = "done",
    };
    CQN_LOCKED;
    const cqn_awaitable *self = (cqn_awaitable *)op;
    return PyUnicode_FromFormat("<coroutine AsyncCQ.%s at %p, %s>", self->name, op,
                                cqn_awaitable_is_abandoned(self) ? "abandoned"
                                                                 : states[self->state]);
}

static PyObject *awaitable_get_name(PyObject *op, void *qualified)
{
    const cqn_awaitable *self = (cqn_awaitable *)op;
    return PyUnicode_FromFormat(qualified ? "AsyncCQ.%s" : "%s", self->name);
}

static PyObject *awaitable_get_running(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(((cqn_awaitable *)op)->activity != CQN_RESTING);
}

/* The call in which the task waits, as source text. */
CQN_RARE static PyObject *awaitable_get_call(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_awaitable *self = (cqn_awaitable *)op;
    const char *queued = self->state == CQN_QUEUED ? ", queued" : "";
    if (self->kind == CQN_OF_COMPLETION) {
        return PyUnicode_FromFormat("%s(%llu)", self->name, (unsigned long long)self->wr_id);
    }
    return self->qp == NULL ? PyUnicode_FromFormat("%s()", self->name)
                            : PyUnicode_FromFormat("%s() on QP %u%s", self->name,
                                                   (unsigned)self->qp->qp_num, queued);
}

static PyMethodDef awaitable_methods[] = {
    CQN_COROUTINE_METHODS(awaitable_throw, awaitable_close),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef awaitable_getset[] = {
    {"__name__", awaitable_get_name, NULL, "The name of the method that made it.", NULL},
    {"__qualname__", awaitable_get_name, NULL, "The same, with its class.", (void *)1},
    {"_call", awaitable_get_call, NULL, "For messages: what it waits for.", NULL},
    {"cr_running", awaitable_get_running, NULL, "As of a coroutine.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot awaitable_slots[] = {
    {Py_tp_doc, "What a method of AsyncCQ returns, for one `await`: a coroutine."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, cqn_awaitable_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_repr, awaitable_repr},
    {Py_tp_finalize, awaitable_finalize},
    {Py_tp_traverse, awaitable_traverse},
    {Py_tp_clear, awaitable_tp_clear},
    {Py_tp_dealloc, awaitable_dealloc},
    {Py_tp_methods, awaitable_methods},
    {Py_tp_getset, awaitable_getset},
    {0, NULL},
};

PyType_Spec cqn_awaitable_spec = {
    .name = "cqnotify.Awaitable",
    .basicsize = sizeof(cqn_awaitable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = awaitable_slots,
};
