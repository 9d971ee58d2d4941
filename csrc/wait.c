/* SPDX-License-Identifier: MIT */
/*
 * Sleeping without the GIL: what get_event() and get_async_event() have in
 * common.
 *
 * A gate is where threads sleep: in ppoll(2), on the file that brings what they
 * wait for, on the gate's eventfd, and on the context's asynchronous events.
 * Each has a record on its stack. What others do to him is written there, and
 * seen when the GIL is back, in this order: signals, close(), what he waits for,
 * failures, interrupt(), the deadline.
 *
 * The eventfd is readable as long as there are threads that are to wake and have
 * not yet: only who is asleep is signalled, and he takes it back first of all.
 * Closing makes it readable for good, so no waiter can miss it, even one that
 * has yet to enter ppoll.
 */

#include "core.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY 16

struct cqn_waiter {
    cqn_waiter *next;
    bool asleep, signalled, interrupted;
    uint64_t told; /* serial of the latest failure that he knows of */
};

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

static void make_readable(const cqn_gate *gate)
{
    uint64_t one = 1;
    ssize_t n = write(gate->wake_fd, &one, sizeof(one));
    (void)n; /* it is readable already if the counter is full */
}

static void make_unreadable(const cqn_gate *gate)
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
}

/* What the waiters wait on was destroyed, for good. The last of them that
 * leaves closes the eventfd. */
void cqn_gate_shut(cqn_gate *gate, bool nobody_left)
{
    gate->gone = true;
    if (gate->waiters == NULL || nobody_left) {
        cqn_gate_clear(gate);
    }
    else {
        make_readable(gate);
    }
}

/* Makes all who sleep look again. */
void cqn_gate_wake(cqn_gate *gate)
{
    for (cqn_waiter *w = gate->waiters; w != NULL; w = w->next) {
        if (w->asleep && !w->signalled) {
            w->signalled = true;
            gate->signalled++;
            make_readable(gate);
        }
    }
}

/* Ends the wait of all who are in it; if nobody is, the next one. */
void cqn_gate_interrupt(cqn_gate *gate)
{
    for (cqn_waiter *w = gate->waiters; w != NULL; w = w->next) {
        w->interrupted = true;
    }
    gate->interrupt_next |= gate->waiters == NULL;
    cqn_gate_wake(gate);
}

int64_t cqn_now_ns(void)
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
            int64_t ns = deadline - cqn_now_ns();
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

static PyObject *interrupted(bool *by)
{
    *by = false;
    PyErr_SetString(PyExc_InterruptedError, "the wait was ended by interrupt()");
    return NULL;
}

/* Sleeps once, and handles what woke him but what all look for next. Returns
 * whether the deadline has come, or -1 with an exception. */
static int sleep_once(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                      cqn_waiter *waiter, int64_t deadline)
{
    const struct ibv_context *device = self->context->base.handle;
    struct pollfd fds[3] = {
        {kind->fd(self), POLLIN, 0},
        {gate->wake_fd, POLLIN, 0},
        {device->async_fd, POLLIN, 0},
    };
    waiter->asleep = true;
    int n = sleep_until(fds, deadline);
    int err = errno;
    waiter->asleep = false;
    if (waiter->signalled) {
        waiter->signalled = false;
        if (--gate->signalled == 0 && !gate->gone) {
            make_unreadable(gate);
        }
    }
    if (n < 0) {
        int rc = -1;
        if (err == EINTR) {
            CQN_UNLOCKED(rc = PyErr_CheckSignals());
        }
        else {
            errno = err;
            PyErr_SetFromErrno(PyExc_OSError);
        }
        return rc;
    }
    /* What he waits for comes first: it can be the last that this device brings. */
    const bool came = fds[0].revents & POLLIN;
    if (!came && self->handle != NULL && (is_dead(&fds[0]) || is_dead(&fds[2]))) {
        cqn_verbs_error(self->state, EIO, kind->verb, "no more events will come");
        return -1;
    }
    if (!came && self->handle != NULL && fds[2].revents != 0 &&
        cqn_async_drain(self->context) < 0) {
        return -1;
    }
    return n == 0 || (deadline >= 0 && cqn_now_ns() >= deadline);
}

/* Sleeps until something is found, after a look in vain, or where none is worth it. */
static PyObject *wait_in(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                         cqn_waiter *waiter, int64_t deadline)
{
    int late = 0;
    for (;;) {
        /* To look can run any code. */
        if (cqn_open(self) == NULL || kind->check(self, &waiter->told) < 0 ||
            cqn_open(self) == NULL) {
            return NULL;
        }
        if (waiter->interrupted) {
            return interrupted(&waiter->interrupted);
        }
        if (late) {
            PyErr_SetString(PyExc_TimeoutError, kind->timed_out);
            return NULL;
        }
        late = sleep_once(self, gate, kind, waiter, deadline);
        if (late < 0) {
            return NULL;
        }
        PyObject *found = cqn_open(self) == NULL ? NULL : kind->take(self);
        if (found != NULL || PyErr_Occurred()) {
            return found;
        }
    }
}

/* Who leaves for another reason passes an interrupt on. */
static void leave(cqn_gate *gate, const cqn_waiter *waiter)
{
    cqn_waiter **link = &gate->waiters;
    while (*link != waiter) {
        link = &(*link)->next;
    }
    *link = waiter->next;
    gate->interrupt_next |= waiter->interrupted;
    if (gate->gone && gate->waiters == NULL) {
        cqn_gate_clear(gate);
    }
}

/* Whether to look before the first sleep. Who had to sleep last time will have to
 * again, most likely, and to look would be a system call for nothing. Now and then
 * he looks all the same: where what he waits for comes faster than he takes it, to
 * go to sleep first is what costs. */
static bool looks_first(const cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                        uint64_t told)
{
    return gate->sleeps++ % LOOK_EVERY == 0 || kind->is_quiet == NULL ||
           !kind->is_quiet(self, told);
}

/* Waits until kind->take() finds something. `timeout` is the argument, `told` the
 * serial of the latest failure that is known already. */
PyObject *cqn_gate_wait(cqn_object *self, cqn_gate *gate, const cqn_wait_kind *kind,
                        PyObject *timeout, uint64_t told)
{
    int64_t ns;
    if (cqn_timeout(timeout, &ns) < 0 || !cqn_still_open(self, timeout != NULL)) {
        return NULL;
    }
    if (gate->interrupt_next) {
        return interrupted(&gate->interrupt_next);
    }
    if (looks_first(self, gate, kind, told)) {
        PyObject *found = kind->take(self);
        if (found != NULL || PyErr_Occurred()) {
            gate->sleeps = 0;
            return found;
        }
    }
    cqn_waiter waiter = {.next = gate->waiters, .told = told};
    gate->waiters = &waiter; /* cppcheck-suppress autoVariables ; leave() takes it out */
    PyObject *found = wait_in(self, gate, kind, &waiter, ns < 0 ? -1 : cqn_now_ns() + ns);
    leave(gate, &waiter);
    return found;
}
