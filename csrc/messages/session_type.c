/* SPDX-License-Identifier: MIT */
/* MessageSession: the base type of the Session of cqnotify.messages. */

#include "await/engine.h"
#include "await/taker.h"
#include "messages/inbox.h"
#include "messages/outbox.h"
#include "messages/post.h"
#include "messages/reading.h"
#include "messages/receive.h"
#include "messages/sending.h"
#include "messages/session.h"
#include "messages/task.h"

/* ---- creation and end ---- */

enum {
    QP,
    MR_OF_FRAMES,
    SEND_ACQ,
    RECV_ACQ,
    LOOP,
    FLOW,
    RING,
    RECEIVES,
    SLOT_SIZE,
    SEND_DEPTH,
    EAGER,
    LIMITS,
    PEER_LIMITS,
    REGISTRATIONS,
    READABLE,
    SINK,
    SLOW,
    OFFERS,
    ARGUMENTS
};
static const char *const init_names[] = {
    "qp",       "mr",        "send_acq",   "recv_acq", "loop",   "flow",        "ring",
    "receives", "slot_size", "send_depth", "eager",    "limits", "peer_limits", "registrations",
    "readable", "sink",      "slow",       "offers",   NULL};

static int expect(PyObject *value, PyTypeObject *type, const char *name)
{
    if (PyObject_TypeCheck(value, type)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s must be of type %s, not %s", name, type->tp_name,
                 Py_TYPE(value)->tp_name);
    return -1;
}

/* Parses the sizes of memory and queues; these must be consistent. Returns -1 with an exception. */
static int parse_sizes(cqn_session *self, PyObject *const *in, uint32_t *depth)
{
    uint64_t eager;
    unsigned int max_frames;
    unsigned long long max_message, least_remote, peer_max_message;
    if (cqn_u32(in[RECEIVES], "receives", UINT16_MAX, &self->receives) < 0 ||
        cqn_u32(in[SLOT_SIZE], "slot_size", UINT32_MAX, &self->slot_size) < 0 ||
        cqn_u32(in[SEND_DEPTH], "send_depth", UINT16_MAX, depth) < 0 ||
        cqn_uint(in[EAGER], "eager", self->slot_size, &eager) < 0 ||
        cqn_uint(in[SLOW], "slow", UINT32_MAX, &self->slow) < 0 ||
        cqn_u32(in[OFFERS], "offers", UINT16_MAX, &self->offers) < 0 ||
        !PyArg_ParseTuple(in[LIMITS], "IKK:limits", &max_frames, &max_message, &least_remote) ||
        !PyArg_ParseTuple(in[PEER_LIMITS], "IK:peer_limits", &self->peer_max_frames,
                          &peer_max_message)) {
        return -1;
    }
    self->eager = eager;
    self->limits = (cqn_limits){max_frames, max_message, least_remote};
    self->peer_max_message = peer_max_message;
    const uint64_t size = (uint64_t)self->memory.len;
    const uint64_t ring = ((cqn_ring *)in[RING])->size;
    if (self->receives == 0 || *depth == 0 || ring > size ||
        (uint64_t)self->receives * self->slot_size > size - ring) {
        PyErr_SetString(PyExc_ValueError, "the memory is too small for the receives and the ring");
        return -1;
    }
    return 0;
}

