/* SPDX-License-Identifier: MIT */
/* Reads an offered message out of the peer's memory: see reading.c. */
#ifndef CQN_MESSAGES_READING_H
#define CQN_MESSAGES_READING_H

#include "messages/messages.h"

/* Reads an offered message, which is the caller's, into the buffers of `into`, a list or a tuple,
 * in pieces of up to `most` bytes, with up to `together` under way. A list of its frames, if
 * it was read at once; else a MessageReading to await. None: that is not simple, and the Session
 * does it. NULL with an exception. */
PyObject *cqn_session_read(cqn_session *self, const cqn_message *message, PyObject *into,
                           uint32_t most, uint32_t together);

/* Reads of it have completed. -1 with an exception that must end the loop. */
int cqn_reading_completed(PyObject *reading);

/* The queue pair is closed: all of them fail. -1 as above. */
int cqn_readings_fail(cqn_session *self, PyObject *error);

/* If none has completed since the last call, reads a byte of the oldest once more. Whether any is
 * under way; -1 with an exception. */
int cqn_readings_probe(cqn_session *self);

/* It is being collected, and is in no list from now on. */
void cqn_reading_forget(cqn_session *self, cqn_reading *reading);

#endif
