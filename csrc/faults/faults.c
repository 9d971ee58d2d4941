/* SPDX-License-Identifier: MIT */
/* Calls and allocations that fail, code that runs before a call, and rare reports of devices and
 * kernels: see replaced_calls.h. Only the files of this folder have global variables. */

#include "base/base.h"
#include "faults/faults.h"

#include <stdatomic.h>
#include <unistd.h>

typedef struct {
    atomic_long left;             /* until the failing one; 0: off */
    const char *_Atomic happened; /* the call that failed */
} countdown;

static countdown calls, allocations;
static char counted[32]; /* the only calls that are counted; empty: all */
static atomic_int error;
static atomic_bool hold; /* the failing call waits until this is false, if made without the GIL */
static atomic_bool minus_1; /* a failing post reports only errno */
static const char *_Atomic held;
static atomic_long live;
static pthread_t armed_by;
static PyObject *before; /* called once, just before that call */
static char before_name[32];
static PyMemAllocatorEx original[2];

/* n == 0 disables the countdown, and keeps its result. */
static void arm_countdown(countdown *c, long n)
{
    if (n > 0) {
        atomic_store(&calls.happened, NULL);
        atomic_store(&allocations.happened, NULL);
    }
    atomic_store(&c->left, n);
}

static bool is_its_turn(countdown *c, const char *what)
{
    if (atomic_load(&c->left) == 0 || atomic_fetch_sub(&c->left, 1) != 1) {
        return false;
    }
    atomic_store(&c->happened, what);
    return true;
}

int cqn_fault_errno(void)
{
    return atomic_load(&error);
}

/* Returns the result of a failed verb that returns its error. */
int cqn_fault_result(void)
{
    return atomic_load(&minus_1) ? -1 : cqn_fault_errno();
}

/* A device that fails may have written before. */
int cqn_fail_poll_cq(struct ibv_cq *Py_UNUSED(cq), int n, struct ibv_wc *wc)
{
    memset(wc, 0xa5, (size_t)n * sizeof(*wc));
    return -1;
}

bool cqn_fault_is_held(void)
{
    return atomic_load(&hold);
}

static void run_before(void)
{
    PyObject *callback = before;
    before = NULL;
    PyObject *result = PyObject_CallNoArgs(callback);
    if (result == NULL) {
        PyErr_WriteUnraisable(callback);
    }
    Py_XDECREF(result);
    Py_DECREF(callback);
}

void cqn_place(const char *name)
{
    cqn_schedule_place(name);
    if (before != NULL && strcmp(name, before_name) == 0) {
        PyObject *pending = PyErr_Occurred() ? cqn_take_exception() : NULL;
        CQN_UNLOCKED(run_before());
        if (pending != NULL) {
            cqn_put_exception(pending);
        }
    }
}

bool cqn_fault(const char *call)
{
    cqn_schedule_moment(call);
    /* A spinning thread makes its calls without the GIL. */
    if (PyGILState_Check() && before != NULL && strcmp(call, before_name) == 0) {
        run_before();
    }
    if ((counted[0] != '\0' && strcmp(call, counted) != 0) || !is_its_turn(&calls, call)) {
        return false;
    }
    while (atomic_load(&hold) && !PyGILState_Check()) {
        atomic_store(&held, call);
        usleep(1000);
    }
    atomic_store(&held, NULL);
    errno = cqn_fault_errno();
    return errno != 0;
}

void *cqn_handle_created(void *handle)
{
    live += handle != NULL;
    return handle;
}

int cqn_handle_destroyed(int rc)
{
    live -= rc == 0;
    return rc;
}

int cqn_posted(int rc, const char *call)
{
    return rc == 0 && cqn_fault(call) ? cqn_fault_result() : rc;
}

/* ---- events that no device raises ---- */

static struct ibv_async_event injected;
static enum { NO_EVENT, READY, READ } injection;

int cqn_get_async_event_or_injected(struct ibv_context *device, struct ibv_async_event *event)
{
    if (injection != READY) {
        return (ibv_get_async_event)(device, event);
    }
    *event = injected;
    injection = READ;
    return 0;
}

void cqn_ack_async_event_unless_injected(struct ibv_async_event *event)
{
    if (injection != READ) {
        (ibv_ack_async_event)(event);
    }
    injection = NO_EVENT;
}

/* ---- a kernel that copies no pinned pages, or a library that cannot say ---- */

enum { OWN = -2, UNKNOWN = -1 };
static int fork_answer = OWN, fork_error, fork_inits;

static enum ibv_fork_status pretended_fork_status(void)
{
    return (enum ibv_fork_status)fork_answer;
}

void *cqn_find_unless_pretended(const char *function)
{
    enum ibv_fork_status (*pretended)(void) = pretended_fork_status;
    void *found = NULL;
    if (fork_answer == OWN) {
        void *(*find)(const char *) = cqn_library_find; /* not called here, to avoid the macro */
        return find(function);
    }
    if (fork_answer != UNKNOWN) {
        memcpy(&found, &pretended, sizeof(found));
    }
    return found;
}

