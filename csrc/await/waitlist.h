/* SPDX-License-Identifier: MIT */
/* Waitlists: requests in the order in which they came, and tables of them by a number. Neither
 * holds references. */
#ifndef CQN_AWAIT_WAITLIST_H
#define CQN_AWAIT_WAITLIST_H

#include "await/await.h"

void cqn_line_add(cqn_line *line, cqn_request *request);

/* Takes the request out of the line that it is in, if it is in one. */
void cqn_line_remove(cqn_request *request);

/* -1 with MemoryError. */
int cqn_table_add(cqn_table *table, cqn_request *request, uint64_t key);
void cqn_table_remove(cqn_table *table, cqn_request *request);

/* The line that has all requests of that key, and may have others; never NULL. */
const cqn_line *cqn_table_line(const cqn_table *table, uint64_t key);

/* Frees a table that is empty. */
void cqn_table_free(cqn_table *table);

/* ---- claims: which completion() awaits which completion ---- */

/* -1 with MemoryError. */
int cqn_claims_add(cqn_request *request);
void cqn_claims_remove(cqn_request *request);

/* The first completion() that asks for this wr_id, of this QP or of any; or NULL. */
cqn_request *cqn_claims_find(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num);

#endif
