/* SPDX-License-Identifier: MIT */
/* What becomes of a request: its completion comes, is lost, or a failure concerns it. */
#ifndef CQN_AWAIT_OUTCOME_H
#define CQN_AWAIT_OUTCOME_H

#include "await/engine.h"

/* The request is pending no more: its task has what it wants, or has given up. */
void cqn_engine_let_go(cqn_request *request);

/* Gives a completion to the completion() that asked for its wr_id. False: none did. */
bool cqn_engine_claim(cqn_engine *engine, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* A completion that its task did not take goes to the next claim, or back into the stash. */
void cqn_engine_return(cqn_engine *self, const struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The completion of an operation whose task did not take it. Returns whether it is for no other
 * consumer. */
bool cqn_operation_abandoned(cqn_request *self, struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The completion of a work request that is awaited, as in cqn_awaiting. */
bool cqn_request_completed(cqn_request *request, struct ibv_wc *wc, const cqn_wc_extra *extra);

/* The work request will not complete; `qp` as in cqn_awaiting. */
void cqn_request_lost(cqn_request *request, const cqn_qp *qp);

/* A failure concerns the request; its task gets that error, or is told by another way if it is
 * NULL. */
void cqn_request_fail(cqn_request *request, PyObject *error);

#endif
