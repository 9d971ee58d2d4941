/* SPDX-License-Identifier: MIT */
/*
 * MessageReading: an offered message that is read into a buffer of the caller, and the awaitable of
 * its recv(), in the shape of a coroutine.
 *
 * This is for a message with one large frame, of few pieces, whose table arrived with the offer:
 * its reads are posted together and have one completion. The Session reads all others, see
 * _rdma_read.py. If the task gives up, the reads continue, with their memory; the next recv() reads
 * the message again, into another buffer.
 */

#include "messages/reading.h"
#include "await/coroutine.h"
#include "messages/copy.h"
#include "messages/post.h"
#include "messages/register.h"
#include "messages/session.h"
#include "messages/task.h"

/* ---- the session's list of readings in flight ---- */

static cqn_reading *first_of(const cqn_session *self)
{
    return (cqn_reading *)self->readings.first;
}

static void append(cqn_session *self, cqn_reading *one)
{
    assert(!one->is_listed);
    one->is_listed = true;
    cqn_task_append(&self->readings, &one->task);
}

/* Removes a reading from the list; the caller gets the list's reference. */
static cqn_reading *unlist(cqn_session *self, cqn_reading *one)
{
    assert(one->is_listed && self->reads_in_flight >= one->in_flight);
    cqn_task_unlist(&self->readings, &one->task);
    one->is_listed = false;
    self->reads_in_flight -= one->in_flight;
    one->in_flight = 0;
    return one;
}

void cqn_reading_forget(cqn_session *self, cqn_reading *reading)
{
    if (reading->is_listed) {
        Py_DECREF(unlist(self, reading));
    }
}

/* ---- source and destination ---- */

typedef struct {
    const uint8_t *body; /* the table of frames, and the small frames */
    uint32_t count, large;
    cqn_remote remote; /* the large frame */
} plan;

/* Returns false if the message is not simple. A breach of the protocol is not simple either: the
 * Session reports it. */
static bool make_plan(const cqn_session *self, const cqn_message *message, plan *out)
{
    const uint8_t *frame = cqn_session_frame(self, message->slot);
    cqn_breach breach = {""};
    cqn_offer offer;
    if (!message->is_offer ||
        !cqn_parse_offer(frame, message->length, &self->limits, &offer, &breach) ||
        offer.body.addr != 0 ||
        !cqn_parse_body(frame + CQN_OFFER_SIZE, offer.body.length, offer.frames, &self->limits,
                        &breach)) {
        return false;
    }
    uint32_t large = 0;
    out->body = frame + CQN_OFFER_SIZE;
    out->count = offer.frames;
    for (uint32_t i = 0; i < offer.frames; i++) {
        const cqn_remote one = cqn_entry_at(out->body, i);
        if (one.addr != 0) {
            large++;
            out->large = i;
            out->remote = one;
        }
    }
    return large == 1 && out->remote.length < self->slow;
}

/* Returns a new list of the frames, with the small ones copied; NULL without an exception if the
 * caller has to do that. */
static PyObject *make_frames(const plan *of, PyObject *into)
{
    PyObject *list =
        PySequence_Fast_GET_SIZE(into) == (Py_ssize_t)of->count ? PyList_New(of->count) : NULL;
    const uint8_t *at = of->body + (size_t)of->count * CQN_ENTRY_SIZE;
    for (uint32_t i = 0; list != NULL && i < of->count; i++) {
        PyObject *one = NULL;
        if (i != of->large) {
            const uint32_t nbytes = (uint32_t)cqn_entry_at(of->body, i).length;
            one = cqn_copy_frame(into, i, at, nbytes);
            at += nbytes;
        }
        else if ((Py_ssize_t)i < PySequence_Fast_GET_SIZE(into)) {
            PyObject *buffer = Py_NewRef(PySequence_Fast_GET_ITEM(into, i));
            one = cqn_copy_view(buffer, (uint32_t)of->remote.length);
            Py_DECREF(buffer);
        }
        if (one == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, one);
    }
    if (list == NULL) {
        PyErr_Clear();
    }
    return list;
}

