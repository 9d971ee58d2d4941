/* SPDX-License-Identifier: MIT */
/*
 * What the files of the core share.
 *
 * Every object that owns a handle of the device begins with a cqn_object.
 * That common head carries the rules of lifetime, which object.c implements
 * once for all types:
 *
 *   - an object holds what it needs (`uses`) strongly; nothing holds the
 *     users of an object but the context's list, and that weakly;
 *   - a handle has one owner at any instant: to destroy it is to take it out
 *     of the object first, then to release the GIL, then to call the verb;
 *   - an object that others use, or that work requests in flight need, can't
 *     be closed; only a context closes everything below it;
 *   - in a forked child every handle of the parent is dead.
 *
 * All fields are guarded by the GIL, or what takes its place, see lock.h; who
 * works without it may look at `closing`.
 * A call that releases it while it works with a handle holds the object by
 * cqn_enter() and cqn_leave().
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

#include "lock.h"

#define CQN_MAX_SGE 64 /* of one work request; no known device takes more */
#define CQN_WC_STATUSES 32
#define CQN_WC_OPCODES 160
#define CQN_EVENT_TYPES 32

typedef struct {
    PyObject *VerbsError, *BusyError, *DeviceRemovedError;
    PyObject *ClosedError, *CompletionError, *AsyncEventError;

    PyTypeObject *Context, *PD, *MR, *SGE, *CompletionChannel, *CQ, *SRQ, *QP, *AH, *MW;
    PyTypeObject *SendWR, *RecvWR;
    PyTypeObject *WorkCompletion, *WCArray, *CQStats, *AsyncEvent, *FailureWatch, *Wakeup;

    /* Members of the Python enums, by value; NULL where there is none. */
    PyObject *wc_status[CQN_WC_STATUSES];
    PyObject *wc_opcode[CQN_WC_OPCODES];
    PyObject *wc_flags, *wc_ex_flags;
    PyObject *event_type[CQN_EVENT_TYPES];

    /* A page that the kernel wipes in a forked child: *epoch is 0 there, until
     * the child opens a device of its own. Objects are dead in any other epoch
     * than the one in which they were born. */
    volatile uint32_t *epoch;
    uint32_t last_epoch;

    /* Signalled whenever a call that held an object has left it. */
    pthread_mutex_t idle_lock;
    pthread_cond_t idle;
} cqn_state;

typedef struct cqn_object cqn_object;
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
    int (*clear)(PyObject *);             /* the type's own tp_clear */
} cqn_kind;

enum { CQN_RANK_QP, CQN_RANK_SRQ, CQN_RANK_OTHER, CQN_RANK_CQ, CQN_RANK_PD, CQN_RANKS };

#define CQN_MAX_USES 4

struct cqn_object {
    PyObject_HEAD
    cqn_state *state;
    const cqn_kind *kind;
    uint32_t born;                  /* in which epoch */
    void *handle;                   /* NULL: closed, or being closed */
    cqn_context *context;           /* borrowed: `uses` keeps it alive; or NULL */
    cqn_object *uses[CQN_MAX_USES]; /* strong; the first NULL ends it */
    cqn_object *prev, *next;        /* the context's list, weak */
    bool listed;                    /* in that list */
    size_t users;                   /* objects that use this one */
    size_t pins;                    /* work requests in flight that need it */
    size_t in_use;                  /* calls that work on it without the GIL */
    atomic_uint closing;            /* threads in close(): no new call may begin */
    cqn_object *trash_next;         /* see cqn_trash_add() */
    size_t in_trash;                /* references that are there, without a GIL */
    bool dying;                     /* nobody can save it any more */
    PyObject *on_close;             /* list of callables, or NULL */
    PyObject *weakrefs;
};

typedef struct cqn_waiter cqn_waiter;
typedef struct cqn_report cqn_report;

