/* SPDX-License-Identifier: MIT */
/* What send() awaits: see sending.c. */
#ifndef CQN_MESSAGES_SENDING_H
#define CQN_MESSAGES_SENDING_H

#include "messages/messages.h"

/* Sends a message of these buffers, a tuple, if they are simple: True if it was sent; or a
 * MessageSend, if it has to wait. False: nothing was done. NULL with an exception. */
PyObject *cqn_session_send(cqn_session *self, PyObject *buffers);

/* A MessageSend for a message that the Session offers. NULL with an exception. */
PyObject *cqn_session_offer(cqn_session *self, PyObject *outgoing);

#endif
