/* SPDX-License-Identifier: MIT */
/* What recv() awaits: see receive.c. */
#ifndef CQN_MESSAGES_RECEIVE_H
#define CQN_MESSAGES_RECEIVE_H

#include "messages/messages.h"

/* A new MessageReceive. `into` is a list or a tuple, or NULL; `copies`: the frames of a DATA are
 * copied, if that is simple. NULL with an exception. */
PyObject *cqn_receive_new(cqn_session *session, PyObject *into, bool copies);

/* The result of recv() for a message that is there; None if there is none. NULL with an
 * exception. */
PyObject *cqn_session_try_receive(cqn_session *session, PyObject *into);

#endif
