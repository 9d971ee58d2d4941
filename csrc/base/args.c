/* SPDX-License-Identifier: MIT */
/*
 * Parses arguments and converts them. The errors name the argument, the value and the limit.
 *
 * Constructors that a program rarely calls use CPython's own parser,
 * PyArg_ParseTupleAndKeywords().
 */

#include "base/args.h"
#include <math.h>

#define MAX_SPIN 60 /* seconds */

/* Returns the index of the keyword in `names`, or -1. The first letter distinguishes most names, so
 * strcmp() is rarely called. */
static Py_ssize_t index_of(PyObject *keyword, const char *const *names)
{
    if (!PyUnicode_IS_COMPACT_ASCII(
            keyword)) { /* all names are ASCII, except in a subclass of str */
        Py_ssize_t i = 0;
        while (names[i] != NULL && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) {
            i++;
        }
        return names[i] != NULL ? i : -1;
    }
    const char *text = PyUnicode_DATA(keyword);
    for (Py_ssize_t i = 0; names[i] != NULL; i++) {
        if (text[0] == names[i][0] && strcmp(text, names[i]) == 0) {
            return strlen(text) == (size_t)PyUnicode_GET_LENGTH(keyword) ? i : -1;
        }
    }
    return -1;
}

static int sort_positional(const char *function, int positional, PyObject *const *args,
                           Py_ssize_t nargs, PyObject **out)
{
    if (nargs > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional argument%s (%zd given)",
                     function, positional, positional == 1 ? "" : "s", nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        out[i] = args[i];
    }
    return 0;
}

static int sort_keyword(const char *function, const char *const *names, PyObject *keyword,
                        PyObject *value, PyObject **out)
{
    const Py_ssize_t i = index_of(keyword, names);
    if (i < 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
                     keyword);
        return -1;
    }
    if (out[i] != NULL) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", function,
                     names[i]);
        return -1;
    }
    out[i] = value;
    return 0;
}

static int check_required(const char *function, const char *const *names, int required,
                          PyObject *const *out)
{
    for (int i = 0; i < required; i++) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", function,
                         names[i]);
            return -1;
        }
    }
    return 0;
}

/* Stores the arguments of a METH_FASTCALL | METH_KEYWORDS call in `out`, in the order of `names`,
 * which ends with NULL. The first `positional` arguments can be positional; the first `required`
 * ones are mandatory. */
int cqn_sort_args(const char *function, const char *const *names, int positional, int required,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out)
{
    if (sort_positional(function, positional, args, nargs, out) < 0) {
        return -1;
    }
    const Py_ssize_t nkw = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t k = 0; k < nkw; k++) {
        if (sort_keyword(function, names, PyTuple_GET_ITEM(kwnames, k), args[nargs + k], out) < 0) {
            return -1;
        }
    }
    return check_required(function, names, required, out);
}

/* No Python code runs in here, so the dict does not change during the loop. */
int cqn_sort_new(const char *type, const char *const *names, int positional, int required,
                 PyObject *args, PyObject *kwargs, PyObject **out)
{
    PyObject *keyword, *value;
    Py_ssize_t at = 0;
    if (sort_positional(type, positional, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args), out) <
        0) {
        return -1;
    }
    while (kwargs != NULL && PyDict_Next(kwargs, &at, &keyword, &value)) {
        if (!PyUnicode_Check(keyword)) { /* Python does not check this */
            PyErr_SetString(PyExc_TypeError, "keywords must be strings");
            return -1;
        }
        if (sort_keyword(type, names, keyword, value, out) < 0) {
            return -1;
        }
    }
    return check_required(type, names, required, out);
}

/* Returns the text of a rejected value for an error message: a new reference, or NULL with an
 * exception. Python limits the digits of an int's repr(): `otherwise` replaces a longer one. */
static PyObject *text_of_argument(PyObject *value, const char *otherwise)
{
    PyObject *text = PyObject_Repr(value);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        text = PyUnicode_FromString(otherwise);
    }
    return text;
}

/* Raises TypeError. Returns -1. */
static int refuse_type(PyObject *value, const char *name, const char *expected)
{
    PyObject *text = text_of_argument(value, Py_TYPE(value)->tp_name);
    if (text != NULL) {
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %U", name, expected, text);
        Py_DECREF(text);
    }
    return -1;
}

/* Raises ValueError with the value as the user wrote it, and with what it must be: a format of
 * PyUnicode_FromFormat(), and its arguments. Returns -1. */
static int refuse_value(PyObject *value, const char *name, const char *otherwise,
                        const char *expected, ...)
{
    va_list args;
    va_start(args, expected);
    PyObject *limit = PyUnicode_FromFormatV(expected, args);
    va_end(args);
    PyObject *text = limit == NULL ? NULL : text_of_argument(value, otherwise);
    if (text != NULL) {
        PyErr_Format(PyExc_ValueError, "%s is %U: it must be %U", name, text, limit);
    }
    Py_XDECREF(text);
    Py_XDECREF(limit);
    return -1;
}

