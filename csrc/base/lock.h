/* SPDX-License-Identifier: MIT */
/*
 * The lock that replaces the GIL on a free-threaded Python.
 *
 * On a free-threaded Python each function that Python calls begins with CQN_LOCKED, unless it only
 * reads what never changes. Until the function returns it holds a lock shared by the whole core. As
 * with the GIL, one thread at a time is in the core. The lock is a critical section: a thread that
 * releases the GIL (Py_BEGIN_ALLOW_THREADS), or waits for something in CPython, releases the lock
 * meanwhile. So the same rules hold for both, and comments say "the GIL" for either.
 *
 * The lock has two halves. Each context has one of them, shared with all objects created on it.
 * Functions that post, poll, arm and acknowledge begin with CQN_HALF_LOCKED and hold only the half
 * of their object, so two such calls run at the same time if their contexts have different halves.
 * All other functions exclude both. A call that holds a half may write only to what belongs to its
 * context; it may read what all contexts share. docs/internals.md has the design.
 *
 * Differences from the GIL:
 *
 *   - the core's lock does not stop the user's threads: a list or dict that is read more than once
 *     is read in a copy, see cqn_freeze() and cqn_dict_copy();
 *   - another thread can release the last reference to an object at any time, and then waits for
 *     the lock in cqn_dealloc(). Code that reaches an object by a pointer without a reference gets
 *     one only by cqn_try_ref_object();
 *   - the holder of the lock is never asked to give it up, unlike the holder of the GIL. So code
 *     of unknown duration is called by CQN_UNLOCKED().
 *
 * With a GIL all of this compiles to nothing.
 */
#ifndef CQN_LOCK_H
#define CQN_LOCK_H

#include "base/python.h"

/* ---- arguments that other threads may change ---- */

static inline void cqn_drop(PyObject *const *copy)
{
    Py_XDECREF(*copy);
}
/* Declares the owner of a copy that cqn_freeze() or cqn_freeze_keywords() makes; it is released
 * when the function returns. */
#define CQN_COPY __attribute__((cleanup(cqn_drop))) PyObject *

/* Copies the keywords of a call, even with a GIL. The dict can be the user's own, for example one
 * passed to _thread.start_new_thread(). Code that runs during the function (a conversion, the
 * garbage collector) could empty it, and so release the values that were already read. */
