/* SPDX-License-Identifier: MIT */
/* The common part of types that are shaped like a coroutine. */
#ifndef CQN_AWAIT_COROUTINE_H
#define CQN_AWAIT_COROUTINE_H

#include "base/base.h"

/* What send() and throw() return for what am_send says: a result becomes a StopIteration. Takes
 * over the reference. */
PyObject *cqn_send_result(PySendResult r, PyObject *result);

/* send() and tp_iternext of a type that has am_send. */
PyObject *cqn_coroutine_send(PyObject *self, PyObject *value);
PyObject *cqn_coroutine_next(PyObject *self);

/* A coroutine is run by one task at a time, and once to its end. -1 with an exception. */
int cqn_refuse_step(bool stepping, bool over);

/* The number of throw()'s arguments. -1 with TypeError. */
int cqn_check_throw(Py_ssize_t nargs);

/* Raises the arguments of throw(): an exception, or a type with its value. */
void cqn_raise_given(PyObject *const *args, Py_ssize_t nargs);

/* Passes a step on to what the coroutine awaits. PYGEN_RETURN: that is over, without a result. */
PySendResult cqn_send_into(PyObject *iterator, PyObject *value, PyObject **result);

/* Passes the arguments of throw() on to what the coroutine awaits: what that yields, or NULL with
 * an exception. */
PyObject *cqn_throw_into(PyObject *iterator, PyObject *const *args, Py_ssize_t nargs);

#define CQN_COROUTINE_METHODS(throw, close)                                                  \
    {"send", cqn_coroutine_send, METH_O, "send($self, value, /)\n--\n\nAs of a coroutine."}, \
        {"throw", (PyCFunction)(void (*)(void)) throw, METH_FASTCALL,                        \
         "throw($self, type, value=None, traceback=None, /)\n--\n\nAs of a coroutine."},     \
    {                                                                                        \
        "close", close, METH_NOARGS, "close($self, /)\n--\n\nAs of a coroutine."             \
    }

#endif