static cqn_reading *new_reading(cqn_session *session, PyObject *frames)
{
    PyTypeObject *type = session->state->MessageReading;
    cqn_reading *self = (cqn_reading *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->task.session = (cqn_session *)Py_NewRef(session);
        self->frames = Py_NewRef(frames);
        self->registrations = PyList_New(0);
        if (self->registrations == NULL) {
            Py_CLEAR(self);
        }
    }
    return self;
}

/* Registers the buffer of the large frame, and stores its address. Returns -1 with an exception. */
static int prepare(cqn_session *session, cqn_reading *self, const plan *of)
{
    uint32_t rkey;
    PyObject *view = PyList_GET_ITEM(self->frames, of->large);
    PyObject *one = cqn_register(session, view, session->sink);
    int rc = one == NULL ? -1 : PyList_Append(self->registrations, one);
    if (rc == 0) {
        self->remote = of->remote;
        self->mr = cqn_registered_mr(session, one);
        rc = self->mr == NULL ? -1 : cqn_registered_at(one, &self->addr, &rkey);
    }
    Py_XDECREF(one);
    return rc;
}

/* ---- the end ---- */

/* Called when the device no longer uses the memory. Keeps the current exception. */
static void release(cqn_reading *self)
{
    PyObject *list = self->registrations;
    PyObject *pending = cqn_take_exception();
    self->registrations = NULL;
    Py_CLEAR(self->mr);
    cqn_unregister(self->task.session, list);
    cqn_put_exception(pending);
}

/* Releases the frames after their task got them or will not; the queue can refer to the reading for
 * longer. */
static void drop_frames(cqn_reading *self)
{
    if (!self->is_listed && (self->is_ended || self->task.error != NULL)) {
        Py_CLEAR(self->frames);
    }
}

/* Ends a reading without reads in flight: its task continues, with the error if there is one.
 * Returns -1 with an exception that must end the loop. */
static int finish(cqn_session *session, cqn_reading *self, PyObject *error)
{
    cqn_reading *one = unlist(session, self);
    if (error != NULL) {
        Py_XSETREF(one->task.error, Py_NewRef(error));
    }
    else {
        one->is_read = true;
    }
    release(one);
    drop_frames(one);
    const int rc = one->is_ended || one->task.wakeup == NULL ? 0 : cqn_task_deliver(&one->task);
    Py_DECREF(one);
    return rc;
}

/* The first completion is for all pieces; each later one is for a probe of one byte. */
int cqn_reading_completed(PyObject *reading)
{
    cqn_reading *self = (cqn_reading *)reading;
    cqn_session *session = self->task.session;
    if (!self->is_listed) { /* failed already */
        return 0;
    }
    const uint32_t n = self->pieces > 0 ? self->pieces : 1;
    assert(self->in_flight >= n && session->reads_in_flight >= n);
    self->pieces = 0;
    self->in_flight -= n;
    session->reads_in_flight -= n;
    return self->in_flight > 0 ? 0 : finish(session, self, NULL);
}

int cqn_readings_fail(cqn_session *self, PyObject *error)
{
    int rc = 0;
    cqn_reading *one;
    while ((one = first_of(self)) != NULL) {
        if (finish(self, one, error) < 0) {
            if (rc < 0) {
                PyErr_WriteUnraisable((PyObject *)self);
            }
            rc = -1;
        }
    }
    return rc;
}

/* ---- posting ---- */

