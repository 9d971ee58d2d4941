/* SPDX-License-Identifier: MIT */
/* The steps of a task in its awaitable. */
#ifndef CQN_AWAIT_STEP_H
#define CQN_AWAIT_STEP_H

#include "await/await.h"

/* Runs a step of the task, as am_send of a coroutine does. */
PySendResult cqn_awaitable_send(PyObject *self, PyObject *value, PyObject **result);

/* The task gives up: it was cancelled, or has failed. An exception that is set stays set. */
void cqn_awaitable_give_up(cqn_awaitable *self);

/* The task will never run again: the awaitable is given up, but no other task is woken. */
void cqn_awaitable_abandon(cqn_awaitable *self);

#endif
