/* SPDX-License-Identifier: MIT */
/* A wait queue: threads that sleep without the GIL until something comes, see wait_queue.c. */
#ifndef CQN_WAIT_QUEUE_H
#define CQN_WAIT_QUEUE_H

#include "base/object.h"

typedef struct cqn_waiter cqn_waiter;

typedef struct {
    cqn_waiter *waiters;      /* the threads in it, in the order in which they came */
    cqn_waiter *free_records; /* records for those to come */
    size_t free_records_len;
    _Atomic(cqn_waiter *) poller; /* the sleeper that polls for all, or NULL */
    bool gone;                    /* what they wait on was destroyed, for good */
    bool interrupt_next;          /* interrupt() found no waiter: interrupt the next one */
    unsigned sleeps;              /* waits in a row for which nothing was there at once */
} cqn_wait_queue;

/* How a wait has slept. */
typedef struct {
    bool timed;      /* by the caller: whether to read the clock */
    bool slept;      /* once at least */
    int64_t woke_at; /* the end of the last sleep, without the GIL; or 0 */
} cqn_sleep;

/* The kind of thing that the waiters of a queue wait for. */
typedef struct {
    PyObject *(*pop)(cqn_object *);         /* NULL without an exception: nothing yet */
    int (*check)(cqn_object *, uint64_t *); /* -1: a failure that ends the wait */
    int (*fd)(const cqn_object *);          /* readable when pop() may find something */
    int (*drain)(cqn_context *);            /* reads what the device reports; -1: an exception */
    const char *verb;                       /* for messages */
    void (*time_out)(cqn_object *);         /* raises TimeoutError; can run any code */
    /* Whether nothing is known that pop() or check() would find: then only what the fd brings can
     * end the wait. NULL: unknown. */
    bool (*is_quiet)(const cqn_object *, uint64_t seen_serial);
} cqn_wait_kind;

/* The monotonic clock, in nanoseconds. */
int64_t cqn_now_ns(void);

/* Prepares a queue; its owner calls cqn_wait_queue_clear() at the end. -1 with an exception. */
int cqn_wait_queue_open(cqn_wait_queue *queue);

/* The waiters' object is closed: wakes them all, so that they notice. With
 * `nobody_left`, in a forked child, there are none to wake. */
void cqn_wait_queue_shut(cqn_wait_queue *queue, bool nobody_left);

/* Frees the records that are kept. Each thread in the queue frees its own as it leaves. */
void cqn_wait_queue_clear(cqn_wait_queue *queue);

/* How many threads are in it. */
size_t cqn_wait_queue_len(const cqn_wait_queue *queue);

/* Makes all sleepers check again. */
void cqn_wait_queue_wake(cqn_wait_queue *queue);

/* Ends the wait of all waiters; if there is none, of the next one. */
void cqn_wait_queue_interrupt(cqn_wait_queue *queue);

/* Waits until kind->pop() finds something, and returns that. `timeout` is the argument of the
 * method, or NULL; `seen_serial` is the serial of the latest failure that the waiter knows of. NULL
 * with TimeoutError, InterruptedError, ClosedError, or what pop() and check() raise. `sleep` is
 * filled in. */
PyObject *cqn_wait_queue_wait(cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                              PyObject *timeout, uint64_t seen_serial, cqn_sleep *sleep);

#endif
