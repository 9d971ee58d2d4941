/* SPDX-License-Identifier: MIT */
/* A task of the program that sleeps in recv() or send(): see task.c. */
#ifndef CQN_MESSAGES_TASK_H
#define CQN_MESSAGES_TASK_H

#include "messages/messages.h"

/* Appends it to a list of the session, which refers to it from now on. */
void cqn_task_append(cqn_task_list *list, cqn_task *self);

/* Takes it out of that list, whose reference the caller gets. */
void cqn_task_unlist(cqn_task_list *list, cqn_task *self);

int cqn_task_list_traverse(const cqn_task_list *list, visitproc visit, void *arg);

/* The step in which a task goes to sleep, unless one does already. */
PySendResult cqn_task_sleep(cqn_task *self, PyObject **result);

/* The task is about to sleep: makes what it sleeps on. -1 with an exception. */
int cqn_task_prepare(cqn_task *self);

/* What the task yields, in its last step before it sleeps. A new reference. */
PyObject *cqn_task_yield(cqn_task *self);

/* Whether the task does not sleep any more, though nothing has woken it here: it was cancelled. */
bool cqn_task_is_cancelled(const cqn_task *self);

/* Wakes the task: with `resume` here and now. -1 with an exception that must end the loop. */
int cqn_task_wake(cqn_task *self, bool resume);

/* The task has what it waits for: it is resumed when all completions were taken, or woken. -1 as
 * above. */
int cqn_task_deliver(cqn_task *self);

/* It goes on, or never will. */
void cqn_task_goes_on(cqn_task *self);

/* Resumes the task that is to be, as the last thing that is done for an event. -1 as above. */
int cqn_session_resume_first(cqn_session *session, bool resume);

/* Raises a copy of the error for this task. */
void cqn_task_raise(cqn_task *self);

/* Visits, or drops, what all of them have. */
int cqn_task_traverse(cqn_task *self, visitproc visit, void *arg);
void cqn_task_finish(cqn_task *self);

/* Whether the caller runs in the loop of the session. -1 with an exception. */
int cqn_session_runs_here(const cqn_session *session);

#endif
