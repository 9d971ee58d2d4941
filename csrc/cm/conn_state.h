/* SPDX-License-Identifier: MIT */
/* The events of an identifier, and the tasks or threads that wait for them. */
#ifndef CQN_CM_CONN_STATE_H
#define CQN_CM_CONN_STATE_H

#include "cm/sleep.h"

typedef struct {
    PyObject *wakeup;
    bool is_notified; /* see cqn_cm_conn_wake_all() */
} cqn_cm_sleeper;

typedef struct cqn_cm_conn {
    PyObject_HEAD
    cqn_state *state;
    PyObject *channel;               /* the CMChannel of its events */
    struct cqn_cm_conn *next, *prev; /* in the channel's list, while registered */
    PyObject *id, *qp;               /* the CMID, and its queue pair or None */
    /* Why it is over, or about to be: an exception, an event, or ClosedError itself; or None. */
    PyObject *reason;
    PyObject *reader, *end, *phase, *address, *answer, *group; /* Python's, see conn_state_type.c */
    PyObject **events;        /* not consumed by a task or thread, oldest first */
    PyObject *notifier;       /* notifies threads; NULL: tasks wait */
    cqn_cm_sleeper *sleepers; /* the wakeups of waiting tasks */
    /* The lengths and capacities of both. */
    size_t events_len, events_capacity, asleep, asleep_capacity;
    Py_ssize_t backlog;     /* of a listener: limit of waiting requests */
    Py_ssize_t path_errors; /* path errors reported by the kernel */
    char datagrams;         /* a bool */
    char ended;             /* over, with its queue pair in ERR */
    char is_shut_down;      /* the peer was disconnected, and the posted work requests ended */
    char registered;        /* listed by its channel: its CMID is not closed yet */
    char has_keepalive;     /* its keepalive must be ended */
    bool dying;             /* being deallocated */
} cqn_cm_conn;

#define CQN_CM_BIT(type) (1u << RDMA_CM_EVENT_##type)

/* Returns the CMID; borrowed, or NULL. */
static inline cqn_cm_id *cqn_cm_conn_id(const cqn_cm_conn *self)
{
    return (cqn_cm_id *)self->id;
}

/* Whether the reason for its end is known. */
static inline bool cqn_cm_conn_has_reason(const cqn_cm_conn *self)
{
    return self->reason != NULL && self->reason != Py_None;
}

static inline cqn_cm_channel *cqn_cm_conn_channel(const cqn_cm_conn *self)
{
    return (cqn_cm_channel *)self->channel;
}

/* Returns a new reference to the CMConn of an identifier, or NULL without an exception. */
cqn_cm_conn *cqn_cm_conn_of(const cqn_cm_id *id);

/* Add it to its channel's list, and remove it; the second one returns whether it was the last. */
void cqn_cm_conn_join(cqn_cm_conn *self);
bool cqn_cm_conn_leave(cqn_cm_conn *self);

/* Calls a method of Python's Link, which manages the reader and the keepalives. Returns -1 with an
 * exception. */
int cqn_cm_conn_call(cqn_cm_conn *self, const char *method);

/* Returns a new list of the registered CMConns of a channel; NULL with an exception. */
PyObject *cqn_cm_conns(const cqn_cm_channel *channel);

/* Delivers an event, in the thread that reads events. Returns -1 with an exception. */
int cqn_cm_conn_deliver(cqn_cm_conn *self, PyObject *event);

/* Rejects the request of an event, if it has one. Returns -1 with an exception. */
int cqn_cm_reject(PyObject *event);

/* Called after the identifier was closed, in the same thread. `interrupt`: see
 * cqn_callback_failed(). */
void cqn_cm_conn_closed(cqn_cm_conn *self, PyObject **interrupt);

/* Wakes the waiting tasks or threads, from any thread. A task that is about to sleep checks again
 * after it is listed here. Returns -1 with an exception. */
int cqn_cm_conn_notify(cqn_cm_conn *self);

/* Wakes the sleeping tasks, in the thread of their loop; with `at_once` they go on here and now,
 * with `while_news` as long as there are events for them. Returns -1 with an exception; even then
 * every task that has to be is awake. */
int cqn_cm_conn_wake_all(cqn_cm_conn *self, bool at_once, bool while_news);

/* Disconnects the peer and fails the posted work requests. Takes effect once, unless a call failed:
 * then the next call tries again. Returns -1 with an exception. */
int cqn_cm_conn_shut_down(cqn_cm_conn *self);

/* Removes the oldest event, which must exist. Returns a new reference. */
PyObject *cqn_cm_conn_pop(cqn_cm_conn *self);

/* Add a sleeping task to the list, and remove it. The first one returns -1 with an exception. */
int cqn_cm_conn_add_sleeper(cqn_cm_conn *self, PyObject *wakeup);
void cqn_cm_conn_remove_sleeper(cqn_cm_conn *self, const PyObject *wakeup);

/* Methods of CMConn. */
PyObject *cqn_cm_conn_close(PyObject *op, PyObject *unused);
PyObject *cqn_cm_conn_disconnect(PyObject *op, PyObject *unused);

/* event_wait.c: methods of CMConn. */
PyObject *cqn_cm_conn_expect(PyObject *op, PyObject *args);
PyObject *cqn_cm_conn_over(PyObject *op, PyObject *end);

#endif
