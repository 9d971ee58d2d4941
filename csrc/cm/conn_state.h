/* SPDX-License-Identifier: MIT */
/* What has happened to an identifier, and what waits for it. */
#ifndef CQN_CM_CONN_STATE_H
#define CQN_CM_CONN_STATE_H

#include "cm/sleep.h"

typedef struct {
    PyObject *wakeup;
    bool is_notified; /* as others are woken; see wake_all() */
} cqn_cm_sleeper;

typedef struct cqn_cm_conn {
    PyObject_HEAD
    cqn_state *state;
    PyObject *channel;               /* the CMChannel that brings its events */
    struct cqn_cm_conn *next, *prev; /* in its list, while it is whole */
    PyObject *id, *qp;               /* the CMID, and the queue pair that goes with it, or None */
    /* Why it is over, or is about to be: an exception, the event that tells, or ClosedError itself;
     * or None. */
    PyObject *reason;
    PyObject *reader, *end, *phase, *address, *answer, *group; /* Python's, see conn_state_type.c */
    PyObject **events;        /* what nobody has taken, the oldest first */
    PyObject *notifier;       /* of threads: what is rung; of tasks NULL */
    cqn_cm_sleeper *sleepers; /* the wakeups of tasks that wait */
    /* How many of both there are, and how many there is room for. */
    size_t events_len, events_capacity, asleep, asleep_capacity;
    Py_ssize_t backlog;     /* of a listener: how many requests may wait */
    Py_ssize_t path_errors; /* how often the kernel has reported trouble on the way to the peer */
    char datagrams;         /* a bool */
    char ended;             /* it is over, and its queue pair has failed */
    char is_shut_down;      /* the peer was told, and what was posted has ended */
    char registered;        /* it was made, and its CMID not closed: there is an end to come */
    char has_keepalive;     /* its keepalive is to be ended */
    bool dying;             /* it is being deallocated */
} cqn_cm_conn;

#define CQN_CM_BIT(type) (1u << RDMA_CM_EVENT_##type)

/* The CMID, if there is one; borrowed. */
static inline cqn_cm_id *cqn_cm_conn_id(const cqn_cm_conn *self)
{
    return (cqn_cm_id *)self->id;
}

/* Whether it is known why it is over, or is about to be. */
static inline bool cqn_cm_conn_has_reason(const cqn_cm_conn *self)
{
    return self->reason != NULL && self->reason != Py_None;
}

static inline cqn_cm_channel *cqn_cm_conn_channel(const cqn_cm_conn *self)
{
    return (cqn_cm_channel *)self->channel;
}

/* The link of an identifier: a new reference, or NULL without an exception. */
cqn_cm_conn *cqn_cm_conn_of(const cqn_cm_id *id);

/* From now on it is one of its channel's, until it leaves: whether it was the last one. */
void cqn_cm_conn_join(cqn_cm_conn *self);
bool cqn_cm_conn_leave(cqn_cm_conn *self);

/* Calls a method of Python's Link, which looks after the reader and the keepalives. -1 with an
 * exception. */
int cqn_cm_conn_call(cqn_cm_conn *self, const char *method);

/* Those of a channel that are whole: a new list. */
PyObject *cqn_cm_conns(const cqn_cm_channel *channel);

/* Takes in an event, in the thread that reads them. -1 with an exception. */
int cqn_cm_conn_deliver(cqn_cm_conn *self, PyObject *event);

/* Rejects the request of an event, if it is one. -1 with an exception. */
int cqn_cm_reject(PyObject *event);

/* The identifier was closed, in the thread that did it. `interrupt` as in cqn_callback_failed(). */
void cqn_cm_conn_closed(cqn_cm_conn *self, PyObject **interrupt);

/* Wakes what waits for it, in any thread. A task that is about to sleep looks again when it can be
 * found here. -1 with an exception. */
int cqn_cm_conn_notify(cqn_cm_conn *self);

/* Wakes the tasks that sleep, in the thread of their loop; with `at_once` they go on here and now,
 * with `while_news` as long as there are events for them. -1 with an exception, which leaves nobody
 * asleep that should not be. */
int cqn_cm_conn_wake_all(cqn_cm_conn *self, bool at_once, bool while_news);

/* Tells the peer, and ends what was posted: nothing of it can succeed any more. Once, unless a call
 * has failed: the next hang_up() tries again. -1 with an exception. */
int cqn_cm_conn_shut_down(cqn_cm_conn *self);

/* Takes the oldest event, of which there is one: a new reference. */
PyObject *cqn_cm_conn_pop(cqn_cm_conn *self);

/* A task sleeps from now on, or does not any more. The former -1 with an exception. */
int cqn_cm_conn_add_sleeper(cqn_cm_conn *self, PyObject *wakeup);
void cqn_cm_conn_remove_sleeper(cqn_cm_conn *self, const PyObject *wakeup);

/* Methods of a link. */
PyObject *cqn_cm_conn_close(PyObject *op, PyObject *unused);
PyObject *cqn_cm_conn_disconnect(PyObject *op, PyObject *unused);

/* event_wait.c: the same. */
PyObject *cqn_cm_conn_expect(PyObject *op, PyObject *args);
PyObject *cqn_cm_conn_over(PyObject *op, PyObject *end);

#endif
