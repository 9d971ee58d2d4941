/* SPDX-License-Identifier: MIT */
/* Copying, hashing and pickling of values, see value.h. */

#include "base/library.h"
#include "base/value.h"

const char cqn_copy_doc[] = "__copy__($self, /)\n--\n\nFor copy.copy().";
const char cqn_deepcopy_doc[] = "__deepcopy__($self, memo, /)\n--\n\nFor copy.deepcopy().";
const char cqn_reduce_doc[] = "__reduce__($self, /)\n--\n\nFor pickle.";
const char cqn_restore_doc[] = "_restore($type, /, *args)\n--\n\nMake what was pickled.";

CQN_RARE PyObject *cqn_reduce(PyObject *self, PyObject *args)
{
    PyObject *restore = args ? PyObject_GetAttrString((PyObject *)Py_TYPE(self), "_restore") : NULL;
    PyObject *result = restore ? PyTuple_Pack(2, restore, args) : NULL;
    Py_XDECREF(restore);
    Py_XDECREF(args);
    return result;
}

PyObject *cqn_value_copy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(self);
}

/* Multiplies each word by the golden ratio, as a fraction of 2**64. */
Py_hash_t cqn_hash(const uint64_t *words, size_t n)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return (Py_hash_t)hash == -1 ? -2 : (Py_hash_t)hash;
}
