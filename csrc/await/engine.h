/* SPDX-License-Identifier: MIT */
/*
 * Awaiting completions: the engine, and the machine of its requests. The files, each of which uses
 * only those below it:
 *
 *   engine_type.c   Engine: the type that an AsyncCQ is built on
 *   request_type.c  Request: the type, in the shape of a coroutine
 *   scope_type.c    Scope: the type
 *   engine.c        what the other folders tell the engine, and ask of it (await.h)
 *   step.c          what a task does in a request: the steps of its state machine
 *   waiting.c       the requests that post nothing: wait(), completion(), the end of a scope
 *   operation.c     the requests that post: their arguments
 *   give_up.c       what a task leaves behind that gives up
 *   engine_wake.c   waking the tasks that have something
 *   engine_look.c   looking for completions, and arming the CQ
 *   room.c          posting, and waiting for room in a queue
 *   engine_fail.c   failures and ends, and which tasks are told
 *   forsaken.c      receives that were abandoned: the next one of the same memory goes on with them
 *   claims.c        which completion() awaits which completion
 *   outcome.c       what becomes of a request: completion, loss, failure
 *   request.c       how a request is made, and what it lets go of
 *   scope.c         what an AsyncCQ's scope counts
 *   pending.c       the lists of an engine: requests that are pending, and those to be woken
 *   loop.c          event loops: which one reads a channel, and its turns
 *   async_cq.c      what the core asks of the AsyncCQ, which is Python code
 *   wakeup.c        what a task of asyncio sleeps on
 *   lines.c         requests in lines, and in tables by a number
 *   coroutine.c     the methods of what is shaped like a coroutine
 *
 * A request has one of these states:
 *
 *   NEW        made, and not awaited yet
 *   QUEUED     an operation that waits for room in its queue
 *   POSTED     an operation whose work request the device has
 *   SLEEPING   a wait(), a completion() or the end of a scope, before what it is for came
 *   COMPLETE   what it is for came; its task has not gone on yet
 *   FAILED     what it is for never will come, or the device has failed; its task has not gone on
 *   DONE       its task has the result or the exception
 *
 * While a request is QUEUED, POSTED or SLEEPING it is pending: the engine lists it (`first` to
 * `last`). The engine does not own the request, but its anchor, on which the task sleeps: the
 * anchor holds the task, and the task holds the request. A request that was abandoned by its task
 * is owned by the engine, as long as the device has its work request. A diagram is in
 * docs/internals.md.
 *
 * Completions are routed as they come from the device, where no Python code runs: each to the
 * operation that posted the work request, or to the completion() that asks for its wr_id, or into
 * the stash of the CQ. The requests that have what they were for are collected, and woken when the
 * routing is over. A wait() is woken with nothing: when its task goes on it takes from the stash
 * what is there, and wakes the next one if something is left. So a task that is cancelled at that
 * very moment has nothing to lose.
 *
 * Any thread may close the AsyncCQ, its CQ, the channel, a queue pair or the context, poll the CQ
 * or arm it, wherever the code here lets go of the lock. So after each such place it looks again at
 * what it goes on with. By the names that a debug build has for the places (CQN_PLACE), where
 * tests/faults/test_places.py lets another thread act:
 *
 *   place      what runs there                          what is looked at afterwards
 *   arguments  __index__() and the like                 all: cqn_engine_enter(), check_qp()
 *   attach     Reader.attach(), in Python               AsyncCQ and CQ: cqn_engine_enter(); the QP
 *   report     AsyncCQ._take_report(), in Python        the same
 *   memory     buffers, __len__() of the SGEs           AsyncCQ, and the QP as it is posted to
 *   state      ibv_query_qp(), without the GIL          AsyncCQ, QP; in a line, the request's state
 *   look       destructors of what completed; spin;     AsyncCQ, the QP of a completion(); one that
 *              handlers of signals                      is listed already learns of a close
 *   wakeup     the wakeup of another library            the state of the request, how often the CQ
 *                                                       was armed since the look
 *   arm        destructors, AsyncCQ._look_later()       CQ: has_no_sleeper(), in each round
 *   prepare    call_soon() of the tasks woken           the state of the request
 *   lie down,  the other library, which puts the task   nothing: `dozing` has who changes the state
 *   doze,      to sleep, or is passed an exception      wake the task, which may not sleep yet
 *   throw
 *   turn       call_soon() of the task itself           the task goes on, and looks at its state
 *   take       destructors of what completed            the stash; if it is empty AsyncCQ and CQ
 *   event      as in prepare, in the loop's callback    `woken`, which lists who has something
 *   wake       call_soon() of each task                 the list of those to be woken, each time
 *   room       as in state, for each in line            QP, before its other queue is asked
 *   poll       AsyncCQ._leave_closed_loop(), in Python  CQ: fetch_batch(); AsyncCQ: as it hands out
 *   give up    destructors of the task's objects        CQ: has_no_sleeper()
 *
 * A close marks first, and then tells: the AsyncCQ that is closed takes no new request, and fails
 * those that it lists; a queue pair without a handle fails what its books list, and its claims. A
 * request that is listed after such a look is thus told, and one that is not has looked. To take a
 * request out of a list and to list it runs no code of others. While the CQ is destroyed it has no
 * handle and is not armed; if that fails, cqn_engine_look_again() looks. Tasks are woken only in
 * the thread of their loop, by AsyncCQ._hand_over(), and Reader.loop changes only there.
 */
