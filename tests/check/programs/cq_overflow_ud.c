/* SPDX-License-Identifier: MIT */
/* Datagrams: their sender never waits for the receiver, so a CQ that is too small overflows. */
#include "pair.h"

enum { SMALL = 3, MESSAGES = 10 };

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
    int entries = SMALL; /* MISTAKE: fewer than the receives that are posted */
#endif
    struct pair p = {.type = IBV_QPT_UD};
    open_device(&p);
    CHECK(p.recvs = ibv_create_cq(p.ctx, entries, NULL, NULL, 0));
    open_pair(&p);
    post_recvs(&p, MESSAGES);
    post_sends(&p, MESSAGES);
    await_completions(p.sends, MESSAGES);
    if (p.recvs->cqe < MESSAGES)
        await_overflow(&p);
    else
        await_completions(p.recvs, MESSAGES);
    close_pair(&p);
    return 0;
}
