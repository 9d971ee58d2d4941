/* SPDX-License-Identifier: MIT */
/*
 * Awaiting completions: the engine of an AsyncCQ, and its awaitables, which are what send(), wait()
 * and so on return. A file uses only those below it:
 *
 *   selector.c         Selector: an event loop's selector that calls the callbacks of channels
 *   engine_type.c      Engine: the type that an AsyncCQ is built on
 *   awaitable_type.c   Awaitable: the type, in the shape of a coroutine
 *   step.c             what a task does in an awaitable: its steps from state to state; cancelling
 *   scope.c            Scope: the type, and the end of a scope
 *   calls.c            send(), wait() and so on: their arguments, and the first step of the task
 *   engine.c           polling and arming the CQ, waking tasks, also if Ctrl-C comes; failures
 *   post.c             posting operations, and those that wait until their queue has capacity
 *   taker.c            what takes completions in C, in the place of tasks
 *   abandoned.c        operations whose task gave up; a recv() takes over one of the same memory
 *   awaitable.c        the life of an awaitable: its owner, its lists, and what becomes of it
 *   waitlist.c         awaitables in the order of arrival, and in tables by a number; claims
 *   loop.c             calls of the AsyncCQ and the event loop, which are Python code; iterations
 *   wakeup.c           Wakeup: what a task of asyncio sleeps on
 *   coroutine.c        what types that are shaped like a coroutine have in common
 *
 * An awaitable has one of these states:
 *
 *   NEW        made, and not awaited yet
 *   QUEUED     an operation that waits until its queue has capacity
 *   POSTED     an operation whose work request the device has
 *   WAITING    a wait(), a completion() or the end of a scope, which has not got its result
 *   COMPLETE   it has its result, and its task has not gone on yet
 *   FAILED     it will have no result, or the device has failed; its task has not gone on yet
 *   DONE       its task has the result or the exception
 *
 * While an awaitable is QUEUED, POSTED or WAITING it is pending: the engine lists it (`first` to
 * `last`). The engine does not own the awaitable, but its anchor, on which the task sleeps: the
 * anchor holds the task, and the task holds the awaitable. When the task gives up, the engine owns
 * the awaitable as long as the device has its work request. A diagram is in docs/internals.md.
 *
 * Completions are routed as they come from the device, where no Python code runs: each to the
 * operation that posted the work request, or to the completion() that claims its wr_id, or into the
 * stash of the CQ. The awaitables that got their results are listed, and woken when the routing is
 * over. A wait() is woken without a result: when its task goes on it takes what the stash has then,
 * and wakes the next one if something is left. So a task that is cancelled at that moment loses
 * nothing.
 *
 * Any thread may close the AsyncCQ, its CQ, the channel, a queue pair or the context, poll the CQ
 * or arm it, wherever the code here releases the lock. So after each such place the code checks
 * again what it goes on with. In a debug build each place has a name (CQN_PLACE), and
 * tests/faults/test_places.py lets another thread act there:
 *
 *   place      what runs there                          what is checked afterwards
 *   arguments  __index__() and the like                 all: check_can_wait(), check_qp()
 *   attach     Reader.attach(), in Python               AsyncCQ and CQ: check_can_wait(); the QP
 *   report     AsyncCQ._take_report(), in Python        the same
 *   memory     buffers, __len__() of the SGEs           AsyncCQ, and the QP as it is posted to
 *   state      ibv_query_qp(), without the GIL          AsyncCQ, QP; of a QUEUED one, its state
 *   fetch      destructors of what completed; spin;     AsyncCQ, the QP of a completion(); one that
 *              handlers of signals                      is listed is notified of a close
 *   wakeup     the wakeup of another library            the state, and how often the CQ was armed
 *                                                       since the poll
 *   arm        destructors, AsyncCQ._poll_later()       CQ: has_no_sleeper(), in each round
 *   prepare    call_soon() of the tasks woken           the state
 *   iterator,  the other library, which puts the task   nothing: by `activity`, a change of the
 *   iterate,   to sleep, or gets an exception for it    state wakes the task, which may not sleep
 *   throw                                               yet
 *   yield      call_soon() of the task itself           nothing: the task goes on, and checks
 *   stash      destructors of what completed            the stash; if it is empty AsyncCQ and CQ
 *   event      as in prepare, in the loop's callback    `woken`, the list of those to be woken
 *   wake       call_soon() of each task                 the same, each time
 *   capacity   as in state, for each that is QUEUED     QP, before its other queue is posted to
 *   poll       AsyncCQ._leave_closed_loop(), in Python  CQ, as it is polled; AsyncCQ, at the end
 *   give up    destructors of the task's objects        CQ: has_no_sleeper()
 *
 * A close marks first, and then notifies. The AsyncCQ that is closed takes no new awaitable, and
 * fails those that it lists; a queue pair without a handle fails those in its WR queues, and its
 * claims. So an awaitable that is listed after such a check is notified, and one that is not listed
 * has checked. Taking an awaitable out of a list, and listing it, runs no other code. While the CQ
 * is destroyed it has no handle and is not armed; if destroying fails, cqn_engine_poll_again()
 * polls. Tasks are woken only in the thread of their loop, by AsyncCQ._wake_in_loop(), and
 * Reader.loop changes only there.
 */
