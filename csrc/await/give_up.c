/* SPDX-License-Identifier: MIT */
/*
 * What a task leaves behind that gives up: it was cancelled, or has failed, or will never run
 * again. What is meant for others goes to them. What the device still has is the engine's from then
 * on.
 */

#include "await/give_up.h"
#include "await/async_cq.h"
#include "await/engine_look.h"
#include "await/forsaken.h"
#include "await/outcome.h"
#include "await/pending.h"

/* The task of an operation has given up. A work request that was posted can not be taken back, so
 * the engine keeps the request. */
static void give_up_operation(cqn_request *self)
{
    cqn_engine *engine = self->engine;
    if (self->state == CQN_POSTED || (self->state == CQN_FAILED && self->queue != NULL)) {
        cqn_engine_own(self);
        if (self->kind == CQN_RECEIVES && self->state == CQN_POSTED) {
            cqn_forsaken_add(self);
        }
    }
    else if (self->state == CQN_COMPLETE) {
        const bool receives = self->kind == CQN_RECEIVES;
        self->abandoned = true;
        if (receives && self->wc.status == IBV_WC_SUCCESS) {
            cqn_forsaken_add(self);
        }
        engine->cq->stats.completions--;
        if (!cqn_operation_abandoned(self, &self->wc, &self->extra)) {
            cqn_stash_put_back(engine->cq, &self->wc, &self->extra);
        }
        if (self->forsaken && !self->stashed) {
            cqn_forsaken_forget(self);
        }
    }
    else if (self->held) {
        cqn_engine_let_go(self);
    }
}

/* The task will not go on: all is as if it had been cancelled, but no other task is woken. */
static void abandon_request(cqn_request *self)
{
    cqn_engine_not_due(self);
    Py_CLEAR(self->wakeup);
    Py_CLEAR(self->anchor);
    Py_CLEAR(self->iterator);
    if (self->kind <= CQN_RECEIVES) {
        give_up_operation(self);
    }
    else if (self->kind == CQN_CLAIMS && self->state == CQN_COMPLETE) {
        cqn_engine_return(self->engine, &self->wc, &self->extra);
    }
    else if (self->held) {
        cqn_engine_let_go(self);
    }
    if (!self->held) {
        cqn_request_finish(self);
    }
}

/* The task goes on without its request: it was cancelled, or has failed. What is meant for others
 * goes to them. An exception that is set stays set. */
void cqn_request_give_up(cqn_request *self)
{
    cqn_engine *engine = (cqn_engine *)Py_NewRef((PyObject *)self->engine);
    PyObject *pending = cqn_take_exception();
    if (self->slept) { /* the task slept, and no event woke it: the event may have been lost */
        engine->cq->armed = CQN_UNARMED;
    }
    if (self->state == CQN_FAILED && self->error != NULL) {
        cqn_engine_report(engine, self->error);
    }
    abandon_request(self);
    CQN_PLACE("give up");
    cqn_engine_serve(engine);
    Py_DECREF(engine);
    cqn_put_exception(pending);
}

/* The event loop was closed: the tasks that wait will never run again. To abandon one can run code
 * that changes the list, so the walk begins anew each time. */
PyObject *cqn_engine_forget_tasks(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    self->looks_later = false;
    cqn_request *r = self->first;
    while (r != NULL) {
        if (r->abandoned || !cqn_try_ref_object((PyObject *)r)) {
            r = r->next;
            continue;
        }
        abandon_request(r);
        Py_DECREF(r);
        r = self->first;
    }
    Py_RETURN_NONE;
}
