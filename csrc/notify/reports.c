/* SPDX-License-Identifier: MIT */
/*
 * The asynchronous events of a device, and the channels, waiters and watches that they affect.
 *
 * A report is read, acknowledged and queued on its context without releasing the GIL in between, so
 * no destroy ever waits for it. Any thread that sleeps, in get_async_event() or in get_event(),
 * reads reports. get_async_event() pops each report once.
 *
 * A failure also ends the waits for completions that may never arrive: on each channel that it
 * affects when it is read, all current waits, or else the next one, once. For this, the latest
 * report of each failure is kept with a serial number as long as the failed object lives; channels
 * and waiters remember the serial of the latest failure that they have seen. A thread that got a
 * report from get_async_event() has seen it. Creating a channel reads all pending reports, which do
 * not end its waits. Event loops, which sleep in none of these calls, have a FailureWatch.
 *
 * Queued reports hold no reference to the object that they are about. Closing the object drops
 * them, as the kernel does.
 *
 * A failure of a queue pair affects both of its CQs; that of an SRQ, the receive CQs of its queue
 * pairs; that of a port, the CQs of all queue pairs on it. After a transient failure queue pairs
 * stay as they are: they go on when the port is back, or fail with completions. It affects only
 * channels whose program asks for it.
 */

#include "notify/reports.h"

/* ---- the channels that a failure affects ---- */

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

/* A queue pair without CQs (XRC_RECV) uses the CQs of other objects, so it may affect any
 * channel. */
static bool qp_uses(const cqn_qp *qp, const cqn_channel *channel)
{
    return qp->send_cq == NULL || qp->send_cq->channel == channel ||
           qp->recv_cq->channel == channel;
}

/* All objects of this rank are queue pairs. */
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

bool cqn_report_affects(const cqn_report *report, const cqn_channel *channel)
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

/* ---- the CQs that a failure affects ---- */

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

/* Appends the marked CQs to the list, and clears the marks. Returns -1 with an exception. */
static int append_marked(const cqn_context *ctx, PyObject *cqs)
{
    int rc = 0;
    cqn_object *refused = NULL;
    for (cqn_object *o = ctx->first[CQN_RANK_CQ]; o != NULL; o = o->next) {
        if (!PyObject_TypeCheck(o, ctx->base.state->CQ) || !((cqn_cq *)o)->marked) {
            continue;
        }
        ((cqn_cq *)o)->marked = false;
        if (rc == 0 && cqn_try_ref(o)) {
            rc = PyList_Append(cqs, (PyObject *)o);
            if (rc < 0) {
                refused = o; /* releasing a CQ here can change this list */
            }
            else {
                Py_DECREF(o);
            }
        }
    }
    Py_XDECREF(refused);
    return rc;
}

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

/* ---- reading and queueing ---- */

#define DRAIN_AT_MOST 64    /* reports read in a row before the thread checks everything else */
#define QUEUE_CAPACITY 1024 /* beyond it no second report of the same kind is queued */

/* The device's descriptor must not block: several threads can be woken by one report. */
int cqn_async_open(cqn_context *ctx)
{
    struct ibv_context *device = ctx->base.handle;
    if (cqn_pollable_flag_open(&ctx->reports->flag, device) < 0) {
        return -1;
    }
    if (cqn_set_nonblocking(device->async_fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return cqn_wait_queue_open(&ctx->reports->wait_queue);
}

void cqn_reports_show(cqn_context *ctx)
{
    cqn_pollable_flag_set(&ctx->reports->flag, CQN_OBJ(ctx), ctx->reports->queued != NULL);
}

/* The lists are short, because devices rarely report anything. */
static void append_report(cqn_report **list, cqn_report *report)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    *list = report;
}

/* Whether both are of the same type and about the same element, so one of them is enough. */
static bool same_report(const cqn_report *a, const cqn_report *b)
{
    return a->type == b->type && a->element == b->element && a->port_num == b->port_num;
}

cqn_report *cqn_report_find_same(cqn_report *list, const cqn_report *report)
{
    while (list != NULL && !same_report(list, report)) {
        list = list->next;
    }
    return list;
}

static void drop_same_report(cqn_report **list, const cqn_report *report)
{
    while (*list != NULL && !same_report(*list, report)) {
        list = &(*list)->next;
    }
    if (*list != NULL) {
        cqn_report *found = *list;
        *list = found->next;
        PyMem_Free(found);
    }
}

/* Frees the reports about `element`, or all if it is NULL. Returns their number. */
static size_t drop_reports(cqn_report **list, const cqn_object *element)
{
    size_t dropped = 0;
    while (*list != NULL) {
        cqn_report *report = *list;
        if (element == NULL || report->element == element) {
            *list = report->next;
            PyMem_Free(report);
            dropped++;
        }
        else {
            list = &report->next;
        }
    }
    return dropped;
}

void cqn_async_forget(cqn_context *ctx, const cqn_object *element)
{
    ctx->reports->queued_len -= drop_reports(&ctx->reports->queued, element);
    drop_reports(&ctx->reports->failures, element);
    cqn_reports_show(ctx);
}

void cqn_async_clear(cqn_context *ctx)
{
    cqn_async_forget(ctx, NULL);
    cqn_pollable_flag_close(&ctx->reports->flag);
}

/* Records the failure on each channel that it affects, and wakes the waiters there. */
static void notify_channels(const cqn_context *ctx, const cqn_report *report)
{
    for (cqn_object *o = ctx->first[CQN_RANK_PD]; o != NULL; o = o->next) {
        cqn_channel *channel = (cqn_channel *)o;
        if (PyObject_TypeCheck(o, ctx->base.state->CompletionChannel) &&
            cqn_report_affects(report, channel)) {
            channel->failure_serial = report->serial;
            cqn_wait_queue_wake(&channel->wait_queue);
        }
    }
}

void cqn_failure_watch_show(cqn_failure_watch *self)
{
    cqn_pollable_flag_set(&self->flag, &self->base, self->latest > self->seen_serial);
}

/* Raises the flags of all watches after a failure was queued, even on a context that is being
 * closed, since that can fail. Runs no Python code. */
static void notify_watches(const cqn_context *ctx)
{
    PyTypeObject *type = ctx->base.state->FailureWatch;
    for (cqn_object *o = ctx->first[CQN_RANK_PD]; o != NULL; o = o->next) {
        if (PyObject_TypeCheck(o, type) && o->handle != NULL) {
            cqn_failure_watch *self = (cqn_failure_watch *)o;
            self->latest = ctx->reports->serial;
            cqn_failure_watch_show(self);
        }
    }
}

/* Queues a report and notifies channels and watches of a failure. Takes ownership of both copies:
 * one is for the queue, the other for the list of failures. */
static void queue_report(cqn_context *ctx, cqn_report *report, cqn_report *copy)
{
    report->serial = ++ctx->reports->serial;
    bool failure;
    cqn_report_scope_of(report->type, &failure);
    if (failure) {
        drop_same_report(&ctx->reports->failures, report);
        *copy = *report;
        append_report(&ctx->reports->failures, copy);
        notify_channels(ctx, report);
        notify_watches(ctx);
    }
    else {
        PyMem_Free(copy);
    }
    if (ctx->reports->queued_len >= QUEUE_CAPACITY &&
        cqn_report_find_same(ctx->reports->queued, report) != NULL) {
        PyMem_Free(report);
        return;
    }
    append_report(&ctx->reports->queued, report);
    ctx->reports->queued_len++;
    cqn_reports_show(ctx);
}

static bool is_listed(const cqn_context *ctx, const void *object)
{
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        const cqn_object *o = ctx->first[rank];
        while (o != NULL && o != object) {
            o = o->next;
        }
        if (o != NULL) {
            return true;
        }
    }
    return false;
}

