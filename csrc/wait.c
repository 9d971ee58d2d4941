/* SPDX-License-Identifier: MIT */
/*
 * Sleeping without the GIL: what get_event() and get_async_event() have in
 * common.
 *
 * A gate is where threads sleep: in ppoll(2), on the file that brings what they
 * wait for, on the gate's eventfd, and on the context's asynchronous events.
 * What happens to others is seen after the GIL is back, in this order: what
 * they wait for, close(), interrupt() and failures, signals, the deadline.
 * Closing makes the eventfd readable for good, so no waiter can miss it, even
 * one that has yet to enter ppoll.
 */

#include "core.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int cqn_gate_open(cqn_gate *gate)
{
    gate->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gate->is_open = gate->wake_fd >= 0;
    if (!gate->is_open) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

/* Makes the waiters look again. */
void cqn_gate_nudge(const cqn_gate *gate)
{
    uint64_t one = 1;
    ssize_t n = write(gate->wake_fd, &one, sizeof(one));
    (void)n; /* it is readable already if the counter is full */
}

static void calm(const cqn_gate *gate)
{
    uint64_t count;
    ssize_t n = read(gate->wake_fd, &count, sizeof(count));
    (void)n;
}

void cqn_gate_clear(cqn_gate *gate)
{
    if (gate->is_open) {
        gate->is_open = false;
        close(gate->wake_fd);
    }
    Py_CLEAR(gate->failure);
}

/* What the waiters wait on was destroyed, for good. The last of them that
 * leaves closes the eventfd. */
void cqn_gate_shut(cqn_gate *gate, bool nobody_left)
{
    gate->gone = true;
    if (gate->waiters == 0 || nobody_left) {
        cqn_gate_clear(gate);
    }
    else {
        cqn_gate_nudge(gate);
    }
}

/* Ends the wait of all who are in it: with AsyncEventError if there is an
 * event, else with InterruptedError. A failure that has not reached everybody
 * yet is not replaced: one is enough to tell. */
void cqn_gate_interrupt(cqn_gate *gate, PyObject *failure)
{
    gate->seq++;
    gate->interrupts = gate->waiters;
    if (failure != NULL) {
        gate->failure_seq = gate->seq;
        if (gate->failure == NULL) {
            gate->failure = Py_NewRef(failure);
        }
    }
    cqn_gate_nudge(gate);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Until one of the three files is readable, the deadline (negative: none) has
 * come, or a signal. As ppoll(2): > 0, 0, or -1 with errno. */
static int sleep_until(struct pollfd fds[3], int64_t deadline)
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
        n = ppoll(fds, 3, limit, NULL);
        err = errno;
    Py_END_ALLOW_THREADS
    errno = err;
    return n;
}

/* A device tells of its end by POLLERR or POLLHUP on its files. */
static bool is_dead(const struct pollfd *fd)
{
    return (fd->revents & (POLLERR | POLLHUP)) && !(fd->revents & POLLIN);
}

static PyObject *interrupted(cqn_state *st, cqn_gate *gate, uint64_t seq)
{
    if (gate->failure != NULL && gate->failure_seq > seq) {
        return cqn_async_error(st, gate, gate->failure);
    }
    PyErr_SetString(PyExc_InterruptedError, "the wait was ended by interrupt()");
    return NULL;
}

/* What a wake-up means for those who will look again. -1: an exception. */
static int woken(cqn_object *self, const cqn_gate *gate, const cqn_wait_kind *kind, int n,
                 const struct pollfd fds[3])
{
    if (n < 0) {
        return errno != EINTR ? (PyErr_SetFromErrno(PyExc_OSError), -1) : PyErr_CheckSignals();
    }
    if (self->handle == NULL) {
        return 0;
    }
    if (is_dead(&fds[0]) || is_dead(&fds[2])) {
        cqn_verbs_error(self->state, EIO, kind->verb, "no more events will come");
        return -1;
    }
    if (fds[1].revents != 0 && gate->interrupts == 0 && !gate->gone) {
        calm(gate); /* it was a nudge */
    }
    return fds[2].revents != 0 ? cqn_async_drain(self->context) : 0;
}

static PyObject *wait_in(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                         int64_t deadline)
{
    const uint64_t seq = gate->seq;
    bool late = false;
    for (;;) {
        PyObject *found = cqn_open(self) == NULL ? NULL : kind->take(self);
        if (found != NULL || PyErr_Occurred()) {
            return found;
        }
        if (seq != gate->seq) {
            return interrupted(self->state, gate, seq);
        }
        if (late) {
            PyErr_SetString(PyExc_TimeoutError, kind->timed_out);
            return NULL;
        }
        const struct ibv_context *device = self->context->base.handle;
        struct pollfd fds[3] = {
            {kind->fd(self), POLLIN, 0},
            {gate->wake_fd, POLLIN, 0},
            {device->async_fd, POLLIN, 0},
        };
        int n = sleep_until(fds, deadline);
        if (woken(self, gate, kind, n, fds) < 0) {
            return NULL;
        }
        late = n == 0;
    }
}

/* Of the interrupted, the last one makes the eventfd unreadable. Who found what
 * he waited for at the same moment leaves the interrupt, or the failure, to the
 * next. */
static void leave(cqn_gate *gate, uint64_t seq, bool successful)
{
    gate->waiters--;
    if (gate->gone) {
        if (gate->waiters == 0) {
            cqn_gate_clear(gate);
        }
    }
    else if (seq != gate->seq) {
        bool failed = gate->failure != NULL && gate->failure_seq > seq;
        gate->failure_next |= successful && failed;
        gate->interrupt_next |= successful && !failed;
        if (--gate->interrupts == 0) {
            calm(gate);
            if (!gate->failure_next) {
                Py_CLEAR(gate->failure);
            }
        }
    }
}

static PyObject *left_over(cqn_state *st, cqn_gate *gate)
{
    if (gate->failure_next) {
        gate->failure_next = false;
        PyObject *failure = Py_NewRef(gate->failure);
        if (gate->interrupts == 0) {
            Py_CLEAR(gate->failure);
        }
        cqn_async_error(st, gate, failure);
        Py_DECREF(failure);
        return NULL;
    }
    gate->interrupt_next = false;
    return interrupted(st, gate, gate->seq);
}

/* Sleeps until kind->take() finds something. `timeout` is the argument. */
PyObject *cqn_gate_wait(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                        PyObject *timeout)
{
    int64_t ns;
    if (cqn_timeout(timeout, &ns) < 0 || cqn_open(self) == NULL) {
        return NULL;
    }
    if (gate->failure_next || gate->interrupt_next) {
        return left_over(self->state, gate);
    }
    const uint64_t seq = gate->seq;
    gate->waiters++;
    PyObject *found = wait_in(self, gate, kind, ns < 0 ? -1 : now_ns() + ns);
    leave(gate, seq, found != NULL);
    return found;
}
