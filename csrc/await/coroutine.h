/* SPDX-License-Identifier: MIT */
/* The common part of types in the shape of a coroutine. */
#ifndef CQN_AWAIT_COROUTINE_H
#define CQN_AWAIT_COROUTINE_H

#include "base/base.h"

/* Converts the result of am_send to that of send() and throw(): a returned value becomes a
 * StopIteration. Steals the reference. */
PyObject *cqn_send_result(PySendResult r, PyObject *result);

/* send() and tp_iternext of a type with am_send. */
PyObject *cqn_coroutine_send(PyObject *self, PyObject *value);
PyObject *cqn_coroutine_next(PyObject *self);

/* Refuses a step of a coroutine that is running or has ended. Returns -1 with an exception. */
int cqn_refuse_step(bool stepping, bool over);

/* Checks the number of throw()'s arguments. Returns -1 with TypeError. */
int cqn_check_throw(Py_ssize_t nargs);

/* Raises the arguments of throw(): an exception, or a type with its value. */
void cqn_raise_given(PyObject *const *args, Py_ssize_t nargs);

/* Passes a step on to the awaited iterator. PYGEN_RETURN: it is over, and *result is NULL. */
PySendResult cqn_send_into(PyObject *iterator, PyObject *value, PyObject **result);

/* Passes the arguments of throw() on to the awaited iterator. Returns what it yields, a new
 * reference; NULL with an exception. */
PyObject *cqn_throw_into(PyObject *iterator, PyObject *const *args, Py_ssize_t nargs);

#define CQN_COROUTINE_METHODS(throw, close)                                                  \
    {"send", cqn_coroutine_send, METH_O, "send($self, value, /)\n--\n\nAs of a coroutine."}, \
        {"throw", (PyCFunction)(void (*)(void)) throw, METH_FASTCALL,                        \
         "throw($self, type, value=None, traceback=None, /)\n--\n\nAs of a coroutine."},     \
    {                                                                                        \
        "close", close, METH_NOARGS, "close($self, /)\n--\n\nAs of a coroutine."             \
    }

#endif
