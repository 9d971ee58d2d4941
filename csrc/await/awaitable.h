/* SPDX-License-Identifier: MIT */
/* The life of an awaitable: its creation, its owner, when it is pending, and how it ends. */
#ifndef CQN_AWAIT_AWAITABLE_H
#define CQN_AWAIT_AWAITABLE_H

#include "await/await.h"

/* Whether a state may follow: see the diagram in docs/internals.md. */
static inline bool cqn_awaitable_may_become(const cqn_awaitable *self, cqn_awaitable_state next)
{
    switch ((cqn_awaitable_state)self->state) {
    case CQN_NEW:
        return next != CQN_NEW && next != CQN_FAILED;
    case CQN_QUEUED:
        return next == CQN_POSTED || next == CQN_FAILED || next == CQN_DONE;
    case CQN_POSTED:
    case CQN_WAITING:
        return next >= CQN_COMPLETE;
    case CQN_FAILED: /* again, if the work request is lost after the failure */
        return next >= CQN_FAILED;
    default:
        return next == CQN_DONE;
    }
}

/* The only place that changes the state. */
static inline void cqn_awaitable_becomes(cqn_awaitable *self, cqn_awaitable_state next)
{
    assert(cqn_awaitable_may_become(self, next));
    CQN_STEP(state, self, self->engine->cq, next, self->kind | self->solicited_only << 8);
    self->state = (uint8_t)next;
}

/* Whether the engine lists it. */
static inline bool cqn_awaitable_is_listed(const cqn_awaitable *self)
{
    return self->owner == CQN_PENDING || self->owner == CQN_ABANDONED;
}

/* Whether its task gave up. */
static inline bool cqn_awaitable_is_abandoned(const cqn_awaitable *self)
{
    return self->owner >= CQN_ABANDONED;
}

/* Returns a new reference, or NULL if the awaitable is being deallocated. */
static inline cqn_awaitable *cqn_awaitable_ref(cqn_awaitable *awaitable)
{
    return cqn_try_ref_object((PyObject *)awaitable) ? awaitable : NULL;
}

/* Returns a NEW awaitable, or NULL with an exception. `name` is the name of its method, a static
 * string. */
cqn_awaitable *cqn_awaitable_new(cqn_engine *engine, cqn_awaitable_kind kind, const char *name);

/* Makes the awaitable DONE and releases everything that it holds. */
void cqn_awaitable_finish(cqn_awaitable *self);
int cqn_awaitable_clear(PyObject *self);

/* ---- its scope ---- */

/* Called when the operation is over; after the last one the end of the scope is COMPLETE. */
void cqn_awaitable_left_scope(cqn_awaitable *self);
static inline void cqn_awaitable_leave_scope(cqn_awaitable *self)
{
    if (self->scope != NULL && !self->left_scope) {
        cqn_awaitable_left_scope(self);
    }
}

/* Returns a new exception for a cqn_loss. */
PyObject *cqn_lost_error(const cqn_state *st, uint8_t lost, uint32_t qp_num);

/* ---- pending awaitables ---- */

/* Updates whether the channel holds the engine. */
void cqn_engine_see_if_busy(cqn_engine *self);

/* Makes the awaitable pending. While it is, the channel holds the engine. */
void cqn_awaitable_link(cqn_awaitable *awaitable);

/* Makes the engine the owner of an abandoned awaitable, by a new reference. */
void cqn_awaitable_adopt(cqn_awaitable *awaitable);

/* Ends the pending state of an awaitable whose task has the result or gave up. Releases the
 * engine's reference if it was abandoned. */
void cqn_awaitable_drop(cqn_awaitable *awaitable);

/* ---- awaitables to be woken ---- */

/* Lists the awaitable to be woken; steals the reference, and does nothing for NULL. */
void cqn_awaitable_wake_later(cqn_awaitable *awaitable);

/* Ends the pending state of an awaitable when the engine is closed or has failed. It is listed to
 * be woken, which also releases a reference of the engine. */
void cqn_awaitable_drop_later(cqn_awaitable *awaitable);

/* Returns the next awaitable to be woken, with the list's reference; or NULL. */
static inline cqn_awaitable *cqn_engine_pop_woken(cqn_engine *self)
{
    cqn_awaitable *awaitable = self->woken;
    if (awaitable != NULL) {
        self->woken = awaitable->woken_next;
        if (self->woken == NULL) {
            self->woken_last = NULL;
        }
        awaitable->woken_next = NULL;
        assert(awaitable->wake == CQN_LISTED || awaitable->wake == CQN_SCHEDULED_LISTED);
        awaitable->wake = awaitable->wake == CQN_LISTED ? CQN_WOKEN : CQN_SCHEDULED;
    }
    return awaitable;
}

/* Called when the task continues, or never will: nothing waits for it to overtake any more. */
static inline void cqn_awaitable_goes_on(cqn_awaitable *self)
{
    if (self->wake >= CQN_SCHEDULED) {
        assert(self->engine->scheduled > 0);
        self->engine->scheduled--;
    }
    const bool is_listed = self->wake == CQN_LISTED || self->wake == CQN_SCHEDULED_LISTED;
    CQN_STEP(goes_on, self, self->engine->cq, 0, 0);
    self->wake = is_listed ? CQN_LISTED : CQN_UNWOKEN;
}

/* ---- its result ---- */

/* Gives a completion that its task did not take to the next claim, or puts it back into the
 * stash. */
void cqn_engine_return_wc(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* Offers the completion of an abandoned operation to the claims. Returns false if it goes into the
 * stash. */
bool cqn_operation_offer(const cqn_awaitable *self, const struct ibv_wc *wc,
                         const cqn_wc_extra *extra);

/* Fails an awaitable whose work request will not complete; `qp`: see cqn_awaiting. */
void cqn_awaitable_lost(cqn_awaitable *awaitable, const cqn_qp *qp);

/* Fails an awaitable, unless it is abandoned or the end of a scope. `error` may be NULL if `lost`
 * is set. */
void cqn_awaitable_fail(cqn_awaitable *awaitable, PyObject *error);

/* Lists a queue pair whose queue may have capacity now. Runs no Python code. */
void cqn_engine_note_capacity(cqn_engine *engine, cqn_qp *qp);

#endif
