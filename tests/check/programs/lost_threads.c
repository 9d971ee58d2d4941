/* SPDX-License-Identifier: MIT */
/* One thread polls, and starts another that waits for the next message. */
#include "pair.h"

static void *wait_for_message(void *arg)
{
    struct pair *p = arg;
    arm(p->recvs);
#ifdef RIGHT
    if (drain(p->recvs) > 0)
        return NULL;
#endif
    /* MISTAKE: the CQ was empty when the other thread polled it, but not when this one armed it. */
    ibv_ack_cq_events(next_event(p->channel), 1);
    drain(p->recvs);
    return NULL;
}

int main(void)
{
    struct pair p = {0};
    pthread_t waiter;
    open_pair(&p);
    deliver(&p, 1);
    await_all(p.recvs, 1);
    deliver(&p, 1);
    CHECK(!pthread_create(&waiter, NULL, wait_for_message, &p));
    CHECK(!pthread_join(waiter, NULL));
    close_pair(&p);
    return 0;
}
