/* SPDX-License-Identifier: MIT */
/*
 * The common part of value types: copying and pickling.
 *
 * An immutable value is its own copy. A pickled value is restored by the class method _restore() of
 * its type, from plain numbers and strings. The device's objects that it refers to stay in their
 * process: see cqn_new_left().
 */
#ifndef CQN_VALUE_H
#define CQN_VALUE_H

#include "base/object.h"

/* Returns the result of __reduce__(); steals the tuple `args`. NULL: an exception is already
 * set. */
PyObject *cqn_reduce(PyObject *self, PyObject *args);

/* __copy__() and __deepcopy__() of an immutable value. */
PyObject *cqn_value_copy(PyObject *self, PyObject *unused);

/* Returns a hash of the words of a value. */
Py_hash_t cqn_hash(const uint64_t *words, size_t n);

/* The result of `a == b` or `a != b`, from whether the two are the same. Other comparisons and
 * other types are not comparable. */
#define CQN_COMPARABLE(a, b, op) (((op) == Py_EQ || (op) == Py_NE) && Py_IS_TYPE(b, Py_TYPE(a)))
#define CQN_COMPARED(same, op) PyBool_FromLong((same) == ((op) == Py_EQ))

extern const char cqn_copy_doc[], cqn_deepcopy_doc[], cqn_reduce_doc[], cqn_restore_doc[];

/* The methods of a value type that is copied by `copy`. */
#define CQN_VALUE_METHODS(copy, reduce, restore)                        \
    {"__copy__", copy, METH_NOARGS, cqn_copy_doc},                      \
        {"__deepcopy__", copy, METH_O, cqn_deepcopy_doc},               \
        {"__reduce__", reduce, METH_NOARGS, cqn_reduce_doc},            \
    {                                                                   \
        "_restore", restore, METH_CLASS | METH_VARARGS, cqn_restore_doc \
    }

#endif