static int post(cqn_session *session, cqn_reading *self, uint32_t most, uint32_t pieces)
{
    if (cqn_send_queue_begin_reads(&session->queue, pieces) < 0) {
        return -1;
    }
    for (uint32_t i = 0; i < pieces; i++) {
        const uint64_t at = (uint64_t)i * most, left = self->remote.length - at;
        cqn_send_queue_set_read(&session->queue, i, self->mr, self->addr + at,
                                left < most ? left : most, self->remote.addr + at,
                                self->remote.rkey);
    }
    self->in_flight += pieces; /* first: if posting fails, the end of the queue pair releases it */
    session->reads_in_flight += pieces;
    return cqn_send_queue_post_set(&session->queue, pieces, self->mr, (PyObject *)self);
}

int cqn_readings_probe(cqn_session *self)
{
    cqn_reading *one = first_of(self);
    const uint64_t oldest = cqn_send_queue_oldest(&self->queue), before = self->oldest_read;
    while (one != NULL && one->is_ended && one->task.next != NULL) {
        one = (cqn_reading *)one->task.next; /* given up: the peer may reuse the memory */
    }
    self->oldest_read = oldest;
    if (one == NULL || oldest != before || cqn_send_queue_free_slots(&self->queue) == 0) {
        return one != NULL;
    }
    if (cqn_send_queue_begin_reads(&self->queue, 1) < 0) {
        return -1;
    }
    cqn_send_queue_set_read(&self->queue, 0, one->mr, one->addr, 1, one->remote.addr,
                            one->remote.rkey);
    one->in_flight++;
    self->reads_in_flight++;
    return cqn_send_queue_post_set(&self->queue, 1, one->mr, (PyObject *)one) < 0 ? -1 : 1;
}

/* Posts the reads, and polls once, in case they complete at once. Returns -1 with an exception. */
static int begin(cqn_session *session, cqn_reading *self, uint32_t most, uint32_t pieces)
{
    self->pieces = pieces;
    append(session, self);
    if (post(session, self, most, pieces) < 0) {
        return -1;
    }
    if (cqn_session_look(session, session->send_engine) < 0) {
        return -1;
    }
    if (self->is_listed) {
        cqn_session_expect_sends(session);
        return cqn_session_see_to_probes(session);
    }
    return 0;
}

/* Returns the result of a reading that has ended, otherwise the reading itself; a new reference. */
static PyObject *begun(cqn_reading *self)
{
    return Py_NewRef(self->is_read ? self->frames : (PyObject *)self);
}

PyObject *cqn_session_read(cqn_session *self, const cqn_message *message, PyObject *into,
                           uint32_t most, uint32_t together)
{
    plan of = {.count = 0};
    if (!make_plan(self, message, &of)) {
        Py_RETURN_NONE;
    }
    const uint64_t pieces = (of.remote.length + most - 1) / most;
    if (pieces > together) {
        Py_RETURN_NONE;
    }
    PyObject *frames = make_frames(&of, into);
    if (frames == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = NULL;
    cqn_reading *reading = new_reading(self, frames);
    if (reading != NULL && prepare(self, reading, &of) == 0) {
        if (cqn_session_is_over(self) || self->is_closing || /* arbitrary code may have run */
            cqn_send_queue_free_slots(&self->queue) < pieces) {
            result = Py_NewRef(Py_None);
        }
        else if (begin(self, reading, most, (uint32_t)pieces) == 0) {
            result = begun(reading);
        }
    }
    if (reading != NULL) {
        if (!reading->is_listed) {
            release(reading);
        }
        reading->is_ended = result != (PyObject *)reading;
        drop_frames(reading);
        Py_DECREF(reading);
    }
    Py_DECREF(frames);
    return result;
}

/* ---- the steps of the task ---- */

static void end(cqn_reading *self)
{
    self->is_ended = true;
    drop_frames(self);
    cqn_task_finish(&self->task);
}

static PySendResult step(cqn_reading *self, PyObject **result)
{
    cqn_task_goes_on(&self->task);
    if (self->task.error != NULL) {
        cqn_task_raise(&self->task);
        end(self);
        return PYGEN_ERROR;
    }
    if (self->is_read) {
        *result = Py_NewRef(self->frames);
        end(self);
        return PYGEN_RETURN;
    }
    return cqn_task_sleep(&self->task, result);
}

static PySendResult reading_send(PyObject *op, PyObject *Py_UNUSED(value), PyObject **result)
{
    CQN_LOCKED;
    cqn_reading *self = (cqn_reading *)op;
    *result = NULL;
    if (cqn_refuse_step(self->task.is_stepping, self->is_ended) < 0) {
        return PYGEN_ERROR;
    }
    self->task.is_stepping = true;
    const PySendResult r = step(self, result);
    self->task.is_stepping = false;
    return r;
}

static PyObject *reading_throw(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_reading *self = (cqn_reading *)op;
    if (cqn_check_throw(nargs) < 0 || cqn_refuse_step(self->task.is_stepping, self->is_ended) < 0) {
        return NULL;
    }
    cqn_raise_given(args, nargs);
    PyObject *pending = cqn_take_exception();
    end(self);
    cqn_put_exception(pending);
    return NULL;
}

static PyObject *reading_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_reading *self = (cqn_reading *)op;
    if (cqn_refuse_step(self->task.is_stepping, false) < 0) {
        return NULL;
    }
    end(self);
    Py_RETURN_NONE;
}

