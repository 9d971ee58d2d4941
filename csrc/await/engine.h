/* SPDX-License-Identifier: MIT */
/*
 * Awaiting completions: what the files of the engine share.
 *
 *   engine.c       the requests that are under way, and where completions go
 *   engine_look.c  looking for completions, and arming the CQ
 *   engine_wake.c  waking the tasks that have something
 *   engine_fail.c  failures and ends, and which tasks are told
 *   engine_type.c  Engine: the type that an AsyncCQ is built on
 *   loop.c         event loops: which one reads a channel, and its turns
 *   request.c      what a task does in a request: the steps of its state machine
 *   request_type.c Request: the type, in the shape of a coroutine
 *   operation.c    the requests that post: arguments, room in the queue
 *   forsaken.c     receives that were abandoned: the next one of the same memory goes on with them
 *   claims.c       requests in lines, and in tables by a number
 *   scope.c        what an AsyncCQ's scope counts
 *   wakeup.c       what a task of asyncio sleeps on
 *
 * A request has one of these states:
 *
 *   NEW        made, and not awaited yet
 *   QUEUED     an operation that waits for room in its queue
 *   POSTED     an operation that the device has
 *   SLEEPING   a wait(), a completion() or the end of a scope, before what it is for came
 *   COMPLETE   that came; its task has not gone on yet
 *   FAILED     it never will, or the device has failed; its task has not gone on yet
 *   DONE       the task has it
 *
 * While it is QUEUED, POSTED or SLEEPING the engine lists it (`first` to `last`). It does not own
 * the request, but what the task sleeps on, its anchor, which holds the task, and so the request.
 * One that was abandoned by its task is the engine's own, as long as the device has it. A diagram
 * is in docs/internals.md.
 *
 * Completions are routed as they come from the device, where no Python code runs: each to the
 * operation that posted it, or to the completion() that asks for its wr_id, or into the stash of
 * the CQ. The requests that have what they were for are collected, and woken when the routing
 * is over. A wait() is woken with nothing: it takes from the stash what is there when it
 * goes on, and wakes the next one if something is left. So one that is cancelled at that very
 * moment has nothing to lose.
 */
#ifndef CQN_ENGINE_H
#define CQN_ENGINE_H

#include "notify/cq.h"
#include "work/wr.h"

/* A table of lines: requests are found by a number, `key`. Several numbers can share a line. */
typedef struct {
    cqn_line *lines;
    size_t room, len; /* room is a power of two, or 0 */
} cqn_table;

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
 * later request came first. The exception is made of this when the task goes on. */
typedef enum { CQN_NOT_LOST, CQN_LOST_CLOSED, CQN_LOST_RESET, CQN_LOST_SKIPPED } cqn_loss;

/* What an AsyncCQ's scope counts: the operations that were made in it and have not completed. */
typedef struct {
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
} cqn_scope;

/* What a method of an AsyncCQ returns and a task awaits. */
struct cqn_request {
    PyObject_HEAD
    const char *name;   /* of the method that made it */
    cqn_engine *engine; /* strong, as all that follows */
    cqn_qp *qp;         /* or NULL */
    cqn_scope *scope;   /* that counts it, or NULL */
    PyObject *wakeup;   /* what its task sleeps on, or NULL */
    PyObject *iterator; /* of that, where it is not asyncio's */
    PyObject *anchor;   /* that as well, while it sleeps: of the engine, if that holds it */
    PyObject *error;    /* of one that FAILED */

    /* The arguments, as they were given: converted when the request is awaited. */
    PyObject *in[CQN_SEND_NAMES];
    int given;      /* how many places of these may have one */
    cqn_send *kept; /* what a QUEUED one posts */

    /* Its places in lists: none of them holds it, but for the one of those to be woken. */
    cqn_request *prev, *next;     /* of those that the engine lists */
    cqn_request *before, *behind; /* in its line */
    cqn_line *line;               /* or NULL */
    cqn_request *woken_next;

