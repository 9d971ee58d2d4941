/* SPDX-License-Identifier: MIT */
/*
 * The Python functions of wire.c, for rare frames and for tests. _wire.py wraps the numbers in
 * named tuples.
 */

#include "messages/messages.h"

/* ---- arguments and results ---- */

/* Raises the ProtocolError of a breach. Returns NULL. */
static PyObject *refuse(PyObject *module, const cqn_breach *breach)
{
    const cqn_state *st = PyModule_GetState(module);
    PyErr_SetString(st->ProtocolError, breach->text);
    return NULL;
}

/* Converts an item of a tuple, a number up to `max`. Returns -1 with an exception. */
static int number_at(PyObject *tuple, Py_ssize_t i, uint64_t max, uint64_t *out)
{
    if (i >= PyTuple_GET_SIZE(tuple)) {
        PyErr_SetString(PyExc_TypeError, "the tuple has too few items");
        return -1;
    }
    return cqn_uint(PyTuple_GET_ITEM(tuple, i), "an item of the tuple", max, out);
}

/* Converts Limits of _wire.py: max_frames, max_message, least_remote. */
static int limits_of(PyObject *tuple, cqn_limits *out)
{
    uint64_t frames;
    if (number_at(tuple, 0, UINT32_MAX, &frames) < 0 ||
        number_at(tuple, 1, UINT64_MAX >> 1, &out->max_message) < 0 ||
        number_at(tuple, 2, UINT64_MAX, &out->least_remote) < 0) {
        return -1;
    }
    out->max_frames = (uint32_t)frames;
    return 0;
}

/* Converts a Remote of _wire.py: length, addr, rkey. */
static int remote_of(PyObject *tuple, cqn_remote *out)
{
    uint64_t rkey;
    if (number_at(tuple, 0, UINT64_MAX, &out->length) < 0 ||
        number_at(tuple, 1, UINT64_MAX, &out->addr) < 0 ||
        number_at(tuple, 2, UINT32_MAX, &rkey) < 0) {
        return -1;
    }
    out->rkey = (uint32_t)rkey;
    return 0;
}

static PyObject *remote_tuple(const cqn_remote *remote)
{
    return Py_BuildValue("(KKI)", (unsigned long long)remote->length,
                         (unsigned long long)remote->addr, remote->rkey);
}

/* Checks that nbytes can be written at `at`. Returns -1 with ValueError. */
static int check_room(const Py_buffer *into, uint64_t at, uint64_t nbytes)
{
    if (at <= (uint64_t)into->len && nbytes <= (uint64_t)into->len - at) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "the frame does not fit into that memory");
    return -1;
}

/* ---- parsing ---- */

static PyObject *parse_header(PyObject *module, PyObject *args)
{
    Py_buffer frame;
    cqn_header header;
    cqn_breach breach = {""};
    if (!PyArg_ParseTuple(args, "y*:wire_parse_header", &frame)) {
        return NULL;
    }
    PyObject *result = cqn_parse_header(frame.buf, (size_t)frame.len, &header, &breach)
                           ? Py_BuildValue("(iiII)", (int)header.kind, header.flags,
                                           header.credits_returned, header.offers_read)
                           : refuse(module, &breach);
    PyBuffer_Release(&frame);
    return result;
}

/* Returns a new list of the offsets (begin, end) of the frames of a checked DATA. */
static PyObject *bounds_of(const uint8_t *frame, uint32_t count)
{
    PyObject *list = PyList_New(count);
    uint64_t at = cqn_data_size(count, 0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        const uint64_t end = at + cqn_data_length(frame, i);
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)at, (unsigned long long)end);
        if (pair == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, pair);
        at = end;
    }
    return list;
}

static PyObject *parse_data(PyObject *module, PyObject *args)
{
    Py_buffer frame;
    PyObject *tuple, *result = NULL;
    cqn_limits limits;
    cqn_breach breach = {""};
    uint32_t count;
    if (!PyArg_ParseTuple(args, "y*O!:wire_parse_data", &frame, &PyTuple_Type, &tuple)) {
        return NULL;
    }
    if (limits_of(tuple, &limits) == 0) {
        result = cqn_parse_data(frame.buf, (size_t)frame.len, &limits, &count, &breach)
                     ? bounds_of(frame.buf, count)
                     : refuse(module, &breach);
    }
    PyBuffer_Release(&frame);
    return result;
}

static PyObject *parse_offer(PyObject *module, PyObject *args)
{
    Py_buffer frame;
    PyObject *tuple, *result = NULL;
    cqn_limits limits;
    cqn_breach breach = {""};
    cqn_offer offer;
    if (!PyArg_ParseTuple(args, "y*O!:wire_parse_offer", &frame, &PyTuple_Type, &tuple)) {
        return NULL;
    }
    if (limits_of(tuple, &limits) == 0) {
        result = cqn_parse_offer(frame.buf, (size_t)frame.len, &limits, &offer, &breach)
                     ? Py_BuildValue("(IN)", offer.frames, remote_tuple(&offer.body))
                     : refuse(module, &breach);
    }
    PyBuffer_Release(&frame);
    return result;
}