int cqn_fork_init(void)
{
    if (fork_answer == OWN) {
        return (ibv_fork_init)();
    }
    fork_inits++;
    if (fork_answer == IBV_FORK_DISABLED && fork_error == 0) {
        fork_answer = IBV_FORK_ENABLED;
    }
    return fork_error;
}

PyObject *cqn_pretend_fork(PyObject *module, PyObject *args)
{
    cqn_state *st = PyModule_GetState(module);
    PyObject *inits = PyLong_FromLong(fork_inits);
    fork_inits = fork_error = 0;
    if (inits != NULL && !PyArg_ParseTuple(args, "i|i:pretend_fork", &fork_answer, &fork_error)) {
        Py_CLEAR(inits);
    }
    st->fork_prepared = st->fork_initialized = false;
    return inits;
}

/* ---- allocations of the requesting thread ---- */

static bool starves(void)
{
    return atomic_load(&allocations.left) > 0 && pthread_equal(pthread_self(), armed_by) &&
           is_its_turn(&allocations, "allocation");
}

static void *faulty_malloc(void *ctx, size_t size)
{
    const PyMemAllocatorEx *a = ctx;
    return starves() ? NULL : a->malloc(a->ctx, size);
}

static void *faulty_calloc(void *ctx, size_t n, size_t size)
{
    const PyMemAllocatorEx *a = ctx;
    return starves() ? NULL : a->calloc(a->ctx, n, size);
}

static void *faulty_realloc(void *ctx, void *p, size_t size)
{
    const PyMemAllocatorEx *a = ctx;
    return starves() ? NULL : a->realloc(a->ctx, p, size);
}

static void faulty_free(void *ctx, void *p)
{
    const PyMemAllocatorEx *a = ctx;
    a->free(a->ctx, p);
}

/* Runs once; the hooks stay. */
static void hook_allocators(void)
{
    static const PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(domains) && original[i].malloc == NULL; i++) {
        PyMem_GetAllocator(domains[i], &original[i]);
        PyMemAllocatorEx faulty = {&original[i], faulty_malloc, faulty_calloc, faulty_realloc,
                                   faulty_free};
        PyMem_SetAllocator(domains[i], &faulty);
    }
}

PyObject *cqn_fail_call(PyObject *Py_UNUSED(module), PyObject *args)
{
    long n;
    int err = ENOMEM, is_held = 0, is_minus_1 = 0;
    const char *name = "";
    if (!PyArg_ParseTuple(args, "l|ipps:fail_call", &n, &err, &is_held, &is_minus_1, &name)) {
        return NULL;
    }
    snprintf(counted, sizeof(counted), "%s", name);
    atomic_store(&hold, is_held);
    atomic_store(&minus_1, is_minus_1);
    if (n > 0) {
        atomic_store(&error, err);
    }
    arm_countdown(&calls, n);
    Py_RETURN_NONE;
}

PyObject *cqn_fail_alloc(PyObject *Py_UNUSED(module), PyObject *args)
{
    long n;
    if (!PyArg_ParseTuple(args, "l:fail_alloc", &n)) {
        return NULL;
    }
    hook_allocators();
    armed_by = pthread_self();
    arm_countdown(&allocations, n);
    Py_RETURN_NONE;
}

PyObject *cqn_before_call(PyObject *Py_UNUSED(module), PyObject *args)
{
    CQN_LOCKED;
    const char *name;
    PyObject *callback;
    if (!PyArg_ParseTuple(args, "sO:before_call", &name, &callback)) {
        return NULL;
    }
    snprintf(before_name, sizeof(before_name), "%s", name);
    Py_XSETREF(before, Py_NewRef(callback));
    Py_RETURN_NONE;
}

PyObject *cqn_inject_event(PyObject *module, PyObject *args)
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    int type;
    PyObject *element;
    if (!PyArg_ParseTuple(args, "iO:inject_event", &type, &element)) {
        return NULL;
    }
    injected = (struct ibv_async_event){.event_type = (enum ibv_event_type)type};
    if (PyObject_TypeCheck(element, st->CQ)) {
        injected.element.cq = CQN_OBJ(element)->handle;
    }
    else if (PyObject_TypeCheck(element, st->QP)) {
        injected.element.qp = CQN_OBJ(element)->handle;
    }
    else if (PyObject_TypeCheck(element, st->SRQ)) {
        injected.element.srq = CQN_OBJ(element)->handle;
    }
    else if (element != Py_None) {
        injected.element.port_num = (int)PyLong_AsLong(element);
    }
    injection = type < 0 ? NO_EVENT : READY;
    Py_RETURN_NONE;
}

PyObject *cqn_failed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const char *call = atomic_load(&calls.happened);
    const char *what = call ? call : atomic_load(&allocations.happened);
    return what ? PyUnicode_FromString(what) : Py_NewRef(Py_None);
}

PyObject *cqn_held(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const char *call = atomic_load(&held);
    return call ? PyUnicode_FromString(call) : Py_NewRef(Py_None);
}

PyObject *cqn_live_handles(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(atomic_load(&live));
}
