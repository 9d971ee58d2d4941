/* SPDX-License-Identifier: MIT */
/*
 * Where a build for tests can make calls fail and let other threads act. It is the only header of
 * this folder that the core includes, and empty macros in an ordinary build, which has none of the
 * folder's sources; setup.py adds them for CQNOTIFY_DEBUG=faults.
 *
 *   replaced_calls.h      the calls of libibverbs and of the system, each made to fail on demand
 *   faults.c              which call or allocation fails, and how
 *   features.c            devices that say that they can do less or more
 *   fake_device.c         a device that has what software devices lack
 *   fake_memory.c         the memory of that device
 *   engine_invariants.c   what holds of an engine between the steps of its tasks
 *   methods.c             what tests call
 *   gcov_dump.c           for CQNOTIFY_DEBUG=coverage: writes what gcov has counted
 */
#ifndef CQN_FAULTS_H
#define CQN_FAULTS_H

#ifdef CQN_FAULTS

#include "faults/engine_invariants.h"
#include "faults/replaced_calls.h"

/* Runs what the test wants to be done at that place, where the lock was just let go of. */
#define CQN_PLACE(name) cqn_place(name)

/* Whether the call is the one that is to fail. */
#define CQN_FAILS(call) cqn_fault(call)

/* Ends the process if the engine is not as it should be. */
#define CQN_CHECK_ENGINE(engine) cqn_assert_engine(engine)

/* Adds the methods that tests call. -1 with an exception. */
#define CQN_ADD_FAULT_METHODS(module) PyModule_AddFunctions(module, cqn_fault_methods)

#else

#define CQN_PLACE(name) ((void)0)
#define CQN_FAILS(call) false
#define CQN_CHECK_ENGINE(engine) ((void)0)
#define CQN_ADD_FAULT_METHODS(module) 0

#endif

#endif
