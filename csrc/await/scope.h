/* SPDX-License-Identifier: MIT */
/* The end of a scope. */
#ifndef CQN_AWAIT_SCOPE_H
#define CQN_AWAIT_SCOPE_H

#include "await/await.h"

/* The first step of the task at the end of a scope. Returns -1 with an exception. */
int cqn_scope_end_begin(cqn_awaitable *awaitable);

/* The second step, after it yielded to the loop: the end is pending from here on, or COMPLETE. */
void cqn_scope_end_join(cqn_awaitable *awaitable);

#endif
