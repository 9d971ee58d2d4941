/* SPDX-License-Identifier: MIT */
/* Posting operations, or queueing them until their queue has capacity. */
#ifndef CQN_AWAIT_POST_H
#define CQN_AWAIT_POST_H

#include "await/await.h"

/* Posts the operation, or puts it into the waitlist of its queue. -1 with an exception. */
int cqn_operation_post(cqn_awaitable *self, cqn_send *send);

/* Posts queued operations where there is capacity now. */
void cqn_engine_post_queued_now(cqn_engine *self);
static inline void cqn_engine_post_queued(cqn_engine *self)
{
    if (self->qps_with_capacity != NULL) {
        cqn_engine_post_queued_now(self);
    }
}

/* The engine is being cleared: drops the queue pairs that may have capacity. */
void cqn_engine_forget_capacity(cqn_engine *self);

#endif
