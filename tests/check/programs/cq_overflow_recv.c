/* SPDX-License-Identifier: MIT */
/* A CQ of receives that is too small for them: it overflows before it is polled. */
#include "pair.h"

enum { SMALL = 7, MESSAGES = 16 };

static void await_overflow(struct pair *p)
{
    struct ibv_async_event event;
    CHECK(!ibv_get_async_event(p->ctx, &event));
    CHECK(event.event_type == IBV_EVENT_CQ_ERR);
    ibv_ack_async_event(&event);
}

int main(void)
{
#ifdef RIGHT
    int entries = MESSAGES;
#else
    int entries = SMALL; /* MISTAKE: fewer than the receives that may complete before a poll */
#endif
    struct pair p = {0};
    open_device(&p);
    CHECK(p.recvs = ibv_create_cq(p.ctx, entries, NULL, p.channel, 0));
    open_pair(&p);
    post_recvs(&p, MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        CHECK(!post_send(&p, 0));
    if (p.recvs->cqe < MESSAGES)
        await_overflow(&p);
    else
        await_completions(p.recvs, MESSAGES);
    close_pair(&p);
    return 0;
}
