/* SPDX-License-Identifier: MIT */
/*
 * The common part of values: they are copied, and leave the process by pickle.
 *
 * A value that is immutable is its own copy. One that is pickled is made again by the class method
 * _restore() of its type, from plain numbers and texts. The objects of the device that it refers to
 * stay in their process: see cqn_new_left().
 */
#ifndef CQN_VALUE_H
#define CQN_VALUE_H

#include "base/object.h"

/* What __reduce__() returns: how `self` is made again. Takes the tuple `args` over; NULL: an
 * exception is already set. */
PyObject *cqn_reduce(PyObject *self, PyObject *args);

/* __copy__() and __deepcopy__() of what is immutable. */
PyObject *cqn_value_copy(PyObject *self, PyObject *unused);

/* A hash over the words of a value. */
Py_hash_t cqn_hash(const uint64_t *words, size_t n);

/* The result of `a == b` or `a != b`, by whether they are the same; for other comparisons, and
 * other types, there is none. */
#define CQN_COMPARABLE(a, b, op) (((op) == Py_EQ || (op) == Py_NE) && Py_IS_TYPE(b, Py_TYPE(a)))
#define CQN_COMPARED(same, op) PyBool_FromLong((same) == ((op) == Py_EQ))

extern const char cqn_copy_doc[], cqn_deepcopy_doc[], cqn_reduce_doc[], cqn_restore_doc[];

/* The methods of a type that is copied by `copy`. */
#define CQN_VALUE_METHODS(copy, reduce, restore)                        \
    {"__copy__", copy, METH_NOARGS, cqn_copy_doc},                      \
        {"__deepcopy__", copy, METH_O, cqn_deepcopy_doc},               \
        {"__reduce__", reduce, METH_NOARGS, cqn_reduce_doc},            \
    {                                                                   \
        "_restore", restore, METH_CLASS | METH_VARARGS, cqn_restore_doc \
    }

#endif
