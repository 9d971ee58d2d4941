/* SPDX-License-Identifier: MIT */
/* Requests: what the methods of an AsyncCQ return, and tasks await. The states are in engine.h. */
#ifndef CQN_AWAIT_REQUEST_H
#define CQN_AWAIT_REQUEST_H

#include "notify/cq.h"
#include "work/wr.h"

/* What a request is for. The first two are operations, which post. */
typedef enum { CQN_SENDS, CQN_RECEIVES, CQN_CLAIMS, CQN_WAITS, CQN_ENDS_SCOPE } cqn_request_kind;

/* See above. */
typedef enum {
    CQN_NEW,
    CQN_QUEUED,
    CQN_POSTED,
    CQN_SLEEPING,
    CQN_COMPLETE,
    CQN_FAILED,
    CQN_DONE
} cqn_request_state;

/* Why an operation will never complete: its queue pair was closed, or reset, or the completion of a
 * later work request came first. The exception is made of this when the task goes on. */
typedef enum { CQN_NOT_LOST, CQN_LOST_CLOSED, CQN_LOST_RESET, CQN_LOST_SKIPPED } cqn_loss;

typedef struct cqn_scope cqn_scope;

/* What a method of an AsyncCQ returns and a task awaits. */
struct cqn_request {
    PyObject_HEAD
    const char *name;   /* name of the method that made it */
    cqn_engine *engine; /* strong, as all that follows */
    cqn_qp *qp;         /* or NULL */
    cqn_scope *scope;   /* that counts it, or NULL */
    PyObject *wakeup;   /* what its task sleeps on, or is about to; or NULL */
    PyObject *iterator; /* of that wakeup, if it is not one of asyncio */
    PyObject *anchor;   /* the wakeup while the task sleeps: the engine's, while pending */
    PyObject *error;    /* why it FAILED, or NULL */

    /* The arguments, as they were given: converted when the request is awaited. */
    PyObject *in[CQN_AWAITED_NAMES];
    int given;      /* only so many places of `in` may have one */
    cqn_send *kept; /* what a QUEUED operation will post */

    /* Its places in lists. None of these holds the request, but the list of those to be woken. */
    cqn_request *prev, *next;           /* in the list of pending requests */
    cqn_request *before, *behind;       /* in its line */
    cqn_line *line;                     /* or NULL */
    cqn_request *qp_before, *qp_behind; /* of the completions() that name one queue pair */
    cqn_request *woken_next;

    const char *operation; /* for messages */
    uint8_t kind, state;
    uint8_t lost;       /* why it FAILED, if there is no error: a cqn_loss */
    uint8_t opcode;     /* of a send */
    bool own_id;        /* the user gave the wr_id */
    bool held;          /* pending: the engine lists it */
    bool owned;         /* the engine has a reference as well */
    bool abandoned;     /* its task has given up */
    bool forsaken;      /* an abandoned receive that the table of the engine knows */
    bool stashed;       /* a forsaken receive whose completion is in the stash */
    bool shares_error;  /* `error` is that of other requests, too */
    bool left_scope;    /* its scope does not count it any more */
    bool woken;         /* its task was woken, or is about to be */
    bool to_wake;       /* in the list of those to be woken */
    bool slept, paused; /* its task has slept; it has given the loop a turn */
    bool looked;        /* the CQ was looked at since the request began, after so many `arms` */
    bool cleared;       /* it has let go of all that it held */
    uint8_t turns;      /* how many turns it gives the loop before all else */
    bool stepping;      /* one of its steps runs */
    bool dozing;        /* in that step, the event loop's Python code puts the task to sleep */
    bool due;           /* its task goes on soon */
    bool is_wrapped;    /* in a coroutine of Python, which warns if it is not awaited */
    bool finalized;
    bool solicited_only; /* a wait() */
    uint32_t max_entries;
    uint64_t arms;
    uint64_t wr_id, key; /* the key is the number by which a table knows it */
    uint64_t turn;       /* in which its task went to sleep */
    int64_t event_at;    /* when the event was read that wakes it, while that is measured; or 0 */
    double spin;

    /* Of an operation. */
    cqn_wr_queue *queue; /* the books that a POSTED one is in */
    uint64_t position;   /* and where there; of a completion(), among those of its engine */
    struct ibv_sge *sge; /* of a receive, to know its memory again */
    uint32_t num_sge;
    struct ibv_sge one;
    struct ibv_wc wc; /* of one that is COMPLETE */
    cqn_wc_extra extra;
};

/* A new reference, or NULL if the request is being deallocated. */
static inline cqn_request *cqn_request_ref(cqn_request *request)
{
    return cqn_try_ref_object((PyObject *)request) ? request : NULL;
}

/* A new request, NEW. `name` is that of its method, and is not copied. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name);

/* The request is DONE, and lets go of all that it held. */
void cqn_request_finish(cqn_request *self);
int cqn_request_clear(PyObject *self);

#endif