#ifndef CQN_AWAIT_AWAIT_H
#define CQN_AWAIT_AWAIT_H

#include "notify/cq.h"
#include "work/wr.h"

/* ---- the structs ---- */

typedef struct cqn_scope cqn_scope;

/* What an awaitable is for. The first two are operations, which post. */
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
    CQN_UNLISTED,  /* the task owns it */
    CQN_PENDING,   /* the task owns it; the engine lists it, and owns its anchor */
    CQN_ABANDONED, /* the task has given up; the engine lists it, and owns it */
    CQN_STASHED,   /* the task has given up; its completion is in the stash, and the table of
                    * abandoned receives owns it */
    CQN_ORPHANED   /* the task has given up; no list or table of the engine owns it */
} cqn_owner;

/* How far its task was woken. */
typedef enum {
    CQN_UNWOKEN,
    CQN_LISTED,    /* to be woken: the list of the engine owns a reference */
    CQN_WOKEN,     /* taken from that list: the task goes on at once, or its code runs already */
    CQN_SCHEDULED, /* passed to the event loop, and counted: the task goes on soon */
    CQN_SCHEDULED_LISTED /* the same, and listed once more */
} cqn_wake;

/* What the code of the awaitable does now. Another thread, or code that a step calls, can wake it
 * at any time: so this is independent of how far its task was woken. */
typedef enum {
    CQN_RESTING,
    CQN_STEPPING,      /* a step runs, and looks at the state before the task sleeps */
    CQN_FALLING_ASLEEP /* in that step, Python code of the event loop puts the task to sleep */
} cqn_activity;

/* What its task did while it waited. */
typedef enum {
    CQN_NO_PAUSE,
    CQN_PAUSED, /* it has yielded to the loop */
    CQN_SLEPT   /* it has slept */
} cqn_pause;

/* Why an operation will never complete: its queue pair was closed, or reset, or the completion of a
 * later work request came first. The exception is made of this when the task goes on. */
typedef enum { CQN_NOT_LOST, CQN_LOST_CLOSED, CQN_LOST_RESET, CQN_LOST_SKIPPED } cqn_loss;

/* What a method of an AsyncCQ returns and a task awaits. */
struct cqn_awaitable {
    PyObject_HEAD
    const char *name;   /* name of the method that made it */
    cqn_engine *engine; /* strong, as all that follows */
    cqn_qp *qp;         /* or NULL */
    cqn_scope *scope;   /* that counts it, or NULL */
    PyObject *wakeup;   /* what its task sleeps on, or is about to; or NULL */
    PyObject *iterator; /* of that wakeup, if it is not one of asyncio */
    PyObject *anchor;   /* the wakeup while the task sleeps: the engine's, while pending */
    PyObject *error;    /* why it FAILED, or NULL */

    /* The arguments, as they were given: converted when the awaitable is awaited. */
    PyObject *in[CQN_AWAITED_NAMES];
    int given;      /* only so many places of `in` may have one */
    cqn_send *kept; /* what a QUEUED operation will post */

