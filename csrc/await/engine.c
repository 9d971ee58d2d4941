/* SPDX-License-Identifier: MIT */
/*
 * The engine to the other folders: the books and the CQ tell it of completions, the callback of the
 * event loop of an event, queue pairs and CQs that they have changed; and CQ.poll() asks it.
 */

#include "await/await.h"
#include "await/async_cq.h"
#include "await/engine_look.h"
#include "await/engine_wake.h"
#include "await/outcome.h"
#include "await/pending.h"
#include "await/room.h"

/* ---- completions ---- */

static bool engine_wants(const cqn_engine *self)
{
    return self->claims.len > 0 || self->qp_claims.len > 0;
}

static bool engine_has_news(const cqn_engine *self)
{
    return cqn_engine_has_news(self);
}

const cqn_awaiting cqn_engine_awaiting = {
    .lost = cqn_request_lost,
    .completed = cqn_request_completed,
    .claim = cqn_engine_claim,
    .wants = engine_wants,
    .room = cqn_engine_room,
    .has_news = engine_has_news,
};

/* ---- events ---- */

/* The callback of the event loop has read an event of that CQ. Returns -1 with an exception that
 * must end the loop. In this callback no task is running, so one may be resumed at once. */
int cqn_engine_dispatch(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return 0;
    }
    cqn_cq_dispatched(cq);
    if (cq->base.handle != NULL && cq->base.context->measure_latency) {
        self->channel->event_at = cqn_now_ns();
    }
    cqn_engine_prepare(self, false);
    CQN_PLACE("event");
    self->channel->event_at = 0;
    int rc = PyErr_Occurred() ? -1 : cqn_engine_flush(self, true);
    Py_DECREF(self);
    return rc;
}

/* The device may have forgotten that the CQ was armed, or an event was lost while destroying it
 * failed. Returns whether the CQ has an engine, which has seen to that. */
bool cqn_engine_look_again(cqn_cq *cq)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return false;
    }
    cqn_engine_serve(self);
    Py_DECREF(self);
    return true;
}

/* ---- queue pairs ---- */

/* The queue pair was closed or reset: a completion() that names it will never complete. Those of
 * the other engine of the queue pair are for that engine to tell. */
static void fail_claims(const cqn_engine *self, const cqn_qp *qp)
{
    for (cqn_request *r = qp->first_claim, *next; r != NULL; r = next) {
        next = r->qp_behind;
        if (r->engine == self) {
            cqn_request_lost(r, qp);
        }
    }
}

/* Tells the engine of one CQ of that queue pair. The books have told the operations that were
 * posted there (cqn_request_lost()); this is for claims, for operations that wait for room, and for
 * arming. */
static void qp_changed(cqn_cq *cq, cqn_qp *qp, PyObject **interrupt)
{
    cqn_engine *self = cqn_engine_of(cq);
    if (self == NULL) {
        return;
    }
    const bool gone = qp->base.handle == NULL || qp->state == IBV_QPS_RESET;
    if (gone) {
        fail_claims(self, qp);
    }
    else {
        cqn_engine_room(self, qp); /* operations that wait for room learn of it */
    }
    if (self->len > 0) {
        cqn_engine_prepare(self, false);
    }
    if (PyErr_Occurred() || cqn_engine_hand_over(self) < 0) {
        cqn_callback_failed((PyObject *)self, interrupt);
    }
    Py_DECREF(self);
}

void cqn_engines_tell(cqn_qp *qp, PyObject **interrupt)
{
    if (cqn_forked(&qp->base) || PyErr_Occurred() || qp->send_cq == NULL) {
        return;
    }
    qp_changed(qp->send_cq, qp, interrupt);
    if (qp->recv_cq != qp->send_cq) {
        qp_changed(qp->recv_cq, qp, interrupt);
    }
}

/* ---- poll() ---- */

/* While tasks stand in the line of wait(), all completions that no other task claims are theirs,
 * and poll() returns an empty list. */
PyObject *cqn_engine_poll(cqn_engine *self, uint64_t max, double spin)
{
    cqn_cq *cq = self->cq;
    PyObject *list = NULL;
    Py_INCREF(self);
    const int rc = self->len > 0 ? cqn_engine_do(self, "_leave_closed_loop", NULL) : 0;
    CQN_PLACE("poll");
    if (rc < 0 || (self->error != NULL && cq->stash_len == 0 && cqn_engine_check(self) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    const size_t want = max > CQN_BATCH ? (size_t)max : CQN_BATCH;
    const bool ready = self->waiters.first == NULL && cq->stash_len > 0;
    if (ready || cqn_cq_fetch_or_spin(cq, want, self->waiters.first != NULL ? 0 : spin) == 0) {
        cqn_engine_wake_first(self);
        list =
            self->waiters.first != NULL && !self->closed ? PyList_New(0) : cqn_cq_pop_wcs(cq, max);
    }
    PyObject *pending = list == NULL ? cqn_take_exception() : NULL;
    cqn_engine_hand_over_or_put_off(self);
    if (pending != NULL) {
        cqn_put_exception(pending);
    }
    Py_DECREF(self);
    return list;
}
