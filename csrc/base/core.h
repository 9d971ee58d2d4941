/* SPDX-License-Identifier: MIT */
/*
 * What the files of the core share.
 *
 * Every object that owns a handle of the device begins with a cqn_object.
 * That common head carries the rules of lifetime, which object.c implements
 * once for all types:
 *
 *   - an object holds what it needs (`uses`) strongly; it knows its own users,
 *     and a context all that was made on it, weakly;
 *   - a handle has one owner at any instant: to destroy it is to take it out
 *     of the object first, then to release the GIL, then to call the verb;
 *   - an object that others use, or that work requests in flight need, can't
 *     be closed; only a context closes everything below it;
 *   - in a forked child every handle of the parent is dead.
 *
 * All fields are guarded by the GIL, or what takes its place, see lock.h; a
 * thread that works without it may look at `closing`.
 * A call that releases it while it works with a handle holds the object by
 * cqn_enter() and cqn_leave(): see CQN_IN_KERNEL.
 */
#ifndef CQN_CORE_H
#define CQN_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "base/lock.h"

#define CQN_MAX_SGE 64 /* of one work request; no known device takes more */
#define CQN_WC_STATUSES 32
#define CQN_WC_OPCODES 160
#define CQN_EVENT_TYPES 32
#define CQN_WC_SPARES 256

#define CQN_SPARES 32

/* See spares.c. */
typedef struct {
    PyObject *kept[CQN_SPARES];
    size_t len, size; /* the size is of each */
    bool over;
} cqn_spares;

typedef struct {
    PyObject *VerbsError, *BusyError, *DeviceRemovedError;
    PyObject *ClosedError, *CompletionError, *AsyncEventError;

    PyTypeObject *Context, *PD, *MR, *SGE, *CompletionChannel, *CQ, *SRQ, *QP, *AH, *MW;
    PyTypeObject *SendWR, *RecvWR;
    PyTypeObject *WorkCompletion, *WCArray, *CQStats, *AsyncEvent, *FailureWatch, *Wakeup;
    PyTypeObject *Engine, *Request, *Scope;

    /* Members of the Python enums, by value; NULL where there is none. */
    PyObject *wc_status[CQN_WC_STATUSES];
    PyObject *wc_opcode[CQN_WC_OPCODES];
    PyObject *wc_flags, *wc_ex_flags;
    PyObject *innermost_scope;    /* a context variable, see scope.c */
    size_t scopes;                /* that there are */
    PyObject *get_running_loop;   /* of asyncio; NULL before the first Engine, as the next */
    PyObject *anyio_name, *anyio; /* the module that is known, if it was imported */
    bool anyio_is_old;
    Py_ssize_t modules_seen; /* when it was looked for */
    cqn_spares spare_requests, spare_wakeups;
    uint64_t ids_chosen; /* for requests whose user gave none */
    PyObject *event_type[CQN_EVENT_TYPES];

    /* Memory of WorkCompletions that were dropped, and the int of the latest length; see wc.c. */
    PyObject *wc_spares[CQN_WC_SPARES];
    size_t wc_spares_len;
    PyObject *byte_len;
    uint32_t byte_len_value;

    /* A page that the kernel wipes in a forked child: *epoch is 0 there, until
     * the child opens a device of its own. Objects are dead in any other epoch
     * than the one in which they were born. */
    volatile uint32_t *epoch;
    uint32_t last_epoch;
    bool fork_prepared, fork_initialized; /* see fork.c */

    /* The queues of work requests by their numbers, see wr_ids.c. */
    struct cqn_wr_queue **queues;
    uint32_t queues_len, free_number, queues_born;

    /* Signalled whenever a call that held an object has left it. */
    pthread_mutex_t idle_lock;
    pthread_cond_t idle;
} cqn_state;

typedef struct cqn_object cqn_object;
typedef struct cqn_link cqn_link;
typedef struct cqn_context cqn_context;

/* What distinguishes the types in a close. The order of the ranks is the
 * order in which a context closes what is left open: queue pairs first, and then
 * shared receive queues, since the work requests on them pin memory regions and
 * address handles. */
typedef struct {
    const char *name;         /* for messages */
    const char *destroy_verb; /* for messages */
    int rank;
    int (*destroy)(void *handle);         /* without the GIL; 0 or an errno */
    void (*before_destroy)(cqn_object *); /* handle still set; may be undone */
    void (*destroy_failed)(cqn_object *); /* it stays open */
    void (*after_destroy)(cqn_object *);  /* with the GIL, for good */
    /* Then it runs the callbacks that are told of it; see cqn_callback_failed(). */
    void (*tell)(cqn_object *, PyObject **interrupt);
    int (*clear)(PyObject *); /* the type's own tp_clear */
} cqn_kind;

enum { CQN_RANK_QP, CQN_RANK_SRQ, CQN_RANK_OTHER, CQN_RANK_CQ, CQN_RANK_PD, CQN_RANKS };

