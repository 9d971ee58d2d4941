/* SPDX-License-Identifier: MIT */
/*
 * Operations whose task gave up. A posted work request cannot be withdrawn, so the engine owns such
 * an operation until it completes.
 *
 * An abandoned receive is found by its memory: the next recv() of the same memory takes over the
 * first one, with its place in the WR queue, or with its message, if that is in the stash already.
 * So a program that repeatedly receives with a timeout has only one receive posted. The engine's
 * table owns the receives whose completion is in the stash.
 */

#include "await/abandoned.h"
#include "await/awaitable.h"
#include "await/waitlist.h"

#define FEW 16 /* receives whose message is gone: too few to sweep */

static uint64_t key_of_memory(const cqn_awaitable *self)
{
    const uint64_t addr = self->num_sge > 0 ? self->sge[0].addr : 0;
    return addr ^ (uint64_t)(uintptr_t)self->qp * UINT64_C(0x9e3779b97f4a7c15);
}

/* Most receives have one SGE, which fits into the awaitable itself. */
int cqn_abandoned_remember(cqn_awaitable *self, const cqn_sg *sg)
{
    self->num_sge = sg->num_sge;
    self->sge = sg->num_sge > 1 ? PyMem_New(struct ibv_sge, sg->num_sge) : &self->one;
    if (self->sge == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < sg->num_sge; i++) {
        self->sge[i] = sg->sge[i];
    }
    return 0;
}

static bool is_same_memory(const cqn_awaitable *a, const cqn_awaitable *b)
{
    bool same = a->qp == b->qp && a->num_sge == b->num_sge;
    for (uint32_t i = 0; same && i < a->num_sge; i++) {
        same = a->sge[i].addr == b->sge[i].addr && a->sge[i].length == b->sge[i].length &&
               a->sge[i].lkey == b->sge[i].lkey;
    }
    return same;
}

/* Returns whether a new receive may take over an old one. If the user chose the old one's wr_id,
 * only a receive with the same wr_id may, and only while no completion() claims it. */
static bool may_take_over(const cqn_awaitable *self, const cqn_awaitable *old)
{
    return is_same_memory(self, old) &&
           (!old->own_id || (self->own_id && self->wr_id == old->wr_id &&
                             cqn_claims_find(self->engine, old->wr_id, old->qp->qp_num) == NULL));
}

/* Returns the first abandoned receive of the same memory, in the device's order, or NULL;
 * borrowed. */
static cqn_awaitable *find(const cqn_awaitable *self)
{
    cqn_awaitable *found = NULL;
    const cqn_table *table = &self->engine->abandoned_recvs;
    for (cqn_awaitable *r = cqn_table_waitlist(table, self->key)->first; r != NULL; r = r->behind) {
        if (r->key == self->key && may_take_over(self, r) &&
            (found == NULL || (int64_t)(r->position - found->position) < 0)) {
            found = r;
        }
    }
    return found;
}

/* Removes a receive from the table. If it was STASHED the caller gets the table's reference;
 * otherwise it stays posted. */
static void leave_table(cqn_awaitable *old)
{
    assert(cqn_awaitable_is_abandoned(old) && old->waitlist != NULL);
    cqn_table_remove(&old->engine->abandoned_recvs, old);
    if (old->owner == CQN_STASHED) {
        assert(old->engine->stashed > 0);
        old->owner = CQN_ORPHANED;
        old->engine->stashed--;
        cqn_awaitable_becomes(old, CQN_DONE);
    }
}

static void forget(cqn_awaitable *old)
{
    const bool was_stashed = old->owner == CQN_STASHED;
    leave_table(old);
    if (was_stashed) {
        Py_DECREF(old);
    }
}

static void take_over_posted(cqn_awaitable *self, cqn_awaitable *old)
{
    assert(old->owner == CQN_ABANDONED && old->state == CQN_POSTED);
    self->queue = old->queue;
    self->position = old->position;
    cqn_awaitable_becomes(self, CQN_POSTED);
    cqn_wr_at(self->queue, self->position)->awaitable = self;
    cqn_awaitable_link(self);
    old->queue = NULL;
    cqn_awaitable_drop(old); /* removes it from the table, too */
}

