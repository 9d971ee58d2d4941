/* SPDX-License-Identifier: MIT */
/* The lists of an engine: the requests that are pending, and those that are to be woken. */
#ifndef CQN_AWAIT_PENDING_H
#define CQN_AWAIT_PENDING_H

#include "await/engine.h"

/* Lists a request as under way. While it is listed its engine is alive. */
void cqn_engine_hold(cqn_request *request);

/* Takes it out again. Returns a reference, or NULL: it is being deallocated. */
cqn_request *cqn_engine_take_out(cqn_request *request);

/* The request was abandoned by its task: from now on the engine owns it by a reference. */
void cqn_engine_own(cqn_request *request);

/* A request has what it was for, or never will: takes it out, and its task is to be woken. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state);

/* Puts a request into the list of those to wake; steals the reference, and does nothing for NULL.
 */
void cqn_engine_wake_later(cqn_request *request);

/* The first in wait() is to be woken if the stash has something. */
void cqn_engine_wake_first(cqn_engine *self);

/* The next one of those to wake, with the list's reference; or NULL. */
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

/* Drops the list of those to wake: the engine goes. */
void cqn_engine_drop_woken(cqn_engine *self);

/* The task of a woken request has gone on, or never will. */
static inline void cqn_engine_not_due(cqn_request *request)
{
    if (request->due) {
        request->due = false;
        request->engine->due--;
    }
}

#endif
