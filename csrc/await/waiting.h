/* SPDX-License-Identifier: MIT */
/* The requests that wait and post nothing, and the methods that make them. */
#ifndef CQN_AWAIT_WAITING_H
#define CQN_AWAIT_WAITING_H

#include "await/engine.h"

PyObject *cqn_engine_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);
PyObject *cqn_engine_completion(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames);

/* The first step of the task: the request is under way from now on, or COMPLETE already. -1 with an
 * exception. */
int cqn_waiting_begin(cqn_request *self);

/* The same for the end of a scope, after the turns that it gives the loop. */
void cqn_scope_end_join(cqn_request *request);

#endif
