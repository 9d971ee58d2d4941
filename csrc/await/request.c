/* SPDX-License-Identifier: MIT */
/*
 * How a request is made, and what it lets go of when it is done. What its task does with it is in
 * step.c, the type is in request_type.c.
 */

#include "await/request.h"
#include "await/async_cq.h"
#include "await/scope.h"

/* The request holds its engine; the engine does not hold the request, see "What keeps a request
 * alive" in docs/internals.md. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name)
{
    cqn_state *st = engine->state;
    if (cqn_engine_check_made(engine) < 0) {
        return NULL;
    }
    cqn_request *self = (cqn_request *)cqn_freelist_alloc(&st->free_requests, st->Request);
    if (self != NULL) {
        cqn_enable_try_ref((PyObject *)self);
        self->engine = (cqn_engine *)Py_NewRef((PyObject *)engine);
        self->kind = (uint8_t)kind;
        self->name = name;
    }
    return self;
}

/* What a request owns beside its references: the copy of a send that waits for room, and the memory
 * elements of a receive. */
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

/* Not only for the garbage collector: a request that is done lets go of all that it held, and its
 * memory is kept for the next request (base/freelist.c). */
int cqn_request_clear(PyObject *op)
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

/* The task has its result, or never will: nothing is left to do. */
void cqn_request_finish(cqn_request *self)
{
    self->state = CQN_DONE;
    cqn_scope_leave(self);
    if (!self->stashed) { /* else the next recv() of the same memory looks at it */
        cqn_request_clear((PyObject *)self);
        self->cleared = true;
    }
}
