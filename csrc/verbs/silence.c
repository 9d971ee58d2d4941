/* SPDX-License-Identifier: MIT */
/*
 * Why a wait found nothing: the second half of the message of a TimeoutError.
 *
 * The core has most of the facts: how each CQ is armed, which requests are incomplete, and the last
 * state set for each queue pair. It gets two more by calls that lose nothing: completions that were
 * not polled are fetched to the stash of their CQ, and the device reports the state of the queue
 * pair to be named. All of this runs only after a wait has timed out.
 *
 * If several causes hold at once, the message names one: CQs come before queue pairs, and the queue
 * pair with the highest `suspicion` comes first.
 */

#include "await/await.h"
#include "base/library.h"
#include "verbs/qp.h"

#define PEEKS 64 /* the most CQs of a channel to poll */

/* The CQs of the wait: all CQs of a channel, or one CQ. */
typedef struct {
    const cqn_context *context;
    const cqn_channel *channel;
    const cqn_cq *only; /* or NULL */
} wait_scope;

static bool covers(const wait_scope *scope, const cqn_cq *cq)
{
    return cq != NULL && (scope->only != NULL ? cq == scope->only : cq->channel == scope->channel);
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- the CQs ---- */

typedef struct {
    size_t cqs, ready; /* how many; and how many are armed, or have an AsyncCQ to arm them */
    cqn_cq *holder;    /* the first with completions, borrowed; or NULL */
    bool more;         /* it may have more than were counted */
} survey;

/* Runs no Python code: objects that completions release go to `deferred`. A CQ with an AsyncCQ is
 * not polled. */
CQN_RARE static survey survey_cqs(const wait_scope *scope, cqn_object **deferred)
{
    survey found = {.cqs = 0};
    for (cqn_object *o = scope->context->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        cqn_cq *cq = (cqn_cq *)o;
        if (!covers(scope, cq) || !cqn_is_open(o)) {
            continue;
        }
        found.ready += cq->armed != CQN_UNARMED || cq->engine != NULL;
        if (found.cqs++ >= PEEKS || cq->engine != NULL || found.holder != NULL) {
            continue;
        }
        const bool more = cqn_cq_peek(cq, deferred);
        if (cqn_stash_len(cq) > 0) {
            found.holder = cq;
            found.more = more;
        }
    }
    return found;
}

/* Returns the name of a CQ in a message about `cqs` CQs, a new reference; NULL with an
 * exception. */
CQN_RARE static PyObject *name_of(const cqn_cq *cq, size_t cqs)
{
    if (cqs > 1 && PyUnicode_GET_LENGTH(cq->name) > 0) {
        return PyUnicode_FromFormat("the CQ %R", cq->name);
    }
    return cqs > 1 ? PyUnicode_FromFormat("the CQ with handle %u",
                                          ((struct ibv_cq *)cq->base.handle)->handle)
                   : PyUnicode_FromString("the CQ");
}

static const char *const while_armed[] = {
    [CQN_UNARMED] = "and is not armed: poll, and call arm_if_empty() before each wait",
    [CQN_ARMED_SOLICITED] = "and is armed for solicited ones only: poll before each wait",
    [CQN_ARMED] = "from before it was armed: poll after arming, as arm_if_empty() does",
};

CQN_RARE static PyObject *about_holder(const survey *found)
{
    const size_t held = cqn_stash_len(found->holder);
    const char *why = while_armed[found->holder->armed];
    PyObject *name = name_of(found->holder, found->cqs);
    PyObject *text = name == NULL
                         ? NULL
                         : PyUnicode_FromFormat("%U holds %zu completion%s%s %s", name, held,
                                                plural(held), found->more ? " or more" : "", why);
    Py_XDECREF(name);
    return text;
}

/* Returns NULL without an exception if the CQs are not the cause. */
CQN_RARE static PyObject *about_cqs(const wait_scope *scope, cqn_object **deferred)
{
    const survey found = survey_cqs(scope, deferred);
    if (found.holder != NULL) {
        return about_holder(&found);
    }
    if (found.cqs == 0) {
        return PyUnicode_FromString("no CQ uses this channel");
    }
    if (scope->only == NULL && scope->channel->loop != NULL) {
        return PyUnicode_FromString(
            "an event loop reads the events of this channel, for its AsyncCQs");
    }
    if (found.ready > 0 || scope->channel == NULL) {
        return NULL;
    }
    return found.cqs == 1
               ? PyUnicode_FromString("the CQ is not armed: call arm_if_empty() before each wait")
               : PyUnicode_FromFormat("none of the %zu CQs of this channel is armed: call "
                                      "arm_if_empty() before each wait",
                                      found.cqs);
}

/* ---- the queue pairs ---- */

/* How likely a queue pair is the cause, in rising order. */
typedef enum { NONE, UNUSED, IDLE, RECEIVING, UNSIGNALED, UNREADY, UNANSWERED, FAILED } suspicion;

static size_t sends_of(const wait_scope *scope, const cqn_qp *qp)
{
    return covers(scope, qp->send_cq) ? qp->sq->requests - (qp->sq->probe == CQN_PROBE_POSTED) : 0;
}

static size_t receives_of(const wait_scope *scope, const cqn_qp *qp)
{
    const cqn_wr_queue *rq = qp->srq != NULL && qp->srq->rq != NULL ? qp->srq->rq : qp->rq;
    return covers(scope, qp->recv_cq) ? rq->requests : 0;
}

CQN_RARE static suspicion suspicion_of(const wait_scope *scope, const cqn_qp *qp)
{
    if (!covers(scope, qp->send_cq) && !covers(scope, qp->recv_cq)) {
        return NONE;
    }
    const size_t sends = sends_of(scope, qp), receives = receives_of(scope, qp);
    if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE ||
        (qp->errors_seen > 1 && qp->errors_seen != qp->errors_checked)) {
        return FAILED;
    }
    if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT) {
        return sends + receives > 0 ? UNREADY : UNUSED;
    }
    if (sends > 0) {
        return qp->sq->signaled > 0 ? UNANSWERED : UNSIGNALED;
    }
    return receives > 0 ? RECEIVING : IDLE;
}

