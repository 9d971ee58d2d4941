/* SPDX-License-Identifier: MIT */
/* A thread takes the event, and ends; the one that destroys the CQ knows nothing of it. */
#include "pair.h"

static void *wait_for_message(void *arg)
{
    struct pair *p = arg;
    struct ibv_cq *cq = next_event(p->channel);
    drain(cq);
#ifdef RIGHT
    ibv_ack_cq_events(cq, 1);
#endif
    return NULL; /* MISTAKE: leaves the event unacknowledged */
}

int main(void)
{
    struct pair p = {0};
    pthread_t waiter;
    open_pair(&p);
    arm(p.recvs);
    CHECK(drain(p.recvs) == 0);
    CHECK(!pthread_create(&waiter, NULL, wait_for_message, &p));
    deliver(&p, 1);
    CHECK(!pthread_join(waiter, NULL));
    close_pair(&p);
    return 0;
}
