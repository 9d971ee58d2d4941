/* SPDX-License-Identifier: MIT */
/* What holds of an engine (await/await.h) whenever none of its functions runs. */
#ifndef CQN_FAULTS_ENGINE_INVARIANTS_H
#define CQN_FAULTS_ENGINE_INVARIANTS_H

#include <Python.h>

struct cqn_engine;

/* Ends the process if the engine is not as it should be. Engines of many awaitables are not
 * checked, because that would take the tests too long. */
void cqn_assert_engine(const struct cqn_engine *engine);

/* A method of the module: what does not hold of an engine, or None. */
PyObject *cqn_check_engine(PyObject *module, PyObject *engine);

#endif
