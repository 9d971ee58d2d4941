/* SPDX-License-Identifier: MIT */
/* What has happened to an identifier, and what waits for it. */
#ifndef CQN_CM_CONN_STATE_H
#define CQN_CM_CONN_STATE_H

#include "cm/sleep.h"

typedef struct {
    PyObject *wakeup;
    bool is_rung; /* as others are woken; see wake_all() */
} cqn_cm_sleeper;

typedef struct cqn_cm_link {
    PyObject_HEAD
    cqn_state *state;
    PyObject *channel;               /* the CMChannel that brings its events */
    struct cqn_cm_link *next, *prev; /* in its list, while it is whole */
    PyObject *id, *qp;               /* the CMID, and the queue pair that goes with it, or None */
    /* Why it is over, or is about to be: an exception, the event that tells, or ClosedError itself;
     * or None. */
    PyObject *why;
    PyObject *reader, *end, *doing, *address, *answer, *group; /* Python's, see conn_state_type.c */
    PyObject **events;        /* what nobody has taken, the oldest first */
    PyObject *bell;           /* of threads: what is rung; of tasks NULL */
    cqn_cm_sleeper *sleepers; /* the wakeups of tasks that wait */
    /* How many of both there are, and how many there is room for. */
    size_t waiting, waiting_room, asleep, asleep_room;
    Py_ssize_t backlog;  /* of a listener: how many requests may wait */
    Py_ssize_t troubles; /* how often the kernel has reported trouble on the way to the peer */
    char datagrams;      /* a bool */
    char ended;          /* it is over, and its queue pair has failed */
    char hung_up;        /* the peer was told, and what was posted has ended */
    char whole;          /* it was made, and its CMID not closed: there is an end to come */
    char kept_alive;     /* its keepalive is to be ended */
    bool dying;          /* it is being deallocated */
} cqn_cm_link;

#define CQN_CM_BIT(type) (1u << RDMA_CM_EVENT_##type)

/* The CMID, if there is one; borrowed. */
static inline cqn_cm_id *cqn_cm_link_id(const cqn_cm_link *self)
{
    return (cqn_cm_id *)self->id;
}

/* Whether it is known why it is over, or is about to be. */
static inline bool cqn_cm_link_has_why(const cqn_cm_link *self)
{
    return self->why != NULL && self->why != Py_None;
}

static inline cqn_cm_channel *cqn_cm_link_channel(const cqn_cm_link *self)
{
    return (cqn_cm_channel *)self->channel;
}

/* The link of an identifier: a new reference, or NULL without an exception. */
cqn_cm_link *cqn_cm_link_of(const cqn_cm_id *id);

/* From now on it is one of its channel's, until it leaves: whether it was the last one. */
void cqn_cm_link_join(cqn_cm_link *self);
bool cqn_cm_link_leave(cqn_cm_link *self);

/* Calls a method of Python's Link, which looks after the reader and the keepalives. -1 with an
 * exception. */
int cqn_cm_link_tell(cqn_cm_link *self, const char *method);

/* Those of a channel that are whole: a new list. */
PyObject *cqn_cm_links(const cqn_cm_channel *channel);

/* Takes in an event, in the thread that reads them. -1 with an exception. */
int cqn_cm_link_deliver(cqn_cm_link *self, PyObject *event);

/* Rejects the request of an event, if it is one. -1 with an exception. */
int cqn_cm_reject(PyObject *event);

/* The identifier was closed, in the thread that did it. `interrupt` as in cqn_callback_failed(). */
void cqn_cm_link_closed(cqn_cm_link *self, PyObject **interrupt);

/* Wakes what waits for it, in any thread. A task that is about to sleep looks again when it can be
 * found here. -1 with an exception. */
int cqn_cm_link_ring(cqn_cm_link *self);

/* Wakes the tasks that sleep, in the thread of their loop; with `at_once` they go on here and now,
 * with `while_news` as long as there are events for them. -1 with an exception, which leaves nobody
 * asleep that should not be. */
int cqn_cm_link_wake_all(cqn_cm_link *self, bool at_once, bool while_news);

/* Tells the peer, and ends what was posted: nothing of it can succeed any more. Once, unless a call
 * has failed: the next hang_up() tries again. -1 with an exception. */
int cqn_cm_link_hang_up(cqn_cm_link *self);

/* Takes the oldest event, of which there is one: a new reference. */
PyObject *cqn_cm_link_pop(cqn_cm_link *self);

/* A task sleeps from now on, or does not any more. The former -1 with an exception. */
int cqn_cm_link_add_sleeper(cqn_cm_link *self, PyObject *wakeup);
void cqn_cm_link_remove_sleeper(cqn_cm_link *self, const PyObject *wakeup);

/* Methods of a link. */
PyObject *cqn_cm_link_close(PyObject *op, PyObject *unused);
PyObject *cqn_cm_link_say_goodbye(PyObject *op, PyObject *unused);

/* event_wait.c: the same. */
PyObject *cqn_cm_link_expect(PyObject *op, PyObject *args);
PyObject *cqn_cm_link_over(PyObject *op, PyObject *end);

#endif
