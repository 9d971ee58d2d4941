/* SPDX-License-Identifier: MIT */
/*
 * Awaiting completions: the engine of an AsyncCQ, and awaitables, the objects that send(), wait()
 * and so on return. A file uses only those below it:
 *
 *   selector.c         Selector: an event loop's selector that calls the callbacks of channels
 *   engine_type.c      Engine: the base type of an AsyncCQ
 *   awaitable_type.c   Awaitable: the type, in the shape of a coroutine
 *   step.c             the steps of a task in its awaitable, from state to state; giving up
 *   scope.c            Scope: the type, and the end of a scope
 *   calls.c            send(), wait() and so on: their arguments, and the first step of the task
 *   engine.c           polling and arming the CQ, waking tasks, even during Ctrl-C; failures
 *   post.c             posting operations, and queueing them until their queue has capacity
 *   taker.c            the taker: receives completions in C, in place of tasks
 *   abandoned.c        operations whose task gave up; a recv() takes over one of the same memory
 *   awaitable.c        the life of an awaitable: its owner, its lists, and its result
 *   waitlist.c         awaitables in order of arrival, and tables of them by number; claims
 *   loop.c             calls of the AsyncCQ and the event loop, which are Python code; iterations
 *   wakeup.c           Wakeup: the object that an asyncio task sleeps on
 *   coroutine.c        the common part of types in the shape of a coroutine
 *
 * An awaitable has one of these states:
 *
 *   NEW        created, not awaited yet
 *   QUEUED     an operation that waits until its queue has capacity
 *   POSTED     an operation whose work request the device has
 *   WAITING    a wait(), a completion() or the end of a scope without a result yet
 *   COMPLETE   has a result; its task has yet to go on
 *   FAILED     will have no result, or the device failed; its task has yet to go on
 *   DONE       its task has the result or the exception
 *
 * A QUEUED, POSTED or WAITING awaitable is pending: the engine lists it (`first` to `last`). The
 * engine does not own the awaitable, only its anchor, on which the task sleeps: the anchor holds
 * the task, and the task holds the awaitable. When the task gives up, the engine owns the awaitable
 * as long as the device has its work request. docs/internals.md has a diagram.
 *
 * Completions are routed as they are read from the device, where no Python code runs: each one goes
 * to the operation that posted the work request, to the completion() that claims its wr_id, or into
 * the stash of the CQ. Awaitables with a result are listed, and woken after the routing. A wait()
 * is woken without a result: when its task continues it takes what is in the stash then, and wakes
 * the next one if something is left. So a task that is cancelled at that moment loses nothing.
 *
 * Any thread may close the AsyncCQ, its CQ, the channel, a queue pair or the context, and poll or
 * arm the CQ, wherever this code releases the lock. So after each such place the code checks again
 * everything that it goes on to use. In a debug build each place has a name (CQN_PLACE), and
 * tests/faults/test_places.py lets another thread act there:
 *
 *   place      what runs there                          what is checked afterwards
 *   arguments  __index__() and the like                 all: check_can_wait(), check_qp()
 *   attach     Reader.attach(), in Python               AsyncCQ and CQ: check_can_wait(); the QP
 *   report     AsyncCQ._take_report(), in Python        the same
 *   memory     buffers, __len__() of the SGEs           AsyncCQ, and the QP as it is posted to
 *   state      ibv_query_qp(), without the GIL          AsyncCQ, QP; if QUEUED, the state
 *   fetch      destructors of completed requests;       AsyncCQ, the QP of a completion(); a listed
 *              spinning; signal handlers                awaitable is notified of a close
 *   wakeup     the wakeup of another library            the state, and how often the CQ was armed
 *                                                       since the poll
 *   arm        destructors, AsyncCQ._poll_later()       CQ: has_no_sleeper(), in each round
 *   prepare    call_soon() of the tasks woken           the state
 *   iterator,  the other library, which puts the task   nothing: by `activity`, a change of the
 *   iterate,   to sleep, or gets an exception for it    state wakes the task, which may not sleep
 *   throw                                               yet
 *   yield      call_soon() of the task itself           nothing: the task continues, and checks
 *   stash      destructors of completed requests        the stash; if it is empty AsyncCQ and CQ
 *   event      as in prepare, in the loop's callback    `woken`, the list of those to be woken
 *   wake       call_soon() of each task                 the same, each time
 *   capacity   as in state, for each QUEUED awaitable   QP, before its other queue is posted to
 *   poll       AsyncCQ._leave_closed_loop(), in Python  CQ, as it is polled; AsyncCQ, at the end
 *   give up    destructors of the task's objects        CQ: has_no_sleeper()
 *
 * A close first marks the object closed, then notifies. A closed AsyncCQ takes no new awaitable and
 * fails the listed ones; a queue pair without a handle fails those in its WR queues, and its
 * claims. So an awaitable that is listed after such a check is notified, and one that is not listed
 * has yet to check. Listing an awaitable and removing it from a list run no other code. A CQ that
 * is being destroyed has no handle and is not armed; if destroying fails, cqn_engine_poll_again()
 * polls. Tasks are woken only in the thread of their loop, by AsyncCQ._wake_in_loop(), and
 * Reader.loop changes only there.
 */
