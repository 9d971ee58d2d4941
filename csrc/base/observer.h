/* SPDX-License-Identifier: MIT */
/* The reports to the observer of `cqnotify trace` (csrc/check), which cannot see tasks by
 * itself. */
#ifndef CQN_OBSERVER_H
#define CQN_OBSERVER_H

enum cqn_observation {
    CQN_TASK_RUNS,   /* subject: the task; with its name. Before CQN_TASK_SLEEPS, in its thread. */
    CQN_TASK_SLEEPS, /* subject: the Awaitable; with the CQ and the method's name */
    CQN_TASK_WAKES,  /* subject: the Awaitable; with the CQ */
};

struct ibv_cq;
typedef void cqn_observe_function(enum cqn_observation what, const void *subject,
                                  const struct ibv_cq *cq, const char *name);

/* NULL unless a timeline is recorded. */
extern cqn_observe_function *cqn_observe;

void cqn_find_observer(void);

#endif
