/* SPDX-License-Identifier: MIT */
/* Posting operations, and those that wait for room in their queue. */
#ifndef CQN_AWAIT_POST_H
#define CQN_AWAIT_POST_H

#include "await/await.h"

/* Posts the operation, or puts it into the line of those that wait for room. -1 with an exception.
 */
int cqn_operation_post(cqn_awaitable *self, cqn_send *send);

/* Posts the operations that waited for room where there is some now. */
void cqn_engine_post_queued_now(cqn_engine *self);
static inline void cqn_engine_post_queued(cqn_engine *self)
{
    if (self->qps_with_capacity != NULL) {
        cqn_engine_post_queued_now(self);
    }
}

/* The engine goes: forgets where there is room. */
void cqn_engine_forget_capacity(cqn_engine *self);

#endif
