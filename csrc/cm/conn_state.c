/* SPDX-License-Identifier: MIT */
/*
 * CMConn: the events of an identifier, in order, and the tasks or threads that wait for them.
 *
 * It is the base of Python's Link, which draws the conclusions (cqnotify/cm/_link.py). An event
 * that was read is added to the list of its CMConn; then the waiting tasks go on at once, in the
 * same call, or the threads are woken. The end of a connection moves its queue pair to ERR and
 * replies to the peer at once, even if no program waits for that.
 *
 * A channel lists its CMConns, weakly, from their creation until their identifier is closed, by any
 * thread.
 */

#include "cm/conn_state.h"
#include "await/loop.h"
#include "await/wakeup.h"
#include "cm/calls.h"
#include "verbs/qp.h"

/* Events that end an established connection, and events that change nothing. */
#define OVER (CQN_CM_BIT(DISCONNECTED) | CQN_CM_BIT(DEVICE_REMOVAL) | CQN_CM_BIT(MULTICAST_ERROR))
#define NOTHING (CQN_CM_BIT(TIMEWAIT_EXIT) | CQN_CM_BIT(ADDR_CHANGE))

/* Ensures that `things` has capacity for one more item of that size than n; most need capacity for
 * one only. Returns the array, or NULL with an exception: then it is unchanged. */
static void *reserve_one(void *things, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) {
        return things;
    }
    const size_t more = *capacity == 0 ? 1 : 2 * *capacity;
    void *moved = PyMem_Realloc(things, more * size);
    if (moved == NULL) {
        return PyErr_NoMemory();
    }
    *capacity = more;
    return moved;
}

/* ---- waking ---- */

int cqn_cm_conn_add_sleeper(cqn_cm_conn *self, PyObject *wakeup)
{
    cqn_cm_sleeper *sleepers =
        reserve_one(self->sleepers, self->asleep, &self->asleep_capacity, sizeof(*sleepers));
    if (sleepers == NULL) {
        return -1;
    }
    self->sleepers = sleepers;
    self->sleepers[self->asleep++] = (cqn_cm_sleeper){.wakeup = Py_NewRef(wakeup)};
    return 0;
}

void cqn_cm_conn_remove_sleeper(cqn_cm_conn *self, const PyObject *wakeup)
{
    for (size_t i = 0; i < self->asleep; i++) {
        PyObject *one = self->sleepers[i].wakeup;
        if (one == wakeup) {
            self->asleep--;
            memmove(self->sleepers + i, self->sleepers + i + 1,
                    (self->asleep - i) * sizeof(*self->sleepers));
            Py_DECREF(one);
            return;
        }
    }
}

/* Returns the oldest sleeper that was not notified since clear_notified(), and marks it as
 * notified; borrowed, or NULL. */
static PyObject *next_unnotified(cqn_cm_conn *self)
{
    for (size_t i = 0; i < self->asleep; i++) {
        if (!self->sleepers[i].is_notified) {
            self->sleepers[i].is_notified = true;
            return self->sleepers[i].wakeup;
        }
    }
    return NULL;
}

static size_t clear_notified(cqn_cm_conn *self)
{
    for (size_t i = 0; i < self->asleep; i++) {
        self->sleepers[i].is_notified = false;
    }
    return self->asleep;
}

/* Sleepers leave and join during the loop; new ones are at the end. */
int cqn_cm_conn_wake_all(cqn_cm_conn *self, bool at_once, bool while_news)
{
    PyObject *pending = NULL, *wakeup;
    for (size_t left = clear_notified(self); left > 0 && (wakeup = next_unnotified(self)) != NULL;
         left--) {
        Py_INCREF(wakeup);
        const int rc = cqn_wakeup_of_any(self->state, wakeup, at_once);
        Py_DECREF(wakeup);
        if (rc == 0 && while_news && self->events_len == 0) {
            break;
        }
        if (rc < 0 && pending == NULL) { /* then all are woken, even the one that failed */
            pending = cqn_take_exception();
            at_once = while_news = false;
            left = clear_notified(self) + 1;
        }
        else if (rc < 0) {
            PyErr_WriteUnraisable((PyObject *)self);
        }
    }
    cqn_put_exception(pending);
    return pending == NULL ? 0 : -1;
}

