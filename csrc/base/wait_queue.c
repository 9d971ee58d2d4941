/* SPDX-License-Identifier: MIT */
/*
 * Sleeping without the GIL: the common part of get_event() and get_async_event().
 *
 * The threads of a wait queue sleep in ppoll(2). Each waiter has a record, a cqn_waiter, with an
 * eventfd by which other threads wake it. Another thread writes its request to the record, under
 * the GIL, before it makes the eventfd readable, so a waiter misses nothing, even if it has yet to
 * enter ppoll. When the waiter has the GIL back it checks, in this order: signals, close(), the
 * awaited thing, failures, interrupt(), the deadline.
 *
 * The poller. One of the sleepers also polls the descriptor that all of them wait for and the
 * descriptor of the device's asynchronous events, so an event wakes one thread, not all. A waiter
 * that goes to sleep becomes the poller if there is none, and gives up the role first of all when
 * it wakes. If it goes back to sleep it becomes the poller again. Before it leaves, for any reason,
 * and before it runs a signal handler, it makes the first sleeper the poller. That sleeper calls
 * ppoll again with the additional descriptors, without taking the GIL; an event that arrived while
 * there was no poller is readable then.
 *
 * The records are not on the threads' stacks. When the interpreter ends, CPython never gives the
 * GIL to another thread, and up to 3.13 it ends a thread that asks for the GIL, while the record of
 * that thread is still in the list. Such a thread never gives up the role of the poller, so at that
 * time each thread that goes to sleep makes itself the poller.
 */

#include "base/args.h"
#include "base/errors.h"
#include "base/wait_queue.h"
#include "base/trace.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CHECK_EVERY 16
#define FREE_RECORDS 8 /* kept, because each eventfd costs a system call */

struct cqn_waiter {
    cqn_waiter *next;
    int wake_fd;    /* an eventfd, owned by the record */
    bool asleep;    /* in ppoll, on its way into it, or on its way back to the GIL */
    bool signalled; /* another thread made wake_fd readable during this sleep */
    bool interrupted;
    atomic_bool must_check; /* the waiter must take the GIL; written with it, read without */
    uint64_t seen_serial;   /* serial of the latest failure that the waiter knows */
    cqn_sleep *sleep;       /* the caller's, during the wait */
};

