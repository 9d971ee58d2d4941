/* SPDX-License-Identifier: MIT */
/*
 * What AsyncCQ.scope() counts. An operation belongs to the innermost scope of its AsyncCQ that has
 * not ended when the operation is made, not when it is posted: so a scope also waits for operations
 * that no task has begun yet. An operation leaves its scope when its completion comes, whether its
 * task was cancelled or not.
 *
 * A context variable knows the innermost scope, and tasks inherit its value. How scopes begin and
 * end is in cqnotify/aio/_scope.py; the type is in scope_type.c.
 */

#include "await/scope.h"
#include "await/engine.h"
#include "await/pending.h"

/* A program that has no scope does not pay for asking the context variable. */
int cqn_scope_enter(cqn_request *request)
{
    cqn_engine *engine = request->engine;
    PyObject *value;
    if (engine->state->scopes == 0) {
        return 0;
    }
    if (PyContextVar_Get(engine->state->innermost_scope, NULL, &value) < 0) {
        return -1;
    }
    for (PyObject *at = value; at != NULL && PyObject_TypeCheck(at, engine->state->Scope);
         at = ((cqn_scope *)at)->outer) {
        cqn_scope *scope = (cqn_scope *)at;
        if (scope->engine == engine && !scope->ended) {
            scope->pending++;
            request->scope = (cqn_scope *)Py_NewRef(at);
            break;
        }
    }
    Py_XDECREF(value);
    return 0;
}

/* The operation is over, or will never begin. The request keeps its reference to the scope until it
 * is cleared. */
void cqn_scope_left(cqn_request *request)
{
    cqn_scope *scope = request->scope;
    request->left_scope = true;
    if (--scope->pending == 0 && scope->end != NULL) {
        cqn_engine_settled(scope->end, CQN_COMPLETE);
    }
}

/* The operation may never complete. If it was posted, its scope is told. The first error stays,
 * because to drop an error can run any code. */
void cqn_scope_fail(cqn_request *request, PyObject *error)
{
    cqn_scope *scope = request->scope;
    if (scope != NULL && !request->left_scope && request->state == CQN_POSTED &&
        scope->error == NULL && scope->lost == CQN_NOT_LOST) {
        scope->error = Py_XNewRef(error);
        scope->lost = request->lost;
        scope->lost_of = request->qp->qp_num;
    }
    cqn_scope_leave(request);
}

/* The exception is made when it is raised, because no Python code may run where operations are
 * lost. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num)
{
    switch (lost) {
    case CQN_LOST_CLOSED:
        PyErr_SetString(st->ClosedError, "the QP was closed: its work requests were dropped");
        break;
    case CQN_LOST_RESET:
        PyErr_Format(st->ClosedError, "QP %u was reset: its work requests were dropped", qp_num);
        break;
    default:
        PyErr_SetString(st->ClosedError,
                        "the device has lost its completion: that of a later one came first");
    }
    return cqn_take_exception();
}
