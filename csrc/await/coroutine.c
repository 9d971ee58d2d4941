/* SPDX-License-Identifier: MIT */
/* The methods of a coroutine that are the same for all types in the shape of one. */

#include "await/coroutine.h"

PyObject *cqn_send_result(PySendResult r, PyObject *result)
{
    if (r == PYGEN_RETURN) {
        if (result == Py_None) {
            PyErr_SetNone(PyExc_StopIteration);
        }
        else {
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop != NULL) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        }
        Py_CLEAR(result);
    }
    return result;
}

PyObject *cqn_coroutine_send(PyObject *self, PyObject *value)
{
    PyObject *result;
    const PySendResult r = Py_TYPE(self)->tp_as_async->am_send(self, value, &result);
    return cqn_send_result(r, result);
}

PyObject *cqn_coroutine_next(PyObject *self)
{
    return cqn_coroutine_send(self, Py_None);
}

int cqn_refuse_step(bool stepping, bool over)
{
    if (stepping) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return -1;
    }
    if (over) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return -1;
    }
    return 0;
}

int cqn_check_throw(Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 3) {
        PyErr_Format(PyExc_TypeError, "throw expected 1 to 3 arguments, got %zd", nargs);
        return -1;
    }
    return 0;
}

void cqn_raise_given(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *type = args[0], *value = nargs > 1 ? args[1] : Py_None;
    if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    }
    else if (!PyExceptionClass_Check(type)) {
        PyErr_Format(PyExc_TypeError,
                     "exceptions must be classes or instances deriving from BaseException, not %s",
                     Py_TYPE(type)->tp_name);
    }
    else {
        PyErr_SetObject(type, value);
    }
}

PySendResult cqn_send_into(PyObject *iterator, PyObject *value, PyObject **result)
{
    PySendResult r;
    Py_INCREF(iterator); /* the coroutine can release it meanwhile */
    CQN_UNLOCKED(r = PyIter_Send(iterator, value, result));
    Py_DECREF(iterator);
    if (r == PYGEN_RETURN) {
        Py_CLEAR(*result);
    }
    return r;
}

PyObject *cqn_throw_into(PyObject *iterator, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *result = NULL;
    Py_INCREF(iterator); /* as above */
    PyObject *method = PyObject_GetAttrString(iterator, "throw");
    if (method != NULL) {
        CQN_UNLOCKED(result = PyObject_Vectorcall(method, args, (size_t)nargs, NULL));
    }
    Py_XDECREF(method);
    Py_DECREF(iterator);
    return result;
}