static int allocate(cqn_session *self)
{
    const size_t n = self->receives;
    self->messages = PyMem_Calloc(n, sizeof(*self->messages));
    self->reposts = PyMem_Calloc(n, sizeof(*self->reposts));
    self->repost_sges = PyMem_Calloc(n, sizeof(*self->repost_sges));
    if (self->messages == NULL || self->reposts == NULL || self->repost_sges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int check_types(const cqn_state *st, PyObject *const *in)
{
    return expect(in[QP], st->QP, "qp") < 0 || expect(in[MR_OF_FRAMES], st->MR, "mr") < 0 ||
                   expect(in[SEND_ACQ], st->Engine, "send_acq") < 0 ||
                   expect(in[RECV_ACQ], st->Engine, "recv_acq") < 0 ||
                   expect(in[FLOW], st->MessageFlow, "flow") < 0 ||
                   expect(in[RING], st->MessageRing, "ring") < 0 ||
                   expect(in[LIMITS], &PyTuple_Type, "limits") < 0 ||
                   expect(in[PEER_LIMITS], &PyTuple_Type, "peer_limits") < 0
               ? -1
               : 0;
}

static int take_completions(cqn_session *self, bool solicited)
{
    cqn_engine *sends = self->send_engine, *recvs = self->recv_engine;
    if (cqn_taker_set(recvs, (PyObject *)self, &cqn_session_takes, solicited) < 0 ||
        cqn_taker_set(sends, (PyObject *)self, &cqn_session_takes,
                      solicited && !cqn_session_awaits_sends(self)) < 0) {
        return -1;
    }
    self->is_solicited = solicited;
    cqn_engine_update(recvs);
    cqn_engine_update(sends);
    return 0;
}

/* The session takes no completions before _start(). */
static int session_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    cqn_state *st = cqn_state_of(Py_TYPE(op));
    PyObject *in[ARGUMENTS] = {NULL};
    uint32_t depth;
    if (self->state != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this session was made before");
        return -1;
    }
    if (cqn_sort_new("MessageSession", init_names, ARGUMENTS, ARGUMENTS, args, kwargs, in) < 0 ||
        check_types(st, in) < 0) {
        return -1;
    }
    self->state = st;
    if (PyObject_GetBuffer(in[MR_OF_FRAMES], &self->memory, PyBUF_WRITABLE) < 0) {
        self->memory.obj = NULL;
        return -1;
    }
    self->loop = Py_NewRef(in[LOOP]);
    self->flow = (cqn_flow *)Py_NewRef(in[FLOW]);
    self->registrations = Py_NewRef(in[REGISTRATIONS]);
    self->readable = Py_NewRef(in[READABLE]);
    self->sink = Py_NewRef(in[SINK]);
    self->queue.reading_completed = cqn_reading_completed;
    self->send_engine = (cqn_engine *)Py_NewRef(in[SEND_ACQ]);
    self->recv_engine = (cqn_engine *)Py_NewRef(in[RECV_ACQ]);
    if (parse_sizes(self, in, &depth) < 0 || allocate(self) < 0) {
        return -1;
    }
    return cqn_send_queue_init(&self->queue, (cqn_qp *)in[QP], (cqn_mr *)in[MR_OF_FRAMES],
                               (cqn_ring *)in[RING],
                               (uint64_t)self->memory.len - ((cqn_ring *)in[RING])->size, depth);
}

static int session_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_session *self = (cqn_session *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->loop);
    Py_VISIT(self->send_engine);
    Py_VISIT(self->recv_engine);
    Py_VISIT(self->flow);
    Py_VISIT(self->memory.obj);
    Py_VISIT(self->error);
    Py_VISIT(self->registrations);
    Py_VISIT(self->readable);
    Py_VISIT(self->sink);
    const cqn_task_list *const lists[] = {&self->receiving, &self->waiting, &self->offered,
                                          &self->readings};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(lists); i++) {
        const int rc = cqn_task_list_traverse(lists[i], visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    Py_VISIT(self->resumed);
    return cqn_send_queue_traverse(&self->queue, visit, arg);
}

static int session_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    while (self->receiving.first != NULL) {
        cqn_inbox_leave(self, (cqn_receive *)self->receiving.first);
    }
    while (self->waiting.first != NULL) {
        cqn_outbox_forget(self, (cqn_sending *)self->waiting.first);
    }
    while (self->offered.first != NULL) {
        cqn_outbox_forget(self, (cqn_sending *)self->offered.first);
    }
    while (self->readings.first != NULL) {
        cqn_reading_forget(self, (cqn_reading *)self->readings.first);
    }
    Py_CLEAR(self->resumed);
    Py_CLEAR(self->error);
    Py_CLEAR(self->loop);
    cqn_send_queue_clear(&self->queue);
    return 0;
}

