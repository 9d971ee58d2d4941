/* SPDX-License-Identifier: MIT */
/*
 * Claims: which completion() awaits which completion.
 *
 * A completion() asks for a wr_id, of one queue pair or of any. Each kind has a table, so that the
 * first one that asks is found in constant time, also where all use one wr_id on queue pairs of
 * their own. Those of one queue pair are linked as well, for its end.
 */

#include "await/claims.h"
#include "await/lines.h"

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
