/* SPDX-License-Identifier: MIT */
/*
 * How a link comes and goes: the links of a channel, which it refers to weakly; closing one; and
 * what follows when its identifier was closed, by whomever.
 */

#include "cm/calls.h"
#include "cm/link.h"

void cqn_cm_link_join(cqn_cm_link *self)
{
    cqn_cm_channel *channel = cqn_cm_link_channel(self);
    cqn_enable_try_ref((PyObject *)self);
    self->next = channel->links;
    if (self->next != NULL) {
        self->next->prev = self;
    }
    channel->links = self;
    self->whole = true;
}

bool cqn_cm_link_leave(cqn_cm_link *self)
{
    cqn_cm_channel *channel = cqn_cm_link_channel(self);
    if (!self->whole) {
        return false;
    }
    self->whole = false;
    *(self->prev != NULL ? &self->prev->next : &channel->links) = self->next;
    if (self->next != NULL) {
        self->next->prev = self->prev;
    }
    self->next = self->prev = NULL;
    return channel->links == NULL;
}

PyObject *cqn_cm_links(const cqn_cm_channel *channel)
{
    PyObject *list = PyList_New(0);
    for (cqn_cm_link *one = channel->links; list != NULL && one != NULL; one = one->next) {
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

int cqn_cm_link_tell(cqn_cm_link *self, const char *method)
{
    PyObject *result;
    CQN_UNLOCKED(result = PyObject_CallMethod((PyObject *)self, method, NULL));
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

cqn_cm_link *cqn_cm_link_of(const cqn_cm_id *id)
{
    cqn_cm_link *link = id->link;
    return link != NULL && !link->dying && cqn_try_ref_object((PyObject *)link) ? link : NULL;
}

/* One step of the end, which goes on whatever fails: the first exception is kept. */
static void end_step(int rc, PyObject **pending)
{
    if (rc < 0 && *pending == NULL) {
        *pending = cqn_take_exception();
    }
    else if (rc < 0) {
        PyErr_WriteUnraisable(NULL);
    }
}

static int end_with_id(cqn_cm_link *self)
{
    PyObject *pending = NULL;
    const bool had_ended = self->ended; /* then nobody sleeps any more, or is being woken */
    cqn_cm_link_set_why(self, self->state->ClosedError);
    const bool was_last = cqn_cm_link_leave(self);
    end_step(cqn_cm_link_reject_waiting(self), &pending);
    if (self->kept_alive) {
        end_step(cqn_cm_link_tell(self, "_end_keepalive"), &pending);
    }
    if (was_last) {
        end_step(cqn_cm_link_tell(self, "_was_last"), &pending);
    }
    self->ended = true;
    if (!had_ended) {
        end_step(cqn_cm_link_ring(self), &pending);
    }
    cqn_put_exception(pending);
    return pending == NULL ? 0 : -1;
}

void cqn_cm_link_closed(cqn_cm_link *self, PyObject **interrupt)
{
    PyObject *pending = cqn_take_exception();
    if (end_with_id(self) < 0) {
        cqn_callback_failed((PyObject *)self, interrupt);
    }
    cqn_put_exception(pending);
}

/* ---- closing it ---- */

/* The kernel waits for the peer's host until it lets go of the identifier. */
static bool takes_long(const cqn_cm_id *id)
{
    return id->state == CQN_CM_CONNECTING && cqn_cm_is_iwarp(id);
}

static int say_farewell(cqn_cm_link *self)
{
    if (self->qp == NULL || self->qp == Py_None || self->hung_up) {
        return 0;
    }
    return self->datagrams ? cqn_cm_link_tell(self, "_part") : cqn_cm_link_hang_up(self);
}

/* It is known why before the farewell, of which an event of our own may tell. */
PyObject *cqn_cm_link_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_link *self = (cqn_cm_link *)op;
    cqn_cm_id *id = cqn_cm_link_id(self);
    if (id == NULL || !cqn_is_open(&id->base)) {
        Py_RETURN_NONE;
    }
    cqn_cm_link_set_why(self, self->state->ClosedError);
    const int rc = say_farewell(self);
    CQN_PLACE("cm farewell");
    if (rc < 0) {
        return NULL;
    }
    if (cqn_is_open(&id->base) && takes_long(id)) {
        self->ended = true;
        return cqn_cm_done(cqn_cm_link_ring(self) < 0 ? -1
                                                      : cqn_cm_link_tell(self, "_close_slowly"));
    }
    PyObject *kept = Py_NewRef((PyObject *)id), *result;
    CQN_UNLOCKED(result = cqn_method_close(kept, NULL));
    Py_DECREF(kept);
    return result;
}

PyObject *cqn_cm_link_say_goodbye(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cm_link *self = (cqn_cm_link *)op;
    return cqn_cm_done(cqn_cm_link_has_why(self) ? 0 : cqn_cm_link_hang_up(self));
}
