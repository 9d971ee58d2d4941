/* SPDX-License-Identifier: MIT */
/*
 * What a channel and a CQ are, below their types in verbs/: their events, and the way of
 * completions from the device to Python.
 *
 *   events.c           the events of a channel: arming, reading, counting, acknowledging
 *   fetch.c            completions from the device to the awaitables or the stash; spinning
 *   spin.c             how long a wait spins if it is to find that out itself
 *   stash.c            completions that were fetched and not handed out
 *   to_python.c        from the stash to Python, for poll()
 *   wc.c               WorkCompletion: the type, and making one; a completion as a row
 *   wc_array.c         WCArray: the type
 *   counters.h         what a CQ counts
 *
 * And what a device reports besides completions (reports.h):
 *
 *   reports.c          the reports of a context, and which channels and CQs a failure affects
 *   failures.c         telling waiters of failures; FailureWatch, the type
 *   async_event.c      AsyncEvent: the type; handing reports out
 */
#ifndef CQN_CQ_H
#define CQN_CQ_H

#include "notify/counters.h"
#include "notify/spin.h"
#include "work/queue.h"

/* A completion channel. The first part is for threads that sleep in get_event(), the second one
 * for the event loop that reads the channel's events instead. */
struct cqn_channel {
    cqn_object base;
    cqn_wait_queue wait_queue;
    cqn_cq *late;            /* CQs with events that could not be returned, weak */
    uint64_t failure_serial; /* serial of the latest failure that affects it */
    uint64_t seen_serial;    /* and of the latest that a waiter here has seen */
    uint64_t timeouts;       /* waits that ended without an event: one may have been lost */
    bool transient_errors;   /* its waits end for failures that may pass, too */

    /* For the engines of its CQs, see await/await.h; the references are strong. */
    PyObject *loop;     /* the loop that reads its events, as cqnotify.aio has it; or NULL */
    PyObject *raw_loop; /* the same of asyncio itself, or NULL */
    PyObject *done;     /* a future of that with a result */
    PyObject *on_fail;  /* what to call with an error that ends the reading */
    int until_more;     /* callbacks, until one reads more than one event */
    uint64_t iteration; /* of the thread's loops, in which that was last seen to read */
    int64_t event_at;   /* when the event was read for which tasks are listed now; or 0 */
    cqn_engine
        *busy; /* engines with tasks that wait: held, since often only their tasks refer to them */
};

/* Fields of extended completions that ibv_wc lacks; beside each ibv_wc in an array of their own. */
struct cqn_wc_extra {
    uint64_t timestamp, wallclock_ns;
    uint64_t tm_tag;
    uint32_t tm_priv, flow_tag;
    uint16_t cvlan, reserved;
    uint32_t valid; /* of a WorkCompletion: which of these are; else 0 */
};
_Static_assert(sizeof(cqn_wc_extra) == 40, "there are no gaps: it is compared as bytes");

