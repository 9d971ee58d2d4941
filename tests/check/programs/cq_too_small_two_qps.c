/* SPDX-License-Identifier: MIT */
/* A CQ that is large enough for one QP, and has two. */
#include "pair.h"

enum { SMALL = 7, EACH = 6 };

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    CHECK(p.sends = ibv_create_cq(p.ctx, SMALL, NULL, NULL, 0));
    open_pair(&p);
    struct pair other = second_pair(&p);

    post_sends(&p, EACH);
#ifdef RIGHT
    post_recvs(&p, EACH);
    await_completions(p.sends, EACH);
#endif
    post_sends(&other, EACH); /* MISTAKE: the first six may complete together with these */
    for (int i = 0; i < EACH; i++) {
#ifndef RIGHT
        post_recvs(&p, 1);
        await_completions(p.sends, 1);
#endif
        post_recvs(&other, 1);
        await_completions(p.sends, 1);
    }
    close_second(&other);
    close_pair(&p);
    return 0;
}
