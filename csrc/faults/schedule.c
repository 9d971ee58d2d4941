/* SPDX-License-Identifier: MIT */
/* The scheduler, see schedule.h. */

#include "base/base.h"
#include "faults/faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* Here, the functions themselves. */
#undef PyEval_SaveThread
#undef PyEval_RestoreThread
#undef clock_gettime
#undef pthread_mutex_lock
#undef pthread_cond_wait
#undef pthread_cond_broadcast
#undef ppoll
#undef epoll_wait

enum {
    THREADS = 32,
    DEVICE = THREADS,
    CLOCK,
    ALL,
    NOBODY = -1,
    FLAGS = 64,
    CHANGES = 32,      /* at most */
    PATIENCE = 1500,   /* points of one thread in a row while others can go on */
    LONGEST = 1 << 17, /* points of a schedule */
    TICK = 1000,       /* ns that pass whenever the clock is read */
    CONDS = 64,
};

typedef bool (*is_ready)(const void *what);

typedef struct {
    bool used, entered, done;
    const char *place;
    int line; /* of Python code; or 0 */
    uint64_t priority;
    pthread_cond_t turn;
    is_ready ready; /* NULL: it can go on */
    const void *what;
    int64_t deadline;     /* -1: none */
    bool asleep, expired; /* asleep: a signal ends the sleep */
    bool signalled;
} entity;

typedef struct {
    int who, line;
    const char *place;
} point;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static entity all[ALL];
static _Thread_local int self_id = NOBODY;
static atomic_bool active;
static int current, gil_owner, latest, in_a_row;
static uint64_t random_state, lowest;
static long choices, changes[CHANGES]; /* points at which more than one can go on */
static int n_changes;
static int64_t now_ns;
static bool flags[FLAGS];
static point *points;
static size_t n_points;
static struct {
    const pthread_cond_t *cond;
    unsigned long broadcasts;
} conds[CONDS];

/* The device: its functions, which the program passes on. */
static struct {
    bool (*has_work)(void);
    const char *(*step)(void);
    bool (*may_destroy)(struct ibv_cq *);
} device;

/* ---- choosing ---- */

static uint64_t next_random(void) /* splitmix64 */
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void note(int who, const char *place, int line)
{
    if (n_points == LONGEST) {
        fprintf(stderr, "schedule: it does not end\n");
        abort();
    }
    points[n_points++] = (point){who, line, place};
}

static bool can_go_on(int who)
{
    const entity *e = &all[who];
    if (who == DEVICE) {
        return device.has_work != NULL && device.has_work();
    }
    if (who == CLOCK) {
        for (int i = 0; i < THREADS; i++) {
            if (all[i].used && !all[i].done && all[i].deadline >= 0 && !all[i].expired) {
                return true;
            }
        }
        return false;
    }
    return e->used && e->entered && !e->done &&
           (e->ready == NULL || e->expired || (e->asleep && e->signalled) || e->ready(e->what));
}

static void demote(int who)
{
    all[who].priority = --lowest;
    in_a_row = 0;
}

/* Returns the one with the highest priority of those that can go on, or NOBODY; *n: their number.
 */
static int first_of(int *n)
{
    int best = NOBODY;
    *n = 0;
    for (int i = 0; i < ALL; i++) {
        if (can_go_on(i)) {
            ++*n;
            best = best == NOBODY || all[i].priority > all[best].priority ? i : best;
        }
    }
    return best;
}

static int choose(void)
{
    int n, best = first_of(&n);
    if (n > 1) {
        choices++;
        bool is_change = false;
        for (int i = 0; i < n_changes; i++) {
            is_change |= changes[i] == choices;
        }
        in_a_row = best == latest ? in_a_row + 1 : 0;
        if (is_change || in_a_row > PATIENCE) {
            demote(best);
            best = first_of(&n);
        }
    }
    latest = best;
    return best;
}

/* Time passes until the next deadline. */
static void pass_time(void)
{
    int next = NOBODY;
    for (int i = 0; i < THREADS; i++) {
        if (all[i].used && !all[i].done && all[i].deadline >= 0 && !all[i].expired &&
            (next == NOBODY || all[i].deadline < all[next].deadline)) {
            next = i;
        }
    }
    now_ns = Py_MAX(now_ns, all[next].deadline);
    all[next].expired = true;
    demote(CLOCK);
}

