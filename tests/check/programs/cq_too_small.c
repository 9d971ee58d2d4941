/* SPDX-License-Identifier: MIT */
/* More signaled sends than the CQ has entries, none of them polled yet. */
#include "pair.h"

enum { SMALL = 7, MESSAGES = 12 };

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, SMALL, NULL, NULL, 0));
    open_pair(&p);
#ifdef RIGHT
    for (int i = 0; i < MESSAGES; i++)
        deliver(&p, 1);
#else
    /* The peer has no receives yet, so that none of the sends can be complete. */
    post_sends(&p, MESSAGES); /* MISTAKE: the CQ overflows if they all are at once */
    for (int i = 0; i < MESSAGES; i++) {
        post_recvs(&p, 1);
        await_completions(p.sends, 1);
    }
#endif
    close_pair(&p);
    return 0;
}
