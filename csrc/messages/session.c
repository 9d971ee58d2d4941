/* SPDX-License-Identifier: MIT */
/*
 * Dispatches completions: of frames that have arrived, and of sends.
 *
 * A frame is checked before anything is done about it. Failures of verbs, of memory, and of the
 * Python code called here are the loss of the connection, which the Session handles; only
 * exceptions that must end the event loop are raised.
 */

#include "messages/session.h"
#include "await/engine.h"
#include "await/loop.h"
#include "messages/inbox.h"
#include "messages/outbox.h"
#include "messages/post.h"
#include "messages/task.h"

/* ---- the Session ---- */

static int breaks(cqn_session *self, const cqn_breach *breach)
{
    return cqn_session_tell(self, "_breaks", PyUnicode_FromString(breach->text));
}

/* ---- posting ---- */

int cqn_session_post_pending(cqn_session *self)
{
    if (self->has_pending || self->is_watched) {
        return cqn_session_do(self, "post_pending", NULL);
    }
    if (cqn_session_is_over(self)) {
        return 0;
    }
    return cqn_outbox_post(self) < 0 ||
                   (self->flow->is_ack_due && cqn_session_send_ack(self, 0) < 0)
               ? cqn_session_failed(self)
               : 0;
}

int cqn_session_end_turn(cqn_session *self)
{
    self->turn = 0;
    if (self->queue.qp == NULL) {
        return 0;
    }
    return self->flow->is_ack_due && cqn_session_post_pending(self) < 0
               ? -1
               : cqn_session_flush_or_fail(self);
}

int cqn_session_message_taken(cqn_session *self, const cqn_message *message)
{
    self->received++;
    if (cqn_session_is_over(self)) {
        return 0;
    }
    cqn_session_repost(self, message->slot);
    cqn_flow_return_credit(self->flow);
    if (message->is_offer && cqn_flow_mark_read(self->flow, message->offer_number) < 0) {
        return cqn_session_failed(self);
    }
    if (!self->flow->is_ack_due) {
        return 0;
    }
    /* A program that takes many messages in a row returns their credits in one frame: after the
     * last of them, or at the end of the iteration. */
    return self->messages_len > 0 && !message->is_offer ? cqn_session_flush_soon(self)
                                                        : cqn_session_post_pending(self);
}

/* ---- frames that have arrived ---- */

/* Applies the counters of a header. Returns 1 to go on with the frame; 0 if the connection is over;
 * -1 with an exception. */
static int take_counters(cqn_session *self, const cqn_header *header)
{
    uint64_t newly;
    cqn_breach breach = {""};
    if (!cqn_flow_on_header(self->flow, header, &newly, &breach)) {
        return breaks(self, &breach);
    }
    if (newly > self->offered.len) {
        cqn_breaks(&breach, "offers were read behind a CLOSING");
        return breaks(self, &breach);
    }
    if (newly > 0 && cqn_outbox_offers_read(self, newly) < 0) {
        return -1;
    }
    return !cqn_session_is_over(self);
}

/* Handles a frame that is not a message. */
static int on_control(cqn_session *self, const cqn_header *header, const uint8_t *frame,
                      cqn_message *message)
{
    switch (header->kind) {
    case CQN_ACK:
        self->is_open = true;
        cqn_session_repost(self, message->slot);
        return header->flags & CQN_CLOSING
                   ? cqn_session_tell(self, "_on_closing", Py_NewRef(Py_None))
                   : 0;
    case CQN_CLOSE:
        return cqn_session_tell(self, "_on_close", Py_NewRef(Py_None));
    default:
        return cqn_session_tell(
            self, "_on_error",
            PyBytes_FromStringAndSize((const char *)frame + CQN_HEADER_SIZE,
                                      (Py_ssize_t)message->length - CQN_HEADER_SIZE));
    }
}

static int on_frame(cqn_session *self, uint32_t slot, uint32_t length)
{
    const uint8_t *frame = cqn_session_frame(self, slot);
    cqn_message message = {.slot = slot, .length = length};
    cqn_header header;
    cqn_breach breach = {""};
    cqn_offer offer;
    uint32_t count;
    if (!cqn_parse_header(frame, length, &header, &breach)) {
        return breaks(self, &breach);
    }
    const int rc = take_counters(self, &header);
    if (rc <= 0) {
        return rc;
    }
    if (header.kind == CQN_DATA) {
        return cqn_parse_data(frame, length, &self->limits, &count, &breach)
                   ? cqn_inbox_put(self, &message)
                   : breaks(self, &breach);
    }
    if (header.kind == CQN_OFFER) {
        message.is_offer = true;
        message.offer_number = self->flow->offers_received - 1;
        return cqn_parse_offer(frame, length, &self->limits, &offer, &breach)
                   ? cqn_inbox_put(self, &message)
                   : breaks(self, &breach);
    }
    return on_control(self, &header, frame, &message);
}