#ifndef CQN_AWAIT_AWAIT_H
#define CQN_AWAIT_AWAIT_H

#include "notify/cq.h"
#include "work/wr.h"

/* ---- the structs ---- */

typedef struct cqn_scope cqn_scope;

/* The purpose of an awaitable. The first two are operations, which post. */
typedef enum {
    CQN_OF_SEND,
    CQN_OF_RECV,
    CQN_OF_COMPLETION,
    CQN_OF_WAIT,
    CQN_OF_SCOPE
} cqn_awaitable_kind;

/* See above. */
typedef enum {
    CQN_NEW,
    CQN_QUEUED,
    CQN_POSTED,
    CQN_WAITING,
    CQN_COMPLETE,
    CQN_FAILED,
    CQN_DONE
} cqn_awaitable_state;

/* The owner of an awaitable, and whether the engine lists it. Only awaitable.c and abandoned.c
 * change it. */
typedef enum {
    CQN_UNLISTED,  /* owned by the task */
    CQN_PENDING,   /* owned by the task; the engine lists it, and owns its anchor */
    CQN_ABANDONED, /* abandoned by the task; the engine lists it, and owns it */
    CQN_STASHED,   /* abandoned by the task; its completion is in the stash, and the table of
                    * abandoned receives owns it */
    CQN_ORPHANED   /* abandoned by the task; no list or table of the engine owns it */
} cqn_owner;

/* How far the waking of its task is. */
typedef enum {
    CQN_UNWOKEN,
    CQN_LISTED, /* to be woken: the engine's list owns a reference */
    CQN_WOKEN,  /* removed from that list: the task continues at once, or its code already runs */
    CQN_SCHEDULED,       /* passed to the event loop, and counted: the task continues soon */
    CQN_SCHEDULED_LISTED /* the same, and listed once more */
} cqn_wake;

/* Where the code of the awaitable is. Another thread, or Python code that a step calls, can wake
 * the task at any time, so this state does not depend on whether the task was woken. */
typedef enum {
    CQN_RESTING,
    CQN_STEPPING,      /* a step runs, and checks the state before the task sleeps */
    CQN_FALLING_ASLEEP /* the same, while Python code of the event loop puts the task to sleep */
} cqn_activity;

/* Whether its task yielded or slept. */
typedef enum {
    CQN_NO_PAUSE,
    CQN_PAUSED, /* yielded to the loop */
    CQN_SLEPT   /* slept */
} cqn_pause;

/* Why an operation will never complete: its queue pair was closed or reset, or a later work request
 * of the same queue completed first. The exception is created when the task continues. */
typedef enum { CQN_NOT_LOST, CQN_LOST_CLOSED, CQN_LOST_RESET, CQN_LOST_SKIPPED } cqn_loss;

/* The object that a method of an AsyncCQ returns and a task awaits. */
struct cqn_awaitable {
    PyObject_HEAD
    const char *name;   /* of the method that created it */
    cqn_engine *engine; /* strong, like all references below */
    cqn_qp *qp;         /* or NULL */
    cqn_scope *scope;   /* the scope that counts it, or NULL */
    PyObject *wakeup;   /* what its task sleeps on, or is about to; or NULL */
    PyObject *iterator; /* iterator of the wakeup, unless it is asyncio's */
    PyObject *anchor;   /* the wakeup while the task sleeps; the engine's while pending */
    PyObject *error;    /* why it FAILED, or NULL */

