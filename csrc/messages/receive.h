/* SPDX-License-Identifier: MIT */
/* The awaitable of recv(): see receive.c. */
#ifndef CQN_MESSAGES_RECEIVE_H
#define CQN_MESSAGES_RECEIVE_H

#include "messages/messages.h"

/* Returns a new MessageReceive; NULL with an exception. `into` is a list or a tuple, or NULL;
 * `copies`: the frames of a DATA are copied, if that is simple. */
PyObject *cqn_receive_new(cqn_session *session, PyObject *into, bool copies);

/* Returns the result of recv() for a message that has arrived; None if there is none; NULL with an
 * exception. */
PyObject *cqn_session_try_receive(cqn_session *session, PyObject *into);

#endif
