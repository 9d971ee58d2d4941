/* SPDX-License-Identifier: MIT */
/*
 * Contexts, channels and asynchronous events.
 *
 * The fast verbs are inline functions of <infiniband/verbs.h>, which call through tables in the
 * context. Each context has its own copy of the tables; the observer replaces their entries.
 */
#include <poll.h>
#include <stddef.h>

#include "chaos.h"
#include "hooks.h"
#include "ops.h"

lock_t cqn_lists_lock;
struct cq *cqn_cqs;
struct qp *cqn_qps;
struct srq *cqn_srqs;
struct table cqn_objects;
struct counts cqn_counts;

/* ---- contexts ------------------------------------------------------------------------------ */

/* Whether the library that created the context has this function. */
#define EXTENDED_HAS(verbs, function)                                              \
    ((verbs)->sz >= sizeof(*(verbs)) - offsetof(struct verbs_context, function) && \
     (verbs)->function)

static void replace_extended(struct context *context)
{
    struct verbs_context *verbs = verbs_get_ctx(context->ibv);
    if (!verbs)
        return;
    if (EXTENDED_HAS(verbs, create_cq_ex)) {
        context->create_cq_ex = verbs->create_cq_ex;
        verbs->create_cq_ex = cqn_op_create_cq_ex;
    }
    if (EXTENDED_HAS(verbs, create_qp_ex)) {
        context->create_qp_ex = verbs->create_qp_ex;
        verbs->create_qp_ex = cqn_op_create_qp_ex;
    }
    if (EXTENDED_HAS(verbs, create_srq_ex)) {
        context->create_srq_ex = verbs->create_srq_ex;
        verbs->create_srq_ex = cqn_op_create_srq_ex;
    }
}

/* Returns NULL if there is no memory. Such a context keeps its tables, since what is called through
 * them looks it up. */
static struct context *new_context(struct ibv_context *ibv)
{
    struct context *context = cqn_alloc(sizeof(*context));
    if (!context)
        return NULL;
    context->ibv = ibv;
    context->ops = ibv->ops;
    if (!cqn_table_put(&cqn_objects, (uintptr_t)ibv, context)) {
        cqn_free(context, sizeof(*context));
        return NULL;
    }
    context->number = ++cqn_counts.contexts;
    return context;
}

/* Libraries on top of libibverbs, such as libmlx5, open devices in other ways, so the first call
 * that passes a context registers it. Returns the context, or NULL. */
struct context *cqn_context(struct ibv_context *ibv)
{
    struct context *context = cqn_object(ibv);
    if (context || !ibv)
        return context;
    cqn_timeline_ready();
    cqn_lock(&cqn_lists_lock);
    context = cqn_object(ibv);
    if (!context && (context = new_context(ibv))) {
        ibv->ops.poll_cq = cqn_op_poll_cq;
        ibv->ops.req_notify_cq = cqn_op_req_notify_cq;
        ibv->ops.post_send = cqn_op_post_send;
        ibv->ops.post_recv = cqn_op_post_recv;
        ibv->ops.post_srq_recv = cqn_op_post_srq_recv;
        replace_extended(context);
    }
    cqn_unlock(&cqn_lists_lock);
    return context;
}

struct ibv_context *cqn_hook_ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *ibv = cqn_real.ibv_open_device(device);
    cqn_context(ibv);
    return ibv;
}

struct ibv_context *cqn_hook_ibv_import_device(int descriptor)
{
    struct ibv_context *ibv = cqn_real.ibv_import_device(descriptor);
    cqn_context(ibv);
    return ibv;
}

struct ibv_pd *cqn_hook_ibv_alloc_pd(struct ibv_context *ibv)
{
    cqn_context(ibv);
    return cqn_chaos_refuses(CHAOS_CREATE) ? NULL : cqn_real.ibv_alloc_pd(ibv);
}

