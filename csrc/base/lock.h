/* SPDX-License-Identifier: MIT */
/*
 * What takes the GIL's place where there is none.
 *
 * On a free-threaded Python every function that Python calls, but for those that
 * touch nothing that changes, begins with CQN_LOCKED: until it returns it holds a
 * lock that all of the core shares. As with the GIL, there is one at a time in
 * here, and whoever releases the GIL (Py_BEGIN_ALLOW_THREADS) or waits for
 * something in CPython lets go of the lock meanwhile: it is a critical section.
 * So one set of rules holds for both, and comments say "the GIL" for either.
 *
 * What differs:
 *
 *   - nobody holds still what is the user's: a list or a dict that is read more than
 *     once is read in a copy, see cqn_freeze() and cqn_dict_copy();
 *   - the last reference to an object can go in another thread at any time, which
 *     then waits in cqn_dealloc() for the lock. A thread that comes to an object by a
 *     pointer that holds no reference gets one by cqn_try_ref() alone;
 *   - a thread that computes under a lock is not switched, as under the GIL. So code of
 *     unknown length is called by CQN_UNLOCKED().
 *
 * With a GIL all of it is nothing.
 */
#ifndef CQN_LOCK_H
#define CQN_LOCK_H

#include "base/python.h"

static inline void cqn_drop(PyObject *const *copy)
{
    Py_XDECREF(*copy);
}
/* Declares what cqn_freeze() and cqn_freeze_keywords() fill in, which is let go of at the end of
 * the function. */
#define CQN_COPY __attribute__((cleanup(cqn_drop))) PyObject *

/* Makes a copy of a call's keywords, with a GIL, too. The dict can be the user's own, handed to
 * _thread.start_new_thread(), say: then any code that runs before the function returns (a
 * conversion, the garbage collector) can empty it, and with it go the values that were read. */
static inline int cqn_freeze_keywords(PyObject **kwargs, PyObject **copy)
{
    if (*kwargs != NULL) {
        *copy = *kwargs = PyDict_Copy(*kwargs);
    }
    return *kwargs == NULL && PyErr_Occurred() ? -1 : 0;
}

#ifdef Py_GIL_DISABLED

/* lock.c */
extern PyObject cqn_lock; /* nobody refers to it, it is what gets locked */
extern _Thread_local unsigned cqn_sections;
int cqn_lock_init(void);

/* At the end of the interpreter one thread is left, and waits for nobody: the lock
 * can have been handed to one that never comes back. */
typedef struct {
    PyCriticalSection section;
    bool begun;
} cqn_section;

static inline void cqn_begin_section(cqn_section *self)
{
    self->begun = !Py_IsFinalizing();
    if (self->begun) {
        PyCriticalSection_Begin(&self->section, &cqn_lock);
        cqn_sections++;
    }
}

static inline void cqn_end_section(cqn_section *self)
{
    if (self->begun) {
        cqn_sections--;
        PyCriticalSection_End(&self->section);
    }
}

#define CQN_LOCKED                                                \
    cqn_section locked __attribute__((cleanup(cqn_end_section))); \
    cqn_begin_section(&locked)

/* Releasing the GIL suspends all sections that this thread is in, and taking it
 * resumes the innermost. If that is on an object of our own, the others wait for
 * its end. */
#define CQN_UNLOCKED(call)                          \
    do {                                            \
        PyObject nobody = {0};                      \
        PyCriticalSection outside;                  \
        const unsigned sections = cqn_sections;     \
        PyCriticalSection_Begin(&outside, &nobody); \
        PyEval_RestoreThread(PyEval_SaveThread());  \
        cqn_sections = 0;                           \
        call;                                       \
        cqn_sections = sections;                    \
        PyCriticalSection_End(&outside);            \
    } while (0)

/* Makes a tuple of a list. */
static inline int cqn_freeze(PyObject **value, PyObject **copy)
{
    if (*value != NULL && PyList_Check(*value)) {
        *copy = *value = PyList_AsTuple(*value);
    }
    return *value == NULL && PyErr_Occurred() ? -1 : 0;
}

/* As CPython 3.14 has them: an object says that it may be referred to weakly, and
 * then its shared count tells other threads whether it lives. The thread that it
 * belongs to knows by its own count, which is 0 only while it is deallocated. */
static inline void cqn_enable_try_ref(PyObject *op)
{
    Py_ssize_t shared = _Py_atomic_load_ssize_relaxed(&op->ob_ref_shared);
    while ((shared & _Py_REF_SHARED_FLAG_MASK) == 0 &&
           !_Py_atomic_compare_exchange_ssize(&op->ob_ref_shared, &shared,
                                              shared | _Py_REF_MAYBE_WEAKREF)) {
    }
}

/* It can't be told: another thread can drop the last at any moment. */
static inline bool cqn_has_refs(PyObject *op)
{
    (void)op;
    return true;
}

static inline int cqn_try_ref_object(PyObject *op)
{
    if (_Py_IsOwnedByCurrentThread(op)) {
        if (_Py_atomic_load_uint32_relaxed(&op->ob_ref_local) == 0) {
            return 0;
        }
        Py_INCREF(op);
        return 1;
    }
    Py_ssize_t shared = _Py_atomic_load_ssize_relaxed(&op->ob_ref_shared);
    while (shared != 0 && shared != _Py_REF_MERGED) {
        if (_Py_atomic_compare_exchange_ssize(&op->ob_ref_shared, &shared,
                                              shared + (1 << _Py_REF_SHARED_SHIFT))) {
            return 1;
        }
    }
    return 0;
}

#else /* with a GIL */

#define CQN_LOCKED ((void)0)
static inline int cqn_lock_init(void)
{
    return 0;
}
#define CQN_UNLOCKED(call) (call)

static inline int cqn_freeze(PyObject **value, PyObject **copy)
{
    (void)value;
    (void)copy;
    return 0;
}

static inline void cqn_enable_try_ref(PyObject *op)
{
    (void)op;
}

static inline bool cqn_has_refs(PyObject *op)
{
    return Py_REFCNT(op) > 0;
}

static inline int cqn_try_ref_object(PyObject *op)
{
    if (!cqn_has_refs(op)) {
        return 0;
    }
    Py_INCREF(op);
    return 1;
}

#endif

#endif