static void give_up(void)
{
    fprintf(stderr, "schedule: nobody can go on\n");
    for (int i = 0; i < THREADS; i++) {
        if (all[i].used && !all[i].done) {
            fprintf(stderr, "schedule: thread %d waits in %s:%d%s\n", i,
                    all[i].place ? all[i].place : "?", all[i].line,
                    gil_owner == i ? ", with the GIL" : "");
        }
    }
    for (size_t i = n_points < 60 ? 0 : n_points - 60; i < n_points; i++) {
        fprintf(stderr, "schedule: %d %s:%d\n", points[i].who, points[i].place, points[i].line);
    }
    fflush(stderr);
    abort();
}

/* Lets the others go on until it is the turn of `self`, which says in its entity what it waits for.
 * With `drops` it has the GIL, which is released if another thread goes on. With the mutex. */
static PyThreadState *let_others_go_on(int self, bool drops)
{
    PyThreadState *ts = NULL;
    for (;;) {
        const int next = choose();
        if (next == NOBODY) {
            give_up();
        }
        else if (next == DEVICE) {
            note(DEVICE, device.step(), 0);
        }
        else if (next == CLOCK) {
            note(CLOCK, "deadline", 0);
            pass_time();
        }
        else {
            current = next;
            if (next == self) {
                break;
            }
            if (drops) {
                ts = PyEval_SaveThread();
            }
            pthread_cond_signal(&all[next].turn);
            while (self != NOBODY && current != self) {
                pthread_cond_wait(&all[self].turn, &mutex);
            }
            break;
        }
    }
    return ts;
}

static bool gil_is_free(const void *unused)
{
    (void)unused;
    return gil_owner == NOBODY;
}

enum outcome { READY, EXPIRED, SIGNALLED };

/* Waits without the GIL. */
static enum outcome wait_for(const char *place, is_ready ready, const void *what, int64_t deadline,
                             bool asleep)
{
    pthread_mutex_lock(&mutex);
    entity *e = &all[self_id];
    e->place = place;
    e->line = 0;
    e->ready = ready;
    e->what = what;
    e->deadline = deadline;
    e->asleep = asleep;
    e->expired = deadline >= 0 && deadline <= now_ns;
    e->signalled = false;
    note(self_id, place, 0);
    let_others_go_on(self_id, false);
    const enum outcome outcome = ready == NULL || ready(what) ? READY
                                 : e->signalled               ? SIGNALLED
                                                              : EXPIRED;
    e->ready = NULL;
    e->deadline = -1;
    e->asleep = e->expired = e->signalled = false;
    pthread_mutex_unlock(&mutex);
    return outcome;
}

static bool takes_part(void)
{
    return self_id != NOBODY && atomic_load(&active);
}

/* ---- points ---- */

void cqn_schedule_moment(const char *place)
{
    if (takes_part()) {
        wait_for(place, NULL, NULL, -1, false);
    }
}

static void give_way(const char *place, int line)
{
    pthread_mutex_lock(&mutex);
    entity *e = &all[self_id];
    e->place = place;
    e->line = line;
    note(self_id, place, line);
    gil_owner = NOBODY;
    e->ready = gil_is_free;
    PyThreadState *ts = let_others_go_on(self_id, true);
    gil_owner = self_id;
    e->ready = NULL;
    pthread_mutex_unlock(&mutex);
    if (ts != NULL) {
        PyEval_RestoreThread(ts);
    }
}

void cqn_schedule_place(const char *place)
{
    if (takes_part() && gil_owner == self_id) {
        give_way(place, 0);
    }
}

PyThreadState *cqn_schedule_release(const char *place)
{
    PyThreadState *ts = PyEval_SaveThread();
    if (takes_part()) {
        gil_owner = NOBODY; /* only one thread runs */
        cqn_schedule_moment(place);
    }
    return ts;
}

void cqn_schedule_take(PyThreadState *ts, const char *place)
{
    if (takes_part()) {
        wait_for(place, gil_is_free, NULL, -1, false);
        gil_owner = self_id;
    }
    PyEval_RestoreThread(ts);
}

/* ---- calls that block ---- */

typedef struct {
    struct pollfd *fds;
    nfds_t n;
} polled;

static bool is_readable(const void *what)
{
    const polled *p = what;
    return poll(p->fds, p->n, 0) != 0;
}

int cqn_schedule_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout)
{
    if (!takes_part()) {
        return ppoll(fds, n, timeout, NULL);
    }
    const polled p = {fds, n};
    const int64_t deadline =
        timeout == NULL ? -1 : now_ns + timeout->tv_sec * INT64_C(1000000000) + timeout->tv_nsec;
    if (wait_for("ppoll", is_readable, &p, deadline, true) == SIGNALLED) {
        errno = EINTR;
        return -1;
    }
    return poll(fds, n, 0);
}