/* The time is up: wakes the task, unless it was woken already. */
static PyObject *reading_expire(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_reading *self = (cqn_reading *)op;
    if (self->is_ended || self->is_read || self->task.error != NULL || self->task.wakeup == NULL ||
        cqn_task_is_cancelled(&self->task)) {
        Py_RETURN_NONE;
    }
    PyObject *error =
        PyObject_CallFunction(PyExc_TimeoutError, "s", "the message was not read in time");
    if (error == NULL) {
        return NULL;
    }
    self->task.error = error;
    Py_INCREF(self);
    const int rc = cqn_task_wake(&self->task, false);
    Py_DECREF(self);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the type ---- */

static int reading_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_reading *self = (cqn_reading *)op;
    Py_VISIT(self->frames);
    Py_VISIT(self->registrations);
    Py_VISIT((PyObject *)self->mr);
    return cqn_task_traverse(&self->task, visit, arg);
}

static int reading_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_reading *self = (cqn_reading *)op;
    cqn_reading_forget(self->task.session, self);
    Py_CLEAR(self->frames);
    Py_CLEAR(self->registrations);
    Py_CLEAR(self->mr);
    end(self);
    return 0;
}

/* The session's list has references, so this reading is not in it. */
static void reading_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_reading *self = (cqn_reading *)op;
    assert(!self->is_listed);
    end(self);
    Py_CLEAR(self->frames);
    Py_CLEAR(self->registrations);
    Py_CLEAR(self->mr);
    Py_CLEAR(self->task.session);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef reading_methods[] = {
    CQN_COROUTINE_METHODS(reading_throw, reading_close),
    {"expire", reading_expire, METH_NOARGS,
     "expire($self, /)\n--\n\nThe time is up: raise TimeoutError in the task, if it still waits."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef reading_members[] = {
    {"wakeup", T_OBJECT, offsetof(cqn_reading, task.wakeup), READONLY,
     "What the task sleeps on, or None."},
    {"in_flight", T_UINT, offsetof(cqn_reading, in_flight), READONLY,
     "How many of its reads are under way."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reading_slots[] = {
    {Py_tp_doc, "A message that is being read, and what the task in Connection.recv() awaits."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, reading_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, cqn_coroutine_next},
    {Py_tp_traverse, reading_traverse},
    {Py_tp_clear, reading_clear},
    {Py_tp_dealloc, reading_dealloc},
    {Py_tp_methods, reading_methods},
    {Py_tp_members, reading_members},
    {0, NULL},
};

PyType_Spec cqn_reading_spec = {
    .name = "cqnotify.MessageReading",
    .basicsize = sizeof(cqn_reading),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = reading_slots,
};
