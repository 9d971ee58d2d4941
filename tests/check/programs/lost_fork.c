/* SPDX-License-Identifier: MIT */
/* The child of a fork has a device of its own, and sleeps through its message. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "pair.h"

static int child(void)
{
    struct pair p = {0};
    CHECK(prctl(PR_SET_PDEATHSIG, SIGTERM) == 0); /* the test ends the parent */
    open_pair(&p);
    deliver(&p, 1);
    arm(p.recvs);
#ifdef RIGHT
    if (drain(p.recvs) == 0)
#endif
        ibv_ack_cq_events(next_event(p.channel), 1); /* MISTAKE: not polled after the arm */
    drain(p.recvs);
    close_pair(&p);
    return 0;
}

int main(void)
{
    struct pair p = {0};
    open_pair(&p); /* the parent's, which the child leaves alone */
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        return child();
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    close_pair(&p);
    return 0;
}
