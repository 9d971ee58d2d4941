/* SPDX-License-Identifier: MIT */
/* All receives have the same wr_id: their completions can't be told apart. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    for (int i = 0; i < 4; i++) {
#ifndef RIGHT
        p.wr_id = 41; /* MISTAKE: each is given 42 */
#endif
        post_recvs(&p, 1);
    }
    post_sends(&p, 4);
    await_completions(p.recvs, 4);
    close_pair(&p);
    return 0;
}
