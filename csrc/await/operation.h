/* SPDX-License-Identifier: MIT */
/* The requests that post, and the methods that make them. */
#ifndef CQN_AWAIT_OPERATION_H
#define CQN_AWAIT_OPERATION_H

#include "await/engine.h"

#define CQN_OPERATION(name)                                                              \
    PyObject *cqn_engine_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                PyObject *kwnames)
CQN_OPERATION(sends);
CQN_OPERATION(receives);
CQN_OPERATION(writes);
CQN_OPERATION(reads);
CQN_OPERATION(swaps);
CQN_OPERATION(adds);

/* -1 with an exception unless the queues of its queue pair complete in this engine's CQ. */
int cqn_request_check_qp(const cqn_request *self);

/* Posts it, or puts it into the line of those that wait for room. -1 with an exception. */
int cqn_operation_begin(cqn_request *self);

#endif