    const char *operation; /* for messages */
    uint8_t kind, state;
    uint8_t lost;       /* why it FAILED, if there is no error: a cqn_loss */
    uint8_t opcode;     /* of a send */
    bool own_id;        /* the user gave the wr_id */
    bool held;          /* listed by the engine as under way */
    bool owned;         /* the engine has a reference as well */
    bool abandoned;     /* its task has given up */
    bool forsaken;      /* a receive: that stands in the engine's table */
    bool stashed;       /* a forsaken receive whose completion is in the stash */
    bool shares_error;  /* `error` is that of other requests, too */
    bool left_scope;    /* its scope does not count it any more */
    bool woken;         /* what it was for is on its way to its task */
    bool to_wake;       /* in the engine's list of requests to wake */
    bool slept, paused; /* its task has slept; it has given the loop a turn */
    bool looked;        /* the CQ was looked at since the request began */
    bool cleared;       /* it has let go of all that it held */
    uint8_t turns;      /* of the loop, to give before all else */
    bool stepping;      /* its code runs */
    bool due;           /* its task goes on soon */
    bool is_wrapped;    /* in a coroutine */
    bool finalized;
    bool solicited_only; /* a wait() */
    uint32_t max_entries;
    uint64_t wr_id, key; /* the key: by which a table knows it */
    uint64_t turn;       /* in which its task went to sleep */
    double spin;

    /* Of an operation. */
    cqn_wr_queue *queue; /* the books that a POSTED one is in */
    uint64_t position;   /* and where there */
    struct ibv_sge *sge; /* of a receive, to know its memory again */
    uint32_t num_sge;
    struct ibv_sge one;
    struct ibv_wc wc; /* of one that is COMPLETE */
    cqn_wc_extra extra;
};

/* What an AsyncCQ is built on: it takes the completions of one CQ, for the tasks that await them.
 */
struct cqn_engine {
    PyObject_HEAD
    cqn_state *state;
    cqn_cq *cq;           /* strong; as the channel */
    cqn_channel *channel; /* of the CQ */
    PyObject *error;      /* that all get from now on, or NULL */
    PyObject *reports;    /* list of failures that no task was told of yet, or NULL */
    PyObject *weakrefs;

    cqn_request *first, *last; /* that are under way */
    Py_ssize_t len;
    cqn_line waiters;                /* in wait() */
    Py_ssize_t patient;              /* of these, wait for solicited events alone */
    cqn_table claims;                /* completion(), by wr_id */
    cqn_table forsaken;              /* receives that were abandoned, by their memory */
    size_t stashed;                  /* of these, have completed */
    cqn_request *woken, *woken_last; /* to be woken, in that order; strong */
    cqn_qp *to_serve;                /* where there may be room now, strong */

    cqn_engine *busy_prev, *busy_next; /* of the channel, which holds it */
    bool busy, looks_later;
    char closed;
    size_t due;    /* tasks that were woken and have not gone on: nothing overtakes them */
    uint64_t turn; /* in which it resumed a task */
    uint64_t wakeups, max_per_wake;
};

#define CQN_BATCH 16 /* a poll costs the same for one as for a few */

/* loop.c */

/* A channel is dispatched, which is once in a turn of its loop. */
void cqn_turn_dispatched(cqn_channel *channel);

/* The method of a channel, and its end. */
PyObject *cqn_channel_set_loop(PyObject *self, PyObject *args);
void cqn_channel_forget_loop(cqn_channel *self);

/* The turn of this thread's loops, as far as the core knows. */
uint64_t cqn_turn_now(void);

/* There was a new turn since that one: the budget is whole again. */
void cqn_turn_passed(uint64_t since);

/* Takes n completions off the budget of this turn. */
void cqn_turn_used(size_t n);

/* Whether the budget is used up. */
bool cqn_turn_is_over(void);

/* Sees to it that the running loop reads the events of the engine's channel. -1 with an
 * exception. Can run any code. */
