/* SPDX-License-Identifier: MIT */
/*
 * What becomes of a request: its completion comes, or is lost, or a failure concerns the request.
 *
 * A completion finds its request by the work request that it completes, or by the wr_id that a
 * completion() asks for. It comes where no Python code may run, so nothing here wakes a task: the
 * requests are listed, and woken later, see engine_wake.c.
 */

#include "await/outcome.h"
#include "await/claims.h"
#include "await/pending.h"
#include "await/scope.h"

void cqn_engine_let_go(cqn_request *request)
{
    cqn_scope_leave(request);
    Py_XDECREF(cqn_engine_take_out(request));
}

/* ---- completions that are looked for by wr_id ---- */

/* The first completion() that asks for this wr_id, and for this QP if it names one, gets the
 * completion. */
bool cqn_engine_claim(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    cqn_request *claim = cqn_claims_find(self, wc->wr_id, wc->qp_num);
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

/* The task did not take its completion, so others can have it again. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    self->cq->stats.completions--;
    if (!cqn_engine_claim(self, wc, extra)) {
        cqn_stash_put_back(self->cq, wc, extra);
    }
}

/* ---- completions of operations ---- */

/* Whether others want the completion of an operation whose task has given up: it tells of a message
 * that came, or has a wr_id that the user chose. */
static bool is_for_others(const cqn_request *self)
{
    return self->kind == CQN_RECEIVES || self->own_id;
}

/* The task did not take this completion, or does not want it any more. A receive that can be found
 * by its memory stays in that table, which owns it from here on. */
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
        Py_INCREF(self); /* the reference of the table */
    }
    return false;
}

/* The completion of a work request that a task awaits, or has awaited. Returns whether it goes to
 * no one else: neither to a completion() nor to the stash. */
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

/* While the device still has the work request of an operation, the request stays in the books, also
 * after its task was told of the failure. */
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
    request->state = CQN_FAILED; /* and stays pending: the device goes on with the work request */
    cqn_engine_wake_later(cqn_request_ref(request));
}

/* The work request will not complete: its queue pair was closed or reset, or a later work request
 * of the same queue has completed. The exception is made when the task goes on. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp)
{
    request->lost = qp == NULL                ? CQN_LOST_SKIPPED
                    : qp->base.handle == NULL ? CQN_LOST_CLOSED
                                              : CQN_LOST_RESET;
    cqn_scope_fail(request, NULL);
    cqn_engine_settled(request, CQN_FAILED);
}
