/* SPDX-License-Identifier: MIT */
/* The headers of Python, libibverbs and C that all files need; in a build for tests, also the
 * replacements of verbs that fail on demand. */
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

#include "faults/faults.h" /* in a build for tests it gives the verbs a new meaning */

#endif
