/* SPDX-License-Identifier: MIT */
/* Copies a message into a frame, and posts it: see send.c. */
#ifndef CQN_MESSAGES_SEND_H
#define CQN_MESSAGES_SEND_H

#include "messages/messages.h"

/* Whether a message of this size is copied, and within the peer's limits. */
bool cqn_send_is_copied(const cqn_session *self, uint64_t frames, uint64_t nbytes);

/* Returns memory for a frame, which the caller writes and adds; NULL if there is none now, or with
 * *failed and an exception. Can run arbitrary code: the caller checks again whether it may send. */
uint8_t *cqn_send_reserve(cqn_session *self, uint64_t size, bool *failed);

/* Copies the message into this memory, and posts it now or soon; there must be a credit. Returns -1
 * with an exception. */
int cqn_send_frames(cqn_session *self, uint8_t *into, const cqn_frame *frames, Py_ssize_t n);

#endif