int cqn_loop_attach(cqn_engine *self);

/* engine.c */
extern const cqn_awaiting cqn_engine_awaiting;

/* Visits the engines that a channel holds, since they have requests under way. */
int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg);

/* Gives a completion to the completion() that asked for its wr_id. False: none did. */
bool cqn_engine_claim(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The request will not complete; `qp` as in cqn_awaiting. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp);

/* Calls a method of the AsyncCQ, which is Python code. `argument` may be NULL. */
PyObject *cqn_engine_call(cqn_engine *self, const char *method, PyObject *argument);

/* The same without the result: 0, or -1 with an exception. */
int cqn_engine_do(cqn_engine *self, const char *method, PyObject *argument);

/* -1 with RuntimeError if a subclass did not call __init__(). */
int cqn_engine_check_made(const cqn_engine *self);

/* What every wait begins with: the engine works, the loop is the running one, and no failure is
 * left to report. -1 with an exception. `qp` is NULL if any may be meant. */
int cqn_engine_enter(cqn_engine *self, cqn_qp *qp);

/* A request that does not post is under way from now on, or COMPLETE already. -1 with an
 * exception. */
int cqn_engine_join(cqn_request *request);

/* Lists a request as under way, and takes it out again. While it is listed its engine is alive. */
void cqn_engine_hold(cqn_request *request);
void cqn_engine_let_go(cqn_request *request);

/* The request was abandoned by its task: from now on the engine owns it by a reference. */
void cqn_engine_own(cqn_request *request);

/* A request has what it was for, or never will: takes it out, and its task is to be woken. */
void cqn_engine_settled(cqn_request *request, cqn_request_state state);

/* Takes all out, and wakes none for it: the engine is closed. */
void cqn_engine_drop_all(cqn_engine *self);

/* A failure concerns the request; its task gets that error, or is told by another way if it is
 * NULL. */
void cqn_request_fail(cqn_request *request, PyObject *error);

/* Whether a completion() asks for that wr_id. */
bool cqn_engine_is_claimed(const cqn_engine *self, uint64_t wr_id);

/* A completion that its task did not take is for the next claim, or back in the stash. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* A new reference, or NULL: it is being deallocated. */
static inline cqn_request *cqn_request_ref(cqn_request *request)
{
    return cqn_try_ref_object((PyObject *)request) ? request : NULL;
}

/* The engine of that CQ, as a new reference; or NULL: there is none. */
static inline cqn_engine *cqn_engine_of(const cqn_cq *cq)
{
    cqn_engine *engine = cq->engine;
    return engine != NULL && cqn_try_ref_object((PyObject *)engine) ? engine : NULL;
}

/* Whether a completion() asks for any. */
static inline bool cqn_engine_wants(const cqn_engine *self)
{
    return self->claims.len > 0;
}

/* engine_look.c */

/* What CQ.poll() does while the CQ has an engine: a new list. */
PyObject *cqn_engine_poll(cqn_engine *engine, uint64_t max, double spin);

/* Completions made room in a queue of that queue pair. Only notes it: no Python code runs. */
void cqn_engine_room(cqn_engine *engine, cqn_qp *qp);

/* Looks once for a request that has just begun. -1 with an exception. */
int cqn_engine_look(cqn_request *request);

/* Makes it safe to sleep for all that are under way: armed, then looked. `looked`: that was done
 * since the last post. A failure of the device is told to them all. */
void cqn_engine_prepare(cqn_engine *self, bool looked);

/* Posts the operations that waited for room where there is some now. */
void cqn_engine_post_queued(cqn_engine *self);

/* Forgets where there is room: nothing waits for it any more. */
void cqn_engine_drop_rooms(cqn_engine *self);

/* engine_wake.c */

/* An event of that CQ was read by the loop's callback. -1 with what must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq);

/* The CQ may have lost its arming. Whether it has an engine, which has seen to it. */
bool cqn_engine_resized(cqn_cq *cq);

