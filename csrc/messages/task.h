/* SPDX-License-Identifier: MIT */
/* A task of the program that sleeps in recv() or send(): see task.c. */
#ifndef CQN_MESSAGES_TASK_H
#define CQN_MESSAGES_TASK_H

#include "messages/messages.h"

/* Appends the task to a list of the session, which owns a reference from here on. */
void cqn_task_append(cqn_task_list *list, cqn_task *self);

/* Removes the task from its list; the caller gets the list's reference. */
void cqn_task_unlist(cqn_task_list *list, cqn_task *self);

int cqn_task_list_traverse(const cqn_task_list *list, visitproc visit, void *arg);

/* A step in which the task goes to sleep. Fails if another task already sleeps on it. */
PySendResult cqn_task_sleep(cqn_task *self, PyObject **result);

/* Creates the wakeup of a task that is about to sleep. Returns -1 with an exception. */
int cqn_task_prepare(cqn_task *self);

/* Returns what the task yields in its last step before it sleeps; a new reference. */
PyObject *cqn_task_yield(cqn_task *self);

/* Whether the task was cancelled: it no longer sleeps, although nothing here woke it. */
bool cqn_task_is_cancelled(const cqn_task *self);

/* Wakes the task, with `resume` here and now. Returns -1 with an exception that must end the
 * loop. */
int cqn_task_wake(cqn_task *self, bool resume);

/* Called when the task has its result: it is resumed after all completions were taken, or woken. -1
 * as above. */
int cqn_task_deliver(cqn_task *self);

/* Called when the task continues, or never will. */
void cqn_task_goes_on(cqn_task *self);

/* Resumes the task in `resumed`, as the last action for an event. -1 as above. */
int cqn_session_resume_first(cqn_session *session, bool resume);

/* Raises a copy of the error for this task. */
void cqn_task_raise(cqn_task *self);

/* Visit or release the fields of the common head. */
int cqn_task_traverse(cqn_task *self, visitproc visit, void *arg);
void cqn_task_finish(cqn_task *self);

/* Returns whether the caller runs in the session's loop; -1 with an exception. */
int cqn_session_runs_here(const cqn_session *session);

#endif
