/* SPDX-License-Identifier: MIT */
/* The invariants of an engine (await/await.h) between calls of its functions. */
#ifndef CQN_FAULTS_ENGINE_INVARIANTS_H
#define CQN_FAULTS_ENGINE_INVARIANTS_H

#include <Python.h>

struct cqn_engine;

/* Aborts the process if an invariant of the engine does not hold. Engines with many awaitables are
 * not checked, because the tests would take too long. */
void cqn_assert_engine(const struct cqn_engine *engine);

/* A method of the module: returns the condition that does not hold, or None. */
PyObject *cqn_check_engine(PyObject *module, PyObject *engine);

#endif