    /* Its places in lists. They hold no references, except the list of awaitables to be woken. */
    cqn_awaitable *prev, *next;           /* in the list of pending awaitables */
    cqn_awaitable *before, *behind;       /* in its waitlist */
    cqn_waitlist *waitlist;               /* or NULL */
    cqn_awaitable *qp_before, *qp_behind; /* of the completions() that name one queue pair */
    cqn_awaitable *woken_next;

    const char *operation;                             /* for messages */
    uint8_t kind, state, owner, wake, activity, pause; /* enums, see above */
    uint8_t lost;       /* why it FAILED, if there is no error: a cqn_loss */
    uint8_t opcode;     /* of a send */
    uint8_t iterations; /* how many iterations it yields to the loop before all else */

    /* Each of these is independent of the states, and of the others. */
    bool own_id;         /* an argument: the user gave the wr_id */
    bool solicited_only; /* an argument of wait() */
    bool shares_error;   /* `error` is that of other awaitables, too */
    bool left_scope;     /* its scope does not count it any more */
    bool cleared;        /* it has let go of all that it held */
    bool is_wrapped;     /* in a coroutine of Python, which warns if it is not awaited */
    bool finalized;      /* Python calls the finalizer of an object once in its life */

    uint32_t max_entries;
    uint64_t polled_at;  /* how often the CQ was armed when it was polled for this, and one; or 0 */
    uint64_t wr_id, key; /* the key is the number by which a table knows it */
    uint64_t iteration;  /* in which its task went to sleep */
    int64_t event_at;    /* when the event was read that wakes it, while that is measured; or 0 */
    int64_t spin;        /* how long it may spin before its task sleeps, in ns, once; or
                          * CQN_SPIN_AUTO */

    /* For operations: */
    cqn_wr_queue *queue; /* the WR queue that a POSTED one is in */
    uint64_t position;   /* and where there; of a completion(), among those of its engine */
    struct ibv_sge *sge; /* of a receive, to know its memory again */
    uint32_t num_sge;
    struct ibv_sge one;
    struct ibv_wc wc; /* of one that is COMPLETE */
    cqn_wc_extra extra;
};

/* What an AsyncCQ's scope counts: the operations that were made in it and have not completed. */
struct cqn_scope {
    PyObject_HEAD
    cqn_state *state;
    cqn_engine *engine; /* strong */
    PyObject *outer;    /* the scope around it, or NULL */
    cqn_awaitable *end; /* what its end sleeps on, held by the engine; or NULL */
    PyObject *error;    /* why something in it may never complete; or NULL */
    Py_ssize_t pending; /* operations that have not completed */
    uint8_t lost;       /* why, if there is no error: a cqn_loss */
    uint32_t lost_of;   /* the number of its queue pair */
    char ended;
};

/* A table of waitlists: awaitables are found by a number, `key`. Several numbers can share a
 * waitlist. */
typedef struct {
    cqn_waitlist *waitlists;
    size_t capacity, len; /* the capacity is a power of two, or 0 */
} cqn_table;

/* What takes the completions of an engine that no awaitable claims, in C and in the place of tasks
 * in wait(): see taker.c. */
typedef struct {
    /* Completions are in the stash. `resume`: the caller is the callback of the loop, where a task
     * may be resumed. -1 with an exception. */
    int (*take)(PyObject *taker, cqn_engine *engine, bool resume);
    /* The device has failed. -1 with an exception. */
    int (*failed)(PyObject *taker, PyObject *error);
} cqn_taker_calls;

/* What an AsyncCQ is built on: it routes the completions of one CQ to the tasks that await them. */
struct cqn_engine {
    PyObject_HEAD
    cqn_state *state;
    cqn_cq *cq;           /* strong; as the channel */
    cqn_channel *channel; /* the channel of the CQ */
    PyObject *error;      /* the exception of every wait from now on, or NULL */
    PyObject *reports;    /* list of failures that no task got yet, or NULL */
    PyObject *weakrefs;

