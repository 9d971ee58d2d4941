/* SPDX-License-Identifier: MIT */
/* Numbers of the verbs by their names, and the Python enums that name them. */
#ifndef CQN_CONSTANTS_H
#define CQN_CONSTANTS_H

#include "base/state.h"

/* These are newer than the oldest header; the numbers are the kernel's. */
enum { CQN_WR_FLUSH = 14, CQN_WC_FLUSH = 8 };
enum { CQN_ACCESS_FLUSH_GLOBAL = 1 << 8, CQN_ACCESS_FLUSH_PERSISTENT = 1 << 9 };
#define CQN_DEVICE_ATOMIC_WRITE (1ULL << 40) /* of device_cap_flags_ex */

/* A new dict of the names of the verbs' constants and their numbers. */
PyObject *cqn_constants(void);

/* A member of a registered enum of flags; a plain int before the enums are registered. */
PyObject *cqn_flags(PyObject *enum_type, uint32_t flags);

/* The module's method by which the Python side hands over its enums. */
PyObject *cqn_register_enums(PyObject *module, PyObject *args);

/* Names for messages; borrowed, for ever. */
const char *cqn_qp_type_name(enum ibv_qp_type type);
const char *cqn_qp_state_name(enum ibv_qp_state state);

#endif
