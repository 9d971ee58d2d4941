/* SPDX-License-Identifier: MIT */
/* The steps of a task in its awaitable. */
#ifndef CQN_AWAIT_STEP_H
#define CQN_AWAIT_STEP_H

#include "await/await.h"

/* Runs a step of the task, like am_send of a coroutine. */
PySendResult cqn_awaitable_send(PyObject *self, PyObject *value, PyObject **result);

/* Ends the awaitable of a task that was cancelled or failed. Keeps the current exception. */
void cqn_awaitable_give_up(cqn_awaitable *self);

/* Ends the awaitable of a task that will never run again; no other task is woken. */
void cqn_awaitable_abandon(cqn_awaitable *self);

#endif