static int notify_threads(cqn_cm_conn *self)
{
    PyObject *notifier = Py_NewRef(self->notifier), *result;
    CQN_UNLOCKED(result = PyObject_CallMethod(notifier, "notify", NULL));
    Py_DECREF(notifier);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Called in a callback of the loop, where no task runs, or in the thread that reads for all
 * threads. */
static int notify_now(cqn_cm_conn *self, bool while_news)
{
    if (self->notifier != NULL) {
        return notify_threads(self);
    }
    return cqn_cm_conn_wake_all(self, true, while_news);
}

/* Returns 1 if the loop will call _wake_all(), or is closed and with it the waiting tasks; 0 if the
 * caller is in the thread of the loop; -1 with an exception. */
static int notify_elsewhere(cqn_cm_conn *self)
{
    const cqn_cm_channel *channel = cqn_cm_conn_channel(self);
    const int here = cqn_loop_runs_here(self->state, channel->loop, channel->raw_loop);
    if (here != 0) {
        return here < 0 ? -1 : 0;
    }
    PyObject *loop = Py_NewRef(channel->loop), *answer, *wake;
    CQN_UNLOCKED(answer = PyObject_CallMethod(loop, "is_elsewhere", NULL));
    int rc = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (rc > 0) {
        wake = PyObject_GetAttrString((PyObject *)self, "_wake_all");
        CQN_UNLOCKED(answer = wake == NULL
                                  ? NULL
                                  : PyObject_CallMethod(loop, "call_soon_threadsafe", "O", wake));
        if (answer == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            PyErr_Clear();
        }
        rc = PyErr_Occurred() ? -1 : 1;
        Py_XDECREF(answer);
        Py_XDECREF(wake);
    }
    Py_DECREF(loop);
    return rc;
}

int cqn_cm_conn_notify(cqn_cm_conn *self)
{
    if (self->notifier != NULL) {
        return notify_threads(self);
    }
    if (self->asleep == 0 || cqn_cm_conn_channel(self)->loop == NULL) {
        return 0;
    }
    const int rc = notify_elsewhere(self);
    return rc < 0 ? -1 : rc > 0 ? 0 : cqn_cm_conn_wake_all(self, false, false);
}

/* ---- events ---- */

static void set_reason(cqn_cm_conn *self, PyObject *reason)
{
    if (!cqn_cm_conn_has_reason(self)) {
        Py_XSETREF(self->reason, Py_NewRef(reason));
    }
}

/* Handles the result of a call. A failure that may be temporary, or that means that it is too late,
 * sets `failed`. Returns -1 with any other exception. */
static int try_call(PyObject *result, bool *failed)
{
    if (result != NULL) {
        Py_DECREF(result);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_OSError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return -1;
    }
    PyErr_Clear();
    *failed = true;
    return 0;
}

int cqn_cm_conn_shut_down(cqn_cm_conn *self)
{
    if (self->is_shut_down) {
        return 0;
    }
    self->is_shut_down = true;
    bool failed = false;
    PyObject *result;
    if (self->qp != NULL && PyObject_TypeCheck(self->qp, self->state->QP) && !self->datagrams) {
        PyObject *qp = Py_NewRef(self->qp);
        CQN_UNLOCKED(result = cqn_qp_fail(qp, NULL));
        Py_DECREF(qp);
        if (try_call(result, &failed) < 0) {
            return -1;
        }
    }
    if (cqn_cm_conn_id(self) != NULL) {
        PyObject *id = Py_NewRef(self->id);
        CQN_UNLOCKED(result = cqn_cm_id_disconnect(id, NULL));
        Py_DECREF(id);
        if (try_call(result, &failed) < 0) {
            return -1;
        }
    }
    self->is_shut_down = !failed;
    return 0;
}

static bool is_closed(const cqn_cm_conn *self)
{
    const cqn_cm_id *id = cqn_cm_conn_id(self);
    return id == NULL || !cqn_is_open(&id->base);
}

int cqn_cm_reject(PyObject *event)
{
    PyObject *request = Py_NewRef(PyTuple_GET_ITEM(event, CQN_CM_EVENT_REQUEST)), *result;
    CQN_UNLOCKED(result =
                     request == Py_None ? Py_NewRef(Py_None) : cqn_method_close(request, NULL));
    Py_DECREF(request);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int add_event(cqn_cm_conn *self, PyObject *event)
{
    PyObject **events =
        reserve_one(self->events, self->events_len, &self->events_capacity, sizeof(*events));
    if (events == NULL) {
        return -1;
    }
    self->events = events;
    self->events[self->events_len++] = Py_NewRef(event);
    return 0;
}

PyObject *cqn_cm_conn_pop(cqn_cm_conn *self)
{
    PyObject *event = self->events[0];
    self->events_len--;
    memmove(self->events, self->events + 1, self->events_len * sizeof(*self->events));
    return event;
}

static int reject_events(cqn_cm_conn *self)
{
    int rc = 0;
    while (rc == 0 && self->events_len > 0) {
        PyObject *event = cqn_cm_conn_pop(self);
        rc = cqn_cm_reject(event);
        Py_DECREF(event);
    }
    return rc;
}

/* The reason is set first, so code that sees the flush finds it. */
static int deliver_end(cqn_cm_conn *self, PyObject *event, bool shuts_down)
{
    set_reason(self, event);
    if (shuts_down && cqn_cm_conn_shut_down(self) < 0) {
        return -1;
    }
    CQN_PLACE("cm end");
    self->ended = true;
    return notify_now(self, false);
}

static bool backlog_is_full(const cqn_cm_conn *listener)
{
    return listener->events_len >= (size_t)listener->backlog;
}

int cqn_cm_conn_deliver(cqn_cm_conn *self, PyObject *event)
{
    const long number = PyLong_AsLong(PyTuple_GET_ITEM(event, CQN_CM_EVENT_TYPE));
    if (number < 0 || number >= 32) {
        return PyErr_Occurred() ? -1 : 0;
    }
    const unsigned int type = 1u << number;
    const cqn_cm_id *id = cqn_cm_conn_id(self);
    /* A peer that leaves before it got our last message makes its kernel reject that. */
    const bool is_lost = id != NULL && id->lost && type == CQN_CM_BIT(REJECTED);
    if ((type & OVER) || is_lost) {
        return deliver_end(self, event, is_lost || type == CQN_CM_BIT(DISCONNECTED));
    }
    if (type & NOTHING) {
        return 0;
    }
    if (type == CQN_CM_BIT(UNREACHABLE) && id != NULL && id->state == CQN_CM_ESTABLISHED) {
        self->path_errors++;
        return 0;
    }
    if (type == CQN_CM_BIT(CONNECT_REQUEST) && backlog_is_full(self)) {
        return cqn_cm_reject(event);
    }
    if (add_event(self, event) < 0 ||
        (is_closed(self) /* since the event was read */ && reject_events(self) < 0)) {
        return -1;
    }
    return notify_now(self, true);
}

/* ---- the CMConns of a channel ---- */

void cqn_cm_conn_join(cqn_cm_conn *self)
{
    cqn_cm_channel *channel = cqn_cm_conn_channel(self);
    cqn_enable_try_ref((PyObject *)self);
    self->next = channel->conns;
    if (self->next != NULL) {
        self->next->prev = self;
    }
    channel->conns = self;
    self->registered = true;
}

bool cqn_cm_conn_leave(cqn_cm_conn *self)
{
    cqn_cm_channel *channel = cqn_cm_conn_channel(self);
    if (!self->registered) {
        return false;
    }
    self->registered = false;
    *(self->prev != NULL ? &self->prev->next : &channel->conns) = self->next;
    if (self->next != NULL) {
        self->next->prev = self->prev;
    }
    self->next = self->prev = NULL;
    return channel->conns == NULL;
}

PyObject *cqn_cm_conns(const cqn_cm_channel *channel)
{
    PyObject *list = PyList_New(0);
    for (cqn_cm_conn *one = channel->conns; list != NULL && one != NULL; one = one->next) {
        if (one->dying || !cqn_try_ref_object((PyObject *)one)) {
            continue;
        }
        const int rc = PyList_Append(list, (PyObject *)one);
        Py_DECREF(one); /* not the last: the list has one */
        if (rc < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

int cqn_cm_conn_call(cqn_cm_conn *self, const char *method)
{
    return cqn_do_method((PyObject *)self, method, NULL);
}

cqn_cm_conn *cqn_cm_conn_of(const cqn_cm_id *id)
{
    cqn_cm_conn *conn = id->conn;
    return conn != NULL && !conn->dying && cqn_try_ref_object((PyObject *)conn) ? conn : NULL;
}

/* Handles the result of one step of the end. The end continues after a failed step; the first
 * exception is kept. */
static void end_step(int rc, PyObject **pending)
{
    if (rc < 0 && *pending == NULL) {
        *pending = cqn_take_exception();
    }
    else if (rc < 0) {
        PyErr_WriteUnraisable(NULL);
    }
}

static int end_with_id(cqn_cm_conn *self)
{
    PyObject *pending = NULL;
    const bool had_ended = self->ended; /* then all sleepers were woken, or are being woken */
    set_reason(self, self->state->ClosedError);
    const bool was_last = cqn_cm_conn_leave(self);
    end_step(reject_events(self), &pending);
    if (self->has_keepalive) {
        end_step(cqn_cm_conn_call(self, "_end_keepalive"), &pending);
    }
    if (was_last) {
        end_step(cqn_cm_conn_call(self, "_was_last"), &pending);
    }
    self->ended = true;
    if (!had_ended) {
        end_step(cqn_cm_conn_notify(self), &pending);
    }
    cqn_put_exception(pending);
    return pending == NULL ? 0 : -1;
}

void cqn_cm_conn_closed(cqn_cm_conn *self, PyObject **interrupt)
{
    PyObject *pending = cqn_take_exception();
    if (end_with_id(self) < 0) {
        cqn_callback_failed((PyObject *)self, interrupt);
    }
    cqn_put_exception(pending);
}

/* ---- closing ---- */

/* Whether destroying the identifier would wait for the peer's host. */
static bool takes_long(const cqn_cm_id *id)
{
    return id->state == CQN_CM_CONNECTING && cqn_cm_is_iwarp(id);
}

static int disconnect_peer(cqn_cm_conn *self)
{
    if (self->qp == NULL || self->qp == Py_None || self->is_shut_down) {
        return 0;
    }
    return self->datagrams ? cqn_cm_conn_call(self, "_leave_group") : cqn_cm_conn_shut_down(self);
}

/* The reason is set before the peer is disconnected, because that may raise an event of our own. */
PyObject *cqn_cm_conn_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_conn *self = (cqn_cm_conn *)op;
    cqn_cm_id *id = cqn_cm_conn_id(self);
    if (id == NULL || !cqn_is_open(&id->base)) {
        Py_RETURN_NONE;
    }
    set_reason(self, self->state->ClosedError);
    const int rc = disconnect_peer(self);
    CQN_PLACE("cm leave");
    if (rc < 0) {
        return NULL;
    }
    if (cqn_is_open(&id->base) && takes_long(id)) {
        self->ended = true;
        return cqn_cm_done(cqn_cm_conn_notify(self) < 0 ? -1
                                                        : cqn_cm_conn_call(self, "_close_slowly"));
    }
    PyObject *kept = Py_NewRef((PyObject *)id), *result;
    CQN_UNLOCKED(result = cqn_method_close(kept, NULL));
    Py_DECREF(kept);
    return result;
}

PyObject *cqn_cm_conn_disconnect(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_conn *self = (cqn_cm_conn *)op;
    return cqn_cm_done(cqn_cm_conn_has_reason(self) ? 0 : cqn_cm_conn_shut_down(self));
}
