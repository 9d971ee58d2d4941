/* SPDX-License-Identifier: MIT */
/* Keeps buffers registered while a message uses them. Python decides which ones stay registered for
 * later messages: see _memory.py and cqnotify/_registered. */

#include "messages/register.h"
#include "memory/wanted.h"

PyObject *cqn_register(const cqn_session *self, PyObject *buffer, PyObject *access)
{
    PyObject *view;
    CQN_UNLOCKED(view = PyMemoryView_FromObject(buffer));
    PyObject *memory = view == NULL ? NULL : cqn_wanted_new(self->state, view, access);
    PyObject *one = memory == NULL ? NULL : cqn_call_method(self->registrations, "acquire", memory);
    Py_XDECREF(memory);
    Py_XDECREF(view);
    return one;
}

static int number_of(PyObject *op, const char *name, uint64_t *out)
{
    PyObject *value = PyObject_GetAttrString(op, name);
    const int rc = value == NULL ? -1 : cqn_uint(value, name, UINT64_MAX, out);
    Py_XDECREF(value);
    return rc;
}

int cqn_registered_at(PyObject *registration, uint64_t *addr, uint32_t *rkey)
{
    uint64_t key = 0;
    const int rc =
        number_of(registration, "addr", addr) < 0 || number_of(registration, "rkey", &key) < 0;
    *rkey = (uint32_t)key;
    return rc ? -1 : 0;
}

cqn_mr *cqn_registered_mr(const cqn_session *self, PyObject *registration)
{
    PyObject *mr = PyObject_GetAttrString(registration, "mr");
    if (mr != NULL && !PyObject_TypeCheck(mr, self->state->MR)) {
        PyErr_SetString(PyExc_TypeError, "mr of a registration must be an MR");
        Py_CLEAR(mr);
    }
    return (cqn_mr *)mr;
}

void cqn_unregister(const cqn_session *self, PyObject *list)
{
    PyObject *pending = cqn_take_exception();
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *one = PyList_GET_ITEM(list, i);
        if (cqn_do_method(self->registrations, "release", one) < 0) {
            PyErr_WriteUnraisable(one);
        }
    }
    Py_XDECREF(list);
    cqn_put_exception(pending);
}
