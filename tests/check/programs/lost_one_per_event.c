/* SPDX-License-Identifier: MIT */
/* Takes one completion for each event, as if each completion raised one. */
#include "pair.h"

static int take_messages(struct pair *p)
{
    ibv_ack_cq_events(next_event(p->channel), 1);
    arm(p->recvs);
#ifdef RIGHT
    return drain(p->recvs);
#else
    await_completions(p->recvs, 1); /* MISTAKE: there may be more */
    return 1;
#endif
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    arm(p.recvs);
    deliver(&p, 5);
    for (int messages = 0; messages < 5;)
        messages += take_messages(&p);
    close_pair(&p);
    return 0;
}
