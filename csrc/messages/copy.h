/* SPDX-License-Identifier: MIT */
/* Copies the frames of a message: see copy.c. */
#ifndef CQN_MESSAGES_COPY_H
#define CQN_MESSAGES_COPY_H

#include "messages/messages.h"

/* Returns a new view of the first bytes of a contiguous buffer of bytes; NULL, perhaps without an
 * exception, if it is another kind of buffer or there is no memory. */
PyObject *cqn_copy_view(PyObject *buffer, uint32_t nbytes);

/* Returns a frame, copied into buffer i of `into`, a list or a tuple, or into new memory if that is
 * NULL. NULL as above. */
PyObject *cqn_copy_frame(PyObject *into, uint32_t i, const uint8_t *bytes, uint32_t nbytes);

/* Returns a new list of the frames of a DATA; NULL as above. */
PyObject *cqn_copy_message(const cqn_session *session, const cqn_message *message, PyObject *into);

#endif
