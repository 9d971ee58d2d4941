/* SPDX-License-Identifier: MIT */
/* Copies the frames of a message that arrived as a whole into simple buffers: contiguous bytes that
 * are large enough. The Session handles all other buffers, and raises what is wrong with them. */

#include "messages/copy.h"
#include "messages/session.h"

static bool is_simple(const Py_buffer *view, uint32_t nbytes)
{
    return !view->readonly && view->ndim == 1 && view->itemsize == 1 &&
           (view->strides == NULL || view->strides[0] == 1) && view->suboffsets == NULL &&
           (view->format == NULL || strcmp(view->format, "B") == 0) &&
           view->len >= (Py_ssize_t)nbytes;
}

static PyObject *first_bytes(PyObject *view, uint32_t nbytes)
{
    PyObject *end = PyLong_FromUnsignedLong(nbytes);
    PyObject *slice = end == NULL ? NULL : PySlice_New(NULL, end, NULL);
    PyObject *part = slice == NULL ? NULL : PyObject_GetItem(view, slice);
    Py_XDECREF(slice);
    Py_XDECREF(end);
    return part;
}

PyObject *cqn_copy_view(PyObject *buffer, uint32_t nbytes)
{
    PyObject *view;
    CQN_UNLOCKED(view = PyMemoryView_FromObject(buffer));
    if (view == NULL || !is_simple(PyMemoryView_GET_BUFFER(view), nbytes)) {
        Py_XDECREF(view);
        return NULL;
    }
    if (PyMemoryView_GET_BUFFER(view)->len > (Py_ssize_t)nbytes) {
        Py_SETREF(view, first_bytes(view, nbytes));
    }
    return view;
}

/* Code that runs during an allocation can change the caller's list. */
PyObject *cqn_copy_frame(PyObject *into, uint32_t i, const uint8_t *bytes, uint32_t nbytes)
{
    if (into == NULL) {
        return PyByteArray_FromStringAndSize((const char *)bytes, nbytes);
    }
    if ((Py_ssize_t)i >= PySequence_Fast_GET_SIZE(into)) {
        return NULL;
    }
    PyObject *buffer = Py_NewRef(PySequence_Fast_GET_ITEM(into, i));
    PyObject *view = cqn_copy_view(buffer, nbytes);
    Py_DECREF(buffer);
    if (view != NULL && nbytes > 0) {
        memcpy(PyMemoryView_GET_BUFFER(view)->buf, bytes, nbytes);
    }
    return view;
}

PyObject *cqn_copy_message(const cqn_session *session, const cqn_message *message, PyObject *into)
{
    const uint8_t *frame = cqn_session_frame(session, message->slot);
    uint32_t count = 0;
    cqn_breach breach = {""};
    if (message->is_offer ||
        !cqn_parse_data(frame, message->length, &session->limits, &count, &breach) ||
        (into != NULL && PySequence_Fast_GET_SIZE(into) != (Py_ssize_t)count)) {
        return NULL;
    }
    PyObject *list = PyList_New(count);
    const uint8_t *at = frame + cqn_data_size(count, 0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        const uint32_t nbytes = cqn_data_length(frame, i);
        PyObject *one = cqn_copy_frame(into, i, at, nbytes);
        if (one == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, one);
        at += nbytes;
    }
    return list;
}
