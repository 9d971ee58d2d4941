/* SPDX-License-Identifier: MIT */
/*
 * Credits: how much each end may send, and when an acknowledgement is due.
 *
 * A message takes one of the credits that the receiver granted. The credit is returned when the
 * receiver's program has received the message. The counters of both directions travel in the header
 * of each frame, so a connection used in both directions needs few separate frames for them.
 *
 * Such a frame, an ACK, takes no credit. There is still a receive for each, because few of them can
 * be in flight: one for each offer that the receiver reports as read; two that return credits,
 * since each returns at least half of them; and two that answer a frame with LAST, since the next
 * such frame uses credits that arrived with, or after, the previous answer. A CLOSING is sent once;
 * so is a CLOSE or an ERROR, after which nothing is sent; and so is the first ACK of the accepting
 * end. These are the SPARE receives of _options.py.
 */

#include "messages/flow.h"

#include <inttypes.h>

/* ---- sending ---- */

cqn_header cqn_flow_header(cqn_flow *self, cqn_frame_kind kind)
{
    uint8_t flags = 0;
    if (kind == CQN_DATA || kind == CQN_OFFER) {
        assert(cqn_flow_credits(self) > 0);
        self->sent++;
        self->offers_sent += kind == CQN_OFFER;
        flags = cqn_flow_credits(self) > 0 ? 0 : CQN_LAST;
    }
    assert(self->credits_returned >= self->last_advertised);
    if (self->credits_returned > self->last_advertised) {
        self->peer_needs_credits = false;
    }
    self->last_advertised = self->credits_returned;
    self->is_ack_due = self->is_ack_urgent = false;
    return (cqn_header){.kind = kind,
                        .flags = flags,
                        .credits_returned = (uint32_t)self->credits_returned,
                        .offers_read = (uint32_t)self->offers_read};
}

/* ---- receiving ---- */

/* Advances a 64-bit counter to the lower 32 bits in a header. Returns false with a breach if it
 * would exceed `most`. */
static bool unwrap(uint64_t *counter, uint32_t value, uint64_t most, const char *name,
                   cqn_breach *breach)
{
    const uint64_t whole = *counter + (uint32_t)(value - (uint32_t)*counter);
    if (whole > most) {
        return cqn_breaks(breach, "%s is %" PRIu64 ", and cannot be more than %" PRIu64, name,
                          whole, most);
    }
    *counter = whole;
    return true;
}

static bool on_message(cqn_flow *self, const cqn_header *header, cqn_breach *breach)
{
    self->received++;
    self->offers_received += header->kind == CQN_OFFER;
    const uint64_t granted = self->granted_to_peer + self->last_advertised;
    if (self->received > granted) {
        return cqn_breaks(breach, "message %" PRIu64 " was sent without a credit", self->received);
    }
    if ((header->flags & CQN_LAST) && self->received < granted) {
        self->is_ack_due = self->is_ack_urgent = true; /* sent before its credits arrived */
    }
    else if (header->flags & CQN_LAST) {
        self->peer_needs_credits = true;
    }
    return true;
}

bool cqn_flow_on_header(cqn_flow *self, const cqn_header *header, uint64_t *newly,
                        cqn_breach *breach)
{
    const uint64_t before = self->peer_offers_read;
    if (!unwrap(&self->peer_credits_returned, header->credits_returned, self->sent,
                "the number of messages received", breach) ||
        !unwrap(&self->peer_offers_read, header->offers_read, self->offers_sent,
                "the number of offers read", breach)) {
        return false;
    }
    *newly = self->peer_offers_read - before;
    return (header->kind != CQN_DATA && header->kind != CQN_OFFER) ||
           on_message(self, header, breach);
}

void cqn_flow_return_credit(cqn_flow *self)
{
    self->credits_returned++;
    assert(self->credits_returned <= self->received);
    if (2 * (self->credits_returned - self->last_advertised) >= self->granted_to_peer) {
        self->is_ack_due = true;
        self->is_ack_urgent = self->is_ack_urgent || self->peer_needs_credits;
    }
}

static void count_read(cqn_flow *self)
{
    self->offers_read++;
    self->is_ack_due = self->is_ack_urgent = true;
}

/* Counts the following offers that were read out of order. Returns -1 with an exception. */
static int count_early(cqn_flow *self)
{
    int found = 1;
    while (found == 1 && PySet_GET_SIZE(self->read_early) > 0) {
        PyObject *next = PyLong_FromUnsignedLongLong(self->offers_read);
        found = next == NULL ? -1 : PySet_Discard(self->read_early, next);
        Py_XDECREF(next);
        if (found == 1) {
            count_read(self);
        }
    }
    return found < 0 ? -1 : 0;
}

int cqn_flow_mark_read(cqn_flow *self, uint64_t number)
{
    if (number == self->offers_read) {
        count_read(self);
        return self->read_early == NULL ? 0 : count_early(self);
    }
    if (self->read_early == NULL && (self->read_early = PySet_New(NULL)) == NULL) {
        return -1;
    }
    PyObject *early = PyLong_FromUnsignedLongLong(number);
    const int rc = early == NULL ? -1 : PySet_Add(self->read_early, early);
    Py_XDECREF(early);
    return rc;
}

/* ---- the type, for Python code and for tests without a device ---- */

static PyObject *flow_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"granted_to_peer", "granted_by_peer", NULL};
    unsigned int to_peer, by_peer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II:MessageFlow", names, &to_peer, &by_peer)) {
        return NULL;
    }
    cqn_flow *self = (cqn_flow *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->granted_to_peer = to_peer;
        self->granted_by_peer = by_peer;
    }
    return (PyObject *)self;
}