#define CQN_MAX_USES 4

/* That `user` uses an object, among all that do. */
struct cqn_link {
    cqn_object *user;
    cqn_link *newer, *older;
};

struct cqn_object {
    PyObject_HEAD
    cqn_state *state;
    const cqn_kind *kind;
    uint32_t born;                  /* in which epoch */
    void *handle;                   /* NULL: closed, or being closed */
    cqn_context *context;           /* borrowed: `uses` keeps it alive; or NULL */
    cqn_object *uses[CQN_MAX_USES]; /* strong; the first NULL ends it */
    cqn_link links[CQN_MAX_USES];   /* of each, while listed */
    cqn_object *prev, *next;        /* the context's list of its rank, weak */
    uint64_t serial;                /* rises with each that the context lists */
    bool listed;                    /* there, and by what it uses */
    cqn_link *latest[CQN_RANKS];    /* open objects that use this one, by rank, weak */
    size_t users;                   /* how many places in `uses` of others it has */
    size_t pins;                    /* work requests in flight that need it */
    size_t in_use;                  /* calls that work on it without the GIL */
    atomic_uint closing;            /* threads in close(): no new call may begin */
    cqn_object *trash_next;         /* see cqn_trash_add() */
    size_t in_trash;                /* references that are there, without a GIL */
    bool dying;                     /* nobody can save it any more */
    PyObject *on_close;             /* list of callables, or NULL */
    PyObject *weakrefs;
};

typedef struct cqn_request cqn_request;
typedef struct cqn_engine cqn_engine;

/* Requests that are awaited, in the order in which they came, not held; see engine.h. */
typedef struct {
    cqn_request *first, *last;
} cqn_line;

typedef struct cqn_waiter cqn_waiter;
typedef struct cqn_report cqn_report;

/* Where threads sleep, see wait.c. */
typedef struct {
    cqn_waiter *waiters; /* the threads inside, in the order in which they came */
    cqn_waiter *spares;  /* records for those to come */
    size_t spares_len;
    _Atomic(cqn_waiter *) poller; /* the sleeper that polls for all, or NULL */
    bool gone;                    /* what they wait on was destroyed, for good */
    bool interrupt_next;          /* interrupt() found no waiter: interrupt the next one */
    unsigned sleeps;              /* waits in a row for which nothing was there at once */
} cqn_gate;

/* What one waits for at a gate. */
typedef struct {
    PyObject *(*take)(cqn_object *);        /* NULL without an exception: nothing yet */
    int (*check)(cqn_object *, uint64_t *); /* -1: a failure that ends the wait */
    int (*fd)(const cqn_object *);          /* readable when take() may find something */
    const char *verb, *timed_out;           /* for messages */
    /* Whether nothing is known that take() or check() would find: then only what
     * the fd brings can end the wait. NULL: it can't be told. */
    bool (*is_quiet)(const cqn_object *, uint64_t told);
} cqn_wait_kind;

/* A descriptor that is readable while the device has reports that nobody has
 * read, or while the flag is raised; see flag.c. */
typedef struct {
    int fd, raised_fd;
    bool is_open, raised;
} cqn_flag;

struct cqn_context {
    cqn_object base;
    /* Every open object below, by rank, in order of creation. */
    cqn_object *first[CQN_RANKS], *last[CQN_RANKS];
    uint64_t last_serial;
    struct ibv_device_attr attr;
    size_t mws; /* memory windows that are open */

    /* Asynchronous events, see async_event.c. */
    cqn_report *queued;   /* read and not yet handed out */
    cqn_report *failures; /* the latest of each kind, oldest first */
    size_t queued_len;
    uint64_t async_serial;
    cqn_flag async; /* raised while there are queued ones */
    cqn_gate gate;

    int net_fd; /* see netdev.c */
    bool has_net_fd;
};

typedef struct {
    cqn_object base;
    void *addr;
    size_t length;
    unsigned int access;
    uint32_t lkey, rkey;
    bool registered;   /* the device may use the memory */
    bool implicit;     /* all memory, and no bytes of its own */
    Py_buffer view;    /* the user's buffer, or obj == NULL: own memory */
    size_t own_length; /* of the own mapping, in whole pages */
    Py_ssize_t exports;
} cqn_mr;

typedef struct {
    PyObject_HEAD
    cqn_mr *mr;
    uint64_t addr;
    uint32_t length, lkey;
} cqn_sge;

typedef struct {
    cqn_object base;
    enum ibv_mw_type type;
    uint32_t rkey;       /* of the latest bind that was posted */
    uint32_t bound_rkey; /* of the latest that was carried out */
    uint32_t gone_rkey;  /* invalidated by the peer before that was known */
    size_t binds;        /* in flight */
    bool listed;         /* in the list of requests that is being checked */
} cqn_mw;

