/* SPDX-License-Identifier: MIT */
/* Reads an offered message out of the peer's memory: see reading.c. */
#ifndef CQN_MESSAGES_READING_H
#define CQN_MESSAGES_READING_H

#include "messages/messages.h"

/* Reads an offered message, owned by the caller, into the buffers of `into`, a list or a tuple, in
 * pieces of up to `most` bytes, with up to `together` in flight. Returns a list of its frames if it
 * was read at once, otherwise a MessageReading to await; None if the message is not simple, and the
 * Session has to read it; NULL with an exception. */
PyObject *cqn_session_read(cqn_session *self, const cqn_message *message, PyObject *into,
                           uint32_t most, uint32_t together);

/* Called when reads of the reading have completed. Returns -1 with an exception that must end the
 * loop. */
int cqn_reading_completed(PyObject *reading);

/* Fails all readings after the queue pair was closed. -1 as above. */
int cqn_readings_fail(cqn_session *self, PyObject *error);

/* If none has completed since the last call, reads a byte of the oldest once more. Returns whether
 * any is in flight; -1 with an exception. */
int cqn_readings_probe(cqn_session *self);

/* Removes a reading that is being collected from its list. */
void cqn_reading_forget(cqn_session *self, cqn_reading *reading);

#endif
