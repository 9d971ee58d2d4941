/* SPDX-License-Identifier: MIT */
/*
 * Reading events: each is fetched, copied and acknowledged in one go, under the lock.
 *
 * rdma_destroy_id() waits until all fetched events of the identifier are acknowledged. No other
 * thread runs between fetching and acknowledging, so it never waits for an event of ours. An event
 * moves the identifier to its next state here, before any program sees it, so calls of other
 * threads are checked against the state that the library has.
 */

#include "cm/cm.h"
#include <errno.h>

/* Returns the state that an event leads to; CQN_CM_STATES: the state does not change. */
static cqn_cm_state state_after(const cqn_cm_id *id, enum rdma_cm_event_type type)
{
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        return CQN_CM_ADDR_RESOLVED;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return CQN_CM_ROUTE_RESOLVED;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        return CQN_CM_RESPONDED;
    case RDMA_CM_EVENT_MULTICAST_JOIN:
    case RDMA_CM_EVENT_ESTABLISHED:
        return id->state == CQN_CM_DISCONNECTING ? CQN_CM_STATES : CQN_CM_ESTABLISHED;
    case RDMA_CM_EVENT_DISCONNECTED:
        return CQN_CM_DISCONNECTED;
    case RDMA_CM_EVENT_UNREACHABLE: /* only a hint if established */
        return id->state < CQN_CM_ESTABLISHED ? CQN_CM_FAILED : CQN_CM_STATES;
    case RDMA_CM_EVENT_ADDR_ERROR: /* the address can be resolved again */
        return CQN_CM_BOUND;
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return CQN_CM_FAILED;
    default:
        return CQN_CM_STATES;
    }
}

/* Copies everything that the library owns only until the acknowledgement. */
static void copy_event(cqn_cm_event *event, const struct rdma_cm_event *raw)
{
    const bool is_request = raw->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    const struct rdma_cm_id *owner = is_request ? raw->listen_id : raw->id;
    const void *data;
    event->next = NULL;
    event->owner = owner->context;
    event->request = is_request ? raw->id : NULL;
    event->type = raw->event;
    event->status = raw->status;
    event->datagrams = owner->ps == RDMA_PS_UDP;
    if (event->datagrams) {
        event->ud = raw->param.ud;
        data = raw->param.ud.private_data;
        event->private_len = data == NULL ? 0 : raw->param.ud.private_data_len;
    }
    else {
        event->conn = raw->param.conn;
        data = raw->param.conn.private_data;
        event->private_len = data == NULL ? 0 : raw->param.conn.private_data_len;
    }
    if (event->private_len > 0) {
        memcpy(event->private_data, data, event->private_len);
    }
}

/* A request that nothing will answer is rejected: the peer gets a REJECTED. */
void cqn_cm_drop_event(cqn_cm_event *event)
{
    if (event->request != NULL) {
        (void)CQN_CM_CALLED(cqn_cm.destroy_id(event->request));
    }
    PyMem_Free(event);
}

/* On iWARP the kernel itself moves the queue pair to RTS, and libibverbs is not notified. */
static void note_established(const cqn_cm_id *owner)
{
    cqn_qp *qp = (cqn_qp *)owner->base.uses[1];
    if (qp != NULL && qp->state < IBV_QPS_RTS && cqn_cm_is_iwarp(owner)) {
        qp->state = IBV_QPS_RTS;
    }
}

static void queue_event(cqn_cm_channel *self, cqn_cm_event *event)
{
    cqn_cm_id *owner = event->owner;
    if (owner->base.handle == NULL) { /* another thread is destroying it */
        cqn_cm_drop_event(event);
        return;
    }
    const cqn_cm_state next = state_after(owner, event->type);
    if (next != CQN_CM_STATES) {
        owner->lost = next == CQN_CM_FAILED && owner->state >= CQN_CM_ESTABLISHED;
        owner->state = (uint8_t)next;
    }
    if (next == CQN_CM_ESTABLISHED) {
        note_established(owner);
    }
    *(self->last != NULL ? &self->last->next : &self->first) = event;
    self->last = event;
}

/* Returns 1 if an event was read, 0 if there was none, -1 with an exception. Memory is allocated
 * before anything is read. */
static int read_cm_event(cqn_cm_channel *self)
{
    struct rdma_cm_event *raw;
    cqn_cm_event *event = PyMem_Malloc(sizeof(*event));
    if (event == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (CQN_CM(get_cm_event, self->root.base.handle, &raw) != 0) {
        const int err = errno;
        PyMem_Free(event);
        if (err == EAGAIN || err == EINTR) {
            return 0;
        }
        cqn_verbs_error(self->root.base.state, err, "rdma_get_cm_event", "");
        return -1;
    }
    copy_event(event, raw);
    cqn_cm.ack_cm_event(raw);
    queue_event(self, event);
    return 1;
}

int cqn_cm_drain(cqn_cm_channel *self, size_t max)
{
    int rc = 1;
    while (rc > 0 && max-- > 0) {
        rc = read_cm_event(self);
    }
    return rc < 0 ? -1 : 0;
}

void cqn_cm_forget_events(cqn_cm_channel *self, const cqn_cm_id *owner)
{
    cqn_cm_event **place = &self->first;
    self->last = NULL;
    while (*place != NULL) {
        cqn_cm_event *event = *place;
        if (owner == NULL || event->owner == owner) {
            *place = event->next;
            cqn_cm_drop_event(event);
        }
        else {
            self->last = event;
            place = &event->next;
        }
    }
}