/* The element is alive, since destroying it waits until this event is acknowledged. Returns whether
 * the report is about an object of the core: a device that librdmacm opened is shared with all
 * users of librdmacm in this process, and has their objects as well. */
static bool fill_report(const cqn_context *ctx, cqn_report *report,
                        const struct ibv_async_event *raw)
{
    bool failure;
    report->type = raw->event_type;
    switch (cqn_report_scope_of(raw->event_type, &failure)) {
    case CQN_OF_CQ:
        report->element = raw->element.cq->cq_context;
        return is_listed(ctx, report->element);
    case CQN_OF_QP:
        report->element = raw->element.qp->qp_context;
        return is_listed(ctx, report->element);
    case CQN_OF_SRQ:
        report->element = raw->element.srq->srq_context;
        return is_listed(ctx, report->element);
    case CQN_OF_PORT:
        report->port_num = raw->element.port_num;
        return true;
    default:
        return true;
    }
}

/* Returns 1 if a report was read, 0 if there is none, -1 with an exception. Memory for the report
 * is allocated first, so none is lost. Runs no Python code. */
static int read_report(cqn_context *ctx)
{
    cqn_report *report = PyMem_Calloc(1, sizeof(*report));
    cqn_report *copy = PyMem_Calloc(1, sizeof(*copy));
    struct ibv_async_event raw;
    int err = 0;
    errno = 0;
    if (report == NULL || copy == NULL) {
        err = ENOMEM;
        PyErr_NoMemory();
    }
    else if (ibv_get_async_event(ctx->base.handle, &raw) != 0) {
        /* a read of 0 bytes means the same as EIO: the device is gone */
        err = errno == 0 ? EIO : errno == EINTR ? EAGAIN : errno;
        if (err != EAGAIN) {
            cqn_verbs_error(ctx->base.state, err, "ibv_get_async_event",
                            "no more events will come");
        }
    }
    if (err != 0) {
        PyMem_Free(report);
        PyMem_Free(copy);
        return err == EAGAIN ? 0 : -1;
    }
    const bool ours = fill_report(ctx, report, &raw);
    ibv_ack_async_event(&raw);
    if (ours) {
        queue_report(ctx, report, copy);
    }
    else {
        PyMem_Free(report);
        PyMem_Free(copy);
    }
    return 1;
}

int cqn_async_drain(cqn_context *ctx)
{
    int rc = 1;
    for (int i = 0; rc > 0 && i < DRAIN_AT_MOST; i++) {
        rc = read_report(ctx);
    }
    return rc < 0 ? -1 : 0;
}

/* The removal of the device is raised where its reports are awaited. */
int cqn_async_catch_up(cqn_context *ctx, uint64_t *seen_serial)
{
    int rc;
    while ((rc = read_report(ctx)) > 0) {
    }
    if (rc < 0 && PyErr_ExceptionMatches(ctx->base.state->DeviceRemovedError)) {
        PyErr_Clear();
        rc = 0;
    }
    *seen_serial = ctx->reports->serial;
    return rc;
}

PyObject *cqn_report_own_element(const cqn_report *report)
{
    cqn_object *element = report->element;
    return element != NULL && cqn_try_ref(element) ? (PyObject *)element : NULL;
}
