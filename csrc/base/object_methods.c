/* SPDX-License-Identifier: MIT */
/* The methods and attributes of all types. */

#include "base/errors.h"
#include "base/object.h"

/* ---- methods ---- */

const char cqn_close_doc[] =
    "close($self, /)\n--\n\n"
    "Destroy the object; a second call does nothing.\n\n"
    "Raises BusyError, which names what still needs it: another object, or a work request in\n"
    "flight.";

const char cqn_add_close_callback_doc[] =
    "add_close_callback($self, callback, /)\n--\n\n"
    "Call a function as soon as the object is closed, in the thread that closes it.\n\n"
    "callback: called without arguments. An Exception that it raises is reported as\n"
    "    unraisable; close() raises another, such as KeyboardInterrupt, when everything is\n"
    "    closed.";

const char cqn_remove_close_callback_doc[] =
    "remove_close_callback($self, callback, /)\n--\n\n"
    "Remove a function, and return how often add_close_callback() had added it.\n\n"
    "callback: the same function.";

const char cqn_enter_doc[] = "__enter__($self, /)\n--\n\nReturn the object itself.";

const char cqn_exit_doc[] =
    "__exit__($self, exc_type, exc, tb, /)\n--\n\n"
    "Close it; a Context with all that was made from it. An exception that leaves the block is "
    "worth more than BusyError.";

/* Only a context closes the objects created on it. */
static PyObject *close_whole(cqn_object *self)
{
    bool is_context = CQN_OBJ(self->context) == self;
    return cqn_close(self, is_context) < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *cqn_method_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return close_whole(CQN_OBJ(self));
}

PyObject *cqn_method_enter(PyObject *self, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(self)) == NULL ? NULL : Py_NewRef(self);
}

/* An exception of the block takes precedence over the BusyError of a failed close; an interrupt
 * takes precedence over both, with the exception as its context. */
PyObject *cqn_method_exit(PyObject *self, PyObject *args)
{
    CQN_LOCKED;
    PyObject *result = close_whole(CQN_OBJ(self));
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception) && PyTuple_GET_SIZE(args) > 0 &&
        PyTuple_GET_ITEM(args, 0) != Py_None) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return result;
}

/* The list is created before the check, since that can run code that closes the object. */
PyObject *cqn_method_add_close_callback(PyObject *op, PyObject *callback)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    if (!PyCallable_Check(callback)) {
        PyErr_Format(PyExc_TypeError, "callback must be callable, not %s",
                     Py_TYPE(callback)->tp_name);
        return NULL;
    }
    PyObject *list = self->on_close ? Py_NewRef(self->on_close) : PyList_New(0);
    if (list == NULL || cqn_open(self) == NULL) {
        Py_XDECREF(list);
        return NULL;
    }
    if (self->on_close == NULL) {
        self->on_close = Py_NewRef(list);
    }
    int rc = PyList_Append(self->on_close, callback);
    Py_DECREF(list);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* Comparisons can run arbitrary code: they run on a copy, which replaces the list only if the
 * object still has the same one. */
PyObject *cqn_method_remove_close_callback(PyObject *op, PyObject *callback)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    PyObject *kept = PyList_New(0);
    PyObject *old = self->on_close ? Py_NewRef(self->on_close) : NULL;
    int rc = kept == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && old != NULL && i < PyList_GET_SIZE(old); i++) {
        PyObject *one = Py_NewRef(PyList_GET_ITEM(old, i));
        int same = PyObject_RichCompareBool(one, callback, Py_EQ);
        rc = same < 0 ? -1 : same ? 0 : PyList_Append(kept, one);
        Py_DECREF(one);
    }
    PyObject *removed = NULL;
    if (rc == 0 && old != NULL && self->on_close == old) {
        removed = PyLong_FromSsize_t(PyList_GET_SIZE(old) - PyList_GET_SIZE(kept));
        Py_SETREF(self->on_close, Py_NewRef(kept));
    }
    else if (rc == 0) {
        removed = PyLong_FromLong(0); /* closed meanwhile, or without callbacks */
    }
    Py_XDECREF(old);
    Py_XDECREF(kept);
    return removed;
}

/* ---- attributes ---- */

PyObject *cqn_get_closed(PyObject *self, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(!cqn_is_open(CQN_OBJ(self)));
}

PyObject *cqn_get_context(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op)) ? Py_NewRef((PyObject *)CQN_OBJ(op)->context) : NULL;
}

/* The closure is the index in `uses`. */
PyObject *cqn_get_used(PyObject *op, void *index)
{
    CQN_LOCKED;
    cqn_object *self = CQN_OBJ(op);
    return cqn_open(self) ? Py_NewRef((PyObject *)self->uses[(uintptr_t)index]) : NULL;
}

/* The closure is the offset of a 32-bit field. */
PyObject *cqn_get_u32(PyObject *op, void *offset)
{
    CQN_LOCKED;
    return cqn_open(CQN_OBJ(op))
               ? PyLong_FromUnsignedLong(*(uint32_t *)((char *)op + (uintptr_t)offset))
               : NULL;
}

PyObject *cqn_get_pointer(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    void *handle = cqn_open(CQN_OBJ(op));
    return handle == NULL ? NULL : PyLong_FromVoidPtr(handle);
}

/* The closure is the offset of a reference, which is NULL after it was deleted. */
PyObject *cqn_get_object(PyObject *op, void *offset)
{
    CQN_LOCKED;
    PyObject *value = *(PyObject **)((char *)op + (uintptr_t)offset);
    return Py_NewRef(value != NULL ? value : Py_None);
}

int cqn_set_object(PyObject *op, PyObject *value, void *offset)
{
    CQN_LOCKED;
    PyObject **place = (PyObject **)((char *)op + (uintptr_t)offset);
    Py_XSETREF(*place, Py_XNewRef(value));
    return 0;
}

/* ---- repr() ---- */

const char *cqn_device_name(const cqn_object *self)
{
    const struct ibv_context *device = self->context->base.handle;
    return device != NULL ? ibv_get_device_name(device->device) : "a closing device";
}

PyObject *cqn_short_repr(PyObject *op)
{
    cqn_object *self = CQN_OBJ(op);
    return self->handle == NULL
               ? PyUnicode_FromFormat("<%s closed>", self->kind->name)
               : PyUnicode_FromFormat("<%s on %s>", self->kind->name, cqn_device_name(self));
}

PyObject *cqn_repr(PyObject *op)
{
    CQN_LOCKED;
    return cqn_short_repr(op);
}
