/* SPDX-License-Identifier: MIT */
/* Parsing of the arguments of a call, and conversion to C values. */
#ifndef CQN_ARGS_H
#define CQN_ARGS_H

#include "base/python.h"

/* Like PyLong_AsUnsignedLongLong(), which is slow for numbers of more than 30 bits before Python
 * 3.13. */
static inline uint64_t cqn_unsigned(PyObject *number)
{
    int overflow;
    const long n = PyLong_AsLongAndOverflow(number, &overflow);
    return overflow == 0 && n >= 0 ? (uint64_t)n : PyLong_AsUnsignedLongLong(number);
}

/* Stores the arguments of a METH_FASTCALL | METH_KEYWORDS call in `out`, in the order of `names`.
 * The references are borrowed; the entries of omitted arguments stay NULL. Returns -1 with
 * TypeError. */
int cqn_sort_args(const char *function, const char *const *names, int positional, int required,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out);
/* The same, with a fast path for calls without arguments. */
static inline int cqn_args(const char *function, const char *const *names, int positional,
                           int required, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                           PyObject **out)
{
    return nargs == 0 && kwnames == NULL && required == 0
               ? 0
               : cqn_sort_args(function, names, positional, required, args, nargs, kwnames, out);
}

/* The same for a constructor of `type`, called with a tuple and with a dict or NULL. */
int cqn_sort_new(const char *type, const char *const *names, int positional, int required,
                 PyObject *args, PyObject *kwargs, PyObject **out);

/* Replaces an omitted argument by None. */
static inline PyObject *cqn_given(PyObject *value)
{
    return value != NULL ? value : Py_None;
}

/* Returns the truth value of an argument, 0 if it was omitted; -1 with an exception. */
static inline int cqn_truth(PyObject *value)
{
    return value == NULL ? 0 : PyObject_IsTrue(value);
}

/* The conversions below return -1 with TypeError or ValueError, which name the argument, the value
 * and the limit. They can run arbitrary code, because __index__() can be the user's. */
int cqn_range(PyObject *value, const char *name, uint64_t min, uint64_t max, uint64_t *out);

/* An integer from 0 to `max`. */
int cqn_uint(PyObject *value, const char *name, uint64_t max, uint64_t *out);
int cqn_u32(PyObject *value, const char *name, uint32_t max, uint32_t *out);

/* A member of an enum, or its number. `kind` is for the TypeError, for example "a QPType such as
 * QPType.RC". */
int cqn_member(PyObject *value, const char *name, const char *kind, uint64_t max, uint64_t *out);
int cqn_member32(PyObject *value, const char *name, const char *kind, uint32_t max, uint32_t *out);

/* A GID, given as 16 bytes or an IP address; an IPv4 address becomes an IPv4-mapped IPv6
 * address. */
int cqn_gid(PyObject *value, const char *name, union ibv_gid *out);

/* A timeout in seconds, converted to nanoseconds and rounded up; -1 for None: no timeout. */
int cqn_timeout(PyObject *value, int64_t *out_ns);

/* The time to poll before sleeping: 0 to 60 seconds, converted to nanoseconds and rounded up; or
 * CQN_SPIN_AUTO for "auto". */
#define CQN_SPIN_AUTO (-1)
int cqn_spin(PyObject *value, int64_t *out_ns);

#endif
