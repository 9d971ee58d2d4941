/* SPDX-License-Identifier: MIT */
/*
 * Channels and CQs below their types in verbs/: their events, and the way of completions from the
 * device to Python.
 *
 *   events.c           the events of a channel: arming, reading, counting, acknowledging
 *   fetch.c            completions from the device to the awaitables or the stash; spinning
 *   reads.c            RDMA reads that rxe reports as successful without their data
 *   spin.c             the estimate of how long a wait spins with spin="auto"
 *   stash.c            completions that were read from the device but not returned yet
 *   to_python.c        from the stash to Python, for poll()
 *   wc.c               WorkCompletion: the type, and its creation; a completion as a row
 *   wc_array.c         WCArray: the type
 *   counters.h         the counters of a CQ
 *
 * The device's asynchronous events (reports.h):
 *
 *   reports.c          the reports of a context, and which channels and CQs a failure affects
 *   failures.c         notification of failures; FailureWatch, the type
 *   async_event.c      AsyncEvent: the type; returning reports
 */
#ifndef CQN_CQ_H
#define CQN_CQ_H

#include "notify/counters.h"
#include "notify/spin.h"
#include "work/queue.h"

/* A completion channel. The first fields are for threads that sleep in get_event(), the others for
 * an event loop that reads the channel's events instead. */
struct cqn_channel {
    cqn_object base;
    cqn_wait_queue wait_queue;
    cqn_cq *late;            /* CQs with late events, see events.c; weak */
    uint64_t failure_serial; /* serial of the latest failure that affects this channel */
    uint64_t seen_serial;    /* serial of the latest failure that a waiter here has seen */
    uint64_t timeouts;       /* waits that ended without an event: one may be lost */
    bool transient_errors;   /* transient failures end its waits, too */

    /* For the engines of its CQs, see await/await.h; strong references. */
    PyObject *loop;     /* the loop that reads its events, as cqnotify.aio knows it; or NULL */
    PyObject *raw_loop; /* the asyncio loop behind it, or NULL */
    PyObject *done;     /* a finished future of raw_loop */
    PyObject *on_fail;  /* called with an error that ends the reading */
    int until_more;     /* callbacks until one reads more than one event */
    uint64_t iteration; /* the thread's loop iteration in which it was last read */
    int64_t event_at;   /* when the event was read whose tasks are being listed; or 0 */
    cqn_engine
        *busy; /* engines with waiting tasks; strong, since often only their tasks refer to them */
};

/* Fields of extended completions that ibv_wc lacks, in an array beside the ibv_wcs. */
struct cqn_wc_extra {
    uint64_t timestamp, wallclock_ns;
    uint64_t tm_tag;
    uint32_t tm_priv, flow_tag;
    uint16_t cvlan, reserved;
    uint32_t valid; /* for a WorkCompletion: the valid fields; otherwise 0 */
};
_Static_assert(sizeof(cqn_wc_extra) == 40, "there are no gaps: it is compared as bytes");

