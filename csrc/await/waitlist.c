/* SPDX-License-Identifier: MIT */
/*
 * Waitlists: requests in the order in which they came, and tables of them by a number.
 *
 * A line is a list through the requests themselves, so that a request can leave it in constant
 * time. A table finds the completion() that asks for a wr_id, or the abandoned receive of the same
 * memory; several numbers can share a line of it. Neither holds references: a request leaves before
 * it goes.
 *
 * A completion() claims a wr_id, of one queue pair or of any. Each kind has a table, so that the
 * first one that claims a completion is found in constant time, even if all use one wr_id on queue
 * pairs of their own. Those of one queue pair are linked as well, for its end.
 */

#include "await/waitlist.h"

/* ---- lines ---- */

void cqn_line_add(cqn_line *line, cqn_request *request)
{
    request->line = line;
    request->behind = NULL;
    request->before = line->last;
    *(line->last ? &line->last->behind : &line->first) = request;
    line->last = request;
}

/* Takes the request out of the line that it is in; the caller need not know which. */
void cqn_line_remove(cqn_request *request)
{
    cqn_line *line = request->line;
    if (line == NULL) {
        return;
    }
    *(request->before ? &request->before->behind : &line->first) = request->behind;
    *(request->behind ? &request->behind->before : &line->last) = request->before;
    request->before = request->behind = NULL;
    request->line = NULL;
}

/* ---- tables ---- */

/* The numbers that users choose are often small, or differ in a few bits only: multiplying spreads
 * them. */
static size_t place_of(const cqn_table *table, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (table->room - 1);
}

const cqn_line *cqn_table_line(const cqn_table *table, uint64_t key)
{
    static const cqn_line nobody;
    return table->len == 0 ? &nobody : &table->lines[place_of(table, key)];
}

static int grow_table(cqn_table *table)
{
    const cqn_table old = *table;
    const size_t room = old.room ? old.room * 2 : 16;
    cqn_line *lines = PyMem_Calloc(room, sizeof(*lines));
    if (lines == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    table->lines = lines;
    table->room = room;
    for (size_t i = 0; i < old.room; i++) {
        while (old.lines[i].first != NULL) {
            cqn_request *request = old.lines[i].first;
            cqn_line_remove(request);
            cqn_line_add(&lines[place_of(table, request->key)], request);
        }
    }
    PyMem_Free(old.lines);
    return 0;
}

int cqn_table_add(cqn_table *table, cqn_request *request, uint64_t key)
{
    if (table->len == table->room && grow_table(table) < 0) {
        return -1;
    }
    request->key = key;
    cqn_line_add(&table->lines[place_of(table, key)], request);
    table->len++;
    return 0;
}

void cqn_table_remove(cqn_table *table, cqn_request *request)
{
    cqn_line_remove(request);
    table->len--;
}

/* The table must be empty. */
void cqn_table_free(cqn_table *table)
{
    PyMem_Free(table->lines);
    *table = (cqn_table){NULL, 0, 0};
}

/* ---- claims ---- */

static void join_qp(cqn_request *request)
{
    cqn_qp *qp = request->qp;
    request->qp_behind = NULL;
    request->qp_before = qp->last_claim;
    *(qp->last_claim ? &qp->last_claim->qp_behind : &qp->first_claim) = request;
    qp->last_claim = request;
}

static void leave_qp(cqn_request *request)
{
    cqn_qp *qp = request->qp;
    *(request->qp_before ? &request->qp_before->qp_behind : &qp->first_claim) = request->qp_behind;
    *(request->qp_behind ? &request->qp_behind->qp_before : &qp->last_claim) = request->qp_before;
    request->qp_before = request->qp_behind = NULL;
}

int cqn_claims_add(cqn_request *request)
{
    cqn_engine *engine = request->engine;
    request->position = engine->claimed++;
    if (request->qp == NULL) {
        return cqn_table_add(&engine->claims, request, request->wr_id);
    }
    const uint64_t key = cqn_wc_key(request->wr_id, request->qp->qp_num);
    if (cqn_table_add(&engine->qp_claims, request, key) < 0) {
        return -1;
    }
    join_qp(request);
    return 0;
}

void cqn_claims_remove(cqn_request *request)
{
    cqn_engine *engine = request->engine;
    if (request->qp == NULL) {
        cqn_table_remove(&engine->claims, request);
        return;
    }
    cqn_table_remove(&engine->qp_claims, request);
    leave_qp(request);
}

static cqn_request *find_of_any(const cqn_engine *engine, uint64_t wr_id)
{
    cqn_request *r = cqn_table_line(&engine->claims, wr_id)->first;
    while (r != NULL && r->wr_id != wr_id) {
        r = r->behind;
    }
    return r;
}

static cqn_request *find_of_qp(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num)
{
    cqn_request *r = cqn_table_line(&engine->qp_claims, cqn_wc_key(wr_id, qp_num))->first;
    while (r != NULL && (r->wr_id != wr_id || r->qp->qp_num != qp_num)) {
        r = r->behind;
    }
    return r;
}

cqn_request *cqn_claims_find(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num)
{
    cqn_request *any = find_of_any(engine, wr_id), *own = find_of_qp(engine, wr_id, qp_num);
    return any == NULL || (own != NULL && own->position < any->position) ? own : any;
}
