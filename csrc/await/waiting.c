/* SPDX-License-Identifier: MIT */
/*
 * The requests that wait and post nothing: wait(), completion(), and the end of a scope. Their
 * methods, and the first step of their tasks.
 */

#include "await/waiting.h"
#include "await/async_cq.h"
#include "await/engine_look.h"
#include "await/claims.h"
#include "await/lines.h"
#include "await/loop.h"
#include "await/operation.h"
#include "await/pending.h"
#include "await/room.h"
#include "await/scope.h"

/* ---- wait() ---- */

/* The methods only sort the arguments; all else happens when the request is awaited. */
PyObject *cqn_engine_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_entries", "spin", "solicited_only", NULL};
    PyObject *in[3] = {NULL, NULL, NULL};
    if (cqn_args("wait", names, 1, 0, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_request *request = cqn_request_new((cqn_engine *)op, CQN_WAITS, "wait");
    for (int i = 0; request != NULL && i < 3; i++) {
        request->in[i] = Py_XNewRef(in[i]);
        request->given = i + 1;
    }
    return cqn_engine_shaped((cqn_engine *)op, request);
}

/* Arguments are converted when the request is awaited, not when it is made: a conversion can run
 * any code, and what it raises belongs to the task that awaits. */
static int parse_wait(cqn_request *self)
{
    PyObject *const *in = self->in;
    uint64_t max = CQN_BATCH;
    int solicited_only = in[2] == NULL ? 0 : PyObject_IsTrue(in[2]);
    if (solicited_only < 0 ||
        (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, &max) < 0) ||
        (in[1] != NULL && cqn_spin(in[1], &self->spin) < 0)) {
        return -1;
    }
    self->max_entries = (uint32_t)max;
    self->solicited_only = solicited_only;
    return 0;
}

/* A wait() stands in line even if the stash has something for it: so completions are handed out in
 * the order of the waits. */
static int join_waiters(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (self->waiters.first == NULL && self->cq->stash_len == 0) {
        request->looked = true;
        request->arms = self->cq->stats.arms;
        const size_t max = request->max_entries;
        if (cqn_cq_fetch_or_spin(self->cq, max > CQN_BATCH ? max : CQN_BATCH, request->spin) < 0) {
            return -1;
        }
        CQN_PLACE("look");
        cqn_engine_post_queued(self);
        if (cqn_engine_check(self) < 0) {
            return -1;
        }
    }
    cqn_line_add(&self->waiters, request);
    self->patient += request->solicited_only;
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
    return 0;
}

/* ---- completion() ---- */

PyObject *cqn_engine_completion(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"wr_id", "qp", NULL};
    PyObject *in[2] = {NULL, NULL};
    if (cqn_args("completion", names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_request *request = cqn_request_new((cqn_engine *)op, CQN_CLAIMS, "completion");
    if (request != NULL) {
        request->in[0] = Py_NewRef(in[0]);
        request->given = 1;
        request->qp = in[1] == NULL || in[1] == Py_None ? NULL : (cqn_qp *)Py_NewRef(in[1]);
    }
    return cqn_engine_shaped((cqn_engine *)op, request);
}

static int parse_completion(cqn_request *self)
{
    if (PyBool_Check(self->in[0])) {
        PyErr_SetString(PyExc_TypeError, "wr_id must be an integer, not bool");
        return -1;
    }
    return cqn_uint(self->in[0], "wr_id", UINT64_MAX, &self->wr_id) < 0 ||
                   (self->qp != NULL && cqn_request_check_qp(self) < 0)
               ? -1
               : 0;
}

/* A completion() looks once, since the completion that it asks for may be in the device or in the
 * stash. */
static int join_claims(cqn_request *request)
{
    cqn_engine *self = request->engine;
    if (cqn_engine_look(request) < 0 || cqn_engine_check(self) < 0) {
        return -1;
    }
    if (cqn_stash_pop(self->cq, request->wr_id, request->qp, &request->wc, &request->extra)) {
        request->state = CQN_COMPLETE;
        return 0;
    }
    if ((request->qp != NULL && cqn_open(&request->qp->base) == NULL) ||
        cqn_claims_add(request) < 0) {
        return -1;
    }
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
    return 0;
}

/* ---- the end of a scope ---- */

/* The end of a scope first gives the event loop a turn, in which tasks that were started in the
 * scope take their first step. Trio shuffles the tasks that are to run, so there it takes two
 * turns. */
static int begin_end_of_scope(cqn_request *self)
{
    if (cqn_loop_attach(self->engine) == 0) {
        self->turns = self->engine->channel->raw_loop != NULL ? 1 : 2;
    }
    else if (self->scope->pending > 0) {
        return -1;
    }
    else {
        PyErr_Clear(); /* the channel may be closed, and the scope has nothing to wait for */
    }
    self->state = CQN_SLEEPING;
    return 0;
}

/* The end of the scope is pending from now on, or COMPLETE already if the scope counts nothing. */
void cqn_scope_end_join(cqn_request *request)
{
    cqn_scope *scope = request->scope;
    if (scope->pending == 0) {
        request->state = CQN_COMPLETE;
        return;
    }
    scope->end = request;
    request->state = CQN_SLEEPING;
    cqn_engine_hold(request);
}

/* ---- their first step ---- */

static int begin_wait(cqn_request *self)
{
    if (parse_wait(self) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    return cqn_engine_enter(self->engine, NULL) < 0 ? -1 : join_waiters(self);
}

static int begin_completion(cqn_request *self)
{
    if (parse_completion(self) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    return cqn_engine_enter(self->engine, self->qp) < 0 ? -1 : join_claims(self);
}

/* What the first step of the task does; until then nothing was converted or checked. */
int cqn_waiting_begin(cqn_request *self)
{
    return self->kind == CQN_WAITS    ? begin_wait(self)
           : self->kind == CQN_CLAIMS ? begin_completion(self)
                                      : begin_end_of_scope(self);
}
