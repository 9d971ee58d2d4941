/* SPDX-License-Identifier: MIT */
/*
 * Closing and resetting a queue pair, and what becomes of its work requests.
 *
 * As it is closed or reset it takes what has completed from its CQs first, so that it is
 * known which requests were carried out. The type is in qp.c.
 */

#include "verbs/qp.h"

/* ---- what is still sent ---- */

/* rxe destroys a QP when all packets of it have left, and sends meanwhile again and again what is
 * not acknowledged. Packets for a neighbour that does not answer wait for it up to 3 s, so that
 * some are always left; after 50 s rxe frees the QP all the same, and the kernel crashes. In RESET
 * nothing is sent. */
static bool sends_again(const cqn_qp *self)
{
    bool sends = self->state == IBV_QPS_RTS || self->state == IBV_QPS_SQD;
    return self->type == IBV_QPT_RC && sends && self->sq->len > 0;
}

/* Without the GIL. If it fails, all is as it was. */
static int stop_sending(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static void qp_before_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    self->must_stop = sends_again(self);
}

/* Without the GIL, by the thread that destroys it. */
static int destroy_qp(void *handle)
{
    struct ibv_qp *qp = handle;
    cqn_qp *self = qp->qp_context;
    self->stopped |= self->must_stop && stop_sending(qp) == 0;
    return cqn_qp_destroy_in_groups(qp);
}

/* From `op` on, with a reference. */
static cqn_qp *next_that_sends_again(cqn_object *op)
{
    for (; op != NULL; op = op->next) {
        cqn_qp *qp = (cqn_qp *)op;
        bool idle = op->handle != NULL && op->closing == 0 && op->in_use == 0;
        if (idle && !qp->must_stop && sends_again(qp) && cqn_try_ref(op)) {
            return qp;
        }
    }
    return NULL;
}

/* The state is set before the GIL is released, so that no thread posts to a queue pair in RESET. */
static void reset_before_all_close(cqn_qp *self)
{
    struct ibv_qp *qp = self->base.handle;
    const enum ibv_qp_state before = self->state;
    int err;
    self->must_stop = true; /* once is enough */
    self->state = IBV_QPS_RESET;
    CQN_IN_KERNEL(CQN_OBJ(self), err = stop_sending(qp));
    if (err != 0) {
        self->state = before;
    }
    self->stopped |= err == 0;
}

/* Before all are destroyed one after the other: while that waits for the packets of the
 * first one those of the others leave as well. */
void cqn_qps_stop_sending(cqn_context *ctx)
{
    cqn_object *first = ctx->first[CQN_RANK_QP];
    for (cqn_qp *self = next_that_sends_again(first), *next; self != NULL; self = next) {
        reset_before_all_close(self);
        const cqn_object *op = CQN_OBJ(self); /* others may have closed it meanwhile */
        next = next_that_sends_again(op->listed ? op->next : ctx->first[CQN_RANK_QP]);
        Py_DECREF(self);
    }
}

/* ---- its books ---- */

/* Of which of its queues it is known that nothing can come any more. */
typedef struct {
    bool send, recv;
} settled;

/* Takes what has completed into the stash, if the CQ can be polled, and so releases what the
 * requests kept alive; else the next poll does that. Returns whether nothing of that queue is left
 * behind. */
static bool settle_cq(const cqn_qp *self, const cqn_wr_queue *q, cqn_cq *cq, cqn_object **trash)
{
    if (q == NULL || (q->len == 0 && q->source == NULL) || cqn_forked(&self->base)) {
        return true;
    }
    if (cq->base.handle == NULL || PyErr_Occurred()) {
        return false;
    }
    const bool ok = cqn_cq_settle(cq, trash) == 0;
    if (!ok) {
        PyErr_Clear();
    }
    return ok;
}

static settled settle_cqs(const cqn_qp *self, cqn_object **trash)
{
    const bool send = settle_cq(self, self->sq, self->send_cq, trash);
    const bool recv = settle_cq(self, self->rq, self->recv_cq, trash);
    return (settled){.send = send, .recv = recv};
}

/* What may still come of it is for its CQ to know. */
static void drop_queue(const cqn_qp *self, cqn_wr_queue *q, cqn_cq *cq, bool is_settled,
                       cqn_object **trash)
{
    if (q == NULL) {
        return;
    }
    cqn_wr_queue_forget(q, trash);
    if (is_settled) {
        cqn_wr_queue_drop(self->base.state, q);
    }
    else {
        cqn_cq_inherit(cq, q);
    }
}

static void drop_queues(cqn_qp *self, settled known, cqn_object **trash)
{
    cqn_wr_queue *sq = self->sq, *rq = self->rq;
    self->sq = self->rq = NULL;
    drop_queue(self, sq, self->send_cq, known.send, trash);
    drop_queue(self, rq, self->recv_cq, known.recv, trash);
}

/* After a reset. What the CQs still hold is kept, and of the wr_ids those that may still come. */
void cqn_qp_forget_requests(cqn_qp *self)
{
    cqn_object *trash = NULL;
    const settled known = settle_cqs(self, &trash);
    if (self->sq != NULL) { /* not closed meanwhile */
        cqn_wr_queue_forget(self->sq, &trash);
        cqn_wr_queue_forget(self->rq, &trash);
        self->sq->len = known.send ? 0 : self->sq->len;
        self->rq->len = known.recv ? 0 : self->rq->len;
    }
    cqn_trash_empty(trash);
}

/* ---- its kind ---- */

static void qp_after_destroy(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    cqn_object *trash = NULL;
    /* A device that fails to be polled can make code run that closes all that this used. */
    cqn_context *ctx = (cqn_context *)Py_NewRef((PyObject *)op->uses[0]->context);
    const settled known = settle_cqs(self, &trash);
    cqn_async_forget(ctx, op);
    Py_DECREF(ctx);
    drop_queues(self, known, &trash);
    cqn_trash_empty(trash);
    PyMem_Free(self->groups);
    self->groups = NULL;
    self->groups_len = 0;
}

/* It stays open, and what was reset has lost its requests. */
static void qp_destroy_failed(cqn_object *op)
{
    cqn_qp *self = (cqn_qp *)op;
    bool stopped = self->stopped;
    self->must_stop = self->stopped = false;
    if (stopped) {
        self->state = IBV_QPS_RESET;
        cqn_qp_forget_requests(self);
    }
}

/* Engines learn of a close when the queue pair is in no list any more, and before its callbacks
 * run. */
static void qp_tell(cqn_object *op, PyObject **interrupt)
{
    cqn_engines_tell((cqn_qp *)op, interrupt);
}

static int qp_clear(PyObject *op)
{
    cqn_qp *self = (cqn_qp *)op;
    if (self->base.handle == NULL) {
        cqn_object *trash = NULL;
        drop_queues(self, (settled){.send = true, .recv = true}, &trash);
        cqn_trash_empty(trash);
    }
    Py_CLEAR(self->user_data);
    return cqn_clear(op);
}

const cqn_kind cqn_qp_kind = {
    .name = "QP",
    .destroy_verb = "ibv_destroy_qp",
    .rank = CQN_RANK_QP,
    .before_destroy = qp_before_destroy,
    .destroy = destroy_qp,
    .destroy_failed = qp_destroy_failed,
    .after_destroy = qp_after_destroy,
    .tell = qp_tell,
    .clear = qp_clear,
};
