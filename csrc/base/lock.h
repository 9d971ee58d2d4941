/* SPDX-License-Identifier: MIT */
/*
 * The lock that takes the GIL's place where there is none.
 *
 * On a free-threaded Python every function that Python calls, except those that
 * touch nothing that changes, begins with CQN_LOCKED: until it returns it holds a
 * lock that all of the core shares. As with the GIL, one thread at a time is in the
 * core, and a thread that releases the GIL (Py_BEGIN_ALLOW_THREADS) or waits for
 * something in CPython lets go of the lock meanwhile: it is a critical section.
 * So one set of rules holds for both, and comments say "the GIL" for either.
 *
 * The lock has two halves, and each context has one of them, as has all that is made
 * on it. What posts, polls, arms and acknowledges begins with CQN_HALF_LOCKED, and
 * holds only the half of its object: so two such calls, on contexts of different
 * halves, run at the same time. All other functions exclude both. A call under a half
 * may write to what belongs to its context, and to nothing else; what all contexts
 * share it only reads. docs/internals.md has the design.
 *
 * What differs:
 *
 *   - the core's lock does not stop the user's threads: a list or a dict that is read
 *     more than once is read in a copy, see cqn_freeze() and cqn_dict_copy();
 *   - the last reference to an object can go in another thread at any time, which
 *     then waits in cqn_dealloc() for the lock. A thread that comes to an object by a
 *     pointer that holds no reference gets one by cqn_try_ref_object() alone;
 *   - the holder of a lock is never preempted for another thread, as the holder of the
 *     GIL is. So code of unknown length is called by CQN_UNLOCKED().
 *
 * With a GIL all of it is nothing.
 */
#ifndef CQN_LOCK_H
#define CQN_LOCK_H

#include "base/python.h"

/* ---- arguments that others may change ---- */

static inline void cqn_drop(PyObject *const *copy)
{
    Py_XDECREF(*copy);
}
/* Declares what cqn_freeze() and cqn_freeze_keywords() fill in. The function owns it until it
 * returns. */
#define CQN_COPY __attribute__((cleanup(cqn_drop))) PyObject *

/* Copies the keywords of a call, even with a GIL. The dict can be the user's own, for example one
 * that was passed to _thread.start_new_thread(): then any code that runs before the function
 * returns (a conversion, the garbage collector) can empty it, which drops the values that were
 * read. */
static inline int cqn_freeze_keywords(PyObject **kwargs, PyObject **copy)
{
    if (*kwargs != NULL) {
        *copy = *kwargs = PyDict_Copy(*kwargs);
    }
    return *kwargs == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Makes a tuple of a list, without a GIL: another thread could change the list. */
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

/* PyUnstable_TryIncRef() knows an object that is being deallocated by its merged count. A finalizer
 * that runs then, such as __del__, gives the object back to its thread, with a local count that
 * drops to 0 and that the call accepts in this thread. */
static inline int cqn_try_ref_object(PyObject *op)
{
    return (Py_REFCNT(op) > 0 || !PyObject_GC_IsFinalized(op)) && PyUnstable_TryIncRef(op);
}

/* lock.c. A critical section takes at most two mutexes again after the GIL was released, so the
 * lock has no more than two halves. */
#define CQN_HALVES 2
typedef struct {
    _Alignas(64) PyMutex mutex; /* in a cache line of its own */
} cqn_half;
extern cqn_half cqn_halves[CQN_HALVES];

/* The halves that a thread has locked, outside of CQN_UNLOCKED(). */
typedef struct {
    uint8_t halves; /* bits 1 << half */
    bool all;       /* the innermost section holds both */
} cqn_locks;
extern _Thread_local cqn_locks cqn_locks_held;

int cqn_lock_init(void);

/* The half of a new context: each one gets the other half than the one before. The caller holds the
 * lock. */
uint8_t cqn_next_half(void);

typedef struct {
    union {
        PyCriticalSection half;
        PyCriticalSection2 all;
    };
    enum { CQN_NONE, CQN_HALF, CQN_ALL } begun;
    cqn_locks outside;
} cqn_section;

/* Whether the thread's innermost section holds both halves: it would have to be suspended before
 * they could be locked again. CPython does not begin a section on one mutex which the innermost
 * holds. */
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

/* At the end of the interpreter one thread is left, which must not wait: the lock can have been
 * handed to a thread that never comes back. */
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

/* In a function that began with CQN_HALF_LOCKED: lets go of the half, and holds the lock from here
 * on. Others may have been in the core in between. False with ClosedError: the object is closed. */
#define CQN_LOCK_ALL(object) \
    (cqn_end_section(&locked), cqn_begin_section(&locked), cqn_open(CQN_OBJ(object)) != NULL)

/* Whether the caller holds the whole lock. */
#define CQN_HOLDS_ALL (cqn_locks_held.all)

/* Releasing the GIL suspends all sections that this thread is in, and taking it
 * resumes the innermost. If that is on a mutex of our own, the others wait for
 * its end. */
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
#define CQN_UNLOCKED(call) (call)
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

/* Calls a method, which can run any code, without the lock. `argument` may be NULL; it is no tuple.
 * NULL with an exception. */
PyObject *cqn_call_method(PyObject *op, const char *method, PyObject *argument);

/* The same without the result: 0, or -1 with an exception. */
int cqn_do_method(PyObject *op, const char *method, PyObject *argument);

/* ---- the references of an object ---- */

/* Adds n references. */
static inline void cqn_refs_add(PyObject *op, size_t n)
{
#if defined(Py_GIL_DISABLED) || defined(Py_REF_DEBUG) /* which counts those of all objects */
    for (size_t i = 0; i < n; i++) {
        Py_INCREF(op);
    }
#else
    Py_SET_REFCNT(op, Py_REFCNT(op) + (Py_ssize_t)n);
#endif
}

/* The record of an object's references besides their count. Guarded by the GIL. */
typedef struct {
    bool dying; /* it is being deallocated: no new reference can save it */
#ifdef Py_GIL_DISABLED
    size_t deferred; /* references in a chain, to be dropped; see cqn_decref_later() */
#endif
} cqn_refs;

/* Whether it may be in use, for a check that takes no reference. Without a GIL only cqn_refs.dying
 * shows it: another thread can drop the last reference at any moment. */
static inline bool cqn_refs_may_live(const cqn_refs *refs, PyObject *op)
{
#ifdef Py_GIL_DISABLED
    (void)op;
    return !refs->dying;
#else
    return !refs->dying && Py_REFCNT(op) > 0;
#endif
}

/* Drops n references that the caller owns, except those that could deallocate the object: then it
 * returns true, and the caller must put the object into its chain, for cqn_refs_drop_deferred().
 * With a GIL that is the last reference. Without one it may be any, since the others can go
 * meanwhile: all are deferred, and the object is in the chain once. */
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
#ifdef Py_REF_DEBUG /* which also counts the references of the interpreter */
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
    Py_DECREF(op); /* the last, and the object may be gone */
}

#endif
