/* SPDX-License-Identifier: MIT */
/*
 * The posts of a session, and the completions of sends that it waits for.
 *
 * The completion of a frame frees its memory and its slots. These are not needed while other memory
 * is free, so completions are polled only when there is none. For a stream of small messages the CQ
 * of sends is therefore armed only for failures (for solicited events, in the terms of the verbs):
 * successful sends raise no event. When something waits for a completion, the CQ is armed for all
 * of them, until an event arrives that nothing waited for.
 */

#include "messages/post.h"
#include "await/engine.h"
#include "await/loop.h"
#include "await/taker.h"

/* ---- the Session ---- */

int cqn_session_tell(cqn_session *self, const char *method, PyObject *argument)
{
    const int rc = argument == NULL ? -1 : cqn_session_do(self, method, argument);
    Py_XDECREF(argument);
    return rc;
}

int cqn_session_failed(cqn_session *self)
{
    return PyErr_ExceptionMatches(PyExc_Exception)
               ? cqn_session_tell(self, "_failed", cqn_take_exception())
               : -1;
}

/* ---- completions of sends ---- */

/* Whether a due ACK found no free memory. */
static bool has_no_room_for_ack(const cqn_session *self)
{
    return self->flow->is_ack_due && !cqn_send_queue_has_room(&self->queue, CQN_HEADER_SIZE);
}

/* Whether the first waiting message has a credit, but no memory. */
static bool first_needs_room(const cqn_session *self)
{
    const cqn_sending *first = (cqn_sending *)self->waiting.first;
    return first != NULL && cqn_flow_credits(self->flow) > 0 &&
           !(first->is_offer && cqn_offers_are_full(self));
}

bool cqn_session_awaits_sends(const cqn_session *self)
{
    return self->has_pending || self->queue.calls > 0 || has_no_room_for_ack(self) ||
           first_needs_room(self);
}

void cqn_session_expect_sends(cqn_session *self)
{
    cqn_engine *engine = self->send_engine;
    if (cqn_taker_is_solicited(engine) && cqn_session_awaits_sends(self)) {
        PyObject *pending = cqn_take_exception();
        cqn_taker_set_solicited(engine, false);
        cqn_engine_update(engine);
        cqn_put_exception(pending);
    }
}

void cqn_session_sends_completed(cqn_session *self)
{
    cqn_taker_set_solicited(self->send_engine,
                            self->is_solicited && !cqn_session_awaits_sends(self));
}

int cqn_session_look(cqn_session *self, cqn_engine *engine)
{
    return self->taking || cqn_session_is_over(self) ? 0 : cqn_engine_look(engine);
}

int cqn_session_see_to_probes(cqn_session *self)
{
    return self->is_probed ? 0 : cqn_session_do(self, "_update", NULL);
}

/* ---- posting ---- */

static int post_receives(cqn_session *self)
{
    const uint32_t n = self->reposts_len;
    self->reposts_len = 0;
    return n == 0 ? 0 : cqn_post_own_recvs(self->queue.qp, self->queue.mr, self->reposts, n);
}

int cqn_session_flush(cqn_session *self)
{
    if (self->queue.pending == 0) {
        return 0;
    }
    self->posts++;
    return post_receives(self) < 0 ? -1 : cqn_send_queue_flush(&self->queue);
}

int cqn_session_flush_soon(cqn_session *self)
{
    PyObject *flush, *handle = NULL;
    if (self->flush_is_due || self->resuming) {
        return 0;
    }
    flush = PyObject_GetAttrString((PyObject *)self, "_flush");
    if (flush != NULL) {
        CQN_UNLOCKED(handle = PyObject_CallMethod(self->loop, "call_soon", "O", flush));
    }
    self->flush_is_due = handle != NULL;
    Py_XDECREF(flush);
    Py_XDECREF(handle);
    return handle == NULL ? -1 : 0;
}

int cqn_session_flush_or_fail(cqn_session *self)
{
    return cqn_session_flush(self) < 0 ? cqn_session_failed(self) : 0;
}

void cqn_session_repost(cqn_session *self, uint32_t slot)
{
    assert(self->reposts_len < self->receives && slot < self->receives);
    const uint32_t i = self->reposts_len++;
    self->repost_sges[i] =
        (struct ibv_sge){.addr = self->queue.mr->iova + (uint64_t)slot * self->slot_size,
                         .length = self->slot_size,
                         .lkey = self->queue.mr->lkey};
    self->reposts[i] =
        (struct ibv_recv_wr){.wr_id = slot, .sg_list = &self->repost_sges[i], .num_sge = 1};
}

int cqn_session_send_ack(cqn_session *self, uint8_t flags)
{
    uint8_t *frame = cqn_send_queue_reserve(&self->queue, CQN_HEADER_SIZE);
    if (frame == NULL) { /* completions will free memory */
        const int rc = cqn_session_flush(self);
        cqn_session_expect_sends(self);
        return rc;
    }
    const bool is_urgent = self->flow->is_ack_urgent || flags != 0;
    cqn_header header = cqn_flow_header(self->flow, CQN_ACK);
    header.flags = flags;
    cqn_put_header(frame, &header);
    cqn_send_queue_add(&self->queue, is_urgent, NULL);
    return cqn_session_flush(self);
}