/* Where threads sleep, see wait.c. */
typedef struct {
    int wake_fd; /* eventfd: readable while sleepers shall look, and when gone */
    bool is_open;
    bool gone;           /* what they wait on was destroyed, for good */
    cqn_waiter *waiters; /* on the stacks of those inside */
    unsigned signalled;  /* sleepers that shall look and have not yet */
    bool interrupt_next; /* the next who comes, since nobody was there */
    unsigned sleeps;     /* waits in a row for which nothing was there at once */
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
    cqn_object *first, *last; /* every open object below, in order of creation */
    struct ibv_device_attr attr;
    size_t mws;          /* memory windows that are open */
    struct cqn_qp **qps; /* by number: open addressing, see qp_table.c */
    size_t qps_mask, qps_used;

    /* Asynchronous events, see async_event.c. */
    cqn_report *queued;   /* read and not yet handed out */
    cqn_report *failures; /* the latest of each kind, oldest first */
    size_t queued_len;
    uint64_t async_serial;
    cqn_flag async; /* raised while there are queued ones */
    cqn_gate gate;
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
    uint64_t turn;       /* of the loop that dispatches its events */
    PyObject *sleepers;  /* set of Wakeups, those of its CQs: nobody else may hold their tasks */
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

/* What threads take that poll without the GIL, see poll.c. */
typedef struct cqn_landing cqn_landing;

/* For what a CQ raises an event; each includes those before it. */
typedef enum { CQN_UNARMED, CQN_ARMED_SOLICITED, CQN_ARMED } cqn_armed;

typedef struct cqn_cq {
    cqn_object base;
    cqn_channel *channel; /* borrowed from `uses`, or NULL */
    PyObject *user_data;
    PyObject *consumer; /* weak reference to whom its completions go, or NULL */
    PyObject *sleeper;  /* Wakeup of the one task that its completions go to, or NULL */
    PyObject *sleepers; /* of the channel, with him in it; NULL without him */
    uint64_t turn;      /* of the loop in which it resumed one */
    size_t woken, most; /* sleepers that got completions, and how many one of them got */
    int comp_vector;
    unsigned int unacked;    /* events that were got and not yet acked */
    unsigned int prepaid;    /* those of them that the library need not hear of */
    unsigned int dispatched; /* those of them that were read for the consumer */
    unsigned int late;       /* events that came while it was being destroyed */
    struct cqn_cq *late_next;
    bool event_unpolled; /* an event came and nobody polled since */
    bool marked;         /* while the CQs that a failure concerns are collected */
    cqn_armed armed;     /* until its event is read */
    struct {
        uint64_t events, acked, arms, polls, completions, spurious;
    } stats;
    struct cqn_qp *last_qp; /* cache of the latest look-up */
    struct ibv_cq_ex *ex;   /* the handle of an extended one, or NULL */
    uint32_t wc_flags;      /* what its completions have, see WCExFlags */
    /* Completions that were taken from the device and not yet handed out. */
    struct ibv_wc *stash;
    cqn_wc_extra *extra; /* of the stash, element by element, or NULL */
    size_t stash_head, stash_len, stash_room;
    cqn_landing *landing; /* NULL until somebody spins */
} cqn_cq;

/* What a work request does that the books must know of. */
typedef enum { CQN_WR_TRANSFERS, CQN_WR_BINDS, CQN_WR_INVALIDATES } cqn_wr_does;

/* One object that a work request in flight keeps alive. A request that needs
 * several takes as many entries in a row, one that needs none takes one. Of one
 * that binds these are the window and the MR, if it does not unbind. */
typedef struct {
    uint64_t wr_id;
    cqn_object *pinned; /* strong, or NULL */
    uint32_t rkey;      /* of the window that it binds or invalidates */
    uint8_t does;       /* cqn_wr_does */
    bool signaled;
    bool last; /* of its work request */
    bool told; /* perhaps: a completion said so that may be another's, see wr_queue.c */
} cqn_wr;

typedef struct {
    cqn_wr *ring;
    size_t head, len, room; /* in entries; room is a power of two, or 0 */
    size_t requests;
    size_t signaled; /* of these, give a completion if they succeed */
} cqn_wr_queue;

typedef struct {
    cqn_object base;
    PyObject *user_data;
    uint32_t max_wr, max_sge; /* as granted */
    cqn_wr_queue rq;
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
    uint8_t port_num;     /* set in INIT; 0 before */
    uint32_t max_message; /* bytes that its port sends in one message */
    struct ibv_qp_cap cap;
    cqn_wr_queue sq, rq;
    size_t ambiguous; /* failed completions that may be of either queue */
    cqn_group *groups;
    size_t groups_len;
} cqn_qp;

/* atomic_write.c */
int cqn_check_atomic_write(const cqn_object *pd);
struct ibv_qp *cqn_create_atomic_write_qp(const cqn_object *pd, struct ibv_qp_init_attr *attr);

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
void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...);
void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...);
PyObject *cqn_take_exception(void);
void cqn_put_exception(PyObject *exc);
void cqn_blame_item(Py_ssize_t i);
void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message);
int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw);

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
void cqn_wait_until_left(cqn_state *st);
bool cqn_is_ending(void);
int cqn_close(cqn_object *self, bool cascade);
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