typedef struct {
    cqn_object base;
    cqn_gate gate;
    struct cqn_cq *late; /* CQs with events that could not be handed out, weak */
    uint64_t concerned;  /* serial of the latest failure that concerns it */
    uint64_t told;       /* and of the latest that somebody here was told of */
    uint64_t timeouts;   /* waits that ended without an event: one may have been lost */
    /* For the engines of its CQs, see engine.h. */
    PyObject *loop;     /* that reads its events, as cqnotify.aio knows it; or NULL */
    PyObject *raw_loop; /* the same of asyncio itself, or NULL */
    PyObject *done;     /* a future of that with a result */
    PyObject *on_fail;  /* what to call with an error that ends the reading */
    int until_more;     /* callbacks, until it looks for more than one event */
    uint64_t turn;      /* of the thread's loops, in which that was last seen to read */
    cqn_engine *busy;   /* that somebody waits in: held, or nobody might */
} cqn_channel;

/* Fields of extended completions that ibv_wc lacks. */
typedef struct {
    uint64_t timestamp, wallclock_ns;
    uint32_t flow_tag;
    uint16_t cvlan;
} cqn_wc_extra;

#define CQN_WC_EX_EXTRA                                                                     \
    (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | \
     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define CQN_WC_EX_KNOWN (IBV_WC_STANDARD_FLAGS | CQN_WC_EX_EXTRA)

typedef struct cqn_stash_index cqn_stash_index;

/* What threads take that poll without the GIL, see poll.c. */
typedef struct cqn_landing cqn_landing;

/* For what a CQ raises an event; each includes those before it. */
typedef enum { CQN_UNARMED, CQN_ARMED_SOLICITED, CQN_ARMED } cqn_armed;

typedef struct cqn_cq {
    cqn_object base;
    cqn_channel *channel; /* borrowed from `uses`, or NULL */
    PyObject *user_data;
    cqn_engine *engine; /* that its completions go to, weak; or NULL */
    size_t flushing;    /* its queues that were moved to an error state and are not empty */
    int comp_vector;
    unsigned int unacked;    /* events that were got and not yet acked */
    unsigned int prepaid;    /* those of them that the library need not hear of */
    unsigned int dispatched; /* those of them that were read for the engine */
    unsigned int late;       /* events that came while it was being destroyed */
    struct cqn_cq *late_next;
    bool event_unpolled; /* an event came and nobody polled since */
    bool marked;         /* while the CQs that a failure concerns are collected */
    cqn_armed armed;     /* until its event is read, or a wait ends without one */
    uint64_t armed_at;   /* of the channel's timeouts */
    struct {
        uint64_t events, acked, arms, polls, completions, spurious;
    } stats;
    struct cqn_wr_queue *left; /* those of queue pairs that are gone, see wr_queue.c */
    struct ibv_cq_ex *ex;      /* the handle of an extended one, or NULL */
    uint32_t wc_flags;         /* what its completions have, see WCExFlags */
    /* Completions that were taken from the device and not yet handed out. */
    struct ibv_wc *stash;
    cqn_wc_extra *extra; /* of the stash, element by element, or NULL */
    size_t stash_head, stash_len, stash_room;
    size_t holes;           /* in the midst of it: never the first or the last */
    uint64_t taken;         /* from its front, since the CQ was made */
    cqn_stash_index *index; /* by wr_id, or NULL: see stash.c */
    cqn_landing *landing;   /* NULL until somebody spins */
} cqn_cq;

/* What a work request does that the books must know of. */
typedef enum { CQN_WR_TRANSFERS, CQN_WR_BINDS, CQN_WR_INVALIDATES } cqn_wr_does;

/* One object that a work request in flight keeps alive. A request that needs
 * several takes as many entries, one that needs none takes one. Of one that
 * binds these are the window and the MR, if it does not unbind. */
typedef struct {
    union {
        uint64_t wr_id;       /* the user's */
        cqn_request *request; /* of one that is awaited, which has the wr_id: it knows its place */
    };
    cqn_object *pinned; /* strong, or NULL */
    union {
        uint32_t rkey; /* of the window that it binds or invalidates */
        uint32_t next; /* the next slot of its request, or the next free one, if it is an SRQ's */
    };
    uint16_t generation; /* see wr_ids.c */
    uint8_t does;        /* cqn_wr_does */
    bool signaled;
    bool last;     /* of its work request */
    uint8_t marks; /* CQN_WR_FORGOTTEN, CQN_WR_AWAITED */
    bool plain;    /* a request of one entry, which touches no window and has no marks */
} cqn_wr;

enum {
    CQN_WR_FORGOTTEN = 1, /* it was reset or closed: only its wr_id is of use */
    CQN_WR_AWAITED = 2
};

/* The work requests of a queue that have not completed, see wr_queue.c. */
typedef struct cqn_wr_queue {
    cqn_wr *ring;     /* in the order of posting; of an SRQ in any order */
    uint32_t number;  /* see wr_ids.c */
    uint64_t next;    /* position of the next entry; of an SRQ how many were posted */
    size_t len, room; /* in entries; room is a power of two, or 0 */
    size_t requests;
    size_t signaled;   /* of these, give a completion if they succeed */
    bool is_shared;    /* an SRQ's */
    uint32_t free;     /* the first free slot of it */
    uint32_t types;    /* of the queue pairs that use it: bits 1 << IBV_QPT_* */
    size_t users;      /* the QP or SRQ, or the CQ that it was left to; and QPs, of an SRQ's */
    cqn_line waiting;  /* operations that wait for room */
    struct cqn_qp *qp; /* whose it is; NULL: an SRQ's, or it is gone */
    cqn_cq *flushes;   /* that counts it among those which are flushed, or NULL */
    struct cqn_wr_queue *source;    /* the SRQ's, of the receives of a QP that has one */
    struct cqn_wr_queue *left_next; /* see cqn_cq.left */
} cqn_wr_queue;

typedef struct {
    cqn_object base;
    PyObject *user_data;
    uint32_t max_wr, max_sge; /* as granted */
    cqn_wr_queue *rq;         /* NULL once it was closed */
} cqn_srq;

typedef struct cqn_group cqn_group; /* of multicast, see mcast.c */

typedef struct cqn_qp {
    cqn_object base;
    /* Borrowed from `uses`. */
    cqn_object *pd;
    cqn_cq *send_cq, *recv_cq;
    cqn_srq *srq; /* or NULL */
    PyObject *user_data;
    uint32_t qp_num, sq_psn;
    enum ibv_qp_type type;
    enum ibv_qp_state state; /* as last set by us; the device may be in ERR */
    bool sq_sig_all, atomic_write;
    bool must_stop, stopped; /* sending, before it is destroyed: see qp.c */
    uint8_t port_num;        /* set in INIT; 0 before */
    uint32_t max_message;    /* bytes that its port sends in one message */
    struct ibv_qp_cap cap;
    cqn_wr_queue *sq, *rq; /* NULL once it was closed */
    /* How often something of it failed, and up to which of these it was seen to work after all. */
    uint32_t suspicions, cleared;
    struct cqn_qp *serve_next; /* of those where there may be room now, see engine.h */
    bool to_serve;
    cqn_group *groups;
    size_t groups_len;
} cqn_qp;

/* atomic_write.c */
int cqn_check_atomic_write(cqn_object *pd);
struct ibv_qp *cqn_create_atomic_write_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* module.c */
extern struct PyModuleDef cqn_module;
cqn_state *cqn_state_of(PyTypeObject *type);

/* constants.c. These are newer than the oldest header; the numbers are the kernel's. */
enum { CQN_WR_FLUSH = 14, CQN_WC_FLUSH = 8 };
enum { CQN_ACCESS_FLUSH_GLOBAL = 1 << 8, CQN_ACCESS_FLUSH_PERSISTENT = 1 << 9 };
#define CQN_DEVICE_ATOMIC_WRITE (1ULL << 40) /* of device_cap_flags_ex */
PyObject *cqn_constants(void);
PyObject *cqn_flags(PyObject *enum_type, uint32_t flags);
PyObject *cqn_register_enums(PyObject *module, PyObject *args);
const char *cqn_qp_type_name(enum ibv_qp_type type);
const char *cqn_qp_state_name(enum ibv_qp_state state);

/* errors.c */
int cqn_errors_init(PyObject *module, cqn_state *st);
int cqn_errno_of(int result);
void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...);
void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...);
PyObject *cqn_take_exception(void);
void cqn_put_exception(PyObject *exc);
void cqn_blame_item(Py_ssize_t i);
void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message);
int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw,
                         const char *operation);