static inline int cqn_freeze_keywords(PyObject **kwargs, PyObject **copy)
{
    if (*kwargs != NULL) {
        *copy = *kwargs = PyDict_Copy(*kwargs);
    }
    return *kwargs == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Without a GIL, replaces a list by a tuple, because another thread could change the list. */
static inline int cqn_freeze(PyObject **value, PyObject **copy)
{
#ifdef Py_GIL_DISABLED
    if (*value != NULL && PyList_Check(*value)) {
        *copy = *value = PyList_AsTuple(*value);
    }
    return *value == NULL && PyErr_Occurred() ? -1 : 0;
#else
    (void)value;
    (void)copy;
    return 0;
#endif
}

/* ---- the lock ---- */

#ifdef Py_GIL_DISABLED

#if PY_VERSION_HEX < 0x030E0000
#error "a free-threaded Python must be 3.14 or later"
#endif

#define cqn_enable_try_ref PyUnstable_EnableTryIncRef

/* PyUnstable_TryIncRef() recognizes a dying object by its merged count. A finalizer such as __del__
 * gives the object back to its thread, with a local count; after that has dropped to 0 the call
 * would accept the object in this thread. */
static inline int cqn_try_ref_object(PyObject *op)
{
    return (Py_REFCNT(op) > 0 || !PyObject_GC_IsFinalized(op)) && PyUnstable_TryIncRef(op);
}

/* CPython locks at most two mutexes of a critical section again after the GIL was released, so the
 * lock cannot have more than two halves. Defined in lock.c. */
#define CQN_HALVES 2
typedef struct {
    _Alignas(64) PyMutex mutex; /* in a cache line of its own */
} cqn_half;
extern cqn_half cqn_halves[CQN_HALVES];

/* The halves that a thread holds, outside of CQN_UNLOCKED(). */
typedef struct {
    uint8_t halves; /* bits 1 << half */
    bool all;       /* the innermost section holds both */
} cqn_locks;
extern _Thread_local cqn_locks cqn_locks_held;

int cqn_lock_init(void);

/* Returns the half of a new context: the halves alternate. The caller holds the lock. */
uint8_t cqn_next_half(void);

typedef struct {
    union {
        PyCriticalSection half;
        PyCriticalSection2 all;
    };
    enum { CQN_NONE, CQN_HALF, CQN_ALL } begun;
    cqn_locks outside;
} cqn_section;

/* Returns whether the thread's innermost section holds both halves. If so, beginning another
 * section on both would suspend it. CPython does not begin a section on a mutex that the innermost
 * one holds, which the probe detects. */
static inline bool cqn_holds_all(void)
{
    PyCriticalSection probe;
    if (!cqn_locks_held.all) {
        return false;
    }
    PyCriticalSection_BeginMutex(&probe, &cqn_halves[0].mutex);
    const bool holds = probe._cs_mutex == NULL;
    PyCriticalSection_End(&probe);
    return holds;
}

/* At the end of the interpreter one thread is left, and it must not wait: the lock can have been
 * handed to a thread that never runs again. */
static inline void cqn_begin_section(cqn_section *self)
{
    self->outside = cqn_locks_held;
    self->begun = CQN_NONE;
    if (!Py_IsFinalizing() && !cqn_holds_all()) {
        PyCriticalSection2_BeginMutex(&self->all, &cqn_halves[0].mutex, &cqn_halves[1].mutex);
        self->begun = CQN_ALL;
        cqn_locks_held = (cqn_locks){.halves = (1 << CQN_HALVES) - 1, .all = true};
    }
}

static inline void cqn_begin_half(cqn_section *self, uint8_t half)
{
    self->outside = cqn_locks_held;
    self->begun = CQN_NONE;
    if (Py_IsFinalizing()) {
        return;
    }
    PyCriticalSection_BeginMutex(&self->half, &cqn_halves[half].mutex);
    if (self->half._cs_mutex != NULL) { /* else the innermost section holds it */
        self->begun = CQN_HALF;
        cqn_locks_held.halves |= (uint8_t)(1 << half);
        cqn_locks_held.all = false;
    }
}

static inline void cqn_end_section(cqn_section *self)
{
    if (self->begun == CQN_NONE) {
        return;
    }
    cqn_locks_held = self->outside;
    if (self->begun == CQN_ALL) {
        PyCriticalSection2_End(&self->all);
    }
    else {
        PyCriticalSection_End(&self->half);
    }
}

#define CQN_LOCKED                                                \
    cqn_section locked __attribute__((cleanup(cqn_end_section))); \
    cqn_begin_section(&locked)

#define CQN_HALF_LOCKED(object)                                   \
    cqn_section locked __attribute__((cleanup(cqn_end_section))); \
    cqn_begin_half(&locked, CQN_OBJ(object)->half)

/* In a function that began with CQN_HALF_LOCKED: releases the half and takes the whole lock. Other
 * threads may have been in the core in between. False with ClosedError if the object is closed. */
#define CQN_LOCK_ALL(object) \
    (cqn_end_section(&locked), cqn_begin_section(&locked), cqn_open(CQN_OBJ(object)) != NULL)

/* Whether the caller holds both halves. */
#define CQN_HOLDS_ALL (cqn_locks_held.all)

/* Releasing the GIL suspends all sections of this thread; taking it resumes only the innermost one.
 * Here that is a section on a private mutex, and the others resume when it ends. */
#define CQN_UNLOCKED(call)                                \
    do {                                                  \
        PyMutex nobodys = {0};                            \
        PyCriticalSection outside;                        \
        const cqn_locks held = cqn_locks_held;            \
        PyCriticalSection_BeginMutex(&outside, &nobodys); \
        PyEval_RestoreThread(PyEval_SaveThread());        \
        cqn_locks_held = (cqn_locks){.halves = 0};        \
        call;                                             \
        cqn_locks_held = held;                            \
        PyCriticalSection_End(&outside);                  \
    } while (0)

#else /* with a GIL */

#define CQN_LOCKED ((void)0)
#define CQN_HALF_LOCKED(object) ((void)0)
#define CQN_LOCK_ALL(object) true
#define CQN_HOLDS_ALL true
#define CQN_UNLOCKED(call)     \
    do {                       \
        CQN_PLACE("calls");    \
        call;                  \
        CQN_PLACE("returned"); \
    } while (0)
static inline int cqn_lock_init(void)
{
    return 0;
}

static inline void cqn_enable_try_ref(PyObject *op)
{
    (void)op;
}

static inline int cqn_try_ref_object(PyObject *op)
{
    if (Py_REFCNT(op) == 0) { /* it is being deallocated */
        return 0;
    }
    Py_INCREF(op);
    return 1;
}

#endif

/* ---- calls of Python code ---- */

/* Calls a method without the lock; it can run arbitrary code. `argument` may be NULL, and is not a
 * tuple. Returns a new reference, or NULL with an exception. */
PyObject *cqn_call_method(PyObject *op, const char *method, PyObject *argument);

/* The same, without the result. Returns 0, or -1 with an exception. */
int cqn_do_method(PyObject *op, const char *method, PyObject *argument);

/* ---- the references of an object ---- */

/* Adds n references. */
static inline void cqn_refs_add(PyObject *op, size_t n)
{
#if defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG) /* the latter also keeps a total */
    for (size_t i = 0; i < n; i++) {
        Py_INCREF(op);
    }
#else
    Py_SET_REFCNT(op, Py_REFCNT(op) + (Py_ssize_t)n);
#endif
}

/* State of an object's references beside their count. Guarded by the GIL. */
typedef struct {
    bool dying; /* being deallocated: a new reference cannot save it */
#ifdef Py_GIL_DISABLED
    size_t deferred; /* references to be released by a chain; see cqn_decref_later() */
#endif
} cqn_refs;

/* Returns whether the object may be alive, for checks that take no reference. Without a GIL only
 * cqn_refs.dying shows this, since another thread can release the last reference at any moment. */
static inline bool cqn_refs_may_live(const cqn_refs *refs, PyObject *op)
{
#ifdef Py_GIL_DISABLED
    (void)op;
    return !refs->dying;
#else
    return !refs->dying && Py_REFCNT(op) > 0;
#endif
}

/* Releases n references owned by the caller, except the ones whose release could deallocate the
 * object. If there are any, it returns true, and the caller must put the object into its chain for
 * cqn_refs_drop_deferred(). With a GIL that is the last reference. Without one it can be any, since
 * other threads release theirs meanwhile: all n are deferred, and the object is in the chain
 * once. */
static inline bool cqn_refs_defer(cqn_refs *refs, PyObject *op, size_t n)
{
#ifdef Py_GIL_DISABLED
    const bool is_first = refs->deferred == 0;
    (void)op;
    refs->deferred += n;
    return is_first;
#else
    (void)refs;
    const Py_ssize_t left = Py_REFCNT(op) - (Py_ssize_t)n;
#ifdef Py_REF_DEBUG /* which also keeps a total for the interpreter */
    for (Py_ssize_t i = left > 0 ? 0 : 1; i < (Py_ssize_t)n; i++) {
        Py_DECREF(op);
    }
#else
    Py_SET_REFCNT(op, left > 0 ? left : 1);
#endif
    return left <= 0;
#endif
}

static inline void cqn_refs_drop_deferred(cqn_refs *refs, PyObject *op)
{
#ifdef Py_GIL_DISABLED
    for (; refs->deferred > 1; refs->deferred--) {
        Py_DECREF(op);
    }
    refs->deferred = 0;
#else
    (void)refs;
#endif
    Py_DECREF(op); /* the last one: the object may be gone now */
}

#endif
