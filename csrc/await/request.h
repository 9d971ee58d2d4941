/* SPDX-License-Identifier: MIT */
/* The life of a request: how it is made, when it is pending, and what becomes of it. */
#ifndef CQN_AWAIT_REQUEST_H
#define CQN_AWAIT_REQUEST_H

#include "await/await.h"

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
        request->to_wake = false;
    }
    return request;
}

/* The task of a woken request has gone on, or never will: it holds up no other task any more. */
static inline void cqn_engine_not_due(cqn_request *request)
{
    if (request->due) {
        request->due = false;
        request->engine->due--;
    }
}

/* ---- what becomes of it ---- */

/* A completion that its task did not take goes to the next claim, or back into the stash. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The completion of an operation whose task did not take it. Returns whether it is for no other
 * consumer. */
bool cqn_operation_abandoned(cqn_request *self, struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The work request will not complete; `qp` as in cqn_awaiting. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp);

/* A failure concerns the request; its task gets that error, or is told by another way if it is
 * NULL. */
void cqn_request_fail(cqn_request *request, PyObject *error);

/* Completions made room in a queue of that queue pair. This is only noted: no Python code runs. */
void cqn_engine_room(cqn_engine *engine, cqn_qp *qp);

#endif