/* inspect.c */
PyObject *cqn_open_objects(PyObject *module, PyObject *context);
PyObject *cqn_known_async_events(PyObject *module, PyObject *context);

/* args.c */
/* As PyLong_AsUnsignedLongLong(), which is slow for more than 30 bits before Python 3.13. */
static inline uint64_t cqn_unsigned(PyObject *number)
{
    int overflow;
    const long n = PyLong_AsLongAndOverflow(number, &overflow);
    return overflow == 0 && n >= 0 ? (uint64_t)n : PyLong_AsUnsignedLongLong(number);
}
int cqn_sort_args(const char *function, const char *const *names, int positional, int required,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out);
/* The same; most calls have no arguments. */
static inline int cqn_args(const char *function, const char *const *names, int positional,
                           int required, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                           PyObject **out)
{
    return nargs == 0 && kwnames == NULL && required == 0
               ? 0
               : cqn_sort_args(function, names, positional, required, args, nargs, kwnames, out);
}
int cqn_range(PyObject *value, const char *name, uint64_t min, uint64_t max, uint64_t *out);
int cqn_uint(PyObject *value, const char *name, uint64_t max, uint64_t *out);
int cqn_u32(PyObject *value, const char *name, uint32_t max, uint32_t *out);
int cqn_gid(PyObject *value, const char *name, union ibv_gid *out);
int cqn_timeout(PyObject *value, int64_t *out_ns);
int cqn_spin(PyObject *value, double *out);