/* Wakes the tasks that the routing of completions concerned. -1 with an exception. */
int cqn_engine_wake(cqn_cq *cq);
/* Call after completions of that CQ were routed: wakes the tasks that they are for. */
static inline int cqn_routed(cqn_cq *cq)
{
    return cq->engine == NULL ? 0 : cqn_engine_wake(cq);
}

/* Puts a request into the list of those to wake; steals the reference, and does nothing for NULL.
 */
void cqn_engine_wake_later(cqn_request *request);

/* The first in wait() is to be woken if the stash has something. */
void cqn_engine_wake_first(cqn_engine *self);

/* Wakes all that are to be woken: soon, but with `resume`, for the loop's callback alone, the
 * first one at once. -1 with what a signal's handler raised. */
int cqn_engine_flush(cqn_engine *self, bool resume);

/* Leaves waking to the thread of the loop. -1 with an exception. */
int cqn_engine_hand_over(cqn_engine *self);

/* The same where none can be raised: the loop raises it soon. */
void cqn_engine_hand_over_or_put_off(cqn_engine *self);

/* After anything that may have changed something for those under way. Sets no exception. */
void cqn_engine_serve(cqn_engine *self);

/* The task of a woken request has gone on, or never will. */
void cqn_engine_not_due(cqn_request *request);

/* Drops the list of those to wake: the engine goes. */
void cqn_engine_drop_woken(cqn_engine *self);

/* Whether something is to be done when completions were routed. */
static inline bool cqn_engine_has_news(const cqn_engine *self)
{
    return self->woken != NULL || self->to_serve != NULL;
}

/* engine_fail.c */

/* The queue pair was closed, reset or moved to an error state: tells the engines of its CQs.
 * `interrupt` as in cqn_callback_failed(). */
void cqn_engines_tell(cqn_qp *qp, PyObject **interrupt);

/* Raises why nothing can be awaited. Returns -1. */
int cqn_engine_refuse(cqn_engine *self);

/* The device failed while it was polled or armed: all tasks get the exception that is set. */
void cqn_engine_break_down(cqn_engine *self);

/* No task was told of that failure: the next one is. */
void cqn_engine_report(cqn_engine *self, PyObject *error);

/* The engine and its CQ part, for good. */
void cqn_engine_leave_cq(cqn_engine *self);

/* Methods of the type, see _core.pyi. */
PyObject *cqn_engine_tell(PyObject *self, PyObject *args);
PyObject *cqn_engine_fail(PyObject *self, PyObject *error);
PyObject *cqn_engine_shut(PyObject *self, PyObject *error);
PyObject *cqn_engine_forget_tasks(PyObject *self, PyObject *unused);

/* Whether something can be awaited. */
static inline int cqn_engine_check(cqn_engine *self)
{
    return !self->closed && self->error == NULL ? 0 : cqn_engine_refuse(self);
}

/* engine_type.c */

/* A request as its method returns it: itself, or wrapped in a coroutine. Steals it. */
PyObject *cqn_engine_shaped(cqn_engine *self, cqn_request *request);

/* Converts the arguments of wait() and of completion(), once the request is awaited. -1 with an
 * exception. */
int cqn_wait_parse(cqn_request *self);
int cqn_completion_parse(cqn_request *self);

/* request.c */

/* A new request, NEW. `name` is that of its method, and is not copied. */
cqn_request *cqn_request_new(cqn_engine *engine, cqn_request_kind kind, const char *name);

/* Runs its task's step, as am_send does for a coroutine. */
PySendResult cqn_request_send(PyObject *self, PyObject *value, PyObject **result);

/* Wakes the task that sleeps on it, if one does. -1 with an exception. */
int cqn_request_wake(cqn_request *self, bool resume);

/* The task was cancelled, or has failed; an exception that is set stays so. */
void cqn_request_give_up(cqn_request *self);

/* The task will not go on: what it had is others' now. */
void cqn_request_abandon(cqn_request *self);

