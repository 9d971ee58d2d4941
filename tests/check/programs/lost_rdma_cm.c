/* SPDX-License-Identifier: MIT */
/* A connection of rdma_cm, whose QPs, CQs and channels rdma_create_qp() makes. */
#include "cm_pair.h"

static void await_message(struct rdma_cm_id *id)
{
    arm(id->recv_cq);
#ifdef RIGHT
    if (drain(id->recv_cq) > 0)
        return;
#endif
    /* MISTAKE: not polled after the arm */
    ibv_ack_cq_events(next_event(id->recv_cq_channel), 1);
    drain(id->recv_cq);
}

int main(void)
{
    struct cm_pair p = {0};
    open_cm_pair(&p);
    cm_deliver(&p);
    await_message(p.server);
    close_cm_pair(&p);
    return 0;
}
