/* SPDX-License-Identifier: MIT */
/* Posting operations, or queueing them until their queue has capacity. */
#ifndef CQN_AWAIT_POST_H
#define CQN_AWAIT_POST_H

#include "await/await.h"

/* Posts the operation, or adds it to the waitlist of its queue. Returns -1 with an exception. */
int cqn_operation_post(cqn_awaitable *self, cqn_send *send);

/* Posts queued operations where there is capacity now. */
void cqn_engine_post_queued_now(cqn_engine *self);
static inline void cqn_engine_post_queued(cqn_engine *self)
{
    if (self->qps_with_capacity != NULL) {
        cqn_engine_post_queued_now(self);
    }
}

/* Releases the list of queue pairs with capacity, while the engine is cleared. */
void cqn_engine_forget_capacity(cqn_engine *self);

#endif