int cqn_schedule_epoll_wait(int fd, struct epoll_event *events, int n, int ms)
{
    if (takes_part()) {
        struct pollfd fds = {fd, POLLIN, 0};
        const polled p = {&fds, 1};
        const int64_t deadline = ms < 0 ? -1 : now_ns + ms * INT64_C(1000000);
        if (wait_for("epoll_wait", is_readable, &p, deadline, true) == SIGNALLED) {
            errno = EINTR;
            return -1;
        }
        ms = 0;
    }
    return epoll_wait(fd, events, n, ms);
}

int cqn_schedule_clock(clockid_t clock, struct timespec *now)
{
    if (!takes_part()) {
        return clock_gettime(clock, now);
    }
    now_ns += TICK;
    *now = (struct timespec){now_ns / 1000000000, now_ns % 1000000000};
    return 0;
}

static bool is_unlocked(const void *what)
{
    pthread_mutex_t *m = (pthread_mutex_t *)(uintptr_t)what;
    if (pthread_mutex_trylock(m) != 0) {
        return false;
    }
    pthread_mutex_unlock(m);
    return true;
}

int cqn_schedule_lock(pthread_mutex_t *m)
{
    if (takes_part()) {
        wait_for("pthread_mutex_lock", is_unlocked, m, -1, false);
    }
    return pthread_mutex_lock(m);
}

static unsigned long *broadcasts_of(const pthread_cond_t *cond)
{
    int i = 0;
    while (conds[i].cond != NULL && conds[i].cond != cond) {
        if (++i == CONDS) {
            abort(); /* more than any program has */
        }
    }
    conds[i].cond = cond;
    return &conds[i].broadcasts;
}

typedef struct {
    const unsigned long *broadcasts;
    unsigned long seen;
} awaited;

static bool is_broadcast(const void *what)
{
    const awaited *a = what;
    return *a->broadcasts != a->seen;
}

int cqn_schedule_cond_wait(pthread_cond_t *cond, pthread_mutex_t *m)
{
    if (!takes_part()) {
        return pthread_cond_wait(cond, m);
    }
    const unsigned long *broadcasts = broadcasts_of(cond);
    const awaited a = {broadcasts, *broadcasts};
    pthread_mutex_unlock(m);
    wait_for("pthread_cond_wait", is_broadcast, &a, -1, false);
    return cqn_schedule_lock(m);
}

int cqn_schedule_broadcast(pthread_cond_t *cond)
{
    if (takes_part()) {
        ++*broadcasts_of(cond);
    }
    return pthread_cond_broadcast(cond);
}

static bool is_acknowledged(const void *what)
{
    return device.may_destroy((struct ibv_cq *)(uintptr_t)what);
}

/* It waits until all events that were read are acknowledged. */
int cqn_schedule_destroy_cq(struct ibv_cq *cq)
{
    if (takes_part() && device.may_destroy != NULL) {
        wait_for("ibv_destroy_cq", is_acknowledged, cq, -1, false);
    }
    return (ibv_destroy_cq)(cq);
}

/* ---- for Python ---- */

static PyObject *refuse(const char *why)
{
    PyErr_SetString(PyExc_RuntimeError, why);
    return NULL;
}

static int add_thread(void)
{
    int id = 0;
    while (id < THREADS && all[id].used) {
        id++;
    }
    if (id < THREADS) {
        all[id] = (entity){.used = true, .deadline = -1, .priority = next_random() >> 1 | 1};
        all[id].priority += UINT64_C(1) << 62;
        pthread_cond_init(&all[id].turn, NULL);
    }
    return id;
}