    /* The arguments as given; the task's first step converts them. */
    PyObject *in[CQN_AWAITED_NAMES];
    int given;      /* length of the used part of `in` */
    cqn_send *kept; /* the work request of a QUEUED operation */

    /* Links in lists. Only the list of awaitables to be woken holds references. */
    cqn_awaitable *prev, *next;           /* in the list of pending awaitables */
    cqn_awaitable *before, *behind;       /* in its waitlist */
    cqn_waitlist *waitlist;               /* or NULL */
    cqn_awaitable *qp_before, *qp_behind; /* in the queue pair's list of completions() */
    cqn_awaitable *woken_next;

    const char *operation;                             /* for error messages */
    uint8_t kind, state, owner, wake, activity, pause; /* enums, see above */
    uint8_t lost;       /* why it FAILED without an error: a cqn_loss */
    uint8_t opcode;     /* of a send */
    uint8_t iterations; /* iterations that it yields to the loop first */

    /* Each of these is independent of the states, and of the others. */
    bool own_id;         /* the user chose the wr_id */
    bool solicited_only; /* an argument of wait() */
    bool shares_error;   /* other awaitables have the same `error` */
    bool left_scope;     /* its scope no longer counts it */
    bool cleared;        /* it holds nothing any more */
    bool is_wrapped;     /* in a Python coroutine, which warns if it is never awaited */
    bool finalized;      /* Python finalizes an object only once */

    uint32_t max_entries;
    uint64_t polled_at;  /* stats.arms + 1 at the poll for this awaitable; or 0 */
    uint64_t wr_id, key; /* `key` is its key in a table */
    uint64_t iteration;  /* the one in which its task went to sleep */
    int64_t event_at;    /* while measured: when the event that wakes it was read; or 0 */
    int64_t spin;        /* ns to spin once before its task sleeps, or CQN_SPIN_AUTO */

    /* For operations: */
    cqn_wr_queue *queue; /* WR queue of a POSTED operation */
    uint64_t position;   /* its place there; of a completion(), among the engine's */
    struct ibv_sge *sge; /* of a receive, to recognize its memory */
    uint32_t num_sge;
    struct ibv_sge one;
    struct ibv_wc wc; /* the result if COMPLETE */
    cqn_wc_extra extra;
};

/* A scope of an AsyncCQ: counts the operations created in it that have not completed. */
struct cqn_scope {
    PyObject_HEAD
    cqn_state *state;
    cqn_engine *engine; /* strong */
    PyObject *outer;    /* the enclosing scope, or NULL */
    cqn_awaitable *end; /* the awaitable of its end, held by the engine; or NULL */
    PyObject *error;    /* why an operation in it may never complete; or NULL */
    Py_ssize_t pending; /* operations that have not completed */
    uint8_t lost;       /* the same without an error: a cqn_loss */
    uint32_t lost_of;   /* number of the queue pair of `lost` */
    char ended;
};

/* A hash table of waitlists, which finds awaitables by `key`. A waitlist can hold several keys. */
typedef struct {
    cqn_waitlist *waitlists;
    size_t capacity, len; /* capacity: a power of two, or 0 */
} cqn_table;

/* The functions of a taker, which receives the completions that no awaitable claims, in C and in
 * place of tasks in wait(): see taker.c. */
typedef struct {
    /* Called when completions are in the stash. `resume`: the caller is the loop's callback, where
     * a task may be resumed. Returns -1 with an exception. */
    int (*take)(PyObject *taker, cqn_engine *engine, bool resume);
    /* Called when the device failed. Returns -1 with an exception. */
    int (*failed)(PyObject *taker, PyObject *error);
} cqn_taker_calls;

/* The base of an AsyncCQ: routes the completions of one CQ to the tasks that await them. */
struct cqn_engine {
    PyObject_HEAD
    cqn_state *state;
    cqn_cq *cq;           /* strong, like the channel */
    cqn_channel *channel; /* the CQ's channel */
    PyObject *error;      /* raised by every wait from now on; or NULL */
    PyObject *reports;    /* list of failures that no task got yet, or NULL */
    PyObject *weakrefs;