/* The request is DONE, and lets go of all that it held. */
void cqn_request_finish(cqn_request *self);
int cqn_request_clear(PyObject *self);

/* operation.c */
#define CQN_OPERATION(name)                                                              \
    PyObject *cqn_engine_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                PyObject *kwnames)
CQN_OPERATION(sends);
CQN_OPERATION(receives);
CQN_OPERATION(writes);
CQN_OPERATION(reads);
CQN_OPERATION(swaps);
CQN_OPERATION(adds);

/* -1 with an exception unless the queues of its queue pair complete in this engine's CQ. */
int cqn_request_check_qp(const cqn_request *self);

/* Posts it, or puts it into the line of those that wait for room. -1 with an exception. */
int cqn_operation_begin(cqn_request *self);

/* The books go on without it, and remember the wr_id alone. */
void cqn_operation_detach(cqn_request *self);

/* The completion of an operation whose task did not take it. Returns whether it is for no other
 * consumer. */
bool cqn_operation_abandoned(cqn_request *self, struct ibv_wc *wc, const cqn_wc_extra *extra);

/* Its task has given up; if the device has it, the engine owns it from now on. */
void cqn_operation_give_up(cqn_request *self);

/* Posts what waits for room in the queues of that queue pair, in its order. */
void cqn_operations_serve(cqn_qp *qp);

/* forsaken.c */

/* Remembers the memory of a receive. -1 with MemoryError. */
int cqn_forsaken_remember(cqn_request *self, const cqn_sg *sg);

/* Whether an abandoned receive of the same memory became this one. */
bool cqn_forsaken_take_over(cqn_request *self);

/* An abandoned receive can be found by its memory from now on; without memory it can't be. */
void cqn_forsaken_add(cqn_request *self);

/* Takes it out of the table, and drops the table's reference if it has one. */
void cqn_forsaken_forget(cqn_request *old);
void cqn_forsaken_forget_all(cqn_engine *engine);

/* claims.c */

/* Lines and tables hold no references. cqn_table_add() returns -1 with MemoryError. */
void cqn_line_add(cqn_line *line, cqn_request *request);

/* Takes it out of the line that it is in, if any. */
void cqn_line_remove(cqn_request *request);
int cqn_table_add(cqn_table *table, cqn_request *request, uint64_t key);
void cqn_table_remove(cqn_table *table, cqn_request *request);

/* The line that has all requests of that key, and may have others; never NULL. */
const cqn_line *cqn_table_line(const cqn_table *table, uint64_t key);

/* Frees a table that is empty. */
void cqn_table_free(cqn_table *table);

/* scope.c */

/* Counts an operation in the innermost scope of its engine, which it holds. -1 with an exception.
 */
int cqn_scope_enter(cqn_request *request);

/* The operation is over; with the last one the end of the scope is COMPLETE. */
void cqn_scope_leave(cqn_request *request);

/* The operation may never complete: its scope raises that error at its end. */
void cqn_scope_fail(cqn_request *request, PyObject *error);

/* A new exception for a cqn_loss; NULL with another one. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num);

/* wakeup.c */

/* A new Wakeup of that loop. `done` is a future of it that has a result, or NULL. */
PyObject *cqn_wakeup_new(cqn_state *st, PyObject *loop, PyObject *done);

/* Whether it was woken or cancelled. */
bool cqn_wakeup_is_done(const PyObject *wakeup);

/* The task is about to sleep on it. */
void cqn_wakeup_yield(PyObject *wakeup);

/* The task goes on soon, in a later step of the loop. -1 with an exception. */
int cqn_wakeup_wake(PyObject *wakeup);

/* The task goes on here and now, and runs until it waits again. -1 with what must end the loop. */
int cqn_wakeup_resume(PyObject *wakeup);

extern PyType_Spec cqn_wakeup_spec, cqn_engine_spec, cqn_request_spec, cqn_scope_spec;

#endif
