/* SPDX-License-Identifier: MIT */
/*
 * Offers a message to the peer, which reads it. Large frames stay in their buffers, which are
 * registered until the peer has read them; small ones are copied behind the table of frames, which
 * follows the offer.
 *
 * Python decides what is registered, and for how long: see _memory.py. Python also handles messages
 * with a frame that takes long to register, or with a table that does not fit.
 */

#include "messages/offer.h"
#include "messages/post.h"
#include "messages/register.h"
#include "messages/send.h"

static bool is_large(const cqn_session *self, const cqn_frame *frame)
{
    return frame->length >= self->eager;
}

/* Returns the size of the table and the small frames behind it. */
static uint64_t body_length(const cqn_session *self, const cqn_frame *frames, Py_ssize_t n)
{
    uint64_t length = (uint64_t)n * CQN_ENTRY_SIZE;
    for (Py_ssize_t i = 0; i < n; i++) {
        length += is_large(self, &frames[i]) ? 0 : frames[i].length;
    }
    return length;
}

bool cqn_offer_is_simple(const cqn_session *self, const cqn_frame *frames, Py_ssize_t n,
                         uint64_t nbytes)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        if (frames[i].length >= self->slow) {
            return false;
        }
    }
    return (uint64_t)n <= self->peer_max_frames && nbytes <= self->peer_max_message &&
           CQN_OFFER_SIZE + body_length(self, frames, n) <= self->eager;
}

/* ---- registering ---- */

/* Registers all large frames. Returns a new list of Registrations; NULL with an exception. Can run
 * arbitrary code, which can end the message. */
static PyObject *grant_all(cqn_session *self, const cqn_sending *sending, cqn_remote *remotes)
{
    const Py_ssize_t n = sending->frames_len;
    PyObject *list = PyList_New(0), *buffers = Py_NewRef(sending->buffers);
    for (Py_ssize_t i = 0; list != NULL && i < n && sending->state == CQN_SEND_WAITING; i++) {
        remotes[i] = (cqn_remote){.length = sending->frames[i].length};
        if (!is_large(self, &sending->frames[i])) {
            continue;
        }
        PyObject *one = cqn_register(self, PyTuple_GET_ITEM(buffers, i), self->readable);
        if (one == NULL || PyList_Append(list, one) < 0 ||
            cqn_registered_at(one, &remotes[i].addr, &remotes[i].rkey) < 0) {
            cqn_unregister(self, list);
            list = NULL;
        }
        Py_XDECREF(one);
    }
    Py_DECREF(buffers);
    return list;
}

void cqn_offer_release(cqn_sending *sending)
{
    PyObject *list = sending->registrations;
    sending->registrations = NULL;
    if (list != NULL) {
        cqn_unregister(sending->task.session, list);
    }
}

/* ---- offering ---- */

static void write_offer(cqn_session *self, uint8_t *into, const cqn_sending *sending,
                        const cqn_remote *remotes)
{
    const uint32_t n = (uint32_t)sending->frames_len;
    const cqn_header header = cqn_flow_header(self->flow, CQN_OFFER);
    const cqn_offer offer = {
        .frames = n, .body = {.length = body_length(self, sending->frames, sending->frames_len)}};
    uint8_t *body = into + CQN_OFFER_SIZE, *at = body + (uint64_t)n * CQN_ENTRY_SIZE;
    cqn_put_header(into, &header);
    cqn_put_offer(into, &offer);
    for (uint32_t i = 0; i < n; i++) {
        cqn_put_entry(body, i, &remotes[i]);
        if (remotes[i].addr == 0 && remotes[i].length > 0) {
            memcpy(at, sending->frames[i].bytes, remotes[i].length);
            at += remotes[i].length;
        }
    }
}

/* Checks, after arbitrary code ran, whether the message may still be offered. */
static bool may_go_on(const cqn_session *self, const cqn_sending *sending)
{
    return sending->state == CQN_SEND_WAITING && !cqn_session_is_over(self) &&
           cqn_flow_credits(self->flow) > 0;
}

/* Posts the offer of a registered message. */
static int post(cqn_session *self, cqn_sending *sending, const cqn_remote *remotes)
{
    bool failed;
    const uint64_t length =
        CQN_OFFER_SIZE + body_length(self, sending->frames, sending->frames_len);
    uint8_t *into = cqn_send_reserve(self, length, &failed);
    if (into == NULL) {
        return failed ? -1 : 0;
    }
    if (!may_go_on(self, sending)) {
        cqn_send_queue_drop_frame(&self->queue);
        return 0;
    }
    write_offer(self, into, sending, remotes);
    cqn_send_queue_add(&self->queue, true, NULL);
    return cqn_session_flush(self) < 0 ? -1 : 1;
}

/* Returns whether the offer fits; polls for completions of sends first, since these free memory. */
static bool has_room(cqn_session *self, const cqn_sending *sending, bool *failed)
{
    const uint64_t length =
        CQN_OFFER_SIZE + body_length(self, sending->frames, sending->frames_len);
    const bool has = cqn_send_reserve(self, length, failed) != NULL;
    if (has) {
        cqn_send_queue_drop_frame(&self->queue);
    }
    return has && may_go_on(self, sending);
}

int cqn_offer_post(cqn_session *self, cqn_sending *sending, PyObject **error)
{
    int rc = 0;
    bool failed = false;
    *error = NULL;
    if (cqn_offers_are_full(self) || !has_room(self, sending, &failed)) {
        return failed ? -1 : 0;
    }
    cqn_remote *remotes = PyMem_New(cqn_remote, (size_t)sending->frames_len + 1);
    PyObject *list = remotes == NULL ? PyErr_NoMemory() : grant_all(self, sending, remotes);
    if (list == NULL) {
        *error = PyErr_ExceptionMatches(PyExc_Exception) ? cqn_take_exception() : NULL;
        rc = *error == NULL ? -1 : 0;
    }
    else if (may_go_on(self, sending)) {
        sending->registrations = list;
        rc = post(self, sending, remotes);
        if (rc == 0) {
            cqn_offer_release(sending);
        }
    }
    else {
        cqn_unregister(self, list);
    }
    PyMem_Free(remotes);
    return rc;
}
