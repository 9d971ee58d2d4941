/* SPDX-License-Identifier: MIT */
/* A shared receive queue of two QPs: their messages come together, but one is taken per event. */
#include "pair.h"

static void await_event(struct pair *p)
{
    ibv_ack_cq_events(next_event(p->channel), 1);
    arm(p->recvs);
}

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    create_srq(&p);
    open_pair(&p);
    struct pair other = second_pair(&p);

    arm(p.recvs);
    deliver(&p, 1);
    deliver(&other, 1);
    for (int messages = 0; messages < 2;) {
        await_event(&p);
#ifdef RIGHT
        messages += drain(p.recvs);
#else
        await_completions(p.recvs, 1); /* MISTAKE: one event may be for many completions */
        messages++;
#endif
    }
    close_second(&other);
    close_pair(&p);
    return 0;
}
