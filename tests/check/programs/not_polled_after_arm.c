/* SPDX-License-Identifier: MIT */
/* Polls, arms and sleeps: no message is lost here, but one that comes between the first two is. */
#include "peer.h"

enum { ROUNDS = 4 };

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    post_recvs(&p, ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        struct peer peer;
        start_peer(&peer, &p, 1);
#ifdef RIGHT
        arm(p.recvs);
        CHECK(drain(p.recvs) == 0);
#else
        CHECK(drain(p.recvs) == 0);
        arm(p.recvs); /* MISTAKE: sleeps after this without another poll */
#endif
        let_send(&peer);
        ibv_ack_cq_events(next_event(p.channel), 1);
        await_all(p.recvs, 1);
        join_peer(&peer);
    }
    close_pair(&p);
    return 0;
}