/* wait.c */
int64_t cqn_now_ns(void);
int cqn_gate_open(cqn_gate *gate);
void cqn_gate_shut(cqn_gate *gate, bool nobody_left);
void cqn_gate_clear(cqn_gate *gate);
void cqn_gate_wake(cqn_gate *gate);
void cqn_gate_interrupt(cqn_gate *gate);
PyObject *cqn_gate_wait(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                        PyObject *timeout, uint64_t told);

/* object.c */
/* Asked in every call. */
static inline bool cqn_forked(const cqn_object *self)
{
    return *self->state->epoch != self->born;
}
static inline bool cqn_is_open(const cqn_object *self)
{
    return self->handle != NULL && self->closing == 0 && !cqn_forked(self) &&
           self->context->base.closing == 0;
}
void *cqn_refuse_closed(const cqn_object *self);
/* The handle, or NULL with ClosedError. */
static inline void *cqn_open(const cqn_object *self)
{
    return cqn_is_open(self) ? self->handle : cqn_refuse_closed(self);
}
/* The same after the arguments were parsed, which can run any code if there are some. */
static inline bool cqn_still_open(const cqn_object *self, bool had_arguments)
{
    return !had_arguments || cqn_open(self) != NULL;
}
void *cqn_new(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *uses, size_t n);
void cqn_adopt(cqn_object *self, void *handle);
int cqn_expect(PyObject *value, PyTypeObject *type, const char *name);
/* A reference to one that is known by a pointer alone, if it is not being deallocated. */
static inline bool cqn_try_ref(cqn_object *self)
{
    return !self->dying && cqn_try_ref_object((PyObject *)self);
}
void cqn_new_epoch(cqn_state *st);
void cqn_enter(cqn_object *self);
void cqn_leave(cqn_object *self);
static inline void cqn_enter_used(cqn_object *self)
{
    for (int i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        cqn_enter(self->uses[i]);
    }
}
static inline void cqn_leave_used(cqn_object *self)
{
    for (int i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        cqn_leave(self->uses[i]);
    }
}
/* What enters the kernel, and may wait there for the device, goes through one of these: they run
 * the statements without the GIL, which must keep errno themselves. By the first, `object` stays
 * open meanwhile; by the second, which creates the handle of a new `object`, all that it uses. A
 * close() that has begun by the end of it goes on when the caller releases the GIL next, so whoever
 * adopts the handle first leaves nothing behind. */
#define CQN_IN_KERNEL(object, ...) CQN_RELEASED(cqn_enter, cqn_leave, object, __VA_ARGS__)
#define CQN_CREATING(object, ...) /* an errno of 0 then says that the provider set none */ \
    CQN_RELEASED(cqn_enter_used, cqn_leave_used, object, errno = 0; __VA_ARGS__)
#define CQN_RELEASED(enter, leave, object, ...) \
    do {                                        \
        cqn_object *const held = (object);      \
        enter(held);                            \
        Py_BEGIN_ALLOW_THREADS                  \
            __VA_ARGS__;                        \
        Py_END_ALLOW_THREADS                    \
        leave(held);                            \
    } while (0)
void cqn_wait_until_left(cqn_state *st);
bool cqn_is_ending(void);
int cqn_close(cqn_object *self, bool cascade);
void cqn_callback_failed(PyObject *callback, PyObject **interrupt);
int cqn_raise_interrupt(PyObject *interrupt);
PyObject *cqn_method_close(PyObject *self, PyObject *unused);
PyObject *cqn_method_enter(PyObject *self, PyObject *unused);
PyObject *cqn_method_exit(PyObject *self, PyObject *args);
PyObject *cqn_method_add_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_method_remove_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_repr(PyObject *self);
PyObject *cqn_short_repr(PyObject *self); /* under the lock */
const char *cqn_device_name(const cqn_object *self);
PyObject *cqn_get_closed(PyObject *self, void *unused);
PyObject *cqn_get_context(PyObject *self, void *unused);
PyObject *cqn_get_used(PyObject *self, void *index);
PyObject *cqn_get_u32(PyObject *self, void *offset);
PyObject *cqn_get_object(PyObject *self, void *offset);
int cqn_set_object(PyObject *self, PyObject *value, void *offset);
void cqn_use(cqn_object *self, size_t slot, cqn_object *other, cqn_object **trash);
void cqn_trash_add(cqn_object **trash, cqn_object *object);
void cqn_trash_add_many(cqn_object **trash, cqn_object *object, size_t n);
void cqn_trash_empty(cqn_object *trash);
int cqn_traverse(PyObject *self, visitproc visit, void *arg);
int cqn_clear(PyObject *self);
int cqn_tp_clear(PyObject *self); /* for all kinds */
void cqn_finalize(PyObject *self);
void cqn_dealloc(PyObject *self);

