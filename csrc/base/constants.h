/* SPDX-License-Identifier: MIT */
/* The constants of the verbs by name, and the Python enums that name them. */
#ifndef CQN_CONSTANTS_H
#define CQN_CONSTANTS_H

#include "base/state.h"

/* Constants that are missing from the oldest supported header; the numbers are the kernel's. */
enum { CQN_WR_FLUSH = 14, CQN_WC_FLUSH = 8 };
enum { CQN_ACCESS_FLUSH_GLOBAL = 1 << 8, CQN_ACCESS_FLUSH_PERSISTENT = 1 << 9 };
enum { CQN_EVENT_DEVICE_SPEED_CHANGE = 20 };
enum { CQN_FLUSH_GLOBAL = 1 << 0, CQN_FLUSH_PERSISTENT = 1 << 1 }; /* enum ibv_placement_type */
enum { CQN_FLUSH_RANGE = 0, CQN_FLUSH_MR = 1 };                    /* enum ibv_selectivity_level */
#define CQN_QP_EX_WITH_FLUSH (1ULL << 11)
/* Bits of device_cap_flags_ex. */
#define CQN_DEVICE_FLUSH_GLOBAL (1ULL << 38)
#define CQN_DEVICE_FLUSH_PERSISTENT (1ULL << 39)
#define CQN_DEVICE_ATOMIC_WRITE (1ULL << 40)

/* Returns a new dict of the verbs' constants, number by name. */
PyObject *cqn_constants(void);

/* The Python enums are slow to build, so those whose members the core returns are imported on first
 * use. The caller of the next two functions holds the lock; Python code runs. */

/* Fills a table, indexed by value, with the members of an enum that has a member 0. Does nothing if
 * the table is already filled. Returns -1 with an exception. */
int cqn_know_members(const char *name, PyObject **table, size_t n);

/* Returns a new reference to a member of a flag enum; `slot` caches the class. */
PyObject *cqn_flags(const char *name, PyObject **slot, uint32_t flags);

/* Names for error messages: static strings. */
const char *cqn_qp_type_name(enum ibv_qp_type type);
const char *cqn_qp_state_name(enum ibv_qp_state state);

#endif
