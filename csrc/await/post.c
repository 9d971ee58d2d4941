/* SPDX-License-Identifier: MIT */
/*
 * Posting an operation, or queueing it until its queue has capacity.
 *
 * Other work requests take capacity, too: those posted by the program itself, and unsignaled ones.
 * An operation that finds its queue full waits in the waitlist of that queue, and no later one
 * overtakes it. As soon as a completion frees a slot, the operation is posted, before any task
 * runs.
 */

#include "await/post.h"
#include "await/loop.h"
#include "await/awaitable.h"
#include "await/waitlist.h"

/* ---- posting ---- */

static cqn_wr_queue *queue_of(const cqn_awaitable *self)
{
    return self->kind == CQN_OF_RECV ? self->qp->rq : self->qp->sq;
}

static uint32_t capacity_of(const cqn_awaitable *self)
{
    const cqn_qp *qp = self->qp;
    return self->kind == CQN_OF_RECV ? qp->cap.max_recv_wr
                                     : qp->cap.max_send_wr - qp->reserved_sends;
}

/* Returns the number of completions still expected from the queue as it is. If there are none, only
 * the device knows whether it has capacity: some devices forget unsignaled work requests as soon as
 * these are done. */
static size_t completions_expected(const cqn_awaitable *self)
{
    const cqn_wr_queue *q = queue_of(self);
    return self->kind == CQN_OF_RECV ? q->requests : q->signaled;
}

static int refuse_full(const cqn_awaitable *self)
{
    const char *verb = self->kind == CQN_OF_RECV ? "ibv_post_recv" : "ibv_post_send";
    cqn_verbs_error(
        self->engine->state, ENOMEM, verb,
        "the queue of QP %u is full: all %zu work requests in it are unsignaled, so none "
        "will free a slot; post one in %u, or more, with SendFlags.SIGNALED",
        self->qp->qp_num, queue_of(self)->requests, capacity_of(self));
    return -1;
}

static void note_posted(cqn_awaitable *self)
{
    self->queue = queue_of(self);
    self->position = self->queue->next - 1;
    cqn_awaitable_becomes(self, CQN_POSTED);
    if (self->owner != CQN_PENDING) {
        cqn_awaitable_link(self);
    }
}

/* Returns 1 if the operation was posted, 0 if the queue is full and a completion will free a slot,
 * -1 with an exception. */
static int post_operation(cqn_awaitable *self, cqn_send *send)
{
    const bool more_will_complete = completions_expected(self) > 0;
    if (more_will_complete && queue_of(self)->requests >= capacity_of(self)) {
        return 0;
    }
    int err = self->kind == CQN_OF_RECV ? cqn_post_awaited_recv(self->qp, &send->sg, self)
                                        : cqn_post_awaited_send(self->qp, send, self);
    if (err == 0) {
        note_posted(self);
        return 1;
    }
    if (err == ENOMEM) {
        return more_will_complete ? 0 : refuse_full(self);
    }
    if (err > 0 && self->kind == CQN_OF_RECV) {
        cqn_refuse_recv(self->qp, err);
    }
    else if (err > 0) {
        cqn_refuse_send(self->qp, err);
    }
    return -1;
}

/* Some devices accept a work request in state ERR and never complete it. So the state of the queue
 * pair is queried before its first operation, and after each failed one. Returns -1 with an
 * exception. */
static int check_state(const cqn_awaitable *self)
{
    cqn_qp *qp = self->qp;
    const uint32_t errors_seen = qp->errors_seen;
    if (errors_seen == qp->errors_checked) {
        return 0;
    }
    struct ibv_qp *handle = cqn_open(&qp->base);
    if (handle == NULL) {
        return -1;
    }
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init;
    int err;
    CQN_IN_KERNEL(&qp->base, err = ibv_query_qp(handle, &attr, IBV_QP_STATE, &init));
    const bool receives = self->kind == CQN_OF_RECV;
    CQN_PLACE("state");
    if (err != 0) {
        cqn_verbs_error(qp->base.state, err, "ibv_query_qp", "QP %u", qp->qp_num);
        return -1;
    }
    if (attr.qp_state == IBV_QPS_ERR || (attr.qp_state == IBV_QPS_SQE && !receives)) {
        cqn_verbs_error(qp->base.state, EINVAL, receives ? "ibv_post_recv" : "ibv_post_send",
                        "QP %u is in %s and carries out no more requests: move it to RESET and "
                        "connect it again",
                        qp->qp_num, cqn_qp_state_name(attr.qp_state));
        return -1;
    }
    if (attr.qp_state != IBV_QPS_SQE) {
        qp->errors_checked = errors_seen; /* later errors are still unchecked */
    }
    return cqn_open(&qp->base) == NULL ? -1 : 0;
}