/* A receive refers to the session, and the session's methods use these fields, so they go last. */
static void session_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_session *self = (cqn_session *)op;
    session_clear(op);
    cqn_send_queue_free(&self->queue);
    if (self->memory.obj != NULL) {
        PyBuffer_Release(&self->memory);
    }
    PyMem_Free(self->messages);
    PyMem_Free(self->reposts);
    PyMem_Free(self->repost_sges);
    Py_CLEAR(self->send_engine);
    Py_CLEAR(self->recv_engine);
    Py_CLEAR(self->flow);
    Py_CLEAR(self->registrations);
    Py_CLEAR(self->readable);
    Py_CLEAR(self->sink);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- methods ---- */

/* Returns -1 with an exception if the constructor was not called, or the session was cleared. */
static int check_made(const cqn_session *self)
{
    if (self->queue.qp == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "MessageSession.__init__() was not called");
        return -1;
    }
    return 0;
}

static PyObject *none_or_null(int rc)
{
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *session_start(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    const int solicited = cqn_truth(value);
    return none_or_null(solicited < 0 || check_made((cqn_session *)op) < 0
                            ? -1
                            : take_completions((cqn_session *)op, solicited));
}

static PyObject *session_send(PyObject *op, PyObject *buffers)
{
    CQN_LOCKED;
    return check_made((cqn_session *)op) < 0 || expect(buffers, &PyTuple_Type, "buffers") < 0
               ? NULL
               : cqn_session_send((cqn_session *)op, buffers);
}

static PyObject *session_offer(PyObject *op, PyObject *outgoing)
{
    CQN_LOCKED;
    return check_made((cqn_session *)op) < 0 ? NULL
                                             : cqn_session_offer((cqn_session *)op, outgoing);
}

static PyObject *session_post_waiting(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return none_or_null(check_made((cqn_session *)op) < 0 ? -1
                                                          : cqn_outbox_post((cqn_session *)op));
}

static PyObject *session_fail_sends(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    return none_or_null(cqn_outbox_fail((cqn_session *)op, error));
}

static PyObject *session_receive(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    if (check_made((cqn_session *)op) < 0) {
        return NULL;
    }
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "receive() takes into and copies");
        return NULL;
    }
    const int copies = cqn_truth(args[1]);
    const bool is_simple = PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]);
    return copies < 0 ? NULL
                      : cqn_receive_new((cqn_session *)op, is_simple ? args[0] : NULL,
                                        copies && (is_simple || args[0] == Py_None));
}

static PyObject *session_try_receive(PyObject *op, PyObject *into)
{
    CQN_LOCKED;
    return check_made((cqn_session *)op) < 0 ? NULL
                                             : cqn_session_try_receive((cqn_session *)op, into);
}

static int message_of(const cqn_session *self, PyObject *args, cqn_message *out)
{
    unsigned long long number, offer_number;
    int is_offer;
    if (!PyArg_ParseTuple(args, "KKIIp:message", &number, &offer_number, &out->slot, &out->length,
                          &is_offer)) {
        return -1;
    }
    if (out->slot >= self->receives || out->length > self->slot_size ||
        number >= self->messages_come) {
        PyErr_SetString(PyExc_ValueError, "there is no such message");
        return -1;
    }
    out->number = number;
    out->offer_number = offer_number;
    out->is_offer = is_offer;
    return 0;
}

static PyObject *session_read(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    cqn_session *self = (cqn_session *)op;
    cqn_message message;
    uint32_t most, together;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "read() takes message, into, most and together");
        return NULL;
    }
    PyObject *into = args[1];
    if (check_made(self) < 0 || expect(args[0], &PyTuple_Type, "message") < 0 ||
        message_of(self, args[0], &message) < 0 ||
        cqn_u32(args[2], "most", UINT32_MAX, &most) < 0 ||
        cqn_u32(args[3], "together", UINT32_MAX, &together) < 0 || cqn_freeze(&into, &copy) < 0) {
        return NULL;
    }
    return most > 0 && (PyList_CheckExact(into) || PyTuple_CheckExact(into))
               ? cqn_session_read(self, &message, into, most, together)
               : Py_NewRef(Py_None);
}

static PyObject *session_fail_reads(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    return none_or_null(cqn_readings_fail((cqn_session *)op, error));
}

