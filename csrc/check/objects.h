/* SPDX-License-Identifier: MIT */
/* The observer's data about the program's objects. Each kind is numbered from 1. */
#ifndef CQN_CHECK_OBJECTS_H
#define CQN_CHECK_OBJECTS_H

#include <assert.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "memory.h"
#include "site.h"
#include "timeline.h"

/* ---- contexts and channels (context.c) ----------------------------------------------------- */

struct context {
    struct ibv_context *ibv;
    struct ibv_context_ops ops; /* the provider's functions, like the next three */
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
    struct table qps; /* by qp_num */
    uint32_t number;
};

struct channel {
    struct channel *next; /* in the list of unused ones */
    struct ibv_comp_channel *ibv;
    struct cq *cqs;
    uint32_t number;
    int descriptor;
    uint32_t nothing_armed; /* the finding, while it holds */
    bool known_readable;    /* the program knows it, and has not read since; for chaos.c */
};

/* Removes an object from a list that contains it, linked by the member `link`. */
#define CQN_UNLINK(head, object, link)    \
    do {                                  \
        __typeof__(object) *place = head; \
        while (*place != (object))        \
            place = &(*place)->link;      \
        *place = (object)->link;          \
    } while (0)

/* Guards the lists of objects, not the objects. */
extern lock_t cqn_lists_lock;
extern struct cq *cqn_cqs;
extern struct qp *cqn_qps;
extern struct srq *cqn_srqs;
extern struct table cqn_objects HIDDEN; /* by the address of the program's object */

struct context *cqn_context(struct ibv_context *ibv); /* registers the context if needed */

static inline void *cqn_object(const void *ibv)
{
    return cqn_table_find(&cqn_objects, (uintptr_t)ibv);
}

/* The same of an object whose functions the observer has replaced: it is known until its end. */
static inline void *cqn_replaced(const void *ibv)
{
    void *object = cqn_object(ibv);
    assert(object);
    return object;
}

/* ---- completion queues (cq.c) -------------------------------------------------------------- */

/* The program's view of a CQ: the event that disarms it is read later than it is raised. If the CQ
 * is armed again in between, the event may belong to either arm. */
enum armed { NOT_ARMED, ARMED_SOLICITED, MAYBE_ARMED, ARMED };

/* A completion polled by a look; from any kind of CQ. */
struct kept {
    struct ibv_wc wc;
    uint64_t timestamp;
    uint64_t wallclock;
    struct ibv_wc_tm_info tm_info;
    uint32_t flow_tag;
    uint16_t cvlan;
};

struct cq {
    struct cq *next;       /* in cqn_cqs */
    struct cq *in_channel; /* the next of its channel */
    struct ibv_cq *ibv;
    struct context *context;
    struct channel *channel;
    struct cq_ex *ex; /* if it is an extended CQ */
    uint32_t number;
    uint32_t entries;

    /* The completions to return next, in this order. Guarded by the lock. */
    lock_t lock;
    struct kept *kept; /* a ring of `room`, `waiting` of them from `first` */
    uint32_t first, waiting, room;
    struct qp *last_qp; /* the QP of the last completion */
    bool held;          /* chaos.c emptied the last poll */

    /* Notification. Set by the thread that arms, gets an event or polls. */
    enum armed armed;
    uint32_t arms_since_event;
    bool was_armed;                /* ever */
    bool polled;                   /* since it was armed */
    bool emptied;                  /* a poll since it was armed reached the end */
    bool slept_unpolled;           /* after the previous arm */
    uint32_t in_flight_when_armed; /* if slept unpolled after the previous arm */

    uint32_t looks; /* that found completions since the program's last poll */
    uint32_t lost;  /* the finding of a lost wake-up, while it may be withdrawn */
    bool lost_stays;

    uint64_t arms, events, polls, acked, completions, sleeps;
    bool event_unpolled; /* no poll since the last event */
    uint64_t spurious;   /* events after which the poll found nothing */
    /* Signaled sends: posted, without the dropped ones; and ended, with the lock. The others are in
     * flight. */
    uint32_t sends_posted, sends_ended;

    /* The completions found by the last look, and the sleeping call. */
    uint32_t late_completions;
    const char *late_call;

    /* Findings reported once, and how often there was cause. */
    uint32_t late, late_times, not_polled, not_polled_times, not_polled_requests;
    uint32_t too_small, solicited_only, destroyed_qp, destroyed_qp_times, over_acked;
    struct site arm, poll, ack;
};

