/* SPDX-License-Identifier: MIT */
/*
 * CompletionChannel: where the events of its CQs arrive.
 *
 * The life of an event:
 *   - cq.req_notify() arms a CQ; the next completion queues one event on the
 *     channel, a cookie of 8 bytes that the channel's fd delivers.
 *   - ibv_get_cq_event() reads the cookie and follows it to the ibv_cq and to
 *     our CQ object behind it. Both are alive: destroying a CQ takes its
 *     unread events off the channel, and then waits until each event that was
 *     read has been acked. So what was read can be trusted until we ack it,
 *     and must be acked, once, or its CQ can never be destroyed.
 *   - Reading and counting happen under one hold of the GIL. An event is thus
 *     either unread or counted on its CQ, in `unacked`; cq.ack() and the
 *     closing of the CQ pay the debt. An event whose CQ is just being
 *     destroyed by another thread is acked at once, since that thread waits
 *     for it.
 *
 * Waiting is ppoll(2) on the channel's fd and on an eventfd of ours, without
 * the GIL; the channel's fd never blocks in read(2). What happens to others is
 * seen after the GIL is back: events are looked for first, then close(),
 * interrupt(), signals and the deadline. close() makes the eventfd readable
 * for good, so no waiter can miss it, even one that has yet to enter ppoll.
 */

#include "core.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static int destroy_channel(void *handle)
{
    return ibv_destroy_comp_channel(handle);
}

static void wake(const cqn_channel *self)
{
    uint64_t one = 1;
    ssize_t n = write(self->wake_fd, &one, sizeof(one));
    (void)n; /* it is readable already if the counter is full */
}

static void close_wake_fd(cqn_channel *self)
{
    if (self->has_wake_fd) {
        self->has_wake_fd = false;
        close(self->wake_fd);
    }
}

/* The last waiter that leaves closes the eventfd. */
static void channel_after_destroy(cqn_object *op)
{
    cqn_channel *self = (cqn_channel *)op;
    self->gone = true;
    if (self->waiters == 0 || cqn_forked(op)) {
        close_wake_fd(self);
    }
    else {
        wake(self);
    }
}

static int channel_clear(PyObject *op)
{
    if (CQN_OBJ(op)->handle == NULL) {
        close_wake_fd((cqn_channel *)op);
    }
    return cqn_clear(op);
}