/* ---- completions ---- */

static const struct ibv_wc *stashed_failure(const cqn_cq *cq)
{
    for (size_t i = 0; i < cq->stash_len; i++) {
        const struct ibv_wc *wc = &cq->stash[cq->stash_head + i];
        if (!cqn_stash_is_hole(wc) && wc->status != IBV_WC_SUCCESS &&
            wc->status != IBV_WC_WR_FLUSH_ERR) {
            return wc;
        }
    }
    return NULL;
}

/* Called when a work request, and so the queue pair, failed. If this one was only flushed, another
 * one has the cause. */
static int on_failed(cqn_session *self, enum ibv_wc_status status, bool is_receive)
{
    cqn_cq *cq = self->send_engine->cq;
    if (status == IBV_WC_WR_FLUSH_ERR && cqn_is_open(&cq->base)) {
        cqn_object *deferred = NULL;
        if (cqn_cq_fetch(cq, 4 * CQN_BATCH, &deferred) < 0) {
            PyErr_Clear();
        }
        cqn_decref_deferred(deferred);
        const struct ibv_wc *wc = stashed_failure(cq);
        status = wc != NULL ? wc->status : status;
    }
    PyObject *number = PyLong_FromLong(status);
    return cqn_session_tell(self, is_receive ? "_on_failed_receive" : "_on_failed_send", number);
}

static int on_received(cqn_session *self, const struct ibv_wc *wc)
{
    if (cqn_session_is_over(self)) {
        return 0;
    }
    if (wc->status != IBV_WC_SUCCESS) {
        return on_failed(self, wc->status, true);
    }
    assert(wc->wr_id < self->receives && wc->byte_len <= self->slot_size);
    return on_frame(self, (uint32_t)wc->wr_id, wc->byte_len);
}

static int on_sent(cqn_session *self, const struct ibv_wc *wc)
{
    return wc->status != IBV_WC_SUCCESS ? on_failed(self, wc->status, false)
                                        : cqn_send_queue_completed(&self->queue, wc->wr_id);
}

/* Takes all completions of the stash, including those that arrive meanwhile. */
static int take_all(cqn_session *self, cqn_engine *engine)
{
    cqn_cq *cq = engine->cq;
    while (cqn_stash_len(cq) > 0) {
        if (cq->holes > 0) {
            cqn_stash_pack(cq);
        }
        const struct ibv_wc wc = cq->stash[cq->stash_head];
        cqn_stash_drop(cq, 1);
        const int rc = engine == self->recv_engine ? on_received(self, &wc) : on_sent(self, &wc);
        if (rc < 0 && cqn_session_failed(self) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The resumed task may send and receive. Keeps the current exception. */
static int resume_first(cqn_session *self, bool resume)
{
    if (!resume) { /* possibly called by that task */
        return cqn_session_resume_first(self, false);
    }
    self->resuming = true;
    const int rc = cqn_session_resume_first(self, true);
    self->resuming = false;
    PyObject *pending = cqn_take_exception();
    const int flushed = cqn_session_end_turn(self);
    if (pending == NULL) {
        return flushed < 0 ? -1 : rc;
    }
    if (flushed < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    cqn_put_exception(pending);
    return -1;
}

static int take(PyObject *op, cqn_engine *engine, bool resume)
{
    cqn_session *self = (cqn_session *)op;
    if (self->taking) { /* the outer call continues with the stash */
        return 0;
    }
    self->taking = true;
    self->may_resume = resume;
    if (resume) { /* an event: the answer is the first message of an iteration */
        self->turn = 0;
        if (engine == self->send_engine) {
            cqn_session_sends_completed(self);
        }
    }
    int rc = take_all(self, engine);
    if (rc == 0 && (cqn_session_post_pending(self) < 0 || cqn_session_flush(self) < 0)) {
        rc = cqn_session_failed(self);
    }
    self->taking = self->may_resume = false;
    cqn_session_expect_sends(self);
    return resume_first(self, resume) < 0 ? -1 : rc;
}

static int failed(PyObject *op, PyObject *error)
{
    return cqn_session_tell((cqn_session *)op, "_failed", Py_NewRef(error));
}

const cqn_taker_calls cqn_session_takes = {.take = take, .failed = failed};
