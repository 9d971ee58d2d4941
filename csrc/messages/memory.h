/* SPDX-License-Identifier: MIT */
/* A buffer to be registered: see memory.c. */
#ifndef CQN_MESSAGES_MEMORY_H
#define CQN_MESSAGES_MEMORY_H

#include "base/base.h"

extern PyType_Spec cqn_message_memory_spec;

/* Returns a new MessageMemory of a memoryview; NULL with an exception. */
PyObject *cqn_memory_new(const cqn_state *st, PyObject *view, PyObject *access);

#endif
