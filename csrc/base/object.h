/* SPDX-License-Identifier: MIT */
/*
 * The common head of all objects that own a handle of the device.
 *
 * It carries the rules of lifetime, which object.c and close.c implement once for all types:
 *
 *   - an object holds what it needs (`uses`) strongly; it knows its own users,
 *     and a context all that was made on it, weakly;
 *   - a handle has one owner at any instant: to destroy it is to take it out
 *     of the object first, then to release the GIL, then to call the verb;
 *   - an object that others use, or that work requests in flight need, can't
 *     be closed; only a context closes everything below it;
 *   - in a forked child every handle of the parent is dead.
 *
 * All fields are guarded by the GIL (the core's lock on free-threaded builds, see lock.h); only
 * `closing` is atomic, and may be read without it. A call that releases the GIL while it works with
 * a handle enters the object before and leaves it after (cqn_enter(), cqn_leave()), mostly by
 * CQN_IN_KERNEL.
 */
#ifndef CQN_OBJECT_H
#define CQN_OBJECT_H

#include "base/lock.h"
#include "base/state.h"

typedef struct cqn_object cqn_object;
typedef struct cqn_dependent cqn_dependent;
typedef struct cqn_context cqn_context;

/* How the types differ in a close: the functions that close.c calls. Those that a type does not
 * need are NULL, except destroy and clear. The order of the ranks is the order in which a context
 * closes what is left open: flows, then queue pairs, and then queues of receives only, since the
 * work requests on them pin memory regions and address handles. */
typedef struct {
    const char *name;         /* for messages */
    const char *destroy_verb; /* for messages */
    int rank;
    bool closes_with_parent;      /* and does not keep it open */
    const char *pinned_by;        /* other objects that pin it, for messages; or NULL: requests */
    int (*destroy)(void *handle); /* without the GIL; 0 or an errno */
    void (*before_destroy)(cqn_object *); /* handle still set; may be undone */
    void (*destroy_failed)(cqn_object *); /* it stays open */
    void (*after_destroy)(cqn_object *);  /* with the GIL, for good */
    /* The last step, which runs callbacks; see cqn_callback_failed(). */
    void (*notify_closed)(cqn_object *, PyObject **interrupt);
    void (*before_cascade)(cqn_object *); /* before all that uses it is closed, one by one */
    int (*clear)(PyObject *);             /* the type's own tp_clear */
} cqn_kind;

enum {
    CQN_RANK_FLOW,
    CQN_RANK_QP,
    CQN_RANK_SRQ,
    CQN_RANK_OTHER,
    CQN_RANK_CQ,
    CQN_RANK_PD,
    CQN_RANKS
};

#define CQN_MAX_USES 4

/* An entry in the list of the dependents of an object, those that use it. */
struct cqn_dependent {
    cqn_object *user;
    cqn_dependent *newer, *older;
};

struct cqn_object {
    PyObject_HEAD
    cqn_state *state;
    const cqn_kind *kind;
    uint32_t epoch;       /* in which it was made; 0: it stayed elsewhere, see cqn_new_left() */
    uint32_t in_use;      /* calls that work on it without the GIL */
    void *handle;         /* NULL: closed, or being closed */
    cqn_context *context; /* borrowed: `uses` keeps it alive; or NULL */
    cqn_object *uses[CQN_MAX_USES];           /* strong; the first NULL ends it */
    cqn_dependent as_dependent[CQN_MAX_USES]; /* its entry in the list of each, while listed */
    cqn_object *prev, *next; /* the context's list of its rank, or that of contexts; weak */
    uint64_t serial;         /* rises with each that the context lists */
    cqn_dependent *latest[CQN_RANKS]; /* open objects that use this one, by rank, weak */
    size_t pins;                      /* work requests in flight that need it */
    atomic_uint closing;              /* threads in close(): no new call may begin */
    uint32_t changes;          /* of an MR: how often it was registered anew; odd: it is being so */
    cqn_object *deferred_next; /* see cqn_decref_later() */
    cqn_refs refs;             /* see lock.h */
    bool listed;               /* by its context, and by what it uses; or by the state */
#ifdef Py_GIL_DISABLED
    uint8_t half; /* that of its context, and never changes: see lock.h */
#endif
    uint32_t users;     /* how many places in `uses` of others it has */
    PyObject *on_close; /* list of callables, or NULL */
    PyObject *weakrefs;
};

struct cqn_context {
    cqn_object base;
    /* Every open object below, by rank, in order of creation. */
    cqn_object *first[CQN_RANKS], *last[CQN_RANKS];
    uint64_t last_serial;
    struct ibv_device_attr attr;
    size_t mws;                  /* memory windows that are open */
    bool measure_latency;        /* of the waits that begin from now on */
    uint8_t limited_port;        /* the port whose limit is known, or 0 */
    uint32_t max_message;        /* bytes that it sends in one message */
    struct cqn_reports *reports; /* what the device reports, see notify/reports.h */
};

#define CQN_OBJ(x) ((cqn_object *)(x))

/* Whether the object belongs to the process that forked this one. Asked in every call. */
static inline bool cqn_forked(const cqn_object *self)
{
    return *self->state->epoch != self->epoch;
}

/* Whether it can be used: neither it nor its context is closed or being closed. */
static inline bool cqn_is_open(const cqn_object *self)
{
    return self->handle != NULL && self->closing == 0 && !cqn_forked(self) &&
           self->context->base.closing == 0;
}

