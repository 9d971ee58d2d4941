/* SPDX-License-Identifier: MIT */
/* Which completion() awaits which completion. */
#ifndef CQN_AWAIT_CLAIMS_H
#define CQN_AWAIT_CLAIMS_H

#include "await/engine.h"

/* -1 with MemoryError. */
int cqn_claims_add(cqn_request *request);
void cqn_claims_remove(cqn_request *request);

/* The first completion() that asks for this wr_id, of this QP or of any; or NULL. */
cqn_request *cqn_claims_find(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num);

#endif