#ifndef CQN_AWAIT_ENGINE_H
#define CQN_AWAIT_ENGINE_H

#include "await/lines.h"
#include "await/request.h"

#define CQN_BATCH 16 /* a poll costs the same for one as for a few */

/* What an AsyncCQ is built on: it takes the completions of one CQ, for the tasks that await them.
 */
struct cqn_engine {
    PyObject_HEAD
    cqn_state *state;
    cqn_cq *cq;           /* strong; as the channel */
    cqn_channel *channel; /* the channel of the CQ */
    PyObject *error;      /* that every wait raises from now on, or NULL */
    PyObject *reports;    /* list of failures that no task was told of yet, or NULL */
    PyObject *weakrefs;

    cqn_request *first, *last;       /* the pending requests; the engine owns their anchors */
    Py_ssize_t len, wanted;          /* how many, and how many of them have a task */
    cqn_line waiters;                /* in wait() */
    Py_ssize_t patient;              /* how many of these wait for solicited events only */
    cqn_table claims, qp_claims;     /* completion() of any queue pair, and of one: claims.c */
    uint64_t claimed;                /* since the engine was made */
    cqn_table forsaken;              /* receives that were abandoned, by their memory */
    size_t stashed;                  /* how many of these have completed */
    cqn_request *woken, *woken_last; /* requests to be woken, in that order; strong */
    cqn_qp *to_serve;                /* queue pairs where there may be room now, strong */

    cqn_engine *busy_prev, *busy_next; /* in the list of the channel, which holds the engine */
    bool busy, looks_later;
    bool closed;
    size_t due;    /* tasks that were woken and have not gone on: nothing overtakes them */
    uint64_t turn; /* in which it resumed a task */
    uint64_t wakeups, max_per_wake;
};

/* The engine of that CQ, as a new reference; or NULL if there is none. */
static inline cqn_engine *cqn_engine_of(const cqn_cq *cq)
{
    cqn_engine *engine = cq->engine;
    return engine != NULL && cqn_try_ref_object((PyObject *)engine) ? engine : NULL;
}

/* Whether something is to be done when completions were routed. */
static inline bool cqn_engine_has_news(const cqn_engine *self)
{
    return self->woken != NULL || self->to_serve != NULL;
}

/* Wakes the tasks that the routing of completions concerned. -1 with an exception. */
int cqn_engine_wake(cqn_cq *cq);

/* Call after completions of that CQ were routed: wakes the tasks that they are for. */
static inline int cqn_routed(cqn_cq *cq)
{
    return cq->engine == NULL ? 0 : cqn_engine_wake(cq);
}

#endif