static const cqn_kind channel_kind = {
    .name = "CompletionChannel",
    .destroy_verb = "ibv_destroy_comp_channel",
    .rank = CQN_RANK_PD,
    .destroy = destroy_channel,
    .after_destroy = channel_after_destroy,
    .clear = channel_clear,
};

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"context", NULL};
    PyObject *context;
    cqn_state *st = cqn_state_of(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:CompletionChannel", names, &context) ||
        cqn_expect(context, st->Context, "context") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_channel *self = cqn_new(type, &channel_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->wake_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->has_wake_fd = true;
    struct ibv_comp_channel *channel = ibv_create_comp_channel(used->handle);
    if (channel == NULL) {
        cqn_verbs_error(st, errno, "ibv_create_comp_channel", "");
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(CQN_OBJ(self), channel);
    if (set_nonblocking(channel->fd) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        cqn_close(CQN_OBJ(self), false);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* The CQ of the next event, which is now counted on it. NULL without an
 * exception: there is none. */
static PyObject *take_event(cqn_channel *self, struct ibv_comp_channel *channel)
{
    for (;;) {
        struct ibv_cq *handle;
        void *cookie;
        errno = 0;
        if (ibv_get_cq_event(channel, &handle, &cookie) != 0) {
            int err = errno;
            if (err == EINTR) {
                continue;
            }
            if (err != EAGAIN) {
                /* A read of nothing at all means the same: the device left. */
                cqn_verbs_error(self->base.state, err ? err : EIO, "ibv_get_cq_event",
                                "no more events will come from this channel");
            }
            return NULL;
        }
        cqn_cq *cq = cookie;
        if (cq->base.handle == NULL) {
            ibv_ack_cq_events(handle, 1);
            continue;
        }
        cqn_cq_event(cq);
        return Py_NewRef((PyObject *)cq);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Sleeps until the channel or the eventfd is readable, the deadline (negative:
 * none) has come, or a signal. As ppoll(2): > 0, 0, or -1 with errno. */
static int sleep_until(struct pollfd *fds, int64_t deadline)
{
    int n, err;
    Py_BEGIN_ALLOW_THREADS
        struct timespec left, *limit = NULL;
        if (deadline >= 0) {
            int64_t ns = deadline - now_ns();
            ns = ns < 0 ? 0 : ns;
            left.tv_sec = ns / 1000000000;
            left.tv_nsec = ns % 1000000000;
            limit = &left;
        }
        n = ppoll(fds, 2, limit, NULL);
        err = errno;
    Py_END_ALLOW_THREADS
    errno = err;
    return n;
}

static PyObject *timed_out(void)
{
    PyErr_SetString(PyExc_TimeoutError, "no completion event within the timeout");
    return NULL;
}

static PyObject *interrupted(void)
{
    PyErr_SetString(PyExc_InterruptedError, "the wait was ended by interrupt()");
    return NULL;
}

/* The device tells of its end by POLLERR or POLLHUP on the channel's fd. */
static bool is_dead(const struct pollfd *fd)
{
    return (fd->revents & (POLLERR | POLLHUP)) && !(fd->revents & POLLIN);
}

static PyObject *wait_event(cqn_channel *self, int64_t deadline)
{
    uint64_t seq = self->interrupt_seq;
    bool woken_late = false;
    for (;;) {
        struct ibv_comp_channel *channel = cqn_open(&self->base);
        PyObject *cq = channel == NULL ? NULL : take_event(self, channel);
        if (cq != NULL || PyErr_Occurred()) {
            return cq;
        }
        if (seq != self->interrupt_seq) {
            return interrupted();
        }
        if (woken_late) {
            return timed_out();
        }
        struct pollfd fds[2] = {{channel->fd, POLLIN, 0}, {self->wake_fd, POLLIN, 0}};
        int n = sleep_until(fds, deadline);
        if (n < 0 && errno != EINTR) {
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        if (n < 0 && PyErr_CheckSignals() < 0) {
            return NULL;
        }
        if (n > 0 && self->base.handle != NULL && is_dead(&fds[0])) {
            return cqn_verbs_error(self->base.state, EIO, "ibv_get_cq_event",
                                   "no more events will come from this channel");
        }
        woken_late = n == 0;
    }
}

/* An interrupted waiter leaves: the last one makes the eventfd unreadable. */
static void leave(cqn_channel *self, uint64_t seq)
{
    self->waiters--;
    if (self->gone) {
        if (self->waiters == 0) {
            close_wake_fd(self);
        }
    }
    else if (seq != self->interrupt_seq && --self->interrupts == 0) {
        uint64_t count;
        ssize_t n = read(self->wake_fd, &count, sizeof(count));
        (void)n;
    }
}

static PyObject *channel_get_event(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    static const char *const names[] = {"timeout", NULL};
    cqn_channel *self = (cqn_channel *)op;
    PyObject *value = NULL;
    int64_t timeout;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("get_event", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        cqn_timeout(value, &timeout) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->interrupt_next) {
        self->interrupt_next = false;
        return interrupted();
    }
    int64_t deadline = timeout < 0 ? -1 : now_ns() + timeout;
    uint64_t seq = self->interrupt_seq;
    self->waiters++;
    PyObject *cq = wait_event(self, deadline);
    leave(self, seq);
    return cq;
}

static PyObject *channel_try_get_event(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct ibv_comp_channel *channel = cqn_open(CQN_OBJ(op));
    if (channel == NULL) {
        return NULL;
    }
    PyObject *cq = take_event((cqn_channel *)op, channel);
    return cq != NULL || PyErr_Occurred() ? cq : Py_NewRef(Py_None);
}

static PyObject *channel_interrupt(PyObject *op, PyObject *Py_UNUSED(unused))
{
    cqn_channel *self = (cqn_channel *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (self->waiters == 0) {
        self->interrupt_next = true;
    }
    else {
        self->interrupt_seq++;
        self->interrupts = self->waiters;
        wake(self);
    }
    Py_RETURN_NONE;
}

static PyObject *channel_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct ibv_comp_channel *channel = cqn_open(CQN_OBJ(op));
    return channel == NULL ? NULL : PyLong_FromLong(channel->fd);
}

static PyMethodDef channel_methods[] = {
    {"get_event", (PyCFunction)(void (*)(void))channel_get_event, METH_FASTCALL | METH_KEYWORDS,
     "get_event($self, /, timeout=None)\n--\n\n"
     "Sleep until a CQ of this channel has an event, and return that CQ.\n\n"
     "The event is counted on the CQ, which owes an ack() for it. An event can come with no "
     "completion behind it. `timeout` is in seconds, None waits for ever; TimeoutError at its "
     "end, ClosedError if the channel is closed meanwhile, InterruptedError after "
     "interrupt(), DeviceRemovedError when the device has gone. Signals run their handlers, and "
     "the wait goes on.\n\nWraps ibv_get_cq_event(3)."},
    {"try_get_event", channel_try_get_event, METH_NOARGS,
     "try_get_event($self, /)\n--\n\n"
     "The CQ of an event that has arrived, or None; never sleeps.\n\n"
     "Wraps ibv_get_cq_event(3)."},
    {"interrupt", channel_interrupt, METH_NOARGS,
     "interrupt($self, /)\n--\n\n"
     "End every get_event() that is waiting with InterruptedError; if there is none, the next."},
    {"fileno", channel_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\n"
     "The file descriptor, readable while events wait, for select, poll and event loops.\n\n"
     "It never blocks: after it was readable, call try_get_event() until it returns None."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef channel_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef channel_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot channel_slots[] = {
    {Py_tp_doc, "CompletionChannel(context)\n--\n\n"
                "Where the completion events of any number of CQs arrive.\n\n"
                "Wraps ibv_create_comp_channel(3)."},
    {Py_tp_new, channel_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, channel_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, channel_methods},
    {Py_tp_getset, channel_getset},
    {Py_tp_members, channel_members},
    {0, NULL},
};

PyType_Spec cqn_channel_spec = {
    .name = "cqnotify.CompletionChannel",
    .basicsize = sizeof(cqn_channel),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = channel_slots,
};
