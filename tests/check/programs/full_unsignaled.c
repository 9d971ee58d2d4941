/* SPDX-License-Identifier: MIT */
/* Sends without completions, until the queue is full. */
#include "pair.h"

static void post_or_wait(struct pair *p, unsigned int flags)
{
    int error;
    while ((error = post_send(p, flags)) == ENOMEM) {
        post_recvs(p, DEPTH / 2);       /* the peer was slow */
        await_completions(p->sends, 1); /* a completion frees the requests before it */
    }
    CHECK(!error);
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    for (int i = 1; i <= 3 * DEPTH; i++) {
#ifdef RIGHT
        post_or_wait(&p, i % 8 ? 0 : IBV_SEND_SIGNALED);
#else
        post_or_wait(&p, 0); /* MISTAKE: nothing in the queue will ever make a completion */
#endif
    }
    close_pair(&p);
    return 0;
}
