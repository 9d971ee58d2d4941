/* SPDX-License-Identifier: MIT */
/*
 * The common head of all objects that own a handle of the device.
 *
 * object.c and close.c implement the rules of lifetime once for all types:
 *
 *   - an object holds strong references to the objects that it uses (`uses`). It knows its users
 *     weakly, and a context likewise knows all objects created on it;
 *   - a handle has one owner at any instant: it is taken out of the object first, then the GIL is
 *     released, then the verb that destroys it is called;
 *   - an object with users, or needed by work requests in flight, cannot be closed; only a context
 *     closes everything below it;
 *   - in a forked child every handle of the parent is dead.
 *
 * All fields are guarded by the GIL (the core's lock on free-threaded builds, see lock.h), except
 * `closing`, which is atomic and may be read without it. A call that releases the GIL while it
 * works with a handle enters the object before and leaves it after (cqn_enter(), cqn_leave()),
 * usually by CQN_IN_KERNEL.
 */
#ifndef CQN_OBJECT_H
#define CQN_OBJECT_H

#include "base/lock.h"
#include "base/state.h"

typedef struct cqn_object cqn_object;
typedef struct cqn_dependent cqn_dependent;
typedef struct cqn_context cqn_context;

/* The functions of a type that close.c calls. Unused ones are NULL; every type has destroy and
 * clear. A context closes its open objects in the order of their
 * ranks: flows, then queue pairs, then receive queues (SRQs, WQs), because work requests on these
 * pin memory regions and address handles. */
