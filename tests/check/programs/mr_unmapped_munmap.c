/* SPDX-License-Identifier: MIT */
/* Unmaps the memory of a receive that is still posted. */
#include <sys/mman.h>

#include "pair.h"

static void give_back(char *memory)
{
    CHECK(!munmap(memory, AREA));
}

int main(void)
{
    struct pair p = {0};
    p.memory = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p.memory != MAP_FAILED);
    open_pair(&p);
    post_recvs(&p, 1);
#ifdef RIGHT
    post_sends(&p, 1);
    await_completions(p.recvs, 1);
    await_completions(p.sends, 1);
    CHECK(!ibv_dereg_mr(p.mr));
    p.mr = NULL;
#endif
    give_back(p.memory); /* MISTAKE: the message will come, and nobody can read it there */
    p.memory = NULL;
    close_pair(&p);
    return 0;
}