static PyObject *begin(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long seed;
    PyObject *at, *functions;
    if (!PyArg_ParseTuple(args, "KO!O!:schedule_begin", &seed, &PyTuple_Type, &at, &PyList_Type,
                          &functions)) {
        return NULL;
    }
    if (atomic_load(&active) || PyTuple_GET_SIZE(at) > CHANGES || PyList_GET_SIZE(functions) != 3) {
        return refuse("a schedule has begun, or there are too many changes");
    }
    n_changes = (int)PyTuple_GET_SIZE(at);
    for (int i = 0; i < n_changes; i++) {
        changes[i] = PyLong_AsLong(PyTuple_GET_ITEM(at, i));
    }
    void *pointers[3];
    for (int i = 0; i < 3; i++) {
        pointers[i] = PyLong_AsVoidPtr(PyList_GET_ITEM(functions, i));
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    memcpy(&device, pointers, sizeof(device));
    points = points != NULL ? points : malloc(LONGEST * sizeof(*points));
    memset(all, 0, sizeof(all));
    memset(flags, 0, sizeof(flags));
    memset(conds, 0, sizeof(conds));
    random_state = seed;
    lowest = UINT64_C(1) << 32;
    choices = in_a_row = 0;
    n_points = 0;
    now_ns = 1000000000;
    latest = NOBODY;
    for (int i = THREADS; i < ALL; i++) {
        all[i].used = true;
        all[i].priority = (UINT64_C(1) << 62) + (next_random() >> 1);
    }
    self_id = current = gil_owner = add_thread();
    all[self_id].entered = true;
    atomic_store(&active, true);
    Py_RETURN_NONE;
}

/* Returns how many points gave a choice, and all points. */
static PyObject *end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (self_id == NOBODY) {
        return refuse("only a thread of the schedule ends it");
    }
    for (int i = 0; i < THREADS; i++) {
        if (i != self_id && all[i].used && !all[i].done) {
            return refuse("other threads of the schedule have not ended");
        }
    }
    atomic_store(&active, false);
    self_id = NOBODY;
    PyObject *list = PyList_New((Py_ssize_t)n_points);
    for (size_t i = 0; list != NULL && i < n_points; i++) {
        PyObject *one =
            PyUnicode_FromFormat("%d %s:%d", points[i].who, points[i].place, points[i].line);
        if (one == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, one);
    }
    return list == NULL ? NULL : Py_BuildValue("(lN)", choices, list);
}

static PyObject *spawn(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (!takes_part()) {
        return refuse("no schedule has begun in this thread");
    }
    const int id = add_thread();
    return id == THREADS ? refuse("too many threads") : PyLong_FromLong(id);
}

static PyObject *enter(PyObject *Py_UNUSED(module), PyObject *number)
{
    const int id = (int)PyLong_AsLong(number);
    PyThreadState *ts = PyEval_SaveThread();
    pthread_mutex_lock(&mutex);
    self_id = id;
    all[id].ready = gil_is_free;
    all[id].place = "enter";
    all[id].entered = true;
    pthread_cond_broadcast(&all[id].turn); /* for await_entered() */
    while (current != id) {
        pthread_cond_wait(&all[id].turn, &mutex);
    }
    gil_owner = id;
    all[id].ready = NULL;
    pthread_mutex_unlock(&mutex);
    PyEval_RestoreThread(ts);
    Py_RETURN_NONE;
}