typedef struct {
    const char *name;         /* for error messages */
    const char *destroy_verb; /* for error messages */
    int rank;
    bool closes_with_parent;              /* it does not keep its parent open */
    const char *pinned_by;                /* objects that pin it; NULL: work requests */
    int (*destroy)(void *handle);         /* without the GIL; returns 0 or an errno */
    void (*before_destroy)(cqn_object *); /* handle is still set; may be undone */
    void (*destroy_failed)(cqn_object *); /* the object stays open */
    void (*after_destroy)(cqn_object *);  /* with the GIL; final */
    /* The last step; runs callbacks, see cqn_callback_failed(). */
    void (*notify_closed)(cqn_object *, PyObject **interrupt);
    void (*before_cascade)(cqn_object *); /* before its users are closed, one by one */
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

/* An entry in the list of an object's dependents, the objects that use it. */
struct cqn_dependent {
    cqn_object *user;
    cqn_dependent *newer, *older;
};

struct cqn_object {
    PyObject_HEAD
    cqn_state *state;
    const cqn_kind *kind;
    uint32_t epoch;                           /* epoch of its creation; 0: see cqn_new_left() */
    uint32_t in_use;                          /* calls that work on it without the GIL */
    void *handle;                             /* NULL: closed, or being closed */
    cqn_context *context;                     /* borrowed, kept alive by `uses`; or NULL */
    cqn_object *uses[CQN_MAX_USES];           /* strong; ends at the first NULL */
    cqn_dependent as_dependent[CQN_MAX_USES]; /* its entry in each one's list, while listed */
    cqn_object *prev,
        *next;       /* in the context's list of its rank, or the state's of contexts; weak */
    uint64_t serial; /* order of creation on the context */
    cqn_dependent *latest[CQN_RANKS]; /* open objects that use this one, by rank, weak */
    size_t pins;                      /* work requests in flight that need it */
    atomic_uint closing;              /* threads in close(): no new call may begin */
    uint32_t changes;                 /* of an MR: re-registrations; odd while one is in progress */
    cqn_object *deferred_next;        /* see cqn_decref_later() */
    cqn_refs refs;                    /* see lock.h */
    bool listed;                      /* by its context and the used objects, or the state */
#ifdef Py_GIL_DISABLED
    uint8_t half; /* that of its context, constant: see lock.h */
#endif
    uint32_t users;     /* number of entries in `uses` of other objects */
    PyObject *on_close; /* list of callables, or NULL */
    PyObject *weakrefs;
};

struct cqn_context {
    cqn_object base;
    /* All open objects on the context, by rank, in order of creation. */
    cqn_object *first[CQN_RANKS], *last[CQN_RANKS];
    uint64_t last_serial;
    struct ibv_device_attr attr;
    size_t mws;                  /* open memory windows */
    bool measure_latency;        /* of waits that begin from now on */
    bool has_read;               /* an RDMA read or an atomic was posted */
    uint8_t limited_port;        /* the port that max_message is of, or 0 */
    uint32_t max_message;        /* the largest message of that port, in bytes */
    struct cqn_reports *reports; /* the device's asynchronous events, see notify/reports.h */
};

#define CQN_OBJ(x) ((cqn_object *)(x))

/* Whether the object belongs to the parent of this forked process. Checked in every call. */
static inline bool cqn_forked(const cqn_object *self)
{
    return *self->state->epoch != self->epoch;
}

/* Whether the object can be used: neither it nor its context is closed or being closed. */
static inline bool cqn_is_open(const cqn_object *self)
{
    return self->handle != NULL && self->closing == 0 && !cqn_forked(self) &&
           self->context->base.closing == 0;
}

/* Raises ClosedError and returns NULL. */
void *cqn_refuse_closed(const cqn_object *self);
/* Returns the handle, or NULL with ClosedError. */
static inline void *cqn_open(const cqn_object *self)
{
    return cqn_is_open(self) ? self->handle : cqn_refuse_closed(self);
}
/* Checks again after arguments were parsed, which can run arbitrary code. False with
 * ClosedError. */
static inline bool cqn_still_open(const cqn_object *self, bool had_arguments)
{
    return !had_arguments || cqn_open(self) != NULL;
}

/* ---- object.c ---- */

/* Creates an object without a handle that uses the given open ones. Returns a new reference, or
 * NULL with an exception; for example, the allocation can run the garbage collector, and that can
 * close one of the used objects. */
void *cqn_new(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *uses, size_t n);

/* Creates a stand-in for an object that a pickled value refers to and that stays in the pickling
 * process: closed from the beginning, and using nothing. Returns a new reference, or NULL. */
void *cqn_new_left(PyTypeObject *type, const cqn_kind *kind);
static inline bool cqn_is_left(const cqn_object *self)
{
    return self->epoch == 0;
}

/* Removes an object from all lists; the objects that it uses still count it. For close.c and
 * dealloc.c. */
void cqn_unlist(cqn_object *self);

/* Gives a new object its handle and lists it on its context and with the objects that it uses. The
 * object owns the handle from here on and must be closed. */
void cqn_adopt(cqn_object *self, void *handle);

/* Replaces the object in a slot of `uses` by `other`, or NULL. The reference to the old one goes to
 * `deferred`. */
void cqn_use(cqn_object *self, size_t slot, cqn_object *other, cqn_object **deferred);

/* Checks that an argument is an open object of `type`. Returns -1 with TypeError or ClosedError. */
int cqn_expect(PyObject *value, PyTypeObject *type, const char *name);
/* The same, and checks that it is on the context of `other`, an open object called `other_name`. */
int cqn_expect_beside(PyObject *value, PyTypeObject *type, const char *name, PyObject *other,
                      const char *other_name);
/* Takes a reference to an object known only by a pointer; false if it is being deallocated. */
static inline bool cqn_try_ref(cqn_object *self)
{
    return !self->refs.dying && cqn_try_ref_object((PyObject *)self);
}

/* Brackets for work on a handle without the GIL: close() waits until the object was left as often
 * as it was entered. Both calls need the GIL. */
static inline void cqn_enter(cqn_object *self)
{
    self->in_use++;
}
/* Wakes the threads in cqn_wait_until_left(); usually there are none. */
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

/* The same for all objects used by `self`, while its handle is created or destroyed. */
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
/* Calls that enter the kernel and may wait there for the device go through one of these macros.
 * They run the statements without the GIL; the statements save errno themselves. CQN_IN_KERNEL
 * keeps `object` open meanwhile; CQN_CREATING, which creates the handle of a new `object`, keeps
 * all objects that it uses open. A close() that began meanwhile continues when the caller next
 * releases the GIL, so a caller that adopts the handle before that leaks nothing. */
#define CQN_IN_KERNEL(object, ...) CQN_RELEASED(cqn_enter, cqn_leave, object, __VA_ARGS__)
#define CQN_CREATING(object, ...) /* errno 0 then means that the provider set none */ \
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

/* Sleeps without the GIL until any call leaves any object; the caller checks for its own. */
void cqn_wait_until_left(cqn_state *st);

/* Whether the interpreter is being finalized: other threads never return from where they are. */
bool cqn_is_ending(void);

/* ---- close.c ---- */

/* Closes the object; with `cascade`, first everything that uses it. Returns -1 with an exception:
 * the object stays open, or a callback was interrupted and the object is closed nevertheless. */
int cqn_close(cqn_object *self, bool cascade);

/* ---- object_methods.c ---- */

/* Methods and attributes of all types, used by the macros below. */
PyObject *cqn_method_close(PyObject *self, PyObject *unused);
PyObject *cqn_method_enter(PyObject *self, PyObject *unused);
PyObject *cqn_method_exit(PyObject *self, PyObject *args);
PyObject *cqn_method_add_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_method_remove_close_callback(PyObject *self, PyObject *callback);
PyObject *cqn_repr(PyObject *self);

/* The repr() of a type that shows only its device. The caller holds the lock. */
PyObject *cqn_short_repr(PyObject *self);

/* The name of the device, for messages; borrowed from the device. */
const char *cqn_device_name(const cqn_object *self);
PyObject *cqn_get_closed(PyObject *self, void *unused);
PyObject *cqn_get_context(PyObject *self, void *unused);

/* Getters whose closure is the index in `uses`, or the offset of a field. */
PyObject *cqn_get_used(PyObject *self, void *index);
PyObject *cqn_get_u32(PyObject *self, void *offset);
PyObject *cqn_get_pointer(PyObject *self, void *unused);
PyObject *cqn_get_object(PyObject *self, void *offset);
int cqn_set_object(PyObject *self, PyObject *value, void *offset);

/* ---- deferred_decref.c ---- */

/* Moves one reference, or n, to a chain. cqn_decref_deferred() releases it when the caller's
 * structures are consistent, because releasing the last reference can run arbitrary code. */
void cqn_decref_later(cqn_object **deferred, cqn_object *object);
void cqn_decref_many_later(cqn_object **deferred, cqn_object *object, size_t n);
void cqn_decref_deferred(cqn_object *deferred);

/* ---- dealloc.c ---- */

/* Slots of all types. A type's own kind->clear() ends with cqn_clear(). */
int cqn_traverse(PyObject *self, visitproc visit, void *arg);
int cqn_clear(PyObject *self);
int cqn_tp_clear(PyObject *self); /* calls the kind's clear() */
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
            "It is valid until close(). cqnotify does not check how it is used.",            \
            NULL                                                                             \
    }
/* An attribute that the user may set. Without a GIL, members of T_OBJECT cannot be set safely. */
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