/* Adds the operation to the waitlist of its queue, with a copy of its work request, because the
 * caller's is on the stack. Returns -1 with an exception. */
static int enqueue(cqn_awaitable *self, const cqn_send *send)
{
    cqn_send *kept = PyMem_Malloc(sizeof(*kept));
    if (kept == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *kept = *send;
    if (cqn_sg_keep(&kept->sg) < 0) {
        PyMem_Free(kept);
        return -1;
    }
    kept->wr.sg_list = kept->sg.sge;
    self->kept = kept;
    cqn_awaitable_becomes(self, CQN_QUEUED);
    cqn_waitlist_add(&queue_of(self)->waiting, self);
    cqn_awaitable_link(self);
    return 0;
}

int cqn_operation_post(cqn_awaitable *self, cqn_send *send)
{
    if (check_state(self) < 0 || cqn_engine_check(self->engine) < 0) {
        return -1;
    }
    int rc = queue_of(self)->waiting.first != NULL ? 0 : post_operation(self, send);
    return rc != 0 ? rc : enqueue(self, send);
}

/* ---- queued operations ---- */

/* Posts the operations of a waitlist in order, while the queue has capacity. They fail if the queue
 * pair does not work any more. */
static void post_from_waitlist(cqn_qp *qp, bool receives)
{
    for (;;) {
        const cqn_wr_queue *q = receives ? qp->rq : qp->sq;
        cqn_awaitable *first = q == NULL ? NULL : q->waiting.first;
        if (first == NULL) {
            return;
        }
        if (!cqn_try_ref_object((PyObject *)first)) { /* being deallocated */
            cqn_waitlist_remove(first);
            continue;
        }
        int rc = cqn_open(&qp->base) == NULL ? -1 : check_state(first);
        if (rc == 0 && first->state == CQN_QUEUED) {
            rc = post_operation(first, first->kept);
            if (rc == 0) {
                Py_DECREF(first);
                return;
            }
        }
        PyObject *error = rc < 0 ? cqn_take_exception() : NULL;
        if (first->state == CQN_QUEUED) {
            cqn_awaitable_fail(first, error);
        }
        else if (rc > 0) {
            cqn_waitlist_remove(first);
        }
        Py_XDECREF(error);
        Py_DECREF(first);
    }
}

static void post_from_waitlists(cqn_qp *qp)
{
    post_from_waitlist(qp, false);
    post_from_waitlist(qp, true);
}

/* The two queues of a queue pair can belong to different engines. Operations of the other engine
 * can have failed here, so it wakes its tasks. */
static void wake_other(const cqn_engine *self, cqn_cq *cq)
{
    if (cq->engine != self && cqn_wake_after_routing(cq) < 0) {
        PyErr_WriteUnraisable((PyObject *)cq);
    }
}

static cqn_qp *pop_qp(cqn_engine *self)
{
    cqn_qp *qp = self->qps_with_capacity;
    if (qp != NULL) {
        self->qps_with_capacity = qp->next_with_capacity;
        qp->has_capacity = false;
    }
    return qp;
}

/* Posting can run Python code, which can close the queue pair or list others. */
void cqn_engine_post_queued_now(cqn_engine *self)
{
    cqn_qp *qp;
    while ((qp = pop_qp(self)) != NULL) {
        post_from_waitlists(qp);
        CQN_PLACE("capacity");
        if (cqn_is_open(&qp->base)) { /* else close() notified the engines */
            wake_other(self, qp->send_cq);
        }
        if (cqn_is_open(&qp->base)) {
            wake_other(self, qp->recv_cq);
        }
        Py_DECREF(qp);
    }
}

void cqn_engine_forget_capacity(cqn_engine *self)
{
    cqn_qp *qp;
    while ((qp = pop_qp(self)) != NULL) {
        Py_DECREF(qp);
    }
}
