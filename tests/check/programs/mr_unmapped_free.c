/* SPDX-License-Identifier: MIT */
/* Frees the memory of receives of which one is still posted. */
#include "pair.h"

enum { POSTED = 3 };

static void free_buffers(struct pair *p)
{
    free(p->memory); /* MISTAKE: the message that comes overwrites whatever is there then */
    p->memory = NULL;
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    post_recvs(&p, POSTED);
#ifdef RIGHT
    int messages = POSTED;
#else
    int messages = POSTED - 1;
#endif
    post_sends(&p, messages);
    await_completions(p.sends, messages);
    await_completions(p.recvs, messages);
    free_buffers(&p);
    close_pair(&p);
    return 0;
}
