/* SPDX-License-Identifier: MIT */
/* The life of a request: how it is made, when it is pending, and what becomes of it. */
#ifndef CQN_AWAIT_REQUEST_H
#define CQN_AWAIT_REQUEST_H

#include "await/await.h"

/* Whether that state may follow, see the diagram in docs/internals.md. */
static inline bool cqn_request_may_become(const cqn_request *self, cqn_request_state next)
{
    switch ((cqn_request_state)self->state) {
    case CQN_NEW:
        return next != CQN_NEW && next != CQN_FAILED;
    case CQN_QUEUED:
        return next == CQN_POSTED || next == CQN_FAILED || next == CQN_DONE;
    case CQN_POSTED:
    case CQN_SLEEPING:
        return next >= CQN_COMPLETE;
    case CQN_FAILED: /* again, if the work request is lost of which the task knows that it failed */
        return next >= CQN_FAILED;
    default:
        return next == CQN_DONE;
    }
}

/* All changes of the state are made by this. */
static inline void cqn_request_becomes(cqn_request *self, cqn_request_state next)
{
    assert(cqn_request_may_become(self, next));
    self->state = (uint8_t)next;
}

/* Whether the engine lists it. */
static inline bool cqn_request_is_listed(const cqn_request *self)
{
    return self->owner == CQN_PENDING || self->owner == CQN_ABANDONED;
}

/* Whether its task has given up. */
static inline bool cqn_request_is_abandoned(const cqn_request *self)
{
    return self->owner >= CQN_ABANDONED;
}

/* A new reference, or NULL if the request is being deallocated. */
static inline cqn_request *cqn_request_ref(cqn_request *request)
{
    return cqn_try_ref_object((PyObject *)request) ? request : NULL;
}

/* A new request, NEW. `name` is that of its method, and is not copied. NULL with an exception. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name);

/* The request is DONE, and lets go of all that it held. */
void cqn_request_finish(cqn_request *self);
int cqn_request_clear(PyObject *self);

/* ---- its scope ---- */

/* The operation is over; with the last one the end of the scope is COMPLETE. */
void cqn_request_left_scope(cqn_request *self);
static inline void cqn_request_leave_scope(cqn_request *self)
{
    if (self->scope != NULL && !self->left_scope) {
        cqn_request_left_scope(self);
    }
}

/* A new exception for a cqn_loss; NULL with another one. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num);

/* ---- pending requests ---- */

/* The request is pending from now on. While it is, the channel holds the engine. */
void cqn_engine_hold(cqn_request *request);

/* The task has abandoned the request: from now on the engine owns it, by a reference. */
void cqn_engine_own(cqn_request *request);

/* The request is pending no more: its task has what it wants, or has given up. */
void cqn_engine_let_go(cqn_request *request);

/* ---- requests to be woken ---- */

/* Lists the request to be woken; steals the reference, and does nothing for NULL. */
void cqn_engine_wake_later(cqn_request *request);

/* Takes a pending request out of all that lists it, and lists it to be woken. */
void cqn_engine_drop(cqn_request *request);

/* Takes the next request that is to be woken, with the reference of the list; or NULL. */
static inline cqn_request *cqn_engine_take_woken(cqn_engine *self)
{
    cqn_request *request = self->woken;
    if (request != NULL) {
        self->woken = request->woken_next;
        if (self->woken == NULL) {
            self->woken_last = NULL;
        }
        request->woken_next = NULL;
        assert(request->wake == CQN_LISTED || request->wake == CQN_DUE_LISTED);
        request->wake = request->wake == CQN_LISTED ? CQN_WOKEN : CQN_DUE;
    }
    return request;
}

/* The task goes on, or never will: it holds up no other task any more. */
static inline void cqn_request_goes_on(cqn_request *self)
{
    if (self->wake >= CQN_DUE) {
        assert(self->engine->due > 0);
        self->engine->due--;
    }
    const bool is_listed = self->wake == CQN_LISTED || self->wake == CQN_DUE_LISTED;
    self->wake = is_listed ? CQN_LISTED : CQN_UNWOKEN;
}

/* ---- what becomes of it ---- */

/* A completion that its task did not take goes to the next claim, or back into the stash. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The completion of an operation whose task did not take it: others may want it. Returns false if
 * it goes into the stash. */
bool cqn_operation_offer(const cqn_request *self, const struct ibv_wc *wc,
                         const cqn_wc_extra *extra);

/* The work request will not complete; `qp` as in cqn_awaiting. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp);

/* A failure concerns the request; its task gets that error, or is told by another way if it is
 * NULL. */
void cqn_request_fail(cqn_request *request, PyObject *error);

/* Completions made room in a queue of that queue pair. This is only noted: no Python code runs. */
void cqn_engine_room(cqn_engine *engine, cqn_qp *qp);

#endif
