/* SPDX-License-Identifier: MIT */
/* Destroys a QP before it has polled its completions. */
#include "pair.h"

int main(void)
{
    struct pair p = {0};
    open_pair(&p);
    deliver(&p, 3);
#ifdef RIGHT
    await_completions(p.recvs, 3);
#endif
    CHECK(!ibv_destroy_qp(p.b));
    p.b = NULL;
    drain(p.recvs); /* MISTAKE: completions of a QP that is gone */
    close_pair(&p);
    return 0;
}
