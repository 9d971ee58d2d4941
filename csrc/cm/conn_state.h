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
    struct cqn_cm_conn *next, *prev; /* in its list, while it is registered */
    PyObject *id, *qp;               /* the CMID, and the queue pair that goes with it, or None */
    /* Why it is over, or is about to be: an exception, an event, or ClosedError itself; or None. */
    PyObject *reason;
    PyObject *reader, *end, *phase, *address, *answer, *group; /* Python's, see conn_state_type.c */
    PyObject **events;        /* that no task or thread has consumed, the oldest first */
    PyObject *notifier;       /* notifies threads; NULL: tasks wait */
    cqn_cm_sleeper *sleepers; /* the wakeups of tasks that wait */
    /* The lengths and capacities of both. */
    size_t events_len, events_capacity, asleep, asleep_capacity;
    Py_ssize_t backlog;     /* of a listener: how many requests may wait */
    Py_ssize_t path_errors; /* how often the kernel has reported trouble on the way to the peer */
    char datagrams;         /* a bool */
    char ended;             /* it is over, and its queue pair is in ERR */
    char is_shut_down;      /* the peer was disconnected, and what was posted has ended */
    char registered;        /* listed by its channel: its CMID is not closed yet */
    char has_keepalive;     /* its keepalive must be ended */
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

/* The CMConn of an identifier: a new reference, or NULL without an exception. */
cqn_cm_conn *cqn_cm_conn_of(const cqn_cm_id *id);

/* Adds it to its channel's list, or removes it: returns whether it was the last one. */
void cqn_cm_conn_join(cqn_cm_conn *self);
bool cqn_cm_conn_leave(cqn_cm_conn *self);

/* Calls a method of Python's Link, which manages the reader and the keepalives. -1 with an
 * exception. */
int cqn_cm_conn_call(cqn_cm_conn *self, const char *method);

/* The CMConns of a channel that are registered: a new list. */
PyObject *cqn_cm_conns(const cqn_cm_channel *channel);

/* Delivers an event, in the thread that reads them. -1 with an exception. */
int cqn_cm_conn_deliver(cqn_cm_conn *self, PyObject *event);

/* Rejects the request of an event, if it is one. -1 with an exception. */
int cqn_cm_reject(PyObject *event);

/* The identifier was closed, in the thread that did it. `interrupt` as in cqn_callback_failed(). */
void cqn_cm_conn_closed(cqn_cm_conn *self, PyObject **interrupt);

/* Wakes what waits for it, in any thread. A task that is about to sleep checks again once it is
 * listed here. -1 with an exception. */
int cqn_cm_conn_notify(cqn_cm_conn *self);

/* Wakes the tasks that sleep, in the thread of their loop; with `at_once` they go on here and now,
 * with `while_news` as long as there are events for them. -1 with an exception, which leaves nobody
 * asleep that should not be. */
int cqn_cm_conn_wake_all(cqn_cm_conn *self, bool at_once, bool while_news);

/* Disconnects the peer, and ends what was posted: nothing of it can succeed any more. Once, unless
 * a call has failed: the next one tries again. -1 with an exception. */
int cqn_cm_conn_shut_down(cqn_cm_conn *self);

/* Pops the oldest event; there must be one. A new reference. */
PyObject *cqn_cm_conn_pop(cqn_cm_conn *self);

/* Lists a task that sleeps from now on, or removes it. The former: -1 with an exception. */
int cqn_cm_conn_add_sleeper(cqn_cm_conn *self, PyObject *wakeup);
void cqn_cm_conn_remove_sleeper(cqn_cm_conn *self, const PyObject *wakeup);

/* Methods of CMConn. */
PyObject *cqn_cm_conn_close(PyObject *op, PyObject *unused);
PyObject *cqn_cm_conn_disconnect(PyObject *op, PyObject *unused);

/* event_wait.c: the same. */
PyObject *cqn_cm_conn_expect(PyObject *op, PyObject *args);
PyObject *cqn_cm_conn_over(PyObject *op, PyObject *end);

#endif
