/* SPDX-License-Identifier: MIT */
/* From the arguments of a call to values. */
#ifndef CQN_ARGS_H
#define CQN_ARGS_H

#include "base/python.h"

/* As PyLong_AsUnsignedLongLong(), which is slow for more than 30 bits before Python 3.13. */
static inline uint64_t cqn_unsigned(PyObject *number)
{
    int overflow;
    const long n = PyLong_AsLongAndOverflow(number, &overflow);
    return overflow == 0 && n >= 0 ? (uint64_t)n : PyLong_AsUnsignedLongLong(number);
}

/* Sorts the arguments of a METH_FASTCALL | METH_KEYWORDS call into `out`, by their names;
 * borrowed. The others stay as they were, NULL. -1 with TypeError. */
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

/* The same for the tuple and the dict, or NULL, that a constructor of `type` was called with. */
int cqn_sort_new(const char *type, const char *const *names, int positional, int required,
                 PyObject *args, PyObject *kwargs, PyObject **out);

/* None in the place of what was not given. */
static inline PyObject *cqn_given(PyObject *value)
{
    return value != NULL ? value : Py_None;
}

/* True or false, as Python takes a value; NULL is false. -1 with an exception. */
static inline int cqn_truth(PyObject *value)
{
    return value == NULL ? 0 : PyObject_IsTrue(value);
}

/* The conversions below return -1 with TypeError or ValueError, which name the argument, the
 * value and the limit. They can run any code: __index__() is the user's. */
int cqn_range(PyObject *value, const char *name, uint64_t min, uint64_t max, uint64_t *out);

/* An integer from 0 to `max`. */
int cqn_uint(PyObject *value, const char *name, uint64_t max, uint64_t *out);
int cqn_u32(PyObject *value, const char *name, uint32_t max, uint32_t *out);

/* A member of an enum, or its number; `kind` is "a QPType such as QPType.RC", for the TypeError. */
int cqn_member(PyObject *value, const char *name, const char *kind, uint64_t max, uint64_t *out);
int cqn_member32(PyObject *value, const char *name, const char *kind, uint32_t max, uint32_t *out);

/* A GID from 16 bytes or an IP address; an IPv4 address is mapped into IPv6. */
int cqn_gid(PyObject *value, const char *name, union ibv_gid *out);

/* A timeout in seconds as nanoseconds, rounded up; -1 for None, which waits for ever. */
int cqn_timeout(PyObject *value, int64_t *out_ns);

/* How long to poll before sleeping: seconds, from 0 to 60, as nanoseconds, rounded up; or "auto".
 */
#define CQN_SPIN_AUTO (-1)
int cqn_spin(PyObject *value, int64_t *out_ns);

#endif
