/* SPDX-License-Identifier: MIT */
/* Keeps buffers registered while a message uses them: see register.c. */
#ifndef CQN_MESSAGES_REGISTER_H
#define CQN_MESSAGES_REGISTER_H

#include "messages/messages.h"

/* Registers a buffer. Returns a new reference to a Registration of _memory.py; NULL with an
 * exception. Can run arbitrary code. */
PyObject *cqn_register(const cqn_session *self, PyObject *buffer, PyObject *access);

/* Stores the device's address of the memory and its rkey. Returns -1 with an exception. */
int cqn_registered_at(PyObject *registration, uint64_t *addr, uint32_t *rkey);

/* Returns a new reference to the MR; NULL with an exception. */
cqn_mr *cqn_registered_mr(const cqn_session *self, PyObject *registration);

/* Releases a list of Registrations, and steals the reference to it; the list may be NULL. Keeps the
 * current exception. */
void cqn_unregister(const cqn_session *self, PyObject *list);

#endif