#define CQN_OBJECT_METHODS(close_doc)                                                              \
    {"close", cqn_method_close, METH_NOARGS, close_doc},                                           \
        {"add_close_callback", cqn_method_add_close_callback, METH_O, cqn_add_close_callback_doc}, \
        {"remove_close_callback", cqn_method_remove_close_callback, METH_O,                        \
         cqn_remove_close_callback_doc},                                                           \
        {"__enter__", cqn_method_enter, METH_NOARGS, cqn_enter_doc},                               \
    {                                                                                              \
        "__exit__", cqn_method_exit, METH_VARARGS, cqn_exit_doc                                    \
    }
#define CQN_OBJECT_GETSET                                                                       \
    {                                                                                           \
        "closed", cqn_get_closed, NULL, "True once close() was called, and in a forked child.", \
            NULL                                                                                \
    }
/* An attribute that anybody may set. Members of T_OBJECT may not be, without a GIL. */
#define CQN_FREE_ATTRIBUTE(type, name, doc)                                      \
    {                                                                            \
#name, cqn_get_object, cqn_set_object, doc, (void *)offsetof(type, name) \
    }
#define CQN_USER_DATA(type) CQN_FREE_ATTRIBUTE(type, user_data, "Any object of the user's.")
#define CQN_OBJECT_MEMBERS                                                               \
    {                                                                                    \
        "__weaklistoffset__", T_PYSSIZET, offsetof(cqn_object, weakrefs), READONLY, NULL \
    }
extern const char cqn_close_doc[], cqn_add_close_callback_doc[], cqn_remove_close_callback_doc[];
extern const char cqn_enter_doc[], cqn_exit_doc[];

/* attr.c: structs of the verbs as dicts or tuples of their fields */
typedef enum { CQN_UINT, CQN_BE64, CQN_TEXT, CQN_GID } cqn_field_type;
typedef struct {
    const char *name;
    size_t offset, size;
    cqn_field_type type;
    uint64_t max; /* for setting */
    int mask;     /* bit that goes with it in a modify */
} cqn_field;
PyObject *cqn_struct_to_dict(const void *from, const cqn_field *fields);
PyObject *cqn_struct_to_tuple(const void *from, const cqn_field *fields);
PyObject *cqn_dict_copy(PyObject *mapping, const char *name, const char *kind);
int cqn_field_from(PyObject *value, void *to, const cqn_field *field);
PyObject *cqn_ah_attr_to_dict(const struct ibv_ah_attr *attr);
int cqn_ah_attr_from(PyObject *mapping, const char *name, int ports, struct ibv_ah_attr *out);
extern const cqn_field cqn_device_fields[], cqn_device_ex_fields[], cqn_port_fields[];
extern const cqn_field cqn_qp_fields[], cqn_cap_fields[], cqn_srq_fields[];

/* netdev.c */
PyObject *cqn_netdev_name(cqn_context *ctx, uint32_t ifindex);
void cqn_netdev_close(cqn_context *ctx);

/* fork.c */
int cqn_prepare_for_fork(cqn_state *st);
PyObject *cqn_fork_status(PyObject *module, PyObject *unused);

/* device.c, context.c, … : one type each */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);
extern const char cqn_no_device[];
extern PyType_Spec cqn_context_spec, cqn_pd_spec, cqn_mr_spec, cqn_sge_spec, cqn_channel_spec;
extern PyType_Spec cqn_cq_spec, cqn_srq_spec, cqn_qp_spec, cqn_ah_spec, cqn_wc_spec;
extern PyType_Spec cqn_mw_spec, cqn_send_wr_spec, cqn_recv_wr_spec;
extern PyType_Spec cqn_wc_array_spec, cqn_async_event_spec, cqn_failure_watch_spec;
extern PyType_Spec cqn_wakeup_spec, cqn_engine_spec, cqn_request_spec, cqn_scope_spec;
extern PyStructSequence_Desc cqn_cq_stats_desc;

/* context.c */
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out);

/* qp.c */
uint32_t cqn_qp_learn_limit(cqn_qp *qp);
int cqn_qp_await_turn(cqn_qp *qp);
void cqn_qps_stop_sending(cqn_context *ctx);

/* mcast.c */
PyObject *cqn_qp_attach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_qp_detach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
int cqn_qp_destroy_in_groups(struct ibv_qp *qp);
extern const char cqn_qp_attach_mcast_doc[], cqn_qp_detach_mcast_doc[];

/* mr.c */
extern const cqn_kind cqn_mr_kind;
int cqn_mr_access(PyObject *value, unsigned int *access);
int cqn_mr_take_memory(cqn_mr *mr, PyObject *buffer);
PyObject *cqn_mr_register(cqn_mr *mr, cqn_object *pd);
void cqn_mr_after_destroy(cqn_object *mr);
int cqn_mr_clear(PyObject *mr);

