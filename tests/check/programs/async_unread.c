/* SPDX-License-Identifier: MIT */
/* Asks for an event when an SRQ runs low, and never reads it. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    create_srq(&p);
    open_pair(&p);
    post_recvs(&p, 8);
    struct ibv_srq_attr limit = {.srq_limit = 4};
    CHECK(!ibv_modify_srq(p.srq, &limit, IBV_SRQ_LIMIT));
    post_sends(&p, 6);
    await_completions(p.recvs, 6);
#ifdef RIGHT
    struct ibv_async_event event;
    CHECK(!ibv_get_async_event(p.ctx, &event));
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == p.srq);
    ibv_ack_async_event(&event);
#endif
    CHECK(!ibv_close_device(p.ctx)); /* MISTAKE: the event that the SRQ runs low is still unread */
    return 0;
}