/* A receive whose message was taken from the stash by other code is forgotten, and the search goes
 * on. */
bool cqn_abandoned_take_over(cqn_awaitable *self)
{
    cqn_awaitable *old;
    self->key = key_of_memory(self);
    while ((old = find(self)) != NULL) {
        if (old->owner != CQN_STASHED) {
            take_over_posted(self, old);
            return true;
        }
        const bool found =
            cqn_stash_pop(self->engine->cq, old->wr_id, self->qp, &self->wc, &self->extra);
        forget(old);
        if (found) {
            self->wc.wr_id = self->wr_id;
            cqn_awaitable_becomes(self, CQN_COMPLETE);
            cqn_awaitable_leave_scope(self);
            return true;
        }
    }
    return false;
}

/* Forgets the receives whose message was taken from the stash by other code. Releasing an awaitable
 * can run arbitrary code, which can change the table, so they are released at the end. */
static void sweep(cqn_engine *engine)
{
    cqn_waitlist gone = {NULL, NULL};
    for (size_t i = 0; i < engine->abandoned_recvs.capacity && engine->stashed > 0; i++) {
        cqn_awaitable *r = engine->abandoned_recvs.waitlists[i].first, *next;
        for (; r != NULL; r = next) {
            next = r->behind;
            if (r->owner == CQN_STASHED && !cqn_stash_has(engine->cq, r->wr_id, r->qp)) {
                leave_table(r);
                cqn_waitlist_add(&gone, r);
            }
        }
    }
    while (gone.first != NULL) {
        cqn_awaitable *r = gone.first;
        cqn_waitlist_remove(r);
        Py_DECREF(r);
    }
}

void cqn_abandoned_forget_all(cqn_engine *engine)
{
    for (size_t i = 0; i < engine->abandoned_recvs.capacity; i++) {
        while (engine->abandoned_recvs.waitlists[i].first != NULL) {
            forget(engine->abandoned_recvs.waitlists[i].first);
        }
    }
}

/* Adds the receive to the table, until the next recv() of the same memory or the end of the
 * AsyncCQ. */
static void join_table(cqn_awaitable *self)
{
    if (!self->engine->closed &&
        cqn_table_add(&self->engine->abandoned_recvs, self, key_of_memory(self)) < 0) {
        PyErr_Clear(); /* then no recv() finds it, and its message goes to wait() */
    }
}

static void sweep_if_worth_it(cqn_engine *engine)
{
    if (engine->stashed > 2 * cqn_stash_len(engine->cq) + FEW) {
        sweep(engine);
    }
}

/* The device still processes the work request. */
static void abandon_posted(cqn_awaitable *self)
{
    cqn_awaitable_adopt(self);
    if (self->kind == CQN_OF_RECV && self->state == CQN_POSTED) {
        join_table(self);
        sweep_if_worth_it(self->engine);
    }
}

/* Offers the completion to claims. If it goes into the stash, the next recv() of the same memory
 * can take it from there. */
static void abandon_complete(cqn_awaitable *self)
{
    cqn_engine *engine = self->engine;
    assert(self->owner == CQN_UNLISTED && self->waitlist == NULL);
    self->owner = CQN_ORPHANED;
    engine->cq->stats.completions--;
    if (cqn_operation_offer(self, &self->wc, &self->extra)) {
        return;
    }
    cqn_stash_put_back(engine->cq, &self->wc, &self->extra);
    if (self->kind == CQN_OF_RECV && self->wc.status == IBV_WC_SUCCESS) {
        join_table(self);
    }
    if (self->waitlist != NULL) {
        self->owner = CQN_STASHED;
        engine->stashed++;
        Py_INCREF(self); /* the table's reference */
        sweep_if_worth_it(engine);
    }
}

void cqn_operation_abandon(cqn_awaitable *self)
{
    if (self->queue != NULL) {
        assert(self->state == CQN_POSTED || self->state == CQN_FAILED);
        abandon_posted(self);
    }
    else if (self->state == CQN_COMPLETE) {
        abandon_complete(self);
    }
    else if (cqn_awaitable_is_listed(self)) {
        assert(self->state == CQN_QUEUED);
        cqn_awaitable_drop(self);
    }
}