static PyObject *entries_of(const uint8_t *body, uint32_t count)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        const cqn_remote one = cqn_entry_at(body, i);
        PyObject *entry = remote_tuple(&one);
        if (entry == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, entry);
    }
    return list;
}

static PyObject *parse_body(PyObject *module, PyObject *args)
{
    Py_buffer body;
    PyObject *tuple, *result = NULL;
    cqn_limits limits;
    cqn_breach breach = {""};
    unsigned int count;
    if (!PyArg_ParseTuple(args, "y*IO!:wire_parse_body", &body, &count, &PyTuple_Type, &tuple)) {
        return NULL;
    }
    if (limits_of(tuple, &limits) == 0) {
        result = cqn_parse_body(body.buf, (size_t)body.len, count, &limits, &breach)
                     ? entries_of(body.buf, count)
                     : refuse(module, &breach);
    }
    PyBuffer_Release(&body);
    return result;
}

/* ---- writing ---- */

static PyObject *put_header(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer into;
    unsigned int kind, flags;
    unsigned long long returned, read;
    if (!PyArg_ParseTuple(args, "w*IIKK:wire_put_header", &into, &kind, &flags, &returned, &read)) {
        return NULL;
    }
    const int rc = check_room(&into, 0, CQN_HEADER_SIZE);
    if (rc == 0) {
        const cqn_header header = {.kind = (cqn_frame_kind)kind,
                                   .flags = (uint8_t)flags,
                                   .credits_returned = (uint32_t)returned,
                                   .offers_read = (uint32_t)read};
        cqn_put_header(into.buf, &header);
    }
    PyBuffer_Release(&into);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *put_offer(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer into;
    PyObject *tuple;
    cqn_offer offer;
    if (!PyArg_ParseTuple(args, "w*IO!:wire_put_offer", &into, &offer.frames, &PyTuple_Type,
                          &tuple)) {
        return NULL;
    }
    int rc = remote_of(tuple, &offer.body);
    if (rc == 0 && (rc = check_room(&into, 0, CQN_OFFER_SIZE)) == 0) {
        cqn_put_offer(into.buf, &offer);
    }
    PyBuffer_Release(&into);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static int put_entries(const Py_buffer *into, uint64_t at, PyObject *remotes)
{
    const Py_ssize_t n = PyTuple_GET_SIZE(remotes);
    cqn_remote remote;
    if (check_room(into, at, (uint64_t)n * CQN_ENTRY_SIZE) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tuple = PyTuple_GET_ITEM(remotes, i);
        if (!PyTuple_Check(tuple)) {
            PyErr_SetString(PyExc_TypeError, "a Remote is a tuple");
            return -1;
        }
        if (remote_of(tuple, &remote) < 0) {
            return -1;
        }
        cqn_put_entry((uint8_t *)into->buf + at, (uint32_t)i, &remote);
    }
    return 0;
}

static PyObject *put_body(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer into;
    unsigned long long at;
    PyObject *remotes;
    if (!PyArg_ParseTuple(args, "w*KO!:wire_put_body", &into, &at, &PyTuple_Type, &remotes)) {
        return NULL;
    }
    const int rc = put_entries(&into, at, remotes);
    PyBuffer_Release(&into);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *set_error(PyObject *module, PyObject *type)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    if (!PyExceptionClass_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "wire_set_error() takes a class of exceptions");
        return NULL;
    }
    Py_XSETREF(st->ProtocolError, Py_NewRef(type));
    Py_RETURN_NONE;
}

PyMethodDef cqn_wire_methods[] = {
    {"wire_parse_header", parse_header, METH_VARARGS,
     "wire_parse_header($module, frame, /)\n--\n\n"
     "Kind, flags, credits_returned and offers_read of a frame of cqnotify.messages."},
    {"wire_parse_data", parse_data, METH_VARARGS,
     "wire_parse_data($module, frame, limits, /)\n--\n\n"
     "Where the frames of the message begin and end."},
    {"wire_parse_offer", parse_offer, METH_VARARGS,
     "wire_parse_offer($module, frame, limits, /)\n--\n\n"
     "How many frames the message has; and length, address and rkey of its body."},
    {"wire_parse_body", parse_body, METH_VARARGS,
     "wire_parse_body($module, body, count, limits, /)\n--\n\n"
     "Length, address and rkey of each frame of an offer."},
    {"wire_put_header", put_header, METH_VARARGS,
     "wire_put_header($module, into, kind, flags, credits_returned, offers_read, /)\n--\n\n"
     "Write the header of a frame."},
    {"wire_put_offer", put_offer, METH_VARARGS,
     "wire_put_offer($module, into, frames, body, /)\n--\n\nWrite an offer, behind the header."},
    {"wire_put_body", put_body, METH_VARARGS,
     "wire_put_body($module, into, at, remotes, /)\n--\n\nWrite the table of a message's frames."},
    {"wire_set_error", set_error, METH_O,
     "wire_set_error($module, type, /)\n--\n\nWhat is raised for a breach of the protocol."},
    {NULL, NULL, 0, NULL},
};