/* The caller goes on having its turn. */
static PyObject *await_entered(PyObject *Py_UNUSED(module), PyObject *number)
{
    const int id = (int)PyLong_AsLong(number);
    PyThreadState *ts = PyEval_SaveThread();
    pthread_mutex_lock(&mutex);
    while (!all[id].entered) {
        pthread_cond_wait(&all[id].turn, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    PyEval_RestoreThread(ts);
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (takes_part()) {
        pthread_mutex_lock(&mutex);
        all[self_id].done = true;
        note(self_id, "leave", 0);
        gil_owner = NOBODY; /* the next one waits until this thread has released it */
        self_id = NOBODY;
        let_others_go_on(NOBODY, false);
        pthread_mutex_unlock(&mutex);
    }
    Py_RETURN_NONE;
}

static PyObject *python_point(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *place;
    int line;
    if (!PyArg_ParseTuple(args, "si:schedule_point", &place, &line)) {
        return NULL;
    }
    if (takes_part()) {
        give_way(place, line);
    }
    Py_RETURN_NONE;
}

/* For a program that asks again and again. */
static PyObject *yield(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (takes_part()) {
        demote(self_id);
        give_way("yield", 0);
    }
    Py_RETURN_NONE;
}

static enum outcome wait_unlocked(const char *place, is_ready ready, const void *what,
                                  int64_t deadline, bool asleep)
{
    if (!takes_part()) {
        return READY;
    }
    PyThreadState *ts = cqn_schedule_release(place);
    const enum outcome outcome = wait_for(place, ready, what, deadline, asleep);
    cqn_schedule_take(ts, place);
    return outcome;
}

static bool is_done(const void *what)
{
    return ((const entity *)what)->done;
}

static bool is_asleep_or_done(const void *what)
{
    const entity *e = what;
    return e->asleep || e->done;
}

static bool is_set(const void *what)
{
    return *(const bool *)what;
}

static PyObject *join(PyObject *Py_UNUSED(module), PyObject *number)
{
    wait_unlocked("join", is_done, &all[PyLong_AsLong(number)], -1, false);
    Py_RETURN_NONE;
}

static PyObject *await_asleep(PyObject *Py_UNUSED(module), PyObject *number)
{
    wait_unlocked("await_asleep", is_asleep_or_done, &all[PyLong_AsLong(number)], -1, false);
    Py_RETURN_NONE;
}

static PyObject *await_flag(PyObject *Py_UNUSED(module), PyObject *number)
{
    const long flag = PyLong_AsLong(number);
    if (flag < 0 || flag >= FLAGS) {
        return refuse("no such flag");
    }
    wait_unlocked("await_flag", is_set, &flags[flag], -1, false);
    Py_RETURN_NONE;
}

static PyObject *set_flag(PyObject *Py_UNUSED(module), PyObject *args)
{
    int flag, value = 1;
    if (!PyArg_ParseTuple(args, "i|p:schedule_set", &flag, &value)) {
        return NULL;
    }
    if (flag < 0 || flag >= FLAGS) {
        return refuse("no such flag");
    }
    flags[flag] = value;
    Py_RETURN_NONE;
}

static PyObject *await_fd(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct pollfd fds = {-1, POLLIN, 0};
    double seconds;
    if (!PyArg_ParseTuple(args, "id:schedule_await_fd", &fds.fd, &seconds)) {
        return NULL;
    }
    const polled p = {&fds, 1};
    const int64_t deadline = seconds < 0 ? -1 : now_ns + (int64_t)(seconds * 1e9);
    wait_unlocked("select", is_readable, &p, deadline, true);
    Py_RETURN_NONE;
}

/* A signal ends the sleep of the main thread, the first of the schedule, if it sleeps; the handler
 * runs when that thread looks next. */
static PyObject *send_signal(PyObject *Py_UNUSED(module), PyObject *number)
{
    if (PyErr_SetInterruptEx((int)PyLong_AsLong(number)) < 0) {
        return refuse("no such signal");
    }
    all[0].signalled = all[0].asleep;
    Py_RETURN_NONE;
}

static PyObject *read_clock(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    now_ns += TICK;
    return PyFloat_FromDouble((double)now_ns / 1e9);
}

static PyObject *own_id(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(self_id);
}

PyMethodDef cqn_schedule_methods[] = {
    {"schedule_begin", begin, METH_VARARGS,
     "schedule_begin(seed, changes, device): the calling thread, the main thread, is the first of "
     "a "
     "schedule. changes: the choices at which the running thread gets the lowest priority; device: "
     "the addresses of its functions."},
    {"schedule_end", end, METH_NOARGS,
     "schedule_end(): the number of choices, and the points as \"thread place:line\"."},
    {"schedule_spawn", spawn, METH_NOARGS, "schedule_spawn(): the number of a new thread."},
    {"schedule_enter", enter, METH_O, "schedule_enter(number): a new thread takes part."},
    {"schedule_await_entered", await_entered, METH_O, "schedule_await_entered(number)"},
    {"schedule_leave", leave, METH_NOARGS, "schedule_leave(): the thread is about to end."},
    {"schedule_join", join, METH_O, "schedule_join(number): waits until that thread leaves."},
    {"schedule_point", python_point, METH_VARARGS, "schedule_point(place, line)"},
    {"schedule_yield", yield, METH_NOARGS,
     "schedule_yield(): the others go on first, those that wait for a deadline as well."},
    {"schedule_await_asleep", await_asleep, METH_O,
     "schedule_await_asleep(number): waits until that thread sleeps or has left."},
    {"schedule_await_flag", await_flag, METH_O, "schedule_await_flag(number)"},
    {"schedule_set", set_flag, METH_VARARGS, "schedule_set(flag, value=True)"},
    {"schedule_await_fd", await_fd, METH_VARARGS,
     "schedule_await_fd(fd, seconds): waits until it is readable, or so long; below 0 for ever."},
    {"schedule_signal", send_signal, METH_O,
     "schedule_signal(number): a signal arrives, which ends a sleep of the main thread."},
    {"schedule_clock", read_clock, METH_NOARGS, "schedule_clock(): seconds."},
    {"schedule_self", own_id, METH_NOARGS, "schedule_self(): the number of this thread, or -1."},
    {NULL, NULL, 0, NULL},
};
