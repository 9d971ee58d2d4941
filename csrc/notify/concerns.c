/* SPDX-License-Identifier: MIT */
/*
 * The channels, and the CQs, that may miss completions after a failure that the device reports.
 *
 * A failure of a queue pair concerns both of its CQs, one of an SRQ the receive CQs of its queue
 * pairs, one of a port all that work through it.
 *
 * A transient failure leaves queue pairs as they are: they go on when the port is back, or fail
 * with completions that say so. It concerns only channels whose program asks for it.
 */

#include "notify/reports.h"

/* What a report is about, and whether it is a failure, after which completions may be missing. */
cqn_report_scope cqn_report_scope_of(enum ibv_event_type type, bool *failure)
{
    *failure = false;
    switch (type) {
    case IBV_EVENT_CQ_ERR:
        *failure = true;
        return CQN_OF_CQ;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        *failure = true;
        return CQN_OF_QP;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return CQN_OF_QP;
    case IBV_EVENT_SRQ_ERR:
        *failure = true;
        return CQN_OF_SRQ;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return CQN_OF_SRQ;
    case IBV_EVENT_PORT_ERR:
        *failure = true;
        return CQN_OF_PORT;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
        return CQN_OF_PORT;
    case IBV_EVENT_DEVICE_FATAL:
        *failure = true;
        return CQN_OF_DEVICE;
    default:
        return CQN_OF_NOTHING;
    }
}

bool cqn_report_is_transient(enum ibv_event_type type)
{
    return type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PATH_MIG_ERR;
}

/* What comes through a queue pair that has no CQ completes on those of others: on any. */
static bool qp_uses(const cqn_qp *qp, const cqn_channel *channel)
{
    return qp->send_cq == NULL || qp->send_cq->channel == channel ||
           qp->recv_cq->channel == channel;
}

/* All objects of that rank are queue pairs. */
static const cqn_qp *first_qp(const cqn_context *ctx)
{
    return (const cqn_qp *)ctx->first[CQN_RANK_QP];
}

static const cqn_qp *next_qp(const cqn_qp *qp)
{
    return (const cqn_qp *)qp->base.next;
}

static bool port_serves(const cqn_channel *channel, int port_num)
{
    for (const cqn_qp *qp = first_qp(channel->base.context); qp != NULL; qp = next_qp(qp)) {
        if (qp->port_num == port_num && qp_uses(qp, channel)) {
            return true;
        }
    }
    return false;
}

static bool srq_serves(const cqn_channel *channel, const cqn_object *srq)
{
    const cqn_cq *own = ((const cqn_srq *)srq)->cq;
    if (own != NULL && own->channel == channel) {
        return true;
    }
    for (const cqn_qp *qp = first_qp(channel->base.context); qp != NULL; qp = next_qp(qp)) {
        if (CQN_OBJ(qp->srq) == srq && qp_uses(qp, channel)) {
            return true;
        }
    }
    return false;
}

/* Whether the report is a failure that may keep completions off this channel. */
bool cqn_report_concerns(const cqn_report *report, const cqn_channel *channel)
{
    bool failure;
    cqn_report_scope what = cqn_report_scope_of(report->type, &failure);
    const cqn_object *element = report->element;
    if (!failure || (cqn_report_is_transient(report->type) && !channel->transient_errors)) {
        return false;
    }
    switch (what) {
    case CQN_OF_CQ:
        return element != NULL && ((const cqn_cq *)element)->channel == channel;
    case CQN_OF_QP:
        return element != NULL && qp_uses((const cqn_qp *)element, channel);
    case CQN_OF_SRQ:
        return element != NULL && srq_serves(channel, element);
    case CQN_OF_PORT:
        return port_serves(channel, report->port_num);
    default:
        return what == CQN_OF_DEVICE;
    }
}

/* ---- CQs ---- */

static void mark_all_cqs(const cqn_context *ctx)
{
    for (cqn_object *o = ctx->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        ((cqn_cq *)o)->marked |= PyObject_TypeCheck(o, ctx->base.state->CQ);
    }
}

static void mark_cqs_of(const cqn_context *ctx, const cqn_qp *qp)
{
    if (qp->send_cq == NULL) {
        mark_all_cqs(ctx);
        return;
    }
    qp->send_cq->marked = qp->recv_cq->marked = true;
}

static void mark_cqs_of_port(const cqn_context *ctx, int port_num)
{
    for (const cqn_qp *qp = first_qp(ctx); qp != NULL; qp = next_qp(qp)) {
        if (qp->base.handle != NULL && qp->port_num == port_num) {
            mark_cqs_of(ctx, qp);
        }
    }
}

static void mark_cqs_of_srq(const cqn_context *ctx, const cqn_object *srq)
{
    if (((const cqn_srq *)srq)->cq != NULL) {
        ((const cqn_srq *)srq)->cq->marked = true;
    }
    for (const cqn_qp *qp = first_qp(ctx); qp != NULL; qp = next_qp(qp)) {
        if (qp->base.handle != NULL && CQN_OBJ(qp->srq) == srq) {
            qp->recv_cq->marked = true;
        }
    }
}

/* Appends the marked CQs to the list, and leaves no mark. */
static int append_marked(const cqn_context *ctx, PyObject *cqs)
{
    int rc = 0;
    cqn_object *refused = NULL;
    for (cqn_object *o = ctx->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        if (!PyObject_TypeCheck(o, ctx->base.state->CQ) || !((cqn_cq *)o)->marked) {
            continue;
        }
        ((cqn_cq *)o)->marked = false;
        if (rc == 0 && o->handle != NULL && cqn_try_ref(o)) {
            rc = PyList_Append(cqs, (PyObject *)o);
            if (rc < 0) {
                refused = o; /* to drop a CQ can change the list that is walked here */
            }
            else {
                Py_DECREF(o);
            }
        }
    }
    Py_XDECREF(refused);
    return rc;
}

/* Appends the CQs that a failure concerns; the caller holds the element of the failure. Returns 1,
 * or 0 if the failure concerns all CQs of the device, or -1 with an exception. */
CQN_RARE int cqn_report_add_cqs(const cqn_context *ctx, const cqn_report *failure, PyObject *cqs)
{
    bool is_failure;
    switch (cqn_report_scope_of(failure->type, &is_failure)) {
    case CQN_OF_CQ:
        ((cqn_cq *)failure->element)->marked = true;
        break;
    case CQN_OF_QP:
        mark_cqs_of(ctx, (cqn_qp *)failure->element);
        break;
    case CQN_OF_SRQ:
        mark_cqs_of_srq(ctx, failure->element);
        break;
    case CQN_OF_PORT:
        mark_cqs_of_port(ctx, failure->port_num);
        break;
    default:
        return 0;
    }
    return append_marked(ctx, cqs) < 0 ? -1 : 1;
}
