/* SPDX-License-Identifier: MIT */
/* What a task does that awaits a request. */
#ifndef CQN_AWAIT_STEP_H
#define CQN_AWAIT_STEP_H

#include "await/request.h"

/* Runs its task's step, as am_send does for a coroutine. */
PySendResult cqn_request_send(PyObject *self, PyObject *value, PyObject **result);

#endif
