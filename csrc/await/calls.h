/* SPDX-License-Identifier: MIT */
/* The methods of an AsyncCQ that a task awaits: each creates an awaitable, and the first step of
 * the task begins the operation or the wait. */
#ifndef CQN_AWAIT_CALLS_H
#define CQN_AWAIT_CALLS_H

#include "await/await.h"

#define CQN_CALL(name)                                                                   \
    PyObject *cqn_engine_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                PyObject *kwnames)
CQN_CALL(wait);
CQN_CALL(completion);
CQN_CALL(sends);
CQN_CALL(receives);
CQN_CALL(writes);
CQN_CALL(reads);
CQN_CALL(swaps);
CQN_CALL(adds);

/* The first step of the task: posts or queues an operation; a wait() or completion() becomes
 * WAITING or COMPLETE. Returns -1 with an exception. */
int cqn_call_begin(cqn_awaitable *self);

#endif