/* Returns a new record, which is in no list; NULL with an exception. */
static cqn_waiter *new_waiter(void)
{
    cqn_waiter *waiter = PyMem_Calloc(1, sizeof(*waiter));
    if (waiter == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    waiter->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (waiter->wake_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        PyMem_Free(waiter);
        return NULL;
    }
    return waiter;
}

static void free_waiter(cqn_waiter *waiter)
{
    close(waiter->wake_fd);
    PyMem_Free(waiter);
}

/* A queue starts with one record: a program with one waiter at a time needs no more. */
int cqn_wait_queue_open(cqn_wait_queue *queue)
{
    queue->free_records = new_waiter();
    queue->free_records_len = queue->free_records != NULL;
    return queue->free_records != NULL ? 0 : -1;
}

void cqn_wait_queue_clear(cqn_wait_queue *queue)
{
    while (queue->free_records != NULL) {
        cqn_waiter *record = queue->free_records;
        queue->free_records = record->next;
        free_waiter(record);
    }
    queue->free_records_len = 0;
}

/* Makes the eventfd of a waiter readable, which ends its ppoll(2). */
static void signal_waiter(cqn_waiter *waiter)
{
    uint64_t one = 1;
    waiter->signalled = true;
    CQN_MOMENT("wakes");
    ssize_t n = write(waiter->wake_fd, &one, sizeof(one));
    (void)n; /* a full counter is readable anyway */
    CQN_MOMENT("woken");
}

/* Makes the eventfd unreadable, so the next ppoll(2) sleeps. */
static void clear_signal(const cqn_waiter *waiter)
{
    uint64_t count;
    ssize_t n = read(waiter->wake_fd, &count, sizeof(count));
    (void)n;
}

size_t cqn_wait_queue_len(const cqn_wait_queue *queue)
{
    size_t n = 0;
    for (const cqn_waiter *w = queue->waiters; w != NULL; w = w->next) {
        n++;
    }
    return n;
}

void cqn_wait_queue_wake(cqn_wait_queue *queue)
{
    for (cqn_waiter *w = queue->waiters; w != NULL; w = w->next) {
        if (w->asleep && !atomic_load(&w->must_check)) {
            atomic_store(&w->must_check, true);
            signal_waiter(w);
        }
    }
}

/* In a forked child the waiting threads do not exist, and the eventfds are the parent's. */
void cqn_wait_queue_shut(cqn_wait_queue *queue, bool nobody_left)
{
    queue->gone = true;
    if (!nobody_left) {
        cqn_wait_queue_wake(queue);
    }
    cqn_wait_queue_clear(queue);
}

void cqn_wait_queue_interrupt(cqn_wait_queue *queue)
{
    for (cqn_waiter *w = queue->waiters; w != NULL; w = w->next) {
        w->interrupted = true;
    }
    queue->interrupt_next |= queue->waiters == NULL;
    cqn_wait_queue_wake(queue);
}

/* ---- the poller ---- */

static void become_poller(cqn_wait_queue *queue, cqn_waiter *waiter)
{
    if (atomic_load(&queue->poller) == NULL || cqn_is_ending()) {
        atomic_store(&queue->poller, waiter);
    }
}

static bool is_poller(cqn_wait_queue *queue, const cqn_waiter *waiter)
{
    return atomic_load(&queue->poller) == waiter;
}

static void stop_polling(cqn_wait_queue *queue, const cqn_waiter *waiter)
{
    if (is_poller(queue, waiter)) {
        atomic_store(&queue->poller, NULL);
    }
}

/* Makes the first sleeper the poller, if there is no poller. */
static void pass_on_polling(cqn_wait_queue *queue)
{
    if (atomic_load(&queue->poller) != NULL) {
        return;
    }
    cqn_waiter *w = queue->waiters;
    while (w != NULL && !w->asleep) {
        w = w->next;
    }
    if (w != NULL) {
        atomic_store(&queue->poller, w);
        signal_waiter(w);
        CQN_STEP(poller, queue, w, 0, 0);
    }
}

/* ---- sleeping ---- */

int64_t cqn_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Calls ppoll(2) with a deadline; a negative one means none. */
static int poll_until(struct pollfd *fds, nfds_t n, int64_t deadline)
{
    struct timespec left, *limit = NULL;
    if (deadline >= 0) {
        int64_t ns = deadline - cqn_now_ns();
        ns = ns < 0 ? 0 : ns;
        left.tv_sec = ns / 1000000000;
        left.tv_nsec = ns % 1000000000;
        limit = &left;
    }
    return ppoll(fds, n, limit, NULL);
}

/* Other threads write to the record before they signal, so the signal is cleared before the record
 * is read. */
static bool must_check(const cqn_waiter *waiter)
{
    clear_signal(waiter);
    CQN_MOMENT("cleared");
    return atomic_load(&waiter->must_check);
}

/* Sleeps until the waiter's eventfd (the first descriptor) is readable and the waiter must check,
 * or, for the poller, until one of the others is readable; or until the deadline, or a signal.
 * Returns the result of ppoll(2), with errno. A waiter that is made the poller meanwhile goes on
 * sleeping as the poller. */
static int sleep_until(cqn_wait_queue *queue, const cqn_waiter *waiter, struct pollfd fds[3],
                       int64_t deadline)
{
    int n, err;
    cqn_sleep *const sleep = waiter->sleep;
    Py_BEGIN_ALLOW_THREADS
        bool polls;
        do {
            polls = is_poller(queue, waiter);
            n = poll_until(fds, polls ? 3 : 1, deadline);
            err = errno;
        } while (n > 0 && !polls && !must_check(waiter));
        if (sleep->timed) {
            sleep->woke_at = cqn_now_ns();
        }
    Py_END_ALLOW_THREADS
    errno = err;
    return n;
}

/* A removed device signals POLLERR or POLLHUP on its descriptors. */
static bool is_dead(const struct pollfd *fd)
{
    return (fd->revents & (POLLERR | POLLHUP)) && !(fd->revents & POLLIN);
}

static PyObject *raise_interrupted(bool *by)
{
    *by = false;
    PyErr_SetString(PyExc_InterruptedError, "the wait was ended by interrupt()");
    return NULL;
}

/* Sleeps once, and handles signals, the removal of the device and its asynchronous events;
 * wait_in() checks everything else. Returns whether the deadline has passed, or -1 with an
 * exception. */
static int sleep_once(cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                      cqn_waiter *waiter, int64_t deadline)
{
    const struct ibv_context *device = self->context->base.handle;
    struct pollfd fds[3] = {
        {waiter->wake_fd, POLLIN, 0},
        {kind->fd(self), POLLIN, 0},
        {device->async_fd, POLLIN, 0},
    };
    waiter->asleep = waiter->sleep->slept = true;
    become_poller(queue, waiter);
    CQN_TRACE_N(sleep, self, 0);
    CQN_STEP(waits, queue, waiter, is_poller(queue, waiter), 0);
    int n = sleep_until(queue, waiter, fds, deadline);
    int err = errno;
    CQN_TRACE_N(wake, self, 0);
    stop_polling(queue, waiter);
    waiter->asleep = false;
    CQN_STEP(woke, queue, waiter, 0, 0);
    if (waiter->signalled) {
        waiter->signalled = false;
        atomic_store(&waiter->must_check, false);
        clear_signal(waiter);
    }
    if (n < 0) {
        int rc = -1;
        if (err == EINTR) {
            pass_on_polling(queue); /* the handler can run for long, or wait in this queue itself */
            CQN_STEP(handler, queue, waiter, 0, 0);
            CQN_UNLOCKED(rc = PyErr_CheckSignals());
        }
        else {
            errno = err;
            PyErr_SetFromErrno(PyExc_OSError);
        }
        return rc;
    }
    /* An event takes precedence over errors: it can be the last one of this device. */
    const bool came = fds[1].revents & POLLIN;
    if (!came && self->handle != NULL && (is_dead(&fds[1]) || is_dead(&fds[2]))) {
        cqn_verbs_error(self->state, EIO, kind->verb, "no more events will come");
        return -1;
    }
    if (!came && self->handle != NULL && fds[2].revents != 0 && kind->drain(self->context) < 0) {
        return -1;
    }
    return n == 0 || (deadline >= 0 && cqn_now_ns() >= deadline);
}

/* Sleeps until kind->pop() finds something. The caller has checked and found nothing, or has
 * skipped the first check. */
static PyObject *wait_in(cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                         cqn_waiter *waiter, int64_t deadline)
{
    int late = 0;
    for (;;) {
        /* These checks can run arbitrary code, which can close the object. */
        if (cqn_open(self) == NULL || kind->check(self, &waiter->seen_serial) < 0 ||
            cqn_open(self) == NULL) {
            return NULL;
        }
        if (waiter->interrupted) {
            return raise_interrupted(&waiter->interrupted);
        }
        if (late) {
            kind->time_out(self);
            return NULL;
        }
        late = sleep_once(self, queue, kind, waiter, deadline);
        if (late < 0) {
            return NULL;
        }
        PyObject *found = cqn_open(self) == NULL ? NULL : kind->pop(self);
        if (found != NULL || PyErr_Occurred()) {
            return found;
        }
    }
}

/* Appends a new waiter to the queue and returns its record; NULL with an exception. */
static cqn_waiter *enter_queue(cqn_wait_queue *queue, uint64_t seen_serial, cqn_sleep *sleep)
{
    cqn_waiter *waiter = queue->free_records;
    if (waiter != NULL) {
        queue->free_records = waiter->next;
        queue->free_records_len--;
    }
    else if ((waiter = new_waiter()) == NULL) {
        return NULL;
    }
    waiter->next = NULL;
    waiter->seen_serial = seen_serial;
    waiter->sleep = sleep;
    cqn_waiter **end = &queue->waiters;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = waiter;
    return waiter;
}

/* A waiter that was interrupted but leaves for another reason leaves the interrupt to the next
 * call. In a forked child the other threads do not exist, and their eventfds are the parent's. */
static void leave_queue(const cqn_object *self, cqn_wait_queue *queue, cqn_waiter *waiter)
{
    cqn_waiter **link = &queue->waiters;
    while (*link != waiter) {
        assert(*link != NULL);
        link = &(*link)->next;
    }
    *link = waiter->next;
    queue->interrupt_next |= waiter->interrupted;
    waiter->interrupted = false;
    if (!cqn_forked(self)) {
        pass_on_polling(queue);
        CQN_STEP(leaves, queue, waiter, 0, 0);
    }
    if (queue->gone || queue->free_records_len >= FREE_RECORDS) {
        free_waiter(waiter);
    }
    else {
        waiter->next = queue->free_records;
        queue->free_records = waiter;
        queue->free_records_len++;
    }
}

/* Returns whether to check before the first sleep. After a wait that had to sleep, this one most
 * likely has to as well, and the check would be a wasted system call. Now and then a waiter checks
 * nevertheless, because when events arrive faster than they are read, going to sleep first is what
 * costs. */
static bool checks_first(const cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                         uint64_t seen_serial)
{
    return queue->sleeps++ % CHECK_EVERY == 0 || kind->is_quiet == NULL ||
           !kind->is_quiet(self, seen_serial);
}

/* Converts a timeout to a deadline on the monotonic clock; -1 means none in both. */
static int64_t deadline_after(int64_t ns)
{
    return ns < 0 ? -1 : cqn_now_ns() + ns;
}

PyObject *cqn_wait_queue_wait(cqn_object *self, cqn_wait_queue *queue, const cqn_wait_kind *kind,
                              PyObject *timeout, uint64_t seen_serial, cqn_sleep *sleep)
{
    int64_t ns;
    if (cqn_timeout(timeout, &ns) < 0 || !cqn_still_open(self, timeout != NULL)) {
        return NULL;
    }
    if (queue->interrupt_next) {
        return raise_interrupted(&queue->interrupt_next);
    }
    if (checks_first(self, queue, kind, seen_serial)) {
        PyObject *found = kind->pop(self);
        if (found != NULL || PyErr_Occurred()) {
            queue->sleeps = 0;
            return found;
        }
    }
    cqn_waiter *waiter = enter_queue(queue, seen_serial, sleep);
    if (waiter == NULL) {
        return NULL;
    }
    PyObject *found = wait_in(self, queue, kind, waiter, deadline_after(ns));
    leave_queue(self, queue, waiter);
    return found;
}
