/* SPDX-License-Identifier: MIT */
/* Deregisters the memory of a receive that is still posted. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    post_recvs(&p, 1);
#ifdef RIGHT
    post_sends(&p, 1);
    await_completions(p.sends, 1);
    await_completions(p.recvs, 1);
#endif
    CHECK(!ibv_dereg_mr(p.mr)); /* MISTAKE: the device may write there at any time */
    p.mr = NULL;
    close_pair(&p);
    return 0;
}