/* Raises ClosedError, and returns NULL. */
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

/* ---- object.c ---- */

/* Makes an object that uses the given open ones, without a handle yet. NULL with an exception, for
 * example if the garbage collector that the allocation ran has closed one of them. */
void *cqn_new(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *uses, size_t n);

/* Represents an object that a pickled value referred to, and that stayed in its process: it is
 * closed from the beginning, and uses nothing. */
void *cqn_new_left(PyTypeObject *type, const cqn_kind *kind);
static inline bool cqn_is_left(const cqn_object *self)
{
    return self->epoch == 0;
}

/* Takes an object out of all lists; what it uses still counts it. For close.c and dealloc.c. */
void cqn_unlist(cqn_object *self);

/* Gives a new object its handle, which it owns from here on: it is listed on its context, counted
 * by what it uses, and must be closed. */
void cqn_adopt(cqn_object *self, void *handle);

/* Puts `other` (or NULL) into a slot of `uses`; the reference to what was there goes to `deferred`.
 */
void cqn_use(cqn_object *self, size_t slot, cqn_object *other, cqn_object **deferred);

/* Checks that an argument is an open object of `type`. -1 with TypeError or ClosedError. */
int cqn_expect(PyObject *value, PyTypeObject *type, const char *name);
/* The same for an object of the context of `other`, which is open and called `other_name`. */
int cqn_expect_beside(PyObject *value, PyTypeObject *type, const char *name, PyObject *other,
                      const char *other_name);
/* Takes a reference to an object that is only known by a pointer, unless it is being deallocated.
 */
static inline bool cqn_try_ref(cqn_object *self)
{
    return !self->refs.dying && cqn_try_ref_object((PyObject *)self);
}

/* Around work on a handle without the GIL: close() waits until the object was left as often as it
 * was entered. Entering and leaving need the GIL. */
static inline void cqn_enter(cqn_object *self)
{
    self->in_use++;
}
/* Wakes the threads in cqn_wait_until_left(); mostly there is none. */
void cqn_wake_idle(cqn_state *st);
static inline void cqn_notify_idle(cqn_state *st)
{
    if (st->idle_sleepers > 0) {
        cqn_wake_idle(st);
    }
}
static inline void cqn_leave(cqn_object *self)
{
    self->in_use--;
    cqn_notify_idle(self->state);
}

/* The same for all that an object uses: while its handle is created, or destroyed. */
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
 * close() that has begun by the end of it goes on when the caller releases the GIL next, so a
 * caller that adopts the handle before that leaves nothing behind. */
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

/* Sleeps without the GIL until some call has left some object; the caller checks whether it was
 * its own. */
void cqn_wait_until_left(cqn_state *st);

/* Whether the interpreter is ending: other threads never come back from where they are. */
bool cqn_is_ending(void);

/* ---- close.c ---- */

/* Closes; with `cascade` everything that uses it, too. -1 with an exception: it stays open, or a
 * callback was interrupted, and then it is closed all the same. */
int cqn_close(cqn_object *self, bool cascade);

/* ---- object_methods.c ---- */

/* Methods and attributes that all types have, by the macros below. */
PyObject *cqn_method_close(PyObject *self, PyObject *unused);
PyObject *cqn_method_enter(PyObject *self, PyObject *unused);
PyObject *cqn_method_exit(PyObject *self, PyObject *args);
PyObject *cqn_method_add_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_method_remove_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_repr(PyObject *self);

/* The repr() of a type that only shows its device. The caller holds the lock. */
PyObject *cqn_short_repr(PyObject *self);

/* For messages; borrowed from the device. */
const char *cqn_device_name(const cqn_object *self);
PyObject *cqn_get_closed(PyObject *self, void *unused);
PyObject *cqn_get_context(PyObject *self, void *unused);

/* Getters whose closure says what they get: the index in `uses`, or the offset of a field. */
PyObject *cqn_get_used(PyObject *self, void *index);
PyObject *cqn_get_u32(PyObject *self, void *offset);
PyObject *cqn_get_pointer(PyObject *self, void *unused);
PyObject *cqn_get_object(PyObject *self, void *offset);
int cqn_set_object(PyObject *self, PyObject *value, void *offset);

/* ---- deferred_decref.c ---- */

/* Moves one reference, or n, to a chain, to be dropped by cqn_decref_deferred() when the caller's
 * structures are in order: dropping the last one can run any code. */
void cqn_decref_later(cqn_object **deferred, cqn_object *object);
void cqn_decref_many_later(cqn_object **deferred, cqn_object *object, size_t n);
void cqn_decref_deferred(cqn_object *deferred);

/* ---- dealloc.c ---- */

/* Slots of all types. cqn_clear() is what a type's own kind->clear() ends with. */
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
/* For types whose handle is a struct of the verbs. */
#define CQN_POINTER(type)                                                                    \
    {                                                                                        \
        "pointer", cqn_get_pointer, NULL,                                                    \
            "Address of the " type " that it wraps, for calls of C functions by ctypes.\n\n" \
            "It is valid until close(), and nothing looks after what is done with it.",      \
            NULL                                                                             \
    }
/* An attribute that the user may set. Without a GIL, members of T_OBJECT must not be set. */
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

#endif
