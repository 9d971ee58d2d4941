/* SPDX-License-Identifier: MIT */
/* A buffer to be registered: see wanted.c. */
#ifndef CQN_MEMORY_WANTED_H
#define CQN_MEMORY_WANTED_H

#include "base/base.h"

extern PyType_Spec cqn_wanted_spec;

/* Returns a new WantedMemory of a memoryview; NULL with an exception. */
PyObject *cqn_wanted_new(const cqn_state *st, PyObject *view, PyObject *access);

#endif
