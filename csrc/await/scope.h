/* SPDX-License-Identifier: MIT */
/* What the scopes of an AsyncCQ count. */
#ifndef CQN_AWAIT_SCOPE_H
#define CQN_AWAIT_SCOPE_H

#include "await/request.h"

/* What an AsyncCQ's scope counts: the operations that were made in it and have not completed. */
struct cqn_scope {
    PyObject_HEAD
    cqn_state *state;
    cqn_engine *engine; /* strong */
    PyObject *outer;    /* the scope around it, or NULL */
    cqn_request *end;   /* what its end sleeps on, held by the engine; or NULL */
    PyObject *error;    /* why something in it may never complete; or NULL */
    Py_ssize_t pending; /* operations that have not completed */
    uint8_t lost;       /* why, if there is no error: a cqn_loss */
    uint32_t lost_of;   /* the number of its queue pair */
    char ended;
};

/* Counts an operation in the innermost scope of its engine, which it holds. -1 with an exception.
 */
int cqn_scope_enter(cqn_request *request);

/* The operation is over; with the last one the end of the scope is COMPLETE. */
void cqn_scope_left(cqn_request *request);
static inline void cqn_scope_leave(cqn_request *request)
{
    if (request->scope != NULL && !request->left_scope) {
        cqn_scope_left(request);
    }
}

/* The operation may never complete: its scope raises that error at its end, or one that is made of
 * `lost` if it is NULL. */
void cqn_scope_fail(cqn_request *request, PyObject *error);

/* A new exception for a cqn_loss; NULL with another one. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num);

#endif
