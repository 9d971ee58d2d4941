/* SPDX-License-Identifier: MIT */
/* Waitlists: awaitables in order of arrival, and tables of waitlists by number. Neither holds
 * references. */
#ifndef CQN_AWAIT_WAITLIST_H
#define CQN_AWAIT_WAITLIST_H

#include "await/await.h"

void cqn_waitlist_add(cqn_waitlist *list, cqn_awaitable *awaitable);

/* Removes the awaitable from its waitlist, if it is in one. */
void cqn_waitlist_remove(cqn_awaitable *awaitable);

/* The first returns -1 with MemoryError. */
int cqn_table_add(cqn_table *table, cqn_awaitable *awaitable, uint64_t key);
void cqn_table_remove(cqn_table *table, cqn_awaitable *awaitable);

/* Returns the waitlist that has all awaitables with this key, and may have others; never NULL. */
const cqn_waitlist *cqn_table_waitlist(const cqn_table *table, uint64_t key);

/* Frees an empty table. */
void cqn_table_free(cqn_table *table);

/* ---- claims: which completion() gets a completion ---- */

/* The first returns -1 with MemoryError. */
int cqn_claims_add(cqn_awaitable *awaitable);
void cqn_claims_remove(cqn_awaitable *awaitable);

/* Returns the first completion() that claims this wr_id, of this QP or of any; borrowed, or
 * NULL. */
cqn_awaitable *cqn_claims_find(const cqn_engine *engine, uint64_t wr_id, uint32_t qp_num);

#endif