static PyObject *session_probe_reads(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const int rc = check_made((cqn_session *)op) < 0 ? -1 : cqn_readings_probe((cqn_session *)op);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *session_put_back(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    cqn_message message;
    return none_or_null(
        message_of(self, args, &message) < 0 || cqn_inbox_put_back(self, &message) < 0 ? -1 : 0);
}

static PyObject *session_message_taken(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    cqn_message message;
    return none_or_null(
        message_of(self, args, &message) < 0 || cqn_session_message_taken(self, &message) < 0 ? -1
                                                                                              : 0);
}

static PyObject *session_fail_receives(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    return none_or_null(cqn_inbox_fail((cqn_session *)op, error));
}

static PyObject *look(cqn_session *self, cqn_engine *engine)
{
    return none_or_null(check_made(self) < 0 ? -1 : cqn_session_look(self, engine));
}

static PyObject *session_poll_received(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return look((cqn_session *)op, ((cqn_session *)op)->recv_engine);
}

static PyObject *session_poll_sent(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return look((cqn_session *)op, ((cqn_session *)op)->send_engine);
}

/* Called by the loop at the end of an iteration in which messages were added. */
static PyObject *session_flush(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    self->flush_is_due = false;
    return none_or_null(cqn_session_end_turn(self));
}

static PyObject *session_send_ack(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    uint64_t flags;
    return none_or_null(check_made((cqn_session *)op) < 0 ||
                                cqn_uint(value, "flags", CQN_CLOSING, &flags) < 0 ||
                                cqn_session_send_ack((cqn_session *)op, (uint8_t)flags) < 0
                            ? -1
                            : 0);
}

/* ---- the send queue ---- */

static PyObject *session_has_room(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    uint64_t length;
    return check_made(self) < 0 || cqn_uint(value, "length", UINT32_MAX, &length) < 0
               ? NULL
               : PyBool_FromLong(cqn_send_queue_has_room(&self->queue, length));
}

static PyObject *session_reserve(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    uint64_t length;
    if (check_made(self) < 0 || cqn_uint(value, "length", UINT32_MAX, &length) < 0) {
        return NULL;
    }
    const uint8_t *frame = cqn_send_queue_reserve(&self->queue, length);
    return frame == NULL ? Py_NewRef(Py_None)
                         : PyLong_FromSsize_t(frame - (uint8_t *)self->memory.buf);
}

static PyObject *session_shorten(PyObject *op, PyObject *value)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    uint64_t length;
    if (check_made(self) < 0 || cqn_uint(value, "length", self->queue.length, &length) < 0) {
        return NULL;
    }
    cqn_send_queue_shorten(&self->queue, length);
    Py_RETURN_NONE;
}

static PyObject *session_drop_frame(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_send_queue_drop_frame(&((cqn_session *)op)->queue);
    Py_RETURN_NONE;
}

static PyObject *session_post_frame(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    if (check_made(self) < 0) {
        return NULL;
    }
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "_post_frame() takes solicited and done");
        return NULL;
    }
    const int solicited = cqn_truth(args[0]);
    if (solicited < 0) {
        return NULL;
    }
    cqn_send_queue_add(&self->queue, solicited, args[1] == Py_None ? NULL : args[1]);
    const int rc = cqn_session_flush(self);
    cqn_session_expect_sends(self);
    return none_or_null(rc);
}

static PyObject *session_post_reads(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    if (check_made(self) < 0) {
        return NULL;
    }
    if (nargs != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "_post_reads() takes a list, and done");
        return NULL;
    }
    const int rc = cqn_send_queue_post_reads(&self->queue, args[0], args[1]);
    cqn_session_expect_sends(self);
    return none_or_null(rc);
}

static PyObject *session_post_probe(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    return none_or_null(check_made(self) < 0 ? -1 : cqn_send_queue_post_probe(&self->queue));
}

/* ---- attributes ---- */

static PyObject *session_get_oldest(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromUnsignedLongLong(cqn_send_queue_oldest(&((cqn_session *)op)->queue));
}

static PyObject *session_get_free_slots(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromUnsignedLong(cqn_send_queue_free_slots(&((cqn_session *)op)->queue));
}

