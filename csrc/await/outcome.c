/* SPDX-License-Identifier: MIT */
/*
 * What becomes of a request: its completion comes, is lost, or a failure concerns it.
 *
 * A completion comes by the request that posted it, or by the wr_id that a completion() asks for.
 * Nothing here runs Python code: the tasks are woken later, see engine_wake.c.
 */

#include "await/outcome.h"
#include "await/lines.h"
#include "await/pending.h"
#include "await/scope.h"

void cqn_engine_let_go(cqn_request *request)
{
    cqn_scope_leave(request);
    Py_XDECREF(cqn_engine_take_out(request));
}

/* ---- completions that are looked for by wr_id ---- */

static cqn_request *find_claim(const cqn_engine *self, uint64_t wr_id, const uint32_t *qp_num)
{
    cqn_request *r = cqn_table_line(&self->claims, wr_id)->first;
    while (r != NULL &&
           (r->key != wr_id || (r->qp != NULL && qp_num != NULL && r->qp->qp_num != *qp_num))) {
        r = r->behind;
    }
    return r;
}

bool cqn_engine_is_claimed(const cqn_engine *self, uint64_t wr_id)
{
    return find_claim(self, wr_id, NULL) != NULL;
}

/* Whether a completion() has asked for it: it is that one's now. */
bool cqn_engine_claim(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const uint32_t qp_num = wc->qp_num;
    cqn_request *claim = find_claim(self, wc->wr_id, &qp_num);
    if (claim == NULL) {
        return false;
    }
    claim->wc = *wc;
    if (extra != NULL) {
        claim->extra = *extra;
    }
    self->cq->stats.completions++;
    cqn_engine_settled(claim, CQN_COMPLETE);
    return true;
}

/* One that its task did not take is for others again. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    self->cq->stats.completions--;
    if (!cqn_engine_claim(self, wc, extra)) {
        cqn_stash_put_back(self->cq, wc, extra);
    }
}

/* ---- completions of operations ---- */

/* Whether the completion of an operation is for other consumers once its task has given up: it
 * tells of a message that came, or has a wr_id that the user chose. */
static bool is_for_others(const cqn_request *self)
{
    return self->kind == CQN_RECEIVES || self->own_id;
}

/* A completion that its task did not take, or does not want any more. */
bool cqn_operation_abandoned(cqn_request *self, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    cqn_engine *engine = self->engine;
    if (!is_for_others(self)) {
        engine->cq->stats.completions++;
        return true;
    }
    if (cqn_engine_claim(engine, wc, extra)) {
        return true;
    }
    if (self->forsaken && wc->status == IBV_WC_SUCCESS) {
        self->stashed = true;
        engine->stashed++;
        Py_INCREF(self); /* the table's */
    }
    return false;
}

/* The completion of a work request that is awaited. Returns whether it is for no other consumer:
 * neither a completion() nor the stash. */
bool cqn_request_completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    const bool wanted = request->state == CQN_POSTED && !request->abandoned;
    request->queue = NULL;
    wc->wr_id = request->wr_id;
    cqn_scope_leave(request);
    request->engine->cq->stats.completions += wanted;
    if (!wanted) {
        const bool taken = cqn_operation_abandoned(request, wc, extra);
        cqn_engine_wake_later(cqn_engine_take_out(request));
        return taken;
    }
    request->wc = *wc;
    if (extra != NULL) {
        request->extra = *extra;
    }
    cqn_engine_settled(request, CQN_COMPLETE);
    return true;
}

/* ---- failures ---- */

/* An operation that the device still has stays in the books after its task was told. */
void cqn_request_fail(cqn_request *request, PyObject *error)
{
    if (!request->held || request->kind == CQN_ENDS_SCOPE) {
        return;
    }
    cqn_scope_fail(request, error);
    if (request->abandoned || request->state == CQN_FAILED) {
        return;
    }
    Py_XSETREF(request->error, Py_XNewRef(error));
    if (request->queue == NULL) {
        cqn_engine_settled(request, CQN_FAILED);
        return;
    }
    request->state = CQN_FAILED; /* the device goes on with it */
    cqn_engine_wake_later(cqn_request_ref(request));
}

/* It will not complete: its queue pair was closed or reset, or a later one has completed. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp)
{
    request->lost = qp == NULL                ? CQN_LOST_SKIPPED
                    : qp->base.handle == NULL ? CQN_LOST_CLOSED
                                              : CQN_LOST_RESET;
    cqn_scope_fail(request, NULL);
    cqn_engine_settled(request, CQN_FAILED);
}
