/* SPDX-License-Identifier: MIT */
/*
 * Scope: the type that counts the operations of an AsyncCQ.scope(), and the end of a scope.
 *
 * An operation belongs to the innermost scope of its AsyncCQ that has not ended when the operation
 * is created, not when it is posted. So a scope also waits for operations that no task has begun
 * yet. An operation leaves its scope when its completion arrives, whether its task was cancelled or
 * not (awaitable.c).
 *
 * A context variable has the innermost scope, and tasks inherit its value. cqnotify/aio/_scope.py
 * begins and ends scopes.
 */

#include "await/scope.h"
#include "await/loop.h"
#include "await/awaitable.h"

/* ---- awaiting the end of a scope ---- */

/* Returns the awaitable of the scope's end. */
static PyObject *scope_drained(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_scope *self = (cqn_scope *)op;
    cqn_awaitable *awaitable = cqn_awaitable_new(self->engine, CQN_OF_SCOPE, "scope");
    if (awaitable != NULL) {
        awaitable->scope = (cqn_scope *)Py_NewRef(op);
        awaitable->left_scope = true; /* the scope does not count its own end */
    }
    return (PyObject *)awaitable;
}

/* The end of a scope first yields to the event loop once, so tasks started in the scope take
 * their first step. Trio shuffles the tasks that are ready, so two iterations are needed there. */
int cqn_scope_end_begin(cqn_awaitable *self)
{
    if (cqn_loop_attach(self->engine) == 0) {
        self->iterations = self->engine->channel->raw_loop != NULL ? 1 : 2;
    }
    else if (self->scope->pending > 0) {
        return -1;
    }
    else {
        PyErr_Clear(); /* the channel may be closed, and nothing is pending */
    }
    cqn_awaitable_becomes(self, CQN_WAITING);
    return 0;
}

/* The end is pending from here on, or COMPLETE if the scope counts nothing. */
void cqn_scope_end_join(cqn_awaitable *awaitable)
{
    cqn_scope *scope = awaitable->scope;
    if (scope->pending == 0) {
        cqn_awaitable_becomes(awaitable, CQN_COMPLETE);
        return;
    }
    scope->end = awaitable;
    cqn_awaitable_link(awaitable);
}

/* ---- the type ---- */

/* The state of the module counts the scopes: while there is none, operations need not read the
 * context variable. */
static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    CQN_LOCKED;
    PyObject *engine;
    cqn_state *st = cqn_state_of(type);
    if (!PyArg_ParseTuple(args, "O!:Scope", st->Engine, &engine) ||
        cqn_engine_check_made((cqn_engine *)engine) < 0) {
        return NULL;
    }
    cqn_scope *self = (cqn_scope *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->engine = (cqn_engine *)Py_NewRef(engine);
        self->state = st;
        st->scopes++;
    }
    return (PyObject *)self;
}

static int scope_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_scope *self = (cqn_scope *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->engine);
    Py_VISIT(self->outer);
    Py_VISIT(self->error);
    return 0;
}

static int scope_clear(PyObject *op)
{
    cqn_scope *self = (cqn_scope *)op;
    Py_CLEAR(self->engine);
    Py_CLEAR(self->outer);
    Py_CLEAR(self->error);
    return 0;
}

static void scope_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    Py_TRASHCAN_BEGIN(op, scope_dealloc);
    scope_clear(op);
    ((cqn_scope *)op)->state->scopes--;
    type->tp_free(op);
    Py_DECREF(type);
    Py_TRASHCAN_END;
}

static PyObject *scope_get_error(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_scope *self = (cqn_scope *)op;
    if (self->error == NULL && self->lost != CQN_NOT_LOST) {
        return cqn_lost_error(self->engine->state, self->lost, self->lost_of);
    }
    return Py_NewRef(self->error != NULL ? self->error : Py_None);
}

static PyMethodDef scope_methods[] = {
    {"_drained", scope_drained, METH_NOARGS,
     "_drained($self, /)\n--\n\nTo await: an iteration of the loop, and then until nothing is "
     "outstanding."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef scope_members[] = {
    {"outstanding", T_PYSSIZET, offsetof(cqn_scope, pending), READONLY,
     "Operations that were begun inside and have not completed."},
    {"_ended", T_BOOL, offsetof(cqn_scope, ended), 0, "Whether nothing belongs to it any more."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef scope_getset[] = {
    {"_outer", cqn_get_object, cqn_set_object, "The scope around it, or None.",
     (void *)offsetof(cqn_scope, outer)},
    {"_error", scope_get_error, NULL, "Why something in it may never complete, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot scope_slots[] = {
    {Py_tp_doc, "Scope(engine, /)\n--\n\nWhat is outstanding of a block."},
    {Py_tp_new, scope_new},
    {Py_tp_traverse, scope_traverse},
    {Py_tp_clear, scope_clear},
    {Py_tp_dealloc, scope_dealloc},
    {Py_tp_methods, scope_methods},
    {Py_tp_members, scope_members},
    {Py_tp_getset, scope_getset},
    {0, NULL},
};

PyType_Spec cqn_scope_spec = {
    .name = "cqnotify.Scope",
    .basicsize = sizeof(cqn_scope),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = scope_slots,
};