int cqn_hook_ibv_close_device(struct ibv_context *ibv)
{
    struct context *context = cqn_object(ibv);
    if (context) {
        struct pollfd events = {.fd = ibv->async_fd, .events = POLLIN};
        if (cqn_real.poll(&events, 1, 0) > 0 && events.revents & POLLIN) {
            struct line line;
            cqn_finding_begin(&line, "async-unread");
            cqn_finding_value(&line, "context", context->number);
            cqn_finding_here(&line, "close");
            cqn_finding_end(&line, 0);
        }
        cqn_qp_context_closed(context);
        cqn_table_remove(&cqn_objects, (uintptr_t)ibv);
        cqn_free(context, sizeof(*context)); /* the table stays: another thread may read it */
    }
    return cqn_real.ibv_close_device(ibv);
}

/* ---- asynchronous events ------------------------------------------------------------------- */

static uint32_t number_of(const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
        const struct cq *cq = cqn_object(event->element.cq);
        return cq ? cq->number : 0;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
        const struct qp *qp = cqn_object(event->element.qp);
        return qp ? qp->number : 0;
    }
    default:
        return 0;
    }
}

static void report_overflow(const struct cq *cq)
{
    struct line line;
    cqn_finding_begin(&line, "cq-overflow");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "entries", cq->entries);
    cqn_finding_site(&line, "poll", &cq->poll);
    cqn_finding_end(&line, 0);
}

int cqn_hook_ibv_get_async_event(struct ibv_context *ibv, struct ibv_async_event *event)
{
    if (cqn_chaos_async(event))
        return 0;
    int result = cqn_real.ibv_get_async_event(ibv, event);
    if (result == 0) {
        RECORD(.what = RECORD_ASYNC_EVENT, .object = number_of(event),
               .detail = (uint32_t)event->event_type);
        if (event->event_type == IBV_EVENT_CQ_ERR) {
            const struct cq *cq = cqn_object(event->element.cq);
            if (cq)
                report_overflow(cq);
        }
    }
    return result;
}

/* ---- channels ------------------------------------------------------------------------------ */

/* A thread that sleeps on a channel while it is destroyed reads this memory when it wakes, so the
 * memory is reused only for channels. */
static struct channel *spare_channels;

static struct channel *new_channel(void)
{
    cqn_lock(&cqn_lists_lock);
    struct channel *channel = spare_channels;
    if (channel)
        spare_channels = channel->next;
    cqn_unlock(&cqn_lists_lock);
    if (!channel)
        return cqn_alloc(sizeof(*channel));
    *channel = (struct channel){0};
    return channel;
}

static void keep_spare(struct channel *channel)
{
    cqn_lock(&cqn_lists_lock);
    channel->next = spare_channels;
    spare_channels = channel;
    cqn_unlock(&cqn_lists_lock);
}

struct ibv_comp_channel *cqn_hook_ibv_create_comp_channel(struct ibv_context *ibv)
{
    cqn_context(ibv);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    struct ibv_comp_channel *created = cqn_real.ibv_create_comp_channel(ibv);
    struct channel *channel = created ? new_channel() : NULL;
    if (!channel)
        return created;
    if (!cqn_table_put(&cqn_objects, (uintptr_t)created, channel)) {
        keep_spare(channel);
        return created;
    }
    channel->ibv = created;
    channel->descriptor = created->fd;
    channel->number = __atomic_add_fetch(&cqn_counts.channels, 1, __ATOMIC_RELAXED);
    cqn_sleep_channel(channel->descriptor, channel);
    RECORD(.what = RECORD_CHANNEL_CREATED, .object = channel->number,
           .number = (uint32_t)channel->descriptor);
    return created;
}

int cqn_hook_ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    struct channel *channel = cqn_object(ibv);
    int descriptor = ibv->fd;
    if (channel)
        cqn_sleep_no_channel(channel); /* before another thread can get the number */
    int result = cqn_real.ibv_destroy_comp_channel(ibv);
    if (!channel)
        return result;
    if (result != 0) {
        cqn_sleep_channel(descriptor, channel);
        return result;
    }
    RECORD(.what = RECORD_CHANNEL_DESTROYED, .object = channel->number);
    cqn_table_remove(&cqn_objects, (uintptr_t)ibv);
    keep_spare(channel);
    return result;
}