static PyObject *session_get_has_pending(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(((cqn_session *)op)->has_pending);
}

static int session_set_has_pending(PyObject *op, PyObject *value, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_session *self = (cqn_session *)op;
    const int is = value == NULL ? -1 : cqn_truth(value);
    if (is < 0) {
        if (value == NULL) {
            PyErr_SetString(PyExc_TypeError, "has_pending cannot be deleted");
        }
        return -1;
    }
    self->has_pending = is;
    if (self->send_engine != NULL) {
        cqn_session_expect_sends(self);
    }
    return 0;
}

static PyMethodDef session_methods[] = {
    {"_start", session_start, METH_O,
     "_start($self, solicited, /)\n--\n\n"
     "Take the completions from now on; of receives, solicited ones alone wake this end."},
    {"send", session_send, METH_O,
     "send($self, buffers, /)\n--\n\n"
     "Send a message. Return True if it was sent; what to await if it has to wait, or the peer is "
     "to read it; False if that is not simple, or it cannot be sent."},
    {"offer", session_offer, METH_O,
     "offer($self, outgoing, /)\n--\n\n"
     "The same for a message that _post_offer() offers when it is its turn."},
    {"post_waiting", session_post_waiting, METH_NOARGS,
     "post_waiting($self, /)\n--\n\nPost messages that wait, if they can be."},
    {"fail_sends", session_fail_sends, METH_O,
     "fail_sends($self, error, /)\n--\n\n"
     "No message that waits, or that the peer has not read, will be sent or read."},
    {"receive", (PyCFunction)(void (*)(void))session_receive, METH_FASTCALL,
     "receive($self, into, copies, /)\n--\n\n"
     "Await the next message: a list of its frames, if `copies` is true and they can simply be "
     "copied; else a tuple, for put_back() or message_taken()."},
    {"try_receive", session_try_receive, METH_O,
     "try_receive($self, into, /)\n--\n\n"
     "Return a message that has come, as receive() would; None if there is none."},
    {"read", (PyCFunction)(void (*)(void))session_read, METH_FASTCALL,
     "read($self, message, into, most, together, /)\n--\n\n"
     "Read an offered message into the buffers. Return its frames if it was read at once; else an "
     "awaitable for them; None if that is not simple."},
    {"fail_reads", session_fail_reads, METH_O,
     "fail_reads($self, error, /)\n--\n\nThe queue pair is closed: those that read() has begun."},
    {"probe_reads", session_probe_reads, METH_NOARGS,
     "probe_reads($self, /)\n--\n\n"
     "Read a byte of such a message again, unless a read has completed since the last call. Return "
     "False if no read is under way."},
    {"put_back", session_put_back, METH_VARARGS,
     "put_back($self, number, offer_number, slot, length, is_offer, /)\n--\n\n"
     "Return a message to its old place."},
    {"message_taken", session_message_taken, METH_VARARGS,
     "message_taken($self, number, offer_number, slot, length, is_offer, /)\n--\n\n"
     "The program has received the message: its memory is free, and the credit is returned."},
    {"fail_receives", session_fail_receives, METH_O,
     "fail_receives($self, error, /)\n--\n\nNothing will come any more."},
    {"poll_received", session_poll_received, METH_NOARGS,
     "poll_received($self, /)\n--\n\n"
     "Handle receives that have completed without an event: ACKs that return credits."},
    {"poll_sent", session_poll_sent, METH_NOARGS,
     "poll_sent($self, /)\n--\n\nHandle reads that have completed at once."},
    {"_flush", session_flush, METH_NOARGS,
     "_flush($self, /)\n--\n\n"
     "Post what is to be posted at the end of a turn of the loop: messages, and an ACK."},
    {"send_ack", session_send_ack, METH_O,
     "send_ack($self, flags, /)\n--\n\nSend an ACK, if there is room; else it remains due."},
    {"_has_room", session_has_room, METH_O,
     "_has_room($self, length, /)\n--\n\nWhether a frame can be reserved."},
    {"_reserve", session_reserve, METH_O,
     "_reserve($self, length, /)\n--\n\n"
     "Where in the memory a frame can be written, which is posted next; None if there is no room."},
    {"_shorten", session_shorten, METH_O,
     "_shorten($self, length, /)\n--\n\nThe frame has become shorter than the memory for it."},
    {"_drop_frame", session_drop_frame, METH_NOARGS,
     "_drop_frame($self, /)\n--\n\nReturn the memory of the frame that was reserved."},
    {"_post_frame", (PyCFunction)(void (*)(void))session_post_frame, METH_FASTCALL,
     "_post_frame($self, solicited, done, /)\n--\n\n"
     "Send the frame; `done.completed()` is called when it has completed."},
    {"_post_reads", (PyCFunction)(void (*)(void))session_post_reads, METH_FASTCALL,
     "_post_reads($self, reads, done, /)\n--\n\n"
     "Post reads, pairs of an SGE and a Remote, which have one completion."},
    {"_post_probe", session_post_probe, METH_NOARGS,
     "_post_probe($self, /)\n--\n\nPost an empty RDMA write, if there is a slot."},
    {NULL, NULL, 0, NULL},
};

