/* SPDX-License-Identifier: MIT */
/* Acknowledges as many events as there were completions. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 3);
    struct ibv_cq *cq = next_event(p.channel);
    int messages = 3;
    await_all(cq, messages);
#ifdef RIGHT
    ibv_ack_cq_events(cq, 1);
#else
    ibv_ack_cq_events(cq, (unsigned int)messages); /* MISTAKE: three, of one event */
    return 0;                                      /* ibv_destroy_cq() would never return */
#endif
    close_pair(&p);
    return 0;
}
