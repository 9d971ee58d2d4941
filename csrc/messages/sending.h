/* SPDX-License-Identifier: MIT */
/* The awaitable of send(): see sending.c. */
#ifndef CQN_MESSAGES_SENDING_H
#define CQN_MESSAGES_SENDING_H

#include "messages/messages.h"

/* Sends a message of these buffers, a tuple, if they are simple. Returns True if it was sent; a
 * MessageSend if it has to wait; False if nothing was done; NULL with an exception. */
PyObject *cqn_session_send(cqn_session *self, PyObject *buffers);

/* Returns a MessageSend for a message that the Session offers, or True if it is over already; NULL
 * with an exception. */
PyObject *cqn_session_offer(cqn_session *self, PyObject *outgoing);

#endif