    cqn_awaitable *first, *last;       /* the pending awaitables; the engine owns their anchors */
    Py_ssize_t len, wanted;            /* their number, and how many of them have a task */
    cqn_waitlist waiters;              /* in wait() */
    Py_ssize_t solicited_waiters;      /* those that wait for solicited events only */
    cqn_table claims, qp_claims;       /* completion() of any, and of one queue pair: waitlist.c */
    uint64_t claimed;                  /* number of claims so far */
    cqn_table abandoned_recvs;         /* abandoned receives, by their memory */
    size_t stashed;                    /* how many of these are STASHED */
    cqn_awaitable *woken, *woken_last; /* awaitables to be woken, in order; strong */
    cqn_qp *qps_with_capacity;         /* queue pairs that may have capacity now; strong */

    PyObject *taker; /* strong; or NULL */
    const cqn_taker_calls *taker_calls;
    PyObject *taker_error; /* a failure for the taker; or NULL */
    bool taker_solicited;  /* it waits for solicited events only */

    cqn_engine *busy_prev, *busy_next; /* in the channel's list, which holds the engine */
    bool busy, polls_later;
    bool closed;
    size_t scheduled;   /* woken tasks that have yet to go on: none may overtake them */
    uint64_t iteration; /* the one in which it last resumed a task */
    uint64_t wakeups, max_per_wake;
    int64_t spin;           /* default of its awaitables' `spin` */
    PyObject *silent_loop;  /* a loop without a list of ready callbacks; for comparison only */
    uint64_t spins, spared; /* tasks that spun, and those that then did not sleep */
};

/* ---- for the folders above, and the module ---- */

extern PyType_Spec cqn_wakeup_spec, cqn_engine_spec, cqn_awaitable_spec, cqn_scope_spec,
    cqn_selector_spec;

/* Returns a new reference to the engine of a CQ, or NULL if it has none. */
static inline cqn_engine *cqn_engine_of(const cqn_cq *cq)
{
    cqn_engine *engine = cq->engine;
    return engine != NULL && cqn_try_ref_object((PyObject *)engine) ? engine : NULL;
}

/* Whether the taker must be called. */
static inline bool cqn_taker_has_work(const cqn_engine *self)
{
    return self->taker != NULL && (self->cq->stash_len > 0 || self->taker_error != NULL);
}

/* Whether there is work after completions were routed. */
static inline bool cqn_engine_has_work(const cqn_engine *self)
{
    return self->woken != NULL || self->qps_with_capacity != NULL || cqn_taker_has_work(self);
}

/* Wakes the tasks that got completions. Returns -1 with an exception. */
int cqn_engine_wake_routed(cqn_cq *cq);

/* The same for any CQ; called after completions were routed. */
static inline int cqn_wake_after_routing(cqn_cq *cq)
{
    return cq->engine == NULL ? 0 : cqn_engine_wake_routed(cq);
}

/* engine.c */
extern const cqn_awaiting cqn_engine_awaiting;

/* Called by the loop's callback after it read an event of the CQ. Returns -1 with an exception that
 * must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq);

/* Polls and arms a CQ that may have lost its arming, or its tasks an event. Returns false if the CQ
 * has no engine. */
bool cqn_engine_poll_again(cqn_cq *cq);

/* Notifies the engines of a queue pair's CQs that it was closed, reset or moved to an error state.
 * `interrupt`: see cqn_callback_failed(). */
void cqn_engines_notify(cqn_qp *qp, PyObject **interrupt);

/* CQ.poll() for a CQ with an engine. Returns a new list, or NULL with an exception. */
PyObject *cqn_engine_poll(cqn_engine *engine, uint64_t max, int64_t spin);

/* awaitable.c */

/* Visits the engines that a channel holds because they have pending awaitables. */
int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg);

/* loop.c */

/* Called when a channel is dispatched, which happens once per iteration of its loop. */
void cqn_iteration_dispatched(cqn_channel *channel);

/* The method CompletionChannel._set_loop(), and its undoing. */
PyObject *cqn_channel_set_loop(PyObject *self, PyObject *args);
void cqn_channel_forget_loop(cqn_channel *self);

#endif
