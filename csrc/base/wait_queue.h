/* SPDX-License-Identifier: MIT */
/* A wait queue: threads that sleep without the GIL until something arrives, see wait_queue.c. */
#ifndef CQN_WAIT_QUEUE_H
#define CQN_WAIT_QUEUE_H

#include "base/object.h"

typedef struct cqn_waiter cqn_waiter;

typedef struct {
    cqn_waiter *waiters;      /* the threads in the queue, in order of arrival */
    cqn_waiter *free_records; /* records for future waiters */
    size_t free_records_len;
    _Atomic(cqn_waiter *) poller; /* the sleeper that polls for all, or NULL */
    bool gone;                    /* the waiters' object was destroyed */
    bool interrupt_next;          /* interrupt() found no waiter: interrupt the next one */
    unsigned sleeps;              /* waits since one found something at once */
} cqn_wait_queue;

/* How a wait slept, for its caller. */
typedef struct {
    bool timed;      /* set by the caller: read the clock after each sleep */
    bool slept;      /* at least once */
    int64_t woke_at; /* end of the last sleep, before the GIL was taken; or 0 */
} cqn_sleep;

/* The functions of one kind of wait. */
typedef struct {
    PyObject *(*pop)(cqn_object *);         /* NULL without an exception: nothing yet */
    int (*check)(cqn_object *, uint64_t *); /* -1 with an exception: a failure ends the wait */
    int (*fd)(const cqn_object *);          /* readable when pop() may find something */
    int (*drain)(cqn_context *);            /* reads asynchronous events; -1 with an exception */
    const char *verb;                       /* for error messages */
    void (*time_out)(cqn_object *);         /* raises TimeoutError; can run arbitrary code */
    /* Whether pop() and check() would find nothing, and only the descriptor can end the wait. NULL:
     * unknown. */
    bool (*is_quiet)(const cqn_object *, uint64_t seen_serial);
} cqn_wait_kind;

/* The time of the monotonic clock, in nanoseconds. */
int64_t cqn_now_ns(void);

/* Prepares a queue. Returns -1 with an exception; on success the owner calls cqn_wait_queue_clear()
 * at the end. */
int cqn_wait_queue_open(cqn_wait_queue *queue);

/* Wakes all waiters after their object was closed, so they notice. With `nobody_left`, in a
 * forked child, there are none to wake. */
void cqn_wait_queue_shut(cqn_wait_queue *queue, bool nobody_left);

/* Frees the unused records. Each waiting thread frees its own when it leaves. */
void cqn_wait_queue_clear(cqn_wait_queue *queue);

/* Returns the number of threads in the queue. */
size_t cqn_wait_queue_len(const cqn_wait_queue *queue);

/* Makes all sleepers take the GIL and check again. */
void cqn_wait_queue_wake(cqn_wait_queue *queue);

/* Interrupts all waiters; if there is none, the next one. */
void cqn_wait_queue_interrupt(cqn_wait_queue *queue);

/* Waits until kind->pop() finds something, and returns that. `timeout` is the argument of the
 * method, or NULL; `seen_serial` is the serial of the latest failure that the caller knows. Fills
 * in `sleep`. NULL with TimeoutError, InterruptedError, ClosedError, or an exception of pop() or
 * check(). */
PyObject *cqn_wait_queue_wait(cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                              PyObject *timeout, uint64_t seen_serial, cqn_sleep *sleep);

#endif