static int flow_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((cqn_flow *)op)->read_early);
    return 0;
}

static int flow_clear(PyObject *op)
{
    CQN_LOCKED;
    Py_CLEAR(((cqn_flow *)op)->read_early);
    return 0;
}

static void flow_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    flow_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Raises the ProtocolError of a breach. Returns NULL. */
static PyObject *breach_error(PyObject *op, const cqn_breach *breach)
{
    PyErr_SetString(cqn_state_of(Py_TYPE(op))->ProtocolError, breach->text);
    return NULL;
}

static int kind_of(PyObject *value, cqn_frame_kind *out)
{
    uint64_t kind;
    if (cqn_range(value, "kind", CQN_DATA, CQN_ERROR, &kind) < 0) {
        return -1;
    }
    *out = (cqn_frame_kind)kind;
    return 0;
}

static PyObject *flow_header(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    cqn_flow *self = (cqn_flow *)op;
    cqn_frame_kind kind;
    if (kind_of(value, &kind) < 0) {
        return NULL;
    }
    if (kind <= CQN_OFFER && cqn_flow_credits(self) == 0) {
        PyErr_SetString(PyExc_ValueError, "a message takes a credit, and there is none");
        return NULL;
    }
    const cqn_header header = cqn_flow_header(self, kind);
    return Py_BuildValue("(iKK)", header.flags, (unsigned long long)self->credits_returned,
                         (unsigned long long)self->offers_read);
}

static PyObject *flow_on_header(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_flow *self = (cqn_flow *)op;
    PyObject *value;
    unsigned int flags, credits_returned, offers_read;
    cqn_header header = {.kind = CQN_ACK};
    cqn_breach breach = {""};
    uint64_t newly = 0;
    if (!PyArg_ParseTuple(args, "OIII:_on_header", &value, &flags, &credits_returned,
                          &offers_read) ||
        kind_of(value, &header.kind) < 0) {
        return NULL;
    }
    header.flags = (uint8_t)flags;
    header.credits_returned = credits_returned;
    header.offers_read = offers_read;
    return cqn_flow_on_header(self, &header, &newly, &breach) ? PyLong_FromUnsignedLongLong(newly)
                                                              : breach_error(op, &breach);
}

static PyObject *flow_return_credit(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_flow_return_credit((cqn_flow *)op);
    Py_RETURN_NONE;
}

static PyObject *flow_mark_read(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    uint64_t number;
    return cqn_uint(value, "number", UINT64_MAX, &number) < 0 ||
                   cqn_flow_mark_read((cqn_flow *)op, number) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

static PyObject *flow_get_credits(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromUnsignedLongLong(cqn_flow_credits((cqn_flow *)op));
}

static PyObject *flow_get_is_low(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(cqn_flow_is_low((cqn_flow *)op));
}

static PyMethodDef flow_methods[] = {
    {"_header", flow_header, METH_O,
     "_header($self, kind, /)\n--\n\n"
     "The flags and the counters of the header of a frame, which must be sent at once."},
    {"_on_header", flow_on_header, METH_VARARGS,
     "_on_header($self, kind, flags, credits_returned, offers_read, /)\n--\n\n"
     "Take the counters of a frame that has arrived. Return how many of our offers it reports as "
     "read. Raises ProtocolError."},
    {"return_credit", flow_return_credit, METH_NOARGS,
     "return_credit($self, /)\n--\n\n"
     "The program has received a message, whose memory is posted again."},
    {"mark_read", flow_mark_read, METH_O,
     "mark_read($self, number, /)\n--\n\n"
     "The peer's offer of this number, from 0, was read; offers can be read out of order."},
    {NULL, NULL, 0, NULL},
};

#define COUNTER(name)                                         \
    {                                                         \
#name, T_ULONGLONG, offsetof(cqn_flow, name), 0, NULL \
    }
#define FLAG(name)                                       \
    {                                                    \
#name, T_BOOL, offsetof(cqn_flow, name), 0, NULL \
    }
static PyMemberDef flow_members[] = {
    COUNTER(sent),
    COUNTER(offers_sent),
    COUNTER(peer_credits_returned),
    COUNTER(peer_offers_read),
    COUNTER(received),
    COUNTER(offers_received),
    COUNTER(credits_returned),
    COUNTER(offers_read),
    COUNTER(last_advertised),
    FLAG(is_ack_due),
    FLAG(is_ack_urgent),
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef flow_getset[] = {
    {"credits", flow_get_credits, NULL, "How many messages can be sent.", NULL},
    {"is_low", flow_get_is_low, NULL,
     "Whether half of the credits are used up, and more may have come.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot flow_slots[] = {
    {Py_tp_doc, "MessageFlow(granted_to_peer, granted_by_peer)\n--\n\n"
                "The counters of one end of a connection of messages."},
    {Py_tp_new, flow_new},
    {Py_tp_traverse, flow_traverse},
    {Py_tp_clear, flow_clear},
    {Py_tp_dealloc, flow_dealloc},
    {Py_tp_methods, flow_methods},
    {Py_tp_members, flow_members},
    {Py_tp_getset, flow_getset},
    {0, NULL},
};

PyType_Spec cqn_message_flow_spec = {
    .name = "cqnotify.MessageFlow",
    .basicsize = sizeof(cqn_flow),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = flow_slots,
};
