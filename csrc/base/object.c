/* SPDX-License-Identifier: MIT */
/* Objects that own a handle: their creation, the links between users and used objects, and calls
 * without the GIL. object.h states the rules; closing is in close.c. */

#include "base/library.h"
#include "base/object.h"

/* ---- creation ---- */

void *cqn_new_left(PyTypeObject *type, const cqn_kind *kind)
{
    cqn_object *self = (cqn_object *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->state = cqn_state_of(type);
        self->kind = kind;
        cqn_enable_try_ref((PyObject *)self);
    }
    return self;
}

/* Runs arbitrary code if the allocation runs the garbage collector, so the used objects are checked
 * after it. */
void *cqn_new(PyTypeObject *type, const cqn_kind *kind, cqn_object *const *uses, size_t n)
{
    cqn_object *self = cqn_new_left(type, kind);
    if (self == NULL) {
        return NULL;
    }
    if (n == 0) { /* a forked child owns the objects that it creates */
        cqn_state_new_epoch(self->state);
    }
#ifdef Py_GIL_DISABLED
    self->half = n == 0 ? 0 : uses[0]->half;
#endif
    self->epoch = *self->state->epoch;
    for (size_t i = 0; i < n; i++) {
        /* the allocation may have closed it */
        if (cqn_open(uses[i]) == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        self->uses[i] = (cqn_object *)Py_NewRef((PyObject *)uses[i]);
        self->context = uses[i]->context;
    }
    return self;
}

/* ---- lists, users and used objects ---- */

/* The entries are part of the object, one for each object that it uses, so listing allocates
 * nothing. */
static void add_dependent(cqn_object *self, size_t slot)
{
    cqn_dependent **latest = &self->uses[slot]->latest[self->kind->rank];
    cqn_dependent *entry = &self->as_dependent[slot];
    *entry = (cqn_dependent){.user = self, .older = *latest};
    if (*latest != NULL) {
        (*latest)->newer = entry;
    }
    *latest = entry;
}

static void remove_dependent(cqn_object *self, size_t slot)
{
    const cqn_dependent *entry = &self->as_dependent[slot];
    *(entry->newer ? &entry->newer->older : &self->uses[slot]->latest[self->kind->rank]) =
        entry->older;
    if (entry->older != NULL) {
        entry->older->newer = entry->newer;
    }
}

/* Appends to the list of the object's rank, which keeps the order of creation. */
static void enlist_object(cqn_object *self, cqn_context *ctx)
{
    cqn_object **first = &ctx->first[self->kind->rank], **last = &ctx->last[self->kind->rank];
    self->listed = true;
    self->serial = ++ctx->last_serial;
    self->prev = *last;
    *(*last ? &(*last)->next : first) = self;
    *last = self;
}

/* Contexts are in the module's list. */
static void enlist_context(cqn_object *self)
{
    cqn_object **first = &self->state->contexts;
    self->listed = true;
    self->next = *first;
    if (*first != NULL) {
        (*first)->prev = self;
    }
    *first = self;
}

static void unlist_context(cqn_object *self)
{
    *(self->prev ? &self->prev->next : &self->state->contexts) = self->next;
    if (self->next != NULL) {
        self->next->prev = self->prev;
    }
    self->prev = self->next = NULL;
    self->listed = false;
}

void cqn_unlist(cqn_object *self)
{
    if (!self->listed) {
        return;
    }
    cqn_context *ctx = self->context;
    if (CQN_OBJ(ctx) == self) {
        unlist_context(self);
        return;
    }
    const int rank = self->kind->rank;
    *(self->prev ? &self->prev->next : &ctx->first[rank]) = self->next;
    *(self->next ? &self->next->prev : &ctx->last[rank]) = self->prev;
    self->prev = self->next = NULL;
    for (size_t i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        remove_dependent(self, i);
    }
    self->listed = false;
    self->context = NULL;
}

void cqn_adopt(cqn_object *self, void *handle)
{
    self->handle = handle;
    cqn_context *ctx = self->context;
    if (CQN_OBJ(ctx) == self) {
        enlist_context(self);
        return;
    }
    enlist_object(self, ctx);
    for (size_t i = 0; i < CQN_MAX_USES && self->uses[i]; i++) {
        self->uses[i]->users++;
        add_dependent(self, i);
    }
}

void cqn_use(cqn_object *self, size_t slot, cqn_object *other, cqn_object **deferred)
{
    cqn_object *before = self->uses[slot];
    if (before != NULL) {
        remove_dependent(self, slot);
        before->users--;
    }
    self->uses[slot] = other;
    if (other != NULL) {
        Py_INCREF(other);
        other->users++;
        add_dependent(self, slot);
    }
    if (before != NULL) {
        cqn_decref_later(deferred, before);
    }
}

/* ---- open or closed ---- */

CQN_RARE void *cqn_refuse_closed(const cqn_object *self)
{
    const char *why = cqn_is_left(self)  ? "stayed in the process that pickled it"
                      : cqn_forked(self) ? "was opened before a fork, by the parent process: open "
                                           "the device again in the child"
                      : self->handle != NULL && self->changes & 1
                          ? "is being registered anew by another thread"
                          : "is closed";
    PyErr_Format(self->state->ClosedError, "this %s %s", self->kind->name, why);
    return NULL;
}

int cqn_expect(PyObject *value, PyTypeObject *type, const char *name)
{
    if (!PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s must be a %s, not %s", name, type->tp_name,
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    return cqn_open(CQN_OBJ(value)) == NULL ? -1 : 0;
}

int cqn_expect_beside(PyObject *value, PyTypeObject *type, const char *name, PyObject *other,
                      const char *other_name)
{
    if (cqn_expect(value, type, name) < 0) {
        return -1;
    }
    if (CQN_OBJ(value)->context != CQN_OBJ(other)->context) {
        PyErr_Format(PyExc_ValueError, "%s belongs to another Context than %s", name, other_name);
        return -1;
    }
    return 0;
}

bool cqn_is_ending(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* ---- calls without the GIL ---- */

/* Wakes all sleepers, because they may wait for different objects. */
void cqn_wake_idle(cqn_state *st)
{
    pthread_mutex_lock(&st->idle_lock);
    pthread_cond_broadcast(&st->idle);
    pthread_mutex_unlock(&st->idle_lock);
}

/* The mutex is locked before the GIL is released, and cqn_wake_idle() runs with both, so no wake-up
 * is missed. */
void cqn_wait_until_left(cqn_state *st)
{
    st->idle_sleepers++;
    pthread_mutex_lock(&st->idle_lock);
    PyThreadState *ts = PyEval_SaveThread();
    pthread_cond_wait(&st->idle, &st->idle_lock);
    pthread_mutex_unlock(&st->idle_lock);
    PyEval_RestoreThread(ts);
    st->idle_sleepers--;
}
