/* SPDX-License-Identifier: MIT */
/* What all files need of Python, of libibverbs and of C; and in a build for tests, the verbs
 * that can be made to fail. */
#ifndef CQN_PYTHON_H
#define CQN_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#ifdef CQN_FAULTS
#include "base/faults.h" /* it gives the verbs a new meaning */
#else
#define CQN_PLACE(name) ((void)0) /* where a debug build lets other threads act */
#endif

#endif