/* Any object with __index__() is accepted. */
int cqn_range(PyObject *value, const char *name, uint64_t min, uint64_t max, uint64_t *out)
{
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be an integer, not %s", name,
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    PyObject *number = PyLong_CheckExact(value) ? Py_NewRef(value) : PyNumber_Index(value);
    if (number == NULL) {
        return -1;
    }
    uint64_t n = cqn_unsigned(number);
    Py_DECREF(number);
    bool beyond = n == UINT64_MAX && PyErr_Occurred();
    if (beyond && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
        return -1;
    }
    if (beyond || n < min || n > max) {
        PyErr_Clear();
        refuse_value(value, name, "far too large", "%llu to %llu", (unsigned long long)min,
                     (unsigned long long)max);
        return -1; /* also for the analyzer, which does not follow a variadic function */
    }
    *out = n;
    return 0;
}

int cqn_uint(PyObject *value, const char *name, uint64_t max, uint64_t *out)
{
    return cqn_range(value, name, 0, max, out);
}

int cqn_u32(PyObject *value, const char *name, uint32_t max, uint32_t *out)
{
    uint64_t n;
    if (cqn_uint(value, name, max, &n) < 0) {
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

int cqn_member(PyObject *value, const char *name, const char *kind, uint64_t max, uint64_t *out)
{
    return PyIndex_Check(value) ? cqn_uint(value, name, max, out) : refuse_type(value, name, kind);
}

int cqn_member32(PyObject *value, const char *name, const char *kind, uint32_t max, uint32_t *out)
{
    return PyIndex_Check(value) ? cqn_u32(value, name, max, out) : refuse_type(value, name, kind);
}

/* Returns the 4 or 16 bytes of an ipaddress object or of an address in text form; NULL without an
 * exception if the value is neither. */
static PyObject *pack_address(PyObject *value, const char *name)
{
    PyObject *address = Py_NewRef(value);
    if (PyUnicode_Check(value)) {
        PyObject *module = PyImport_ImportModule("ipaddress");
        Py_SETREF(address, module ? PyObject_CallMethod(module, "ip_address", "O", value) : NULL);
        Py_XDECREF(module);
        if (address == NULL) {
            if (PyErr_ExceptionMatches(PyExc_ValueError)) {
                PyErr_Format(PyExc_ValueError, "%s is %R: that is no IP address", name, value);
            }
            return NULL;
        }
    }
    PyObject *packed = PyObject_GetAttrString(address, "packed");
    if (packed == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    Py_DECREF(address);
    return packed;
}

int cqn_gid(PyObject *value, const char *name, union ibv_gid *out)
{
    static const union ibv_gid mapped = {.raw = {[10] = 0xff, [11] = 0xff}};
    PyObject *packed = PyBytes_Check(value) ? Py_NewRef(value) : pack_address(value, name);
    if (packed == NULL && PyErr_Occurred()) {
        return -1;
    }
    Py_ssize_t size = packed != NULL && PyBytes_Check(packed) ? PyBytes_GET_SIZE(packed) : 0;
    bool ok = size == sizeof(*out) || (size == 4 && packed != value);
    if (ok) {
        *out = mapped;
        memcpy(out->raw + sizeof(*out) - size, PyBytes_AS_STRING(packed), (size_t)size);
    }
    else {
        refuse_type(value, name, "an IP address, its text, or 16 bytes");
    }
    Py_XDECREF(packed);
    return ok ? 0 : -1;
}

/* Both ints and floats are accepted, and the string "auto". */
int cqn_spin(PyObject *value, int64_t *out_ns)
{
    if (PyUnicode_Check(value)) {
        if (PyUnicode_CompareWithASCIIString(value, "auto") == 0) {
            *out_ns = CQN_SPIN_AUTO;
            return 0;
        }
        PyErr_Format(PyExc_ValueError, "spin must be a number of seconds or 'auto', not %R", value);
        return -1;
    }
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "spin must be a number of seconds or 'auto', not %s",
                         Py_TYPE(value)->tp_name);
        }
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear(); /* an int too large for a float */
    }
    if (!(seconds >= 0 && seconds <= MAX_SPIN)) {
        return refuse_value(value, "spin", "far too large",
                            "0 to %d seconds; to wait longer, sleep: see arm_if_empty()", MAX_SPIN);
    }
    *out_ns = (int64_t)ceil(seconds * 1e9);
    return 0;
}

/* The result is rounded up, so no wait ends early. */
int cqn_timeout(PyObject *value, int64_t *out_ns)
{
    if (value == NULL || value == Py_None) {
        *out_ns = -1;
        return 0;
    }
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1.0 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear(); /* an int too large for a float */
        PyObject *zero = PyLong_FromLong(0);
        int positive = zero == NULL ? -1 : PyObject_RichCompareBool(value, zero, Py_GT);
        Py_XDECREF(zero);
        seconds = positive > 0 ? INFINITY : -1.0;
    }
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds or None, not %s",
                         Py_TYPE(value)->tp_name);
        }
        return -1;
    }
    if (!(seconds >= 0)) {
        return refuse_value(value, "timeout", "far too small", "0 or more seconds, or None");
    }
    /* more than 30 years: no timeout */
    *out_ns = seconds > 1e9 ? -1 : (int64_t)ceil(seconds * 1e9);
    return 0;
}