struct cq *cqn_cq_add(struct ibv_cq *ibv);
/* Keeps the completions that have arrived, unless another thread is polling. Returns whether any
 * are kept. */
bool cqn_cq_look(struct cq *cq);
void cqn_cq_fill(struct cq *cq);              /* with the lock: keeps all that have arrived */
struct kept *cqn_cq_next_kept(struct cq *cq); /* with the lock: removes the next; or NULL */
/* The program got `got` of the `asked` completions; one of them. Called with the lock. */
void cqn_cq_polled(struct cq *cq, int asked, int got, uint64_t time);
void cqn_cq_completed(struct cq *cq, const struct ibv_wc *wc, bool seen, uint64_t time);
void cqn_cq_event(struct ibv_cq *ibv, struct channel *channel);

static inline void cqn_cq_end_sends(struct cq *cq, uint32_t signaled)
{
    __atomic_store_n(&cq->sends_ended, cq->sends_ended + signaled, __ATOMIC_RELAXED);
}

/* ---- extended CQs (cq_ex.c) ----------------------------------------------------------------- */

void cqn_cq_ex_free(struct cq_ex *ex);
/* Reads a completion of the device with all its fields. Returns false if there is none. */
bool cqn_cq_ex_take(struct cq *cq, struct kept *kept);

/* ---- requests in flight (queue.c) ---------------------------------------------------------- */

/* The state of a signaled request in flight is 0; others have bits that no status has: see
 * run.h. */
enum request_state {
    REQUEST_DONE = 1 << 29, /* of an SRQ, whose requests end in any order */
    REQUEST_UNSIGNALED = 1 << 30,
};

/* Laid out like its completion if it succeeds: wr_id, status, opcode. */
struct request {
    uint64_t wr_id;
    uint32_t state;
    uint32_t kind; /* IBV_WC_RECV, or 0 for a send; above it, the number of keys */
};

enum { KEYS_SHIFT = 16 };

/* Requests from `head` to `tail`, modulo the size. A post holds `lock` and advances the tail; a
 * poll holds the CQ's lock, or an SRQ's `head_lock`, and advances the head. */
struct queue {
    struct request *requests; /* NULL: not tracked */
    uint32_t *keys;           /* `width` per request: the lkeys of its SGEs */
    uint32_t size;            /* a power of two */
    uint32_t width;
    uint32_t depth; /* the program's limit */
    uint32_t head, tail;
    lock_t lock;
};

void cqn_queue_init(struct queue *queue, uint32_t depth, uint32_t sges);
void cqn_queue_free(struct queue *queue);
void cqn_queue_take_back(struct queue *queue, uint32_t count);
/* Removes the requests that a completion ends. Returns the number of signaled ones. */
uint32_t cqn_queue_retire(struct queue *queue, uint64_t wr_id, bool failed);
int cqn_queue_retire_run(struct queue *queue, const struct ibv_wc *wc, int count);
bool cqn_queue_retire_any(struct queue *queue, uint64_t wr_id); /* for an SRQ */
uint32_t cqn_queue_clear(struct queue *queue);
bool cqn_queue_has(const struct queue *queue, uint64_t wr_id);
bool cqn_queue_frees_itself(const struct queue *queue); /* whether any request is signaled */
uint32_t cqn_queue_using(const struct queue *queue, uint32_t lkey, uint64_t *wr_id);

static inline uint32_t cqn_queue_count(const struct queue *queue)
{
    return __atomic_load_n(&queue->tail, __ATOMIC_RELAXED) -
           __atomic_load_n(&queue->head, __ATOMIC_RELAXED);
}

static inline struct request *cqn_queue_at(const struct queue *queue, uint32_t place)
{
    return &queue->requests[place & (queue->size - 1)];
}

/* Returns the next request, to be given its keys and then committed; or NULL. If the queue is full,
 * requests have ended unseen, and the oldest is dropped. */
static inline struct request *cqn_queue_next(struct queue *queue, uint64_t wr_id, uint32_t state,
                                             uint32_t kind)
{
    if (!queue->requests)
        return NULL;
    if (cqn_queue_count(queue) >= queue->size)
        __atomic_add_fetch(&queue->head, 1, __ATOMIC_RELAXED);
    struct request *request = cqn_queue_at(queue, queue->tail);
    *request = (struct request){wr_id, state, kind};
    return request;
}

/* Sets the lkeys of the next request. A request with more SGEs than the QP allows is refused
 * later. */
