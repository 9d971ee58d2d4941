/* SPDX-License-Identifier: MIT */
/* Two QPs have one SRQ; the one that has taken its receives goes, unpolled, and the other stays. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_device(&p);
    create_srq(&p);
    open_pair(&p);
    struct ibv_qp *other = make_qp(&p, p.recvs, p.recvs, p.srq);
    connect_qp(&p, other, p.a);
    deliver(&p, 4);
    CHECK(!ibv_destroy_qp(p.b));
    p.b = NULL;
#ifndef RIGHT
    post_recvs(&p, 2);
#endif
    CHECK(!ibv_dereg_mr(p.mr)); /* MISTAKE: the other QP may take these two */
    p.mr = NULL;
    CHECK(!ibv_destroy_qp(other));
    close_pair(&p);
    return 0;
}