    cqn_awaitable *first, *last;       /* the pending awaitables; the engine owns their anchors */
    Py_ssize_t len, wanted;            /* how many, and how many of them have a task */
    cqn_waitlist waiters;              /* in wait() */
    Py_ssize_t solicited_waiters;      /* how many of these wait for solicited events only */
    cqn_table claims, qp_claims;       /* completion() of any queue pair, and of one: waitlist.c */
    uint64_t claimed;                  /* since the engine was made */
    cqn_table abandoned_recvs;         /* receives that were abandoned, by their memory */
    size_t stashed;                    /* how many of these have completed */
    cqn_awaitable *woken, *woken_last; /* awaitables to be woken, in that order; strong */
    cqn_qp *qps_with_capacity;         /* queue pairs that may have capacity now; strong */

    PyObject *taker; /* strong; or NULL */
    const cqn_taker_calls *taker_calls;
    PyObject *taker_error; /* a failure that the taker is to get; or NULL */
    bool taker_solicited;  /* it waits for solicited events only */

    cqn_engine *busy_prev, *busy_next; /* in the list of the channel, which holds the engine */
    bool busy, polls_later;
    bool closed;
    size_t scheduled;   /* tasks that were woken and have not gone on: nothing overtakes them */
    uint64_t iteration; /* in which it resumed a task */
    uint64_t wakeups, max_per_wake;
    int64_t spin;           /* of its awaitables, see there */
    PyObject *silent_loop;  /* a loop that does not tell what is ready; only to be compared */
    uint64_t spins, spared; /* tasks that spun, and those of them that did not have to sleep */
};

/* ---- what the folders above, and the module, use of this one ---- */

extern PyType_Spec cqn_wakeup_spec, cqn_engine_spec, cqn_awaitable_spec, cqn_scope_spec,
    cqn_selector_spec;

/* The engine of that CQ, as a new reference; or NULL if there is none. */
static inline cqn_engine *cqn_engine_of(const cqn_cq *cq)
{
    cqn_engine *engine = cq->engine;
    return engine != NULL && cqn_try_ref_object((PyObject *)engine) ? engine : NULL;
}

/* Whether the taker is to be called. */
static inline bool cqn_taker_has_work(const cqn_engine *self)
{
    return self->taker != NULL && (self->cq->stash_len > 0 || self->taker_error != NULL);
}

/* Whether something is to be done when completions were routed. */
static inline bool cqn_engine_has_work(const cqn_engine *self)
{
    return self->woken != NULL || self->qps_with_capacity != NULL || cqn_taker_has_work(self);
}

/* Wakes the tasks that the routing of completions concerned. -1 with an exception. */
int cqn_engine_wake_routed(cqn_cq *cq);

/* Call after completions of that CQ were routed: wakes the tasks that they are for. -1 with an
 * exception. */
static inline int cqn_wake_after_routing(cqn_cq *cq)
{
    return cq->engine == NULL ? 0 : cqn_engine_wake_routed(cq);
}

/* engine.c */
extern const cqn_awaiting cqn_engine_awaiting;

/* An event of that CQ was read by the loop's callback. -1 with what must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq);

/* The CQ may have lost its arming, or its tasks an event. Whether it has an engine, which has seen
 * to it. */
bool cqn_engine_poll_again(cqn_cq *cq);

/* The queue pair was closed, reset or moved to an error state: tells the engines of its CQs.
 * `interrupt` as in cqn_callback_failed(). */
void cqn_engines_notify(cqn_qp *qp, PyObject **interrupt);

/* What CQ.poll() does while the CQ has an engine: a new list. */
PyObject *cqn_engine_poll(cqn_engine *engine, uint64_t max, int64_t spin);

/* awaitable.c */

/* Visits the engines that a channel holds, since they have awaitables under way. */
int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg);

/* loop.c */

/* A channel is dispatched, which is once in an iteration of its loop. */
void cqn_iteration_dispatched(cqn_channel *channel);

/* The method of a channel, and its end. */
PyObject *cqn_channel_set_loop(PyObject *self, PyObject *args);
void cqn_channel_forget_loop(cqn_channel *self);

#endif