static inline void cqn_queue_set_keys(const struct queue *queue, struct request *request,
                                      const struct ibv_sge *sges, uint32_t count)
{
    uint32_t *keys = queue->keys + (size_t)(queue->tail & (queue->size - 1)) * queue->width;
    if (count > queue->width)
        count = queue->width;
    request->kind |= count << KEYS_SHIFT;
    for (uint32_t i = 0; i < count; i++)
        keys[i] = sges[i].lkey;
}

static inline void cqn_queue_commit(struct queue *queue)
{
    __atomic_store_n(&queue->tail, queue->tail + 1, __ATOMIC_RELEASE);
}

/* ---- queue pairs and shared receive queues (qp.c) ------------------------------------------ */

struct srq {
    struct srq *next;
    struct ibv_srq *ibv;
    struct context *context;
    uint32_t number;
    struct queue receives;
    uint32_t doubtful; /* earlier ones may have gone to a QP that has stopped since */
    lock_t head_lock;
    struct site post;
};

struct qp {
    struct qp *next;    /* in cqn_qps */
    struct ibv_qp *ibv; /* NULL: destroyed */
    struct context *context;
    struct cq *send_cq, *recv_cq;
    struct srq *srq;
    struct qp_ex *ex;
    uint32_t number;
    uint32_t qp_num;
    enum ibv_qp_state state; /* last set by the program */
    bool all_signaled;
    struct queue sends, receives;
    uint64_t posts;
    /* The finding of its first completion with an error, and the number of flushed ones after it.
     */
    uint32_t failed, failed_status, failed_vendor, failed_cq, flushed;
    uint64_t failed_wr_id;
    uint32_t reused, full; /* findings reported once */
    uint32_t chaos_status; /* drawn for its first flushed send; or 0 */
    struct site post_send, post_recv, destroy, failed_poll;
};

void cqn_qp_completed(struct cq *cq, const struct ibv_wc *wc);
/* The same for the leading completions that are successes of the same QP as the last one, in the
 * order of its requests. Returns their number. */
int cqn_qp_completed_run(struct cq *cq, const struct ibv_wc *wc, int count);
struct qp *cqn_qp_of(const struct cq *cq, uint32_t qp_num); /* or NULL */
/* Returns the number of requests in flight whose completions go to this CQ. */
uint32_t cqn_cq_in_flight(const struct cq *cq);
/* Requests in flight that use a region with this key, in a QP that is not in an error state. */
struct use {
    uint32_t requests, qp;
    uint64_t wr_id;
    struct site post;
};
void cqn_qp_context_closed(const struct context *context);
bool cqn_qp_find_use(const struct context *context, uint32_t lkey, struct use *use);

/* Shared by both ways of posting a send (qp.c, qp_ex.c). Called with the queue's lock. */
void cqn_qp_count_sends(struct qp *qp, uint32_t signaled);
void cqn_qp_drop_sends(struct qp *qp, uint32_t signaled);
void cqn_qp_sends_refused(struct qp *qp, int error, uint32_t refused);
void cqn_qp_ex_wrap(struct qp *qp, bool atomic_write);
void cqn_qp_ex_free(struct qp_ex *ex);

/* ---- sleep.c ------------------------------------------------------------------------------- */

void cqn_sleep_channel(int descriptor, struct channel *channel);
void cqn_sleep_no_channel(const struct channel *channel); /* removes all its descriptors */
void cqn_sleep_armed(struct cq *cq);
void cqn_sleep_polled(struct cq *cq);
void cqn_sleep_event(struct cq *cq);
/* Whether a signal has a handler that ends a sleep. A handler with SA_RESTART counts only if
 * `that_restarts`. */
bool cqn_sleep_has_handler(bool that_restarts);

/* ---- report.c: rules decided by several calls, or at the end -------------------------------- */

void cqn_report_over_acked(struct cq *cq);
void cqn_report_destroy_hangs(struct cq *cq);
void cqn_report_cq_end(struct cq *cq);
void cqn_report_not_polled(struct cq *cq);
void cqn_report_late(struct cq *cq);
const char *cqn_armed_text(enum armed armed);
void cqn_report_failed(struct qp *qp);
void cqn_report_qp_end(struct qp *qp);
void cqn_report_too_small(struct cq *cq, const struct qp *qp, uint32_t sends);
void cqn_report_full(struct qp *qp);
void cqn_report_reused(struct qp *qp, uint64_t wr_id, bool send, const struct site *post);
void cqn_report_destroyed(struct cq *cq, struct qp *qp);
void cqn_report_so_far(void); /* the sums, before a hang; with cqn_lists_lock */

#endif
