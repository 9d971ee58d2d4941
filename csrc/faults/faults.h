/* SPDX-License-Identifier: MIT */
/*
 * The points at which a test build can make calls fail and let other threads run. The core includes
 * only this header of the folder. In an ordinary build its macros are empty, and the folder's
 * sources are not compiled; setup.py adds them for CQNOTIFY_DEBUG=faults.
 *
 *   replaced_calls.h      the calls of libibverbs and of the system, which fail on demand
 *   faults.c              which call or allocation fails, and how
 *   features.c            devices that report fewer or more features
 *   fake_device.c         a device with the features that software devices lack
 *   fake_memory.c         the memory of that device
 *   engine_invariants.c   the invariants of an engine between the steps of its tasks
 *   steps.c               the steps of the core, written to a file for tests/model
 *   schedule.c            which thread goes on, decided by a seed
 *   methods.c             the methods for tests
 *   gcov_dump.c           for CQNOTIFY_DEBUG=coverage: writes the counts of gcov
 */
#ifndef CQN_FAULTS_H
#define CQN_FAULTS_H

#ifdef CQN_FAULTS

#include "faults/engine_invariants.h"
#include "faults/replaced_calls.h"
#include "faults/steps.h"

/* Runs the test's code at a point where the lock was just released. */
#define CQN_PLACE(name) cqn_place(name)

/* A moment in which threads that are without the GIL, and the device, may go on. */
#define CQN_MOMENT(name) cqn_schedule_moment(name)

/* Whether this call is the one to fail. */
#define CQN_FAILS(call) cqn_fault(call)

/* Records a step of the core for tests/model/replay.py: its name, an object, and three numbers. */
#define CQN_STEP(name, object, a, b, c) \
    cqn_step(#name, object, (intptr_t)(a), (intptr_t)(b), (intptr_t)(c))

/* Aborts the process if an invariant of the engine does not hold. */
#define CQN_CHECK_ENGINE(engine) cqn_assert_engine(engine)

/* Adds the methods for tests. Returns -1 with an exception. */
#define CQN_ADD_FAULT_METHODS(module) cqn_add_fault_methods(module)

#else

#define CQN_PLACE(name) ((void)0)
#define CQN_MOMENT(name) ((void)0)
#define CQN_FAILS(call) false
#define CQN_STEP(name, object, a, b, c) ((void)0)
#define CQN_CHECK_ENGINE(engine) ((void)0)
#define CQN_ADD_FAULT_METHODS(module) 0

#endif

#endif
