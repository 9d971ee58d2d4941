/* SPDX-License-Identifier: MIT */
/*
 * Waitlists: awaitables in order of arrival, and tables of waitlists by number.
 *
 * A waitlist is linked through the awaitables themselves, so an awaitable can leave it in constant
 * time. A table finds the completion() that claims a wr_id, or the abandoned receive of the same
 * memory; a waitlist in it can hold several keys. Neither holds references: an awaitable leaves
 * before it is deallocated.
 *
 * A completion() claims a wr_id of one queue pair or of any. Each of the two has a table, so the
 * first claim of a completion is found in constant time, even if all use the same wr_id on queue
 * pairs of their own. The claims on one queue pair are also linked, for the end of the queue
 * pair.
 */

#include "await/waitlist.h"

/* ---- waitlists ---- */

void cqn_waitlist_add(cqn_waitlist *list, cqn_awaitable *awaitable)
{
    awaitable->waitlist = list;
    awaitable->behind = NULL;
    awaitable->before = list->last;
    *(list->last ? &list->last->behind : &list->first) = awaitable;
    list->last = awaitable;
}

void cqn_waitlist_remove(cqn_awaitable *awaitable)
{
    cqn_waitlist *list = awaitable->waitlist;
    if (list == NULL) {
        return;
    }
    *(awaitable->before ? &awaitable->before->behind : &list->first) = awaitable->behind;
    *(awaitable->behind ? &awaitable->behind->before : &list->last) = awaitable->before;
    awaitable->before = awaitable->behind = NULL;
    awaitable->waitlist = NULL;
}

/* ---- tables ---- */

/* Users often choose small numbers, or numbers that differ in a few bits only: multiplying spreads
 * them. */
static size_t place_of(const cqn_table *table, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (table->capacity - 1);
}

const cqn_waitlist *cqn_table_waitlist(const cqn_table *table, uint64_t key)
{
    static const cqn_waitlist nobody;
    return table->len == 0 ? &nobody : &table->waitlists[place_of(table, key)];
}

static int grow_table(cqn_table *table)
{
    const cqn_table old = *table;
    const size_t capacity = old.capacity ? old.capacity * 2 : 16;
    cqn_waitlist *waitlists = PyMem_Calloc(capacity, sizeof(*waitlists));
    if (waitlists == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    table->waitlists = waitlists;
    table->capacity = capacity;
    for (size_t i = 0; i < old.capacity; i++) {
        while (old.waitlists[i].first != NULL) {
            cqn_awaitable *awaitable = old.waitlists[i].first;
            cqn_waitlist_remove(awaitable);
            cqn_waitlist_add(&waitlists[place_of(table, awaitable->key)], awaitable);
        }
    }
    PyMem_Free(old.waitlists);
    return 0;
}

int cqn_table_add(cqn_table *table, cqn_awaitable *awaitable, uint64_t key)
{
    if (table->len == table->capacity && grow_table(table) < 0) {
        return -1;
    }
    awaitable->key = key;
    cqn_waitlist_add(&table->waitlists[place_of(table, key)], awaitable);
    table->len++;
    return 0;
}

void cqn_table_remove(cqn_table *table, cqn_awaitable *awaitable)
{
    cqn_waitlist_remove(awaitable);
    table->len--;
}

void cqn_table_free(cqn_table *table)
{
    PyMem_Free(table->waitlists);
}

/* ---- claims ---- */

static void join_qp(cqn_awaitable *awaitable)
{
    cqn_qp *qp = awaitable->qp;
    awaitable->qp_behind = NULL;
    awaitable->qp_before = qp->last_claim;
    *(qp->last_claim ? &qp->last_claim->qp_behind : &qp->first_claim) = awaitable;
    qp->last_claim = awaitable;
}

static void leave_qp(cqn_awaitable *awaitable)
{
    cqn_qp *qp = awaitable->qp;
    *(awaitable->qp_before ? &awaitable->qp_before->qp_behind : &qp->first_claim) =
        awaitable->qp_behind;
    *(awaitable->qp_behind ? &awaitable->qp_behind->qp_before : &qp->last_claim) =
        awaitable->qp_before;
    awaitable->qp_before = awaitable->qp_behind = NULL;
}

int cqn_claims_add(cqn_awaitable *awaitable)
{
    cqn_engine *engine = awaitable->engine;
    awaitable->position = engine->claimed++;
    if (awaitable->qp == NULL) {
        return cqn_table_add(&engine->claims, awaitable, awaitable->wr_id);
    }
    const uint64_t key = cqn_wc_key(awaitable->wr_id, awaitable->qp->qp_num);
    if (cqn_table_add(&engine->qp_claims, awaitable, key) < 0) {
        return -1;
    }
    join_qp(awaitable);
    return 0;
}

void cqn_claims_remove(cqn_awaitable *awaitable)
{
    cqn_engine *engine = awaitable->engine;
    if (awaitable->qp == NULL) {
        cqn_table_remove(&engine->claims, awaitable);
        return;
    }
    cqn_table_remove(&engine->qp_claims, awaitable);
    leave_qp(awaitable);
}

static cqn_awaitable *find_of_any(const cqn_engine *engine, uint64_t wr_id)
{
    cqn_awaitable *r = cqn_table_waitlist(&engine->claims, wr_id)->first;
    while (r != NULL && r->wr_id != wr_id) {
        r = r->behind;
    }
    return r;
}

static cqn_awaitable *find_of_qp(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num)
{
    cqn_awaitable *r = cqn_table_waitlist(&engine->qp_claims, cqn_wc_key(wr_id, qp_num))->first;
    while (r != NULL && (r->wr_id != wr_id || r->qp->qp_num != qp_num)) {
        r = r->behind;
    }
    return r;
}

cqn_awaitable *cqn_claims_find(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num)
{
    cqn_awaitable *any = find_of_any(engine, wr_id), *own = find_of_qp(engine, wr_id, qp_num);
    return any == NULL || (own != NULL && own->position < any->position) ? own : any;
}