/* Returns the first of the most suspect queue pairs, borrowed, or NULL. */
CQN_RARE static cqn_qp *choose(const wait_scope *scope, suspicion *most)
{
    cqn_qp *chosen = NULL;
    *most = NONE;
    for (cqn_object *o = scope->context->first[CQN_RANK_QP]; o != NULL; o = o->next) {
        const suspicion of_this = cqn_is_open(o) ? suspicion_of(scope, (cqn_qp *)o) : NONE;
        if (of_this > *most) {
            *most = of_this;
            chosen = (cqn_qp *)o;
        }
    }
    return chosen;
}

/* Whether the device reports a failed queue pair. It is queried only if something has failed since
 * the last query; a failed query counts as no. */
CQN_RARE static bool has_failed(cqn_qp *qp)
{
    const uint32_t errors_seen = qp->errors_seen;
    if (errors_seen == qp->errors_checked || !cqn_is_open(&qp->base)) {
        return false;
    }
    struct ibv_qp *handle = qp->base.handle;
    struct ibv_qp_attr attr = {.qp_state = qp->state};
    struct ibv_qp_init_attr init;
    CQN_IN_KERNEL(&qp->base, (void)ibv_query_qp(handle, &attr, IBV_QP_STATE, &init));
    if (attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE) {
        return true;
    }
    qp->errors_checked = errors_seen;
    return false;
}

