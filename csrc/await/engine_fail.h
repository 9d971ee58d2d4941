/* SPDX-License-Identifier: MIT */
/* Failures and ends, and which tasks are told. */
#ifndef CQN_AWAIT_ENGINE_FAIL_H
#define CQN_AWAIT_ENGINE_FAIL_H

#include "await/engine.h"

/* The device failed while it was polled or armed: all tasks get the exception that is set. */
void cqn_engine_break_down(cqn_engine *self);

/* The engine and its CQ part for good. */
void cqn_engine_leave_cq(cqn_engine *self);

/* The engine is closed: nothing is pending any more. Their tasks were told before. */
void cqn_engine_drop_all(cqn_engine *self);

/* Methods of the type, see _core.pyi. */
PyObject *cqn_engine_tell(PyObject *self, PyObject *args);
PyObject *cqn_engine_fail(PyObject *self, PyObject *error);
PyObject *cqn_engine_shut(PyObject *self, PyObject *error);

#endif
