/* SPDX-License-Identifier: MIT */
/* Copies the frames of a message: see copy.c. */
#ifndef CQN_MESSAGES_COPY_H
#define CQN_MESSAGES_COPY_H

#include "messages/messages.h"

/* A view of the first bytes of a buffer that is a row of bytes; or NULL, perhaps with an exception:
 * it is another one, or there is no memory. */
PyObject *cqn_copy_view(PyObject *buffer, uint32_t nbytes);

/* A frame, copied into the i-th buffer of `into`, a list or a tuple, or into new memory if that is
 * NULL; or NULL as above. */
PyObject *cqn_copy_frame(PyObject *into, uint32_t i, const uint8_t *bytes, uint32_t nbytes);

/* The frames of a DATA; or NULL as above. */
PyObject *cqn_copy_message(const cqn_session *session, const cqn_message *message, PyObject *into);

#endif