/* attr.c: structs of the verbs as dicts of their fields */
typedef enum { CQN_UINT, CQN_BE64, CQN_TEXT, CQN_GID } cqn_field_type;
typedef struct {
    const char *name;
    size_t offset, size;
    cqn_field_type type;
    uint64_t max; /* for setting */
    int mask;     /* bit that goes with it in a modify */
} cqn_field;
PyObject *cqn_struct_to_dict(const void *from, const cqn_field *fields);
PyObject *cqn_dict_copy(PyObject *mapping, const char *name, const char *kind);
int cqn_field_from(PyObject *value, void *to, const cqn_field *field);
PyObject *cqn_ah_attr_to_dict(const struct ibv_ah_attr *attr);
int cqn_ah_attr_from(PyObject *mapping, const char *name, int ports, struct ibv_ah_attr *out);
extern const cqn_field cqn_device_fields[], cqn_device_ex_fields[], cqn_port_fields[];
extern const cqn_field cqn_gid_fields[];
extern const cqn_field cqn_qp_fields[], cqn_cap_fields[], cqn_srq_fields[];

/* device.c, context.c, … : one type each */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);
extern PyType_Spec cqn_context_spec, cqn_pd_spec, cqn_mr_spec, cqn_sge_spec, cqn_channel_spec;
extern PyType_Spec cqn_cq_spec, cqn_srq_spec, cqn_qp_spec, cqn_ah_spec, cqn_wc_spec;
extern PyType_Spec cqn_mw_spec, cqn_send_wr_spec, cqn_recv_wr_spec;
extern PyType_Spec cqn_wc_array_spec, cqn_async_event_spec, cqn_failure_watch_spec;
extern PyType_Spec cqn_wakeup_spec;
extern PyStructSequence_Desc cqn_cq_stats_desc;

/* context.c */
int cqn_device_attr_ex(const cqn_object *self, struct ibv_device_attr_ex *out);

/* qp.c */
uint32_t cqn_qp_learn_limit(cqn_qp *qp);
int cqn_qp_await_turn(cqn_qp *qp);

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
int cqn_check_odp(const cqn_object *pd, uint64_t needed);
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
int cqn_cq_safe_to_sleep(cqn_cq *cq, bool solicited_only);

/* sleeper.c */
PyObject *cqn_cq_sleep(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_forget_sleeper(PyObject *self, PyObject *unused);
int cqn_cq_dispatch(cqn_cq *cq, uint64_t turn);
PyObject *cqn_cq_serve_sleeper(cqn_cq *cq, uint32_t max_entries);
PyObject *cqn_cq_get_woken(PyObject *self, void *unused);
PyObject *cqn_cq_get_sleeper(PyObject *self, void *unused);
extern const char cqn_cq_sleep_doc[], cqn_cq_forget_sleeper_doc[];

/* wakeup.c */
PyObject *cqn_wakeup_new(PyTypeObject *type, PyObject *loop, uint32_t max_entries,
                         bool solicited_only);
void cqn_wakeup_set_cq(PyObject *wakeup, cqn_cq *cq);
bool cqn_wakeup_is_done(const PyObject *wakeup);
bool cqn_wakeup_solicited_only(const PyObject *wakeup);
int cqn_wakeup_wake(PyObject *wakeup);
int cqn_wakeup_resume(PyObject *wakeup);

/* poll.c */
int cqn_cq_settle(cqn_cq *cq, cqn_object **trash);
int cqn_cq_look(cqn_cq *cq, cqn_object **trash);
void cqn_stash_free(cqn_cq *cq);
PyObject *cqn_cq_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_take(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_take_found(cqn_cq *cq, uint64_t max);
PyObject *cqn_cq_poll_into(PyObject *self, PyObject *array);
PyObject *cqn_cq_poll_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);

/* consumer.c */
PyObject *cqn_consumer_if_alive(cqn_cq *cq);
PyObject *cqn_consumer_poll(PyObject *consumer, uint64_t max, double spin);
void cqn_consumers_tell(cqn_qp *qp);
PyObject *cqn_cq_set_consumer(PyObject *self, PyObject *consumer);
/* A new reference, or NULL without an exception; runs no Python code. Most CQs have none. */
static inline PyObject *cqn_consumer_of(cqn_cq *cq)
{
    return cq->consumer == NULL ? NULL : cqn_consumer_if_alive(cq);
}
extern const char cqn_cq_set_consumer_doc[];

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

/* qp_table.c */
int cqn_qp_table_add(cqn_context *ctx, cqn_qp *qp);
void cqn_qp_table_remove(cqn_context *ctx, cqn_qp *qp);
cqn_qp *cqn_qp_table_find(const cqn_context *ctx, uint32_t qp_num, const cqn_cq *cq);

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

/* wr_queue.c: what was posted, and what it keeps alive */
void cqn_qp_completed(cqn_qp *qp, const cqn_cq *cq, const struct ibv_wc *wc, cqn_object **trash);
void cqn_wr_queue_drop(cqn_wr_queue *queue);
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
PyObject *cqn_live_handles(PyObject *module, PyObject *unused);
#include "faults.h" /* last: it gives the verbs a new meaning */
#endif

#endif
