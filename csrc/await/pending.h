/* SPDX-License-Identifier: MIT */
/* The lists of an engine: the requests that are pending, and those that are to be woken. */
#ifndef CQN_AWAIT_PENDING_H
#define CQN_AWAIT_PENDING_H

#include "await/engine.h"

/* The request is pending from now on. While it is, the channel holds the engine. */
void cqn_engine_hold(cqn_request *request);

/* Takes a pending request out of its line or table, out of the books and out of the list. Returns a
 * reference, or NULL if the request is being deallocated. */
cqn_request *cqn_engine_take_out(cqn_request *request);

/* The task has abandoned the request: from now on the engine owns it, by a reference. */
void cqn_engine_own(cqn_request *request);

/* A pending request has what it was for, or never will: it gets that state, and is to be woken. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state);

/* Lists the request to be woken; steals the reference, and does nothing for NULL. */
void cqn_engine_wake_later(cqn_request *request);

/* The first in wait() is to be woken if the stash has something. */
void cqn_engine_wake_first(cqn_engine *self);

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

/* The engine goes: drops those that are to be woken. */
void cqn_engine_drop_woken(cqn_engine *self);

/* The task of a woken request has gone on, or never will: it holds up no other task any more. */
static inline void cqn_engine_not_due(cqn_request *request)
{
    if (request->due) {
        request->due = false;
        request->engine->due--;
    }
}

#endif
