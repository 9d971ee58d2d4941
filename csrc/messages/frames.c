/* SPDX-License-Identifier: MIT */
/* The bytes of a message to be sent, if its buffers are simple. The Session converts all others,
 * and raises what is wrong with them. */

#include "messages/frames.h"

/* Whether the items are numbers; other formats can contain references to objects. */
static bool has_simple_format(const Py_buffer *view)
{
    const char *format = view->format;
    if (format == NULL) {
        return true;
    }
    format += strchr("@=<>!", format[0]) != NULL && format[0] != '\0';
    return format[0] != '\0' && format[1] == '\0' && strchr("cbB?hHiIlLqQnNefd", format[0]) != NULL;
}

static bool get_frame(PyObject *buffer, cqn_frame *out)
{
    out->view.obj = NULL;
    if (PyBytes_CheckExact(buffer)) {
        out->bytes = PyBytes_AS_STRING(buffer);
        out->length = (uint64_t)PyBytes_GET_SIZE(buffer);
        return true;
    }
    int rc;
    CQN_UNLOCKED(rc = PyObject_GetBuffer(buffer, &out->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT));
    if (rc < 0) {
        out->view.obj = NULL;
        PyErr_Clear(); /* the Session tries again and raises the error */
        return false;
    }
    out->bytes = out->view.buf;
    out->length = (uint64_t)out->view.len;
    return has_simple_format(&out->view);
}

bool cqn_frames_get(PyObject *const *buffers, Py_ssize_t n, cqn_frame *frames, Py_ssize_t *got,
                    uint64_t *nbytes)
{
    *nbytes = 0;
    for (*got = 0; *got < n; ++*got) {
        if (!get_frame(buffers[*got], &frames[*got])) {
            ++*got;
            return false;
        }
        *nbytes += frames[*got].length;
    }
    return true;
}

void cqn_frames_drop(cqn_frame *frames, Py_ssize_t n)
{
    PyObject *pending = cqn_take_exception();
    for (Py_ssize_t i = 0; i < n; i++) {
        if (frames[i].view.obj != NULL) {
            CQN_UNLOCKED(PyBuffer_Release(&frames[i].view));
        }
    }
    cqn_put_exception(pending);
}

/* The view of contiguous bytes can have pointers into itself. */
void cqn_frames_move(cqn_frame *to, const cqn_frame *from, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        to[i] = from[i];
        if (from[i].view.obj != NULL && from[i].view.shape == &from[i].view.len) {
            to[i].view.shape = &to[i].view.len;
        }
        if (from[i].view.obj != NULL && from[i].view.strides == &from[i].view.itemsize) {
            to[i].view.strides = &to[i].view.itemsize;
        }
    }
}