CQN_RARE static PyObject *about_unanswered(const wait_scope *scope, const cqn_qp *qp)
{
    const size_t sends = sends_of(scope, qp);
    const bool acknowledged = qp->type == IBV_QPT_RC || qp->type == IBV_QPT_XRC_SEND;
    return PyUnicode_FromFormat(
        acknowledged ? "%zu send%s of QP %u %s not acknowledged: the peer has no receive posted "
                       "(RNR), or does not answer"
                     : "%zu send%s of QP %u %s not completed",
        sends, plural(sends), (unsigned)qp->qp_num,
        acknowledged ? (sends == 1 ? "is" : "are") : (sends == 1 ? "has" : "have"));
}

CQN_RARE static PyObject *about_qp(const wait_scope *scope, const cqn_qp *qp, suspicion most)
{
    const unsigned number = qp->qp_num;
    const size_t sends = sends_of(scope, qp), receives = receives_of(scope, qp);
    switch (most) {
    case FAILED:
        return PyUnicode_FromFormat("QP %u is in ERR and carries out no more requests: move it to "
                                    "RESET and connect it again",
                                    number);
    case UNANSWERED:
        return about_unanswered(scope, qp);
    case UNREADY:
    case UNUSED:
        return PyUnicode_FromFormat("QP %u is in %s: it is not connected", number,
                                    cqn_qp_state_name(qp->state));
    case UNSIGNALED:
        return PyUnicode_FromFormat("%zu send%s of QP %u %s unsignaled, which gives no completion",
                                    sends, plural(sends), number, sends == 1 ? "is" : "are");
    case RECEIVING:
        return PyUnicode_FromFormat("QP %u has %zu receive%s posted, for which nothing has come",
                                    number, receives, plural(receives));
    case IDLE:
    case NONE:
        break;
    }
    return covers(scope, qp->recv_cq)
               ? PyUnicode_FromFormat("QP %u has no receive posted%s", number,
                                      covers(scope, qp->send_cq) ? ", and no send outstanding" : "")
               : PyUnicode_FromFormat("QP %u has no send outstanding", number);
}

/* Each iteration clears one queue pair of suspicion, so the loop ends. */
CQN_RARE static PyObject *about_qps(const wait_scope *scope)
{
    for (;;) {
        suspicion most;
        cqn_qp *qp = choose(scope, &most);
        if (qp == NULL) {
            return PyUnicode_FromString("no QP uses the CQ");
        }
        if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE) {
            return about_qp(scope, qp, FAILED);
        }
        if (!cqn_try_ref(&qp->base)) { /* being deallocated, so the device is not queried */
            return about_qp(scope, qp, most);
        }
        const bool known = qp->errors_seen == qp->errors_checked;
        const bool failed = has_failed(qp);
        PyObject *text = NULL;
        if (failed || known || !cqn_is_open(&qp->base)) {
            text = about_qp(scope, qp, failed ? FAILED : most);
        }
        Py_DECREF(qp);
        if (text != NULL || PyErr_Occurred()) {
            return text;
        }
    }
}

/* ---- the whole message ---- */

/* While a device is queried, other threads can close everything that the caller uses. */
CQN_RARE static PyObject *why_silent(const wait_scope *scope)
{
    cqn_object *deferred = NULL, *const context = CQN_OBJ(Py_NewRef((PyObject *)scope->context));
    PyObject *text = about_cqs(scope, &deferred);
    if (text == NULL && !PyErr_Occurred()) {
        text = about_qps(scope);
    }
    PyObject *error = text == NULL ? cqn_take_exception() : NULL;
    cqn_decref_deferred(deferred);
    Py_DECREF(context);
    if (error != NULL) {
        cqn_put_exception(error);
    }
    return text;
}

PyObject *cqn_channel_why_silent(cqn_channel *channel)
{
    const wait_scope scope = {channel->base.context, channel, NULL};
    return why_silent(&scope);
}

PyObject *cqn_cq_why_silent(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    const wait_scope scope = {self->base.context, self->channel, self};
    return why_silent(&scope);
}