#define CQN_WC_EX_EXTRA                                                                     \
    (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | \
     IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define CQN_WC_EX_KNOWN (IBV_WC_STANDARD_FLAGS | CQN_WC_EX_EXTRA)

/* Whether the completion belongs to a tagged message. */
static inline bool cqn_wc_has_tag(const struct ibv_wc *wc)
{
    return wc->opcode == IBV_WC_TM_RECV || wc->opcode == IBV_WC_TM_NO_TAG;
}

typedef struct cqn_stash_index cqn_stash_index;

/* Completions read from the device without the GIL, see fetch.c. */
typedef struct cqn_spin_buffer cqn_spin_buffer;

/* The counters of the closed CQs of one name, see verbs/closed_counters.c. */
typedef struct cqn_closed_counters cqn_closed_counters;

/* A wait is for the completion of an own request or for a peer's message; the two have separate
 * estimates, because their durations are unrelated. */
typedef enum { CQN_SPIN_FOR_OWN, CQN_SPIN_FOR_PEER, CQN_SPIN_KINDS } cqn_spin_kind;

/* The completions for which a CQ raises an event; each value includes the one before it. */
typedef enum { CQN_UNARMED, CQN_ARMED_SOLICITED, CQN_ARMED } cqn_armed;

/* A completion queue: its events, which arrive on a channel, and its completions, from the device
 * to the stash. Each event that was read must be acknowledged once (`unacked`), or the CQ cannot be
 * destroyed. */
struct cqn_cq {
    cqn_object base;
    cqn_channel *channel; /* borrowed from `uses`, or NULL */
    PyObject *user_data;
    PyObject *name;     /* a str, possibly empty */
    cqn_engine *engine; /* receives its completions; weak; or NULL */
    size_t flushing;    /* nonempty WR queues of QPs in an error state */
    int comp_vector;
    unsigned int unacked;    /* events read but not acknowledged */
    unsigned int prepaid;    /* of those: acknowledged in advance */
    unsigned int dispatched; /* of those: read for the engine */
    unsigned int late;       /* events that arrived while it was being destroyed, or of the core */
    cqn_cq *late_next;
    bool event_unpolled;   /* an event was read, and no poll followed */
    bool marked;           /* used while affected CQs are collected */
    cqn_armed armed;       /* until its event is read, or a wait ends without one */
    uint64_t armed_at;     /* value of the channel's `timeouts` then */
    cqn_wr_queue *orphans; /* WR queues of destroyed QPs, see fetch.c */
    struct ibv_cq_ex *ex;  /* the handle of an extended CQ, or NULL */
    uint32_t wc_flags;     /* fields of its completions, see WCExFlags */

    /* The stash: completions that were read from the device but not returned yet. It begins at
     * stash_head and has stash_len entries, including holes; unused memory is zeroed. */
    struct ibv_wc *stash;
    cqn_wc_extra *extra; /* entries beside those of the stash, or NULL */
    size_t stash_head, stash_len, stash_capacity;
    size_t holes;                 /* inside the stash, never at either end */
    uint64_t popped;              /* entries removed from the front, minus those put back */
    cqn_stash_index *index;       /* by wr_id, or NULL: see stash.c */
    cqn_spin_buffer *spin_buffer; /* NULL until a thread spins */

    uint64_t fetched_before;              /* value of stats.fetched at the latest event */
    cqn_closed_counters *closed_counters; /* shared by CQs of this name; owned by the context */
    cqn_counts stats;
    cqn_histogram *histograms[CQN_HISTOGRAMS]; /* NULL: empty */
};

/* For tests: the current spin limits, and how often spinning threads polled; or None. */
PyObject *cqn_cq_get_spin(PyObject *cq, void *unused);

/* events.c */

/* Reads an event and counts it on its CQ. Returns the CQ as a new reference; NULL without an
 * exception if there is no event, or with VerbsError. */
PyObject *cqn_channel_read_event(cqn_channel *self, struct ibv_comp_channel *channel);

/* The list of CQs with events that are not in the channel. It holds no references: a CQ leaves it
 * before it is destroyed. */
void cqn_channel_add_late(cqn_channel *channel, cqn_cq *cq);
void cqn_channel_drop_late(cqn_channel *channel, const cqn_cq *cq);
/* Adds an event of the core's own to the channel. */
void cqn_cq_add_event(cqn_cq *self);

/* Acknowledges n counted events, at most `unacked`. */
void cqn_cq_ack(cqn_cq *cq, unsigned int n);

/* The first function counts an event as read for the engine, which owes its acknowledgement; the
 * second one acknowledges all of these at once. */
void cqn_cq_dispatched(cqn_cq *cq);
void cqn_cq_ack_dispatched(cqn_cq *cq);

/* Records the number of completions since the latest event. */
void cqn_cq_event_is_over(cqn_cq *cq);

/* Whether the CQ is known to be armed, for any completion or at least for solicited ones. */
bool cqn_cq_is_armed(const cqn_cq *cq, bool solicited_only);

/* Arms a CQ that has a channel. Returns -1 with an exception. */
int cqn_cq_arm(cqn_cq *cq, bool solicited_only);

/* From now on the CQ is not known to be armed. */
void cqn_cq_forget_arming(cqn_cq *cq);

/* Whether the device is Soft-RoCE. */
static inline bool cqn_is_rxe(const cqn_object *self)
{
    return self->context->attr.vendor_id == CQN_RXE_VENDOR;
}

/* reads.c */

/* Changes the status of reads whose data may not be there, among n completions just read from the
 * device. `ahead` are the device's next ones, or NULL if they are not known. Returns whether they
 * are needed: then it must be called again with them. Only for rxe. */
bool cqn_cq_check_reads(const cqn_cq *cq, struct ibv_wc *wcs, size_t n, const struct ibv_wc *ahead,
                        size_t n_ahead);

/* Records whether the device has moved a queue pair to ERR, before this process moves it there,
 * resets or destroys it: afterwards the state does not show that. */
void cqn_qp_record_failure(cqn_qp *qp);

/* fetch.c */

/* These functions read completions from the device, route them, and put the references that their
 * work requests held into `deferred`. They return -1 with an exception. This one reads until the CQ
 * is empty. */
int cqn_cq_drain(cqn_cq *cq, cqn_object **deferred);

/* Reads a few completions, enough to know whether there are any. */
int cqn_cq_poll_few(cqn_cq *cq, cqn_object **deferred);

/* Reads a few completions into the stash without counting a poll, for the text of an error. Returns
 * whether there may be more. */
bool cqn_cq_peek(cqn_cq *cq, cqn_object **deferred);

/* Reads until the stash has `want` completions or the device has no more. An error of the device is
 * raised only while the stash is empty. */
int cqn_cq_fetch(cqn_cq *cq, size_t want, cqn_object **deferred);

/* Polls the device once, for up to n completions. Returns their number; *more: there may be
 * others. */
int cqn_cq_poll_once(cqn_cq *cq, size_t n, bool *more, cqn_object **deferred);

/* Spins for up to ns, until something is in the stash or a task is to be woken; with `any` until
 * any completion arrives, even one for the running task. */
int cqn_cq_spin(cqn_cq *cq, size_t want, int64_t ns, bool any, cqn_object **deferred);

/* After a fetch that found nothing: spins for up to `spin` ns, or by the estimate if it is
 * CQN_SPIN_AUTO. */
int cqn_cq_spin_after_fetch(cqn_cq *cq, size_t want, int64_t spin, cqn_object **deferred);

/* Does both and releases the references, so arbitrary code may have run when it returns. */
int cqn_cq_fetch_or_spin(cqn_cq *cq, size_t want, int64_t spin);

/* Brackets for a wait that spins by the estimate of its kind, see spin.h. The first returns the
 * limit in ns, 0 for no spinning, or -1 with an exception; the second is called only after a
 * limit. */
int64_t cqn_cq_spin_begin(cqn_cq *cq, cqn_spin_kind kind);
void cqn_cq_spin_end(cqn_cq *cq, cqn_spin_kind kind, int64_t limit, bool found, int64_t took);

/* Takes ownership of the WR queue of a destroyed queue pair, since completions of it may still
 * arrive. */
void cqn_cq_inherit(cqn_cq *cq, cqn_wr_queue *queue);

/* Frees the stash and everything used for polling, after the CQ was closed. */
void cqn_cq_forget_completions(cqn_cq *cq);

/* stash.c */
int cqn_stash_grow(cqn_cq *self, size_t n);
/* Makes space for n entries after the last one. Returns -1 with MemoryError. */
static inline int cqn_stash_reserve(cqn_cq *self, size_t n)
{
    if (self->stash_len == 0) {
        self->stash_head = 0;
    }
    return self->stash_head + self->stash_len + n <= self->stash_capacity ? 0
                                                                          : cqn_stash_grow(self, n);
}

/* Removes the first n completions, which were returned. */
void cqn_stash_drop(cqn_cq *self, size_t n);

/* Removes the holes, which moves entries. */
void cqn_stash_pack(cqn_cq *self);
void cqn_stash_free(cqn_cq *self);
#define CQN_HOLE INT32_MAX /* as status: see stash.c */
static inline bool cqn_stash_is_hole(const struct ibv_wc *wc)
{
    return (int)wc->status == CQN_HOLE;
}
/* The key of a completion in tables, from its wr_id and the number of its queue pair. */
static inline uint64_t cqn_wc_key(uint64_t wr_id, uint32_t qp_num)
{
    return wr_id ^ (qp_num + UINT64_C(1)) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* Returns the number of completions in the stash. */
static inline size_t cqn_stash_len(const cqn_cq *self)
{
    return self->stash_len - self->holes;
}

/* Find a completion by its wr_id, of one queue pair or, with NULL, of any. The second one removes
 * it from the stash. */
bool cqn_stash_has(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp);
bool cqn_stash_pop(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, struct ibv_wc *wc,
                   cqn_wc_extra *extra);

/* Puts a completion that did not reach its task back in front of the stash. Without memory it is
 * lost, which is reported. */
void cqn_stash_put_back(cqn_cq *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* to_python.c */

/* Pops up to `max` completions from the stash into a new list of WorkCompletions. A completion
 * leaves the stash only after its object was created. NULL with an exception. */
PyObject *cqn_cq_pop_wcs(cqn_cq *cq, uint64_t max);

/* The same as wr_ids, up to the first failed completion. If that is the very first, it is
 * raised. */
PyObject *cqn_cq_pop_ids(cqn_cq *cq, size_t max);

/* The same as rows of a WCArray; returns their number as an int. */
PyObject *cqn_cq_pop_rows(cqn_cq *cq, PyObject *array);

/* wc_array.c */

/* Registers the type with collections.abc. Returns -1 with an exception. */
int cqn_wc_array_init(cqn_state *st);
size_t cqn_wc_array_free_rows(PyObject *array);
void cqn_wc_array_set(PyObject *array, const struct ibv_wc *wcs, size_t n);

/* Brackets for filling an array with half of the lock. False: a thread with the other half is
 * filling it, so the caller needs the whole lock. */
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

/* wc.c. The highest byte of wc_flags is the core's: missing fields, and whether the message arrived
 * on a UD queue pair. From fetch.c on, imm_data is in host order if IBV_WC_WITH_IMM is set. */
#define CQN_WC_DATAGRAM (1u << 31)
#define CQN_WC_LACKS(wc_ex_flags) ((uint32_t)(wc_ex_flags) << 24)
#define CQN_WC_OURS 0xff000000u

/* The optional fields that a completion has, as bits of IBV_WC_EX_WITH_*. */
uint32_t cqn_wc_fields(const struct ibv_wc *raw);

/* A completion as WCArray shows it, and as it is compared and pickled. Fields that are not valid
 * are 0. */
typedef struct {
    uint64_t wr_id;
    uint32_t status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
    uint16_t fields; /* the valid ones, as in WCExFlags */
} cqn_wc_row;
_Static_assert(sizeof(cqn_wc_row) == 48, "there are no gaps");

cqn_wc_row cqn_wc_row_of(const struct ibv_wc *wc);
struct ibv_wc cqn_wc_of_row(const cqn_wc_row *row);

/* Returns the struct in a WorkCompletion, borrowed; NULL with a TypeError that names the
 * argument. */
const struct ibv_wc *cqn_wc_raw(const cqn_state *st, PyObject *wc, const char *name);

/* Loads the enums, so creating completions later runs no Python code and cannot fail in it.
 * Returns -1 with an exception. */
int cqn_wc_prepare(cqn_state *st);

/* Returns a new WorkCompletion, or NULL with an exception. `extra` may be NULL; `extra_fields` are
 * its valid fields. */
PyObject *cqn_wc_new(cqn_state *st, const struct ibv_wc *raw, const cqn_wc_extra *extra,
                     uint32_t extra_fields);

/* Creates WorkCompletions for the first of n completions, as long as they succeeded and differ only
 * in their wr_ids, in memory of the freelist. Returns their number; after 0 the first one must be
 * created by cqn_wc_new(). Only for completions without `extra`. */
size_t cqn_wc_new_run(cqn_state *st, const struct ibv_wc *wcs, size_t n, PyObject **items);

/* Frees the freelist of WorkCompletions, before their type is deallocated. */
void cqn_wc_clear_freelist(cqn_state *st);
extern PyType_Spec cqn_wc_spec, cqn_wc_array_spec;

#endif
