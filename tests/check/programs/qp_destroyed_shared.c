/* SPDX-License-Identifier: MIT */
/* Two connections share a CQ; one is closed while its messages are still in there. */
#include "pair.h"

struct connection {
    int messages;
};

static void poll_all(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ((struct connection *)(uintptr_t)wc.wr_id)->messages++; /* it may be freed by now */
}

static struct connection *receive_one(struct pair *p)
{
    struct connection *connection = calloc(1, sizeof *connection);
    CHECK(connection != NULL);
    p->wr_id = (uintptr_t)connection - 1; /* the next one is the address */
    post_recvs(p, 1);
    return connection;
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    struct pair other = second_pair(&p);
    struct connection *first = receive_one(&p), *second = receive_one(&other);
    post_sends(&p, 1);
    post_sends(&other, 1);
    await_completions(p.sends, 2);
#ifdef RIGHT
    while (first->messages + second->messages < 2)
        poll_all(p.recvs);
#endif
    close_second(&other);
    poll_all(p.recvs); /* MISTAKE: a completion of the QP destroyed above is among these */
    CHECK(first->messages == 1);
    free(first);
    free(second);
    close_pair(&p);
    return 0;
}