/* implicit_mr.c */
int cqn_check_odp(cqn_object *pd, uint64_t needed);
PyObject *cqn_mr_implicit(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_over(PyObject *self, PyObject *buffer);
extern const char cqn_mr_implicit_doc[], cqn_mr_over_doc[];

/* sge.c */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

/* mw.c */
int cqn_mw_check(const cqn_mw *mw, const cqn_qp *qp);
void cqn_mw_posted(cqn_mw *mw, cqn_qp *qp, uint32_t rkey);
void cqn_mw_bound(cqn_mw *mw, cqn_object *mr, uint32_t rkey, bool ok, cqn_object **trash);
void cqn_mw_invalidated(cqn_context *ctx, uint32_t rkey, cqn_object **trash);

/* async_event.c */
int cqn_async_open(cqn_context *ctx);
void cqn_async_clear(cqn_context *ctx);
void cqn_async_forget(cqn_context *ctx, const cqn_object *element);
int cqn_async_drain(cqn_context *ctx);
int cqn_async_check(cqn_channel *channel, uint64_t *told);
PyObject *cqn_async_failures(cqn_object *self, uint64_t *told);
PyObject *cqn_async_known(cqn_context *ctx);
PyObject *cqn_get_async_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_try_get_async_event(PyObject *self, PyObject *unused);
extern const char cqn_get_async_event_doc[], cqn_try_get_async_event_doc[];

/* flag.c */
int cqn_flag_open(cqn_flag *flag, const struct ibv_context *device);
void cqn_flag_set(cqn_flag *flag, const cqn_object *owner, bool raised);
void cqn_flag_close(cqn_flag *flag);

/* failure_watch.c */
void cqn_failure_watch_signal(const cqn_context *ctx);

/* channel.c */
int cqn_set_nonblocking(int fd);
PyObject *cqn_dup(int fd);
extern const char cqn_dup_doc[];
void cqn_channel_add_late(cqn_channel *channel, cqn_cq *cq);
void cqn_channel_drop_late(cqn_channel *channel, const cqn_cq *cq);

/* cq.c */
void cqn_cq_event(cqn_cq *cq);
void cqn_cq_dispatched(cqn_cq *cq);
void cqn_cq_ack_dispatched(cqn_cq *cq);
bool cqn_cq_is_armed(const cqn_cq *cq, bool solicited_only);
int cqn_cq_arm(cqn_cq *cq, bool solicited_only);

/* loop.c */
void cqn_turn_dispatched(cqn_channel *channel);
PyObject *cqn_channel_set_loop(PyObject *self, PyObject *args);
void cqn_channel_forget_loop(cqn_channel *self);

/* engine.c */
bool cqn_engine_claim(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);
int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg);
bool cqn_request_completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra);
void cqn_request_lost(cqn_request *request, const cqn_qp *qp);

/* engine_look.c */
PyObject *cqn_engine_poll(cqn_engine *engine, uint64_t max, double spin);
void cqn_engine_room(cqn_engine *engine, cqn_qp *qp);
void cqn_engine_failed(cqn_cq *cq, cqn_wr_queue *queue, const struct ibv_wc *wc);

/* engine_fail.c */
void cqn_engines_tell(cqn_qp *qp, PyObject **interrupt);

/* engine_wake.c */
int cqn_engine_dispatch(cqn_cq *cq);
bool cqn_engine_resized(cqn_cq *cq);
int cqn_engine_wake(cqn_cq *cq);
/* After completions of that CQ were routed: those whom that concerns are woken. */
static inline int cqn_routed(cqn_cq *cq)
{
    return cq->engine == NULL ? 0 : cqn_engine_wake(cq);
}

/* spares.c */
PyObject *cqn_spares_alloc(cqn_spares *spares, PyTypeObject *type);
void cqn_spares_free(cqn_spares *spares, PyObject *op);
void cqn_spares_clear(cqn_spares *spares);

/* wakeup.c */
PyObject *cqn_wakeup_new(cqn_state *st, PyObject *loop, PyObject *done);
bool cqn_wakeup_is_done(const PyObject *wakeup);
void cqn_wakeup_yield(PyObject *wakeup);
int cqn_wakeup_wake(PyObject *wakeup);
int cqn_wakeup_resume(PyObject *wakeup);

/* poll.c */
int cqn_cq_settle(cqn_cq *cq, cqn_object **trash);
int cqn_cq_look(cqn_cq *cq, cqn_object **trash);
int cqn_cq_look_once(cqn_cq *cq, size_t n, bool *more, cqn_object **trash);
int cqn_cq_look_for(cqn_cq *cq, size_t want, double spin);
PyObject *cqn_cq_hand_out(cqn_cq *cq, uint64_t max);
void cqn_cq_forget_completions(cqn_cq *cq);
PyObject *cqn_cq_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_poll_into(PyObject *self, PyObject *array);
PyObject *cqn_cq_poll_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);

