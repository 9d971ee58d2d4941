/* SPDX-License-Identifier: MIT */
/* Has buffers registered while a message uses them: see register.c. */
#ifndef CQN_MESSAGES_REGISTER_H
#define CQN_MESSAGES_REGISTER_H

#include "messages/messages.h"

/* Has a buffer registered: a Registration of _memory.py. NULL with an exception. It can run any
 * code. */
PyObject *cqn_register(const cqn_session *self, PyObject *buffer, PyObject *access);

/* Where its bytes are for the device, and the key by which a peer gets at them. -1 with an
 * exception. */
int cqn_registered_at(PyObject *registration, uint64_t *addr, uint32_t *rkey);

/* Its memory region, a new reference. NULL with an exception. */
cqn_mr *cqn_registered_mr(const cqn_session *self, PyObject *registration);

/* Lets go of a list of Registrations, and of the reference to it; it may be NULL. An exception that
 * is set stays set. */
void cqn_unregister(const cqn_session *self, PyObject *list);

#endif