#define CQN_WC_EX_EXTRA                                                                     \
    (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | \
     IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define CQN_WC_EX_KNOWN (IBV_WC_STANDARD_FLAGS | CQN_WC_EX_EXTRA)

/* Whether the completion is that of a message with a tag. */
static inline bool cqn_wc_has_tag(const struct ibv_wc *wc)
{
    return wc->opcode == IBV_WC_TM_RECV || wc->opcode == IBV_WC_TM_NO_TAG;
}

typedef struct cqn_stash_index cqn_stash_index;

/* Completions that threads fetch without the GIL, see fetch.c. */
typedef struct cqn_spin_buffer cqn_spin_buffer;

/* The counters of the closed CQs of one name, see verbs/closed_counters.c. */
typedef struct cqn_closed_counters cqn_closed_counters;

/* A wait is for the completion of an own request or for a peer's message: the time of the one says
 * nothing about the other. */
typedef enum { CQN_SPIN_FOR_OWN, CQN_SPIN_FOR_PEER, CQN_SPIN_KINDS } cqn_spin_kind;

/* For what a CQ raises an event; each includes those before it. */
typedef enum { CQN_UNARMED, CQN_ARMED_SOLICITED, CQN_ARMED } cqn_armed;

/* A completion queue: its events, which a channel brings, and its completions, from the device to
 * the stash. Each event that was read must be acknowledged once (`unacked`), or the CQ can't be
 * destroyed. */
struct cqn_cq {
    cqn_object base;
    cqn_channel *channel; /* borrowed from `uses`, or NULL */
    PyObject *user_data;
    PyObject *name;     /* a str, empty if it was given none */
    cqn_engine *engine; /* that its completions go to, weak; or NULL */
    size_t flushing;    /* its queues that were moved to an error state and are not empty */
    int comp_vector;
    unsigned int unacked;    /* events that were read and not yet acked */
    unsigned int prepaid;    /* those of them that were acked in advance */
    unsigned int dispatched; /* those of them that were read for the engine */
    unsigned int late;       /* events that came while it was being destroyed */
    cqn_cq *late_next;
    bool event_unpolled;   /* an event came, and no poll since */
    bool marked;           /* while the CQs that a failure affects are collected */
    cqn_armed armed;       /* until its event is read, or a wait ends without one */
    uint64_t armed_at;     /* of the channel's timeouts */
    cqn_wr_queue *orphans; /* the queues whose queue pair is gone, see fetch.c */
    struct ibv_cq_ex *ex;  /* the handle if it is an extended CQ, else NULL */
    uint32_t wc_flags;     /* what its completions have, see WCExFlags */

    /* The stash: completions that were fetched from the device and not yet returned. Entries from
     * stash_head on, stash_len of them with the holes; memory that is not in use is zeroed. */
    struct ibv_wc *stash;
    cqn_wc_extra *extra; /* of the stash, element by element, or NULL */
    size_t stash_head, stash_len, stash_capacity;
    size_t holes;                 /* inside it: never the first or the last */
    uint64_t popped;              /* from its front, less those that were put back */
    cqn_stash_index *index;       /* by wr_id, or NULL: see stash.c */
    cqn_spin_buffer *spin_buffer; /* NULL until a thread spins */

    uint64_t fetched_before;              /* the latest event */
    cqn_closed_counters *closed_counters; /* of the CQs of its name; the context's */
    cqn_counts stats;
    cqn_histogram *histograms[CQN_HISTOGRAMS]; /* NULL: nothing was added */
};

/* For tests: the limits of the estimates, and how often threads that spun have polled; or None. */
PyObject *cqn_cq_get_spin(PyObject *cq, void *unused);

/* events.c */

/* Reads an event, and counts it on its CQ. Returns that CQ, as a new reference; NULL without an
 * exception: there is no event. */
PyObject *cqn_channel_read_event(cqn_channel *self, struct ibv_comp_channel *channel);

/* The list of CQs that have events which are not in the channel. It holds no reference: a CQ
 * leaves it before it is destroyed. */
void cqn_channel_add_late(cqn_channel *channel, cqn_cq *cq);
void cqn_channel_drop_late(cqn_channel *channel, const cqn_cq *cq);

/* Acknowledges n of the events that were counted, at most `unacked`. */
void cqn_cq_ack(cqn_cq *cq, unsigned int n);

/* An event was read for the engine, which owes its acknowledgement; many are acknowledged at
 * once. */
void cqn_cq_dispatched(cqn_cq *cq);
void cqn_cq_ack_dispatched(cqn_cq *cq);

/* Counts the completions since the latest event, which are all that it has brought. */
void cqn_cq_event_is_over(cqn_cq *cq);

/* Whether the CQ is known to be armed for that: for all events, or for solicited ones at least. */
bool cqn_cq_is_armed(const cqn_cq *cq, bool solicited_only);

/* Arms a CQ that has a channel. -1 with an exception. */
int cqn_cq_arm(cqn_cq *cq, bool solicited_only);

/* fetch.c */

/* These functions fetch completions from the device, route them, and put the references that their
 * requests held into `deferred`. -1 with an exception. This one fetches until the CQ is empty. */
int cqn_cq_drain(cqn_cq *cq, cqn_object **deferred);

/* Fetches a few, which is enough to know whether there are any. */
int cqn_cq_poll_few(cqn_cq *cq, cqn_object **deferred);

/* Fetches a few into the stash, which loses nothing, and counts no poll: for the text of an error.
 * Whether there may be more. */
bool cqn_cq_peek(cqn_cq *cq, cqn_object **deferred);

/* Fetches until the stash holds `want`, or the device has no more. A failure of the device is
 * raised when the stash is empty. */
int cqn_cq_fetch(cqn_cq *cq, size_t want, cqn_object **deferred);

/* Polls the device once, for up to n. Returns how many came; *more: there may be others. */
int cqn_cq_poll_once(cqn_cq *cq, size_t n, bool *more, cqn_object **deferred);

/* Spins for so many ns, or until something is in the stash or a task is to be woken; with `any`
 * until any completion came, even that of the task which is running. */
int cqn_cq_spin(cqn_cq *cq, size_t want, int64_t ns, bool any, cqn_object **deferred);

/* After a fetch: spins if there is nothing, for so many ns, or by CQN_SPIN_AUTO as the estimate
 * says. */
int cqn_cq_spin_after_fetch(cqn_cq *cq, size_t want, int64_t spin, cqn_object **deferred);

/* Does both, and drops the references itself, so any code may have run after it. */
int cqn_cq_fetch_or_spin(cqn_cq *cq, size_t want, int64_t spin);

/* Between these a wait spins by the estimate of its kind, see spin.h: for so many ns; 0: not at
 * all; -1 with an exception. The second is called only if the first gave a limit. */
int64_t cqn_cq_spin_begin(cqn_cq *cq, cqn_spin_kind kind);
void cqn_cq_spin_end(cqn_cq *cq, cqn_spin_kind kind, int64_t limit, bool found, int64_t took);

/* Takes over the queue of a queue pair that is gone, since completions of it may still come. */
void cqn_cq_inherit(cqn_cq *cq, cqn_wr_queue *queue);

/* Frees the stash and all that polling needs: the CQ is closed. */
void cqn_cq_forget_completions(cqn_cq *cq);

/* stash.c */
int cqn_stash_grow(cqn_cq *self, size_t n);
/* Makes sure that n more fit behind what it holds. */
static inline int cqn_stash_reserve(cqn_cq *self, size_t n)
{
    if (self->stash_len == 0) {
        self->stash_head = 0;
    }
    return self->stash_head + self->stash_len + n <= self->stash_capacity ? 0
                                                                          : cqn_stash_grow(self, n);
}

/* Drops the first n completions, which were returned. */
void cqn_stash_drop(cqn_cq *self, size_t n);

/* Closes the holes, after which places have changed. */
void cqn_stash_pack(cqn_cq *self);
void cqn_stash_free(cqn_cq *self);
#define CQN_HOLE INT32_MAX /* as status: see stash.c */
static inline bool cqn_stash_is_hole(const struct ibv_wc *wc)
{
    return (int)wc->status == CQN_HOLE;
}
/* The key of a completion in tables, by its wr_id and its queue pair. */
static inline uint64_t cqn_wc_key(uint64_t wr_id, uint32_t qp_num)
{
    return wr_id ^ (qp_num + UINT64_C(1)) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* How many it holds. */
static inline size_t cqn_stash_len(const cqn_cq *self)
{
    return self->stash_len - self->holes;
}

/* Finds a completion by its wr_id, of that queue pair or, NULL, of any. */
bool cqn_stash_has(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp);
bool cqn_stash_pop(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, struct ibv_wc *wc,
                   cqn_wc_extra *extra);

/* Makes a completion that its task did not get the first one again. Without memory it is lost,
 * which is reported. */
void cqn_stash_put_back(cqn_cq *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* to_python.c */

/* Pops up to `max` completions off the stash: a new list of WorkCompletions. No completion leaves
 * the stash before its object was made. */
PyObject *cqn_cq_pop_wcs(cqn_cq *cq, uint64_t max);

/* The same as wr_ids, up to the first that failed; if that is the first of all, it is raised. */
PyObject *cqn_cq_pop_ids(cqn_cq *cq, size_t max);

/* The same as rows of a WCArray; returns how many, as an int. */
PyObject *cqn_cq_pop_rows(cqn_cq *cq, PyObject *array);

/* wc_array.c */

/* Registers the type with collections.abc. -1 with an exception. */
int cqn_wc_array_init(cqn_state *st);
size_t cqn_wc_array_free_rows(PyObject *array);
void cqn_wc_array_set(PyObject *array, const struct ibv_wc *wcs, size_t n);

/* Around filling an array under half of the lock. False: a thread under the other half is filling
 * it, so that this one needs all of the lock. */
#ifdef Py_GIL_DISABLED
bool cqn_wc_array_enter(PyObject *array);
void cqn_wc_array_leave(PyObject *array);
#else
static inline bool cqn_wc_array_enter(const PyObject *array)
{
    (void)array;
    return true;
}
static inline void cqn_wc_array_leave(const PyObject *array)
{
    (void)array;
}
#endif

/* wc.c. The highest byte of wc_flags is the core's: which fields are missing, and whether the
 * message came in on a UD queue pair. Where the flags say so, imm_data is in host order from
 * fetch.c on. */
#define CQN_WC_DATAGRAM (1u << 31)
#define CQN_WC_LACKS(wc_ex_flags) ((uint32_t)(wc_ex_flags) << 24)
#define CQN_WC_OURS 0xff000000u

/* Which optional fields a completion has, as bits of IBV_WC_EX_WITH_*. */
uint32_t cqn_wc_fields(const struct ibv_wc *raw);

/* A completion as WCArray shows it, and as it is compared and pickled: what is not valid is 0. */
typedef struct {
    uint64_t wr_id;
    uint32_t status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
    uint16_t fields; /* which of these are valid, as in WCExFlags */
} cqn_wc_row;
_Static_assert(sizeof(cqn_wc_row) == 48, "there are no gaps");

cqn_wc_row cqn_wc_row_of(const struct ibv_wc *wc);
struct ibv_wc cqn_wc_of_row(const cqn_wc_row *row);

/* The struct behind a WorkCompletion, borrowed; NULL with TypeError, which names the argument. */
const struct ibv_wc *cqn_wc_raw(const cqn_state *st, PyObject *wc, const char *name);

/* Called before the first one is made, so that no Python code runs, or fails, where completions are
 * made. -1 with an exception. */
int cqn_wc_prepare(cqn_state *st);

/* A new WorkCompletion. `extra` may be NULL; `extra_fields` says which of its fields are valid. */
PyObject *cqn_wc_new(cqn_state *st, const struct ibv_wc *raw, const cqn_wc_extra *extra,
                     uint32_t extra_fields);

/* Makes WorkCompletions of as many of n completions, from the first on, as have succeeded and are
 * alike except for their wr_ids, in the memory of dropped ones. Returns how many; 0: the first one
 * must be made by cqn_wc_new(). For completions without `extra` only. */
size_t cqn_wc_new_run(cqn_state *st, const struct ibv_wc *wcs, size_t n, PyObject **items);

/* Frees the memory that was kept of WorkCompletions, before their type goes. */
void cqn_wc_clear_freelist(cqn_state *st);
extern PyType_Spec cqn_wc_spec, cqn_wc_array_spec;

#endif
