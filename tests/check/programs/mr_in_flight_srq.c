/* SPDX-License-Identifier: MIT */
/* Deregisters the memory of receives that are posted to an SRQ. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    create_srq(&p);
    open_pair(&p);
    post_recvs(&p, 4);
#ifdef RIGHT
    CHECK(!ibv_destroy_qp(p.b));
    CHECK(!ibv_destroy_srq(p.srq));
    p.b = NULL;
    p.srq = NULL;
#endif
    CHECK(!ibv_dereg_mr(p.mr)); /* MISTAKE: a message may come to each of the receives */
    p.mr = NULL;
    close_pair(&p);
    return 0;
}
