/* SPDX-License-Identifier: MIT */
/*
 * The invariants of an engine between calls of its functions: its lists are intact, each awaitable
 * is in the lists of its states, and the counters are correct. Every step of a task ends with a
 * check; tests can request one.
 */

#include "faults/engine_invariants.h"
#include "await/awaitable.h"

#include <stdio.h>

#define MANY 256 /* awaitables; steps do not check larger engines */

/* Each function returns the first condition that does not hold, or NULL. */
#define MUST(condition)    \
    if (!(condition)) {    \
        return #condition; \
    }
#define MUST_ALL(call)            \
    {                             \
        const char *wrong = call; \
        if (wrong != NULL) {      \
            return wrong;         \
        }                         \
    }

/* ---- one awaitable ---- */

static const char *check_posted(const cqn_awaitable *r)
{
    const cqn_wr *wr = cqn_wr_at(r->queue, r->position);
    MUST(wr->awaitable == r && (wr->marks & CQN_WR_AWAITED));
    return NULL;
}

static const char *check_sleeping(const cqn_awaitable *r)
{
    const cqn_engine *engine = r->engine;
    MUST(r->kind >= CQN_OF_COMPLETION);
    MUST(r->kind != CQN_OF_WAIT || r->waitlist == &engine->waiters);
    MUST(r->kind != CQN_OF_COMPLETION || r->waitlist != NULL);
    MUST(r->kind != CQN_OF_SCOPE || (r->scope->end == r && r->scope->pending > 0));
    return NULL;
}

static const char *check_awaitable(const cqn_awaitable *r)
{
    switch ((cqn_awaitable_state)r->state) {
    case CQN_QUEUED:
        MUST(r->owner == CQN_PENDING && r->kept != NULL && r->queue == NULL);
        MUST(r->waitlist != NULL && r->kind <= CQN_OF_RECV);
        return NULL;
    case CQN_POSTED:
    case CQN_FAILED:
        MUST(r->queue != NULL);
        MUST(r->waitlist == NULL || (r->owner == CQN_ABANDONED && r->kind == CQN_OF_RECV));
        return check_posted(r);
    case CQN_WAITING:
        MUST(r->owner == CQN_PENDING);
        return check_sleeping(r);
    default:
        return "a pending request is QUEUED, POSTED, SLEEPING or FAILED";
    }
}

/* ---- the lists of an engine ---- */

static const char *check_pending(const cqn_engine *self)
{
    const cqn_awaitable *before = NULL;
    Py_ssize_t len = 0, wanted = 0;
    for (const cqn_awaitable *r = self->first; r != NULL; before = r, r = r->next) {
        MUST(r->engine == self && r->prev == before && cqn_awaitable_is_listed(r));
        MUST_ALL(check_awaitable(r));
        len++;
        wanted += r->owner == CQN_PENDING;
    }
    MUST(self->last == before && self->len == len && self->wanted == wanted);
    MUST(self->busy == (wanted > 0 || self->taker != NULL));
    return NULL;
}

static const char *check_waitlist(const cqn_waitlist *line, size_t *len)
{
    const cqn_awaitable *before = NULL;
    for (const cqn_awaitable *r = line->first; r != NULL; before = r, r = r->behind) {
        MUST(r->waitlist == line && r->before == before);
        ++*len;
    }
    MUST(line->last == before);
    return NULL;
}

static const char *check_waiters(const cqn_engine *self)
{
    size_t len = 0;
    Py_ssize_t solicited_waiters = 0;
    MUST_ALL(check_waitlist(&self->waiters, &len));
    for (const cqn_awaitable *r = self->waiters.first; r != NULL; r = r->behind) {
        MUST(r->kind == CQN_OF_WAIT && r->state == CQN_WAITING);
        solicited_waiters += r->solicited_only;
    }
    MUST(self->solicited_waiters == solicited_waiters);
    return NULL;
}

static const char *check_table(const cqn_table *table)
{
    size_t len = 0;
    for (size_t i = 0; i < table->capacity; i++) {
        MUST_ALL(check_waitlist(&table->waitlists[i], &len));
    }
    MUST(table->len == len);
    return NULL;
}

static const char *check_abandoned_recvs(const cqn_engine *self)
{
    size_t stashed = 0;
    MUST_ALL(check_table(&self->abandoned_recvs));
    for (size_t i = 0; i < self->abandoned_recvs.capacity; i++) {
        for (const cqn_awaitable *r = self->abandoned_recvs.waitlists[i].first; r != NULL;
             r = r->behind) {
            MUST(r->kind == CQN_OF_RECV);
            MUST(r->owner == CQN_ABANDONED || r->owner == CQN_STASHED);
            stashed += r->owner == CQN_STASHED;
        }
    }
    MUST(self->stashed == stashed);
    return NULL;
}

static const char *check_woken(const cqn_engine *self)
{
    const cqn_awaitable *before = NULL;
    size_t due = 0;
    for (const cqn_awaitable *r = self->woken; r != NULL; before = r, r = r->woken_next) {
        MUST(r->engine == self && (r->wake == CQN_LISTED || r->wake == CQN_SCHEDULED_LISTED));
        due += r->wake == CQN_SCHEDULED_LISTED;
    }
    MUST(self->woken_last == before);
    for (const cqn_awaitable *r = self->first; r != NULL; r = r->next) {
        due += r->wake == CQN_SCHEDULED;
    }
    MUST(due <= self->scheduled);         /* COMPLETE ones are in no list */
    MUST(self->scheduled < SIZE_MAX / 2); /* no more went on than were scheduled */
    return NULL;
}

/* ---- an engine ---- */

/* A closed engine lists only the ends of scopes, and its CQ has no unacknowledged event, unless
 * another engine reads them. */
static const char *check_closed(const cqn_engine *self)
{
    MUST(self->cq == NULL || self->cq->engine != self);
    MUST(self->taker == NULL && self->taker_error == NULL);
    MUST(self->claims.len == 0 && self->qp_claims.len == 0 && self->abandoned_recvs.len == 0);
    for (const cqn_awaitable *r = self->first; r != NULL; r = r->next) {
        MUST(r->kind == CQN_OF_SCOPE);
    }
    if (self->cq != NULL && self->cq->engine == NULL && cqn_is_open(&self->cq->base)) {
        MUST(self->cq->dispatched == 0);
    }
    return NULL;
}

static const char *check(const cqn_engine *self)
{
    MUST_ALL(check_pending(self));
    MUST_ALL(check_waiters(self));
    MUST_ALL(check_table(&self->claims));
    MUST_ALL(check_table(&self->qp_claims));
    MUST_ALL(check_abandoned_recvs(self));
    MUST_ALL(check_woken(self));
    for (const cqn_qp *qp = self->qps_with_capacity; qp != NULL; qp = qp->next_with_capacity) {
        MUST(qp->has_capacity);
    }
    return self->closed ? check_closed(self) : NULL;
}

void cqn_assert_engine(const cqn_engine *self)
{
    const char *wrong = self->len > MANY ? NULL : check(self);
    if (wrong != NULL) {
        fprintf(stderr, "cqnotify: an engine is not as it should be: %s\n", wrong);
        abort();
    }
}

PyObject *cqn_check_engine(PyObject *module, PyObject *engine)
{
    CQN_LOCKED;
    const cqn_state *st = PyModule_GetState(module);
    if (!PyObject_TypeCheck(engine, st->Engine)) {
        PyErr_SetString(PyExc_TypeError, "check_engine() takes an AsyncCQ");
        return NULL;
    }
    const char *wrong = check((cqn_engine *)engine);
    return wrong == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(wrong);
}