#define FLAG(name, doc)                                    \
    {                                                      \
#name, T_BOOL, offsetof(cqn_session, name), 0, doc \
    }
static PyMemberDef session_members[] = {
    FLAG(is_closing, "Whether the program closes it: it sends and receives no more messages."),
    FLAG(is_open, "Whether this end knows that both have posted their receives."),
    FLAG(is_watched, "Whether _update() is to be called when something was sent."),
    FLAG(is_probed,
         "Whether the timer of probes runs; else _update() is called when a message waits."),
    FLAG(may_not_send, "Whether the peer receives no more."),
    {"messages_received", T_ULONGLONG, offsetof(cqn_session, received), READONLY,
     "How many messages the program has received."},
    {"messages_waiting", T_UINT, offsetof(cqn_session, messages_len), READONLY,
     "How many messages have come that it has not."},
    {"receives_waiting", T_UINT, offsetof(cqn_session, receiving.len), READONLY,
     "How many tasks wait for a message."},
    {"sends_waiting", T_UINT, offsetof(cqn_session, waiting.len), READONLY,
     "How many messages wait to be sent."},
    {"sends_offered", T_UINT, offsetof(cqn_session, offered.len), READONLY,
     "How many messages the peer has not read."},
    {"waits", T_ULONGLONG, offsetof(cqn_session, waits), READONLY,
     "How often a task has slept in send()."},
    {"reads_in_flight", T_UINT, offsetof(cqn_session, reads_in_flight), READONLY,
     "How many reads are under way that read() has begun."},
    {"_receives_to_post", T_UINT, offsetof(cqn_session, reposts_len), READONLY,
     "How many receives are posted again before the next frame."},
    {"_posts", T_ULONGLONG, offsetof(cqn_session, posts), READONLY,
     "How often frames were posted."},
    {"_number", T_ULONGLONG, offsetof(cqn_session, queue.number), READONLY,
     "How many work requests were posted to the send queue."},
    {"_slots_taken", T_UINT, offsetof(cqn_session, queue.taken), READONLY,
     "How many of them are not known to have completed."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef session_getset[] = {
    CQN_FREE_ATTRIBUTE(cqn_session, error, "Why it is over; None while it is not."),
    {"has_pending", session_get_has_pending, session_set_has_pending,
     "Whether post_pending() is to be called when anything happens.", NULL},
    {"_oldest", session_get_oldest, NULL,
     "Which work request completes next, of those that have a completion.", NULL},
    {"_free_slots", session_get_free_slots, NULL,
     "How many work requests the send queue has room for.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot session_slots[] = {
    {Py_tp_doc, "The base of the Session of cqnotify.messages, whose methods it calls."},
    {Py_tp_init, session_init},
    {Py_tp_traverse, session_traverse},
    {Py_tp_clear, session_clear},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_methods, session_methods},
    {Py_tp_members, session_members},
    {Py_tp_getset, session_getset},
    {0, NULL},
};

PyType_Spec cqn_session_spec = {
    .name = "cqnotify.MessageSession",
    .basicsize = sizeof(cqn_session),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = session_slots,
};
