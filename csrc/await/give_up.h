/* SPDX-License-Identifier: MIT */
/* What a task leaves behind that gives up. */
#ifndef CQN_AWAIT_GIVE_UP_H
#define CQN_AWAIT_GIVE_UP_H

#include "await/engine.h"

/* The task was cancelled, or has failed; an exception that is set stays so. */
void cqn_request_give_up(cqn_request *self);

/* A method of the type, see _core.pyi. */
PyObject *cqn_engine_forget_tasks(PyObject *self, PyObject *unused);

#endif