/* stash.c */
int cqn_stash_make_room(cqn_cq *self, size_t n);
/* Room for n more behind what it holds. */
static inline int cqn_stash_reserve(cqn_cq *self, size_t n)
{
    if (self->stash_len == 0) {
        self->stash_head = 0;
    }
    return self->stash_head + self->stash_len + n <= self->stash_room
               ? 0
               : cqn_stash_make_room(self, n);
}
void cqn_stash_drop(cqn_cq *self, size_t n);
void cqn_stash_pack(cqn_cq *self);
void cqn_stash_free(cqn_cq *self);
#define CQN_HOLE INT32_MAX /* as status: see stash.c */
static inline bool cqn_stash_is_hole(const struct ibv_wc *wc)
{
    return (int)wc->status == CQN_HOLE;
}
/* How many it holds. */
static inline size_t cqn_stash_len(const cqn_cq *self)
{
    return self->stash_len - self->holes;
}
bool cqn_stash_has(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp);
bool cqn_stash_take(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, struct ibv_wc *wc,
                    cqn_wc_extra *extra);
void cqn_stash_put_back(cqn_cq *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* wc_array.c */
size_t cqn_wc_array_room(PyObject *array);
void cqn_wc_array_set(PyObject *array, const struct ibv_wc *wcs, size_t n);

/* wc.c. Of wc_flags, the highest byte is ours: which fields are not there, and
 * whether it came in on a UD queue pair. Where the flags say so, imm_data is in
 * host order from poll.c on. */
#define CQN_WC_DATAGRAM (1u << 31)
#define CQN_WC_LACKS(wc_ex_flags) ((uint32_t)(wc_ex_flags) << 24)
#define CQN_WC_OURS 0xff000000u
uint32_t cqn_wc_fields(const struct ibv_wc *raw);
const struct ibv_wc *cqn_wc_raw(const cqn_state *st, PyObject *wc, const char *name);
PyObject *cqn_wc_new(cqn_state *st, const struct ibv_wc *raw, const cqn_wc_extra *extra,
                     uint32_t extra_fields);
void cqn_wc_free_spares(cqn_state *st);

/* post_send.c, post_recv.c; see wr.h */
PyObject *cqn_qp_post_send(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *cqn_qp_post_recv(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *cqn_srq_post_recv(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);
PyObject *cqn_qp_bind_mw(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
extern const char cqn_qp_bind_mw_doc[], cqn_qp_post_send_doc[], cqn_qp_post_recv_doc[],
    cqn_srq_post_recv_doc[];

/* wr_ids.c */
int cqn_wr_queue_register(cqn_state *st, cqn_wr_queue *queue);
void cqn_wr_queue_unregister(cqn_state *st, const cqn_wr_queue *queue);

/* wr_queue.c: what was posted, and what it keeps alive */
cqn_wr_queue *cqn_wr_queue_new(cqn_qp *qp, uint32_t types, cqn_srq *srq);
cqn_wr_queue *cqn_wr_queue_new_shared(cqn_state *st);
void cqn_wr_queue_drop(cqn_state *st, cqn_wr_queue *queue);
void cqn_wr_queue_leave(cqn_wr_queue *queue, cqn_cq *cq);
void cqn_wr_queue_flushes(cqn_wr_queue *queue, cqn_cq *cq);
void cqn_wr_queue_forget(cqn_wr_queue *queue, cqn_object **trash);
void cqn_cq_drop_left(cqn_cq *cq);
size_t cqn_wr_completed_run(cqn_wr_queue *queue, struct ibv_wc *wcs, size_t n, cqn_object **trash);
cqn_request *cqn_wr_completed(cqn_cq *cq, cqn_wr_queue *queue, struct ibv_wc *wc,
                              cqn_object **trash);
int cqn_wr_queue_traverse(const cqn_wr_queue *queue, visitproc visit, void *arg);

#define CQN_OBJ(x) ((cqn_object *)(x))

#ifdef CQN_FAULTS
/* faults.c */
PyObject *cqn_fail_call(PyObject *module, PyObject *args);
PyObject *cqn_fail_alloc(PyObject *module, PyObject *args);
PyObject *cqn_before_call(PyObject *module, PyObject *args);
PyObject *cqn_inject_event(PyObject *module, PyObject *args);
PyObject *cqn_hide_features(PyObject *module, PyObject *args);
PyObject *cqn_boast(PyObject *module, PyObject *boast);
PyObject *cqn_failed(PyObject *module, PyObject *unused);
PyObject *cqn_held(PyObject *module, PyObject *unused);
PyObject *cqn_pretend_fork(PyObject *module, PyObject *args);
PyObject *cqn_live_handles(PyObject *module, PyObject *unused);
#include "base/faults.h" /* last: it gives the verbs a new meaning */
#endif

#endif
