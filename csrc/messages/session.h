/* SPDX-License-Identifier: MIT */
/* One end of a connection: see session.c. */
#ifndef CQN_MESSAGES_SESSION_H
#define CQN_MESSAGES_SESSION_H

#include "messages/messages.h"

extern const cqn_taker_calls cqn_session_takes;

/* Posts whatever can be posted; the Session handles failures. Returns -1 with an exception that
 * must end the loop. */
int cqn_session_post_pending(cqn_session *self);

/* Called at the end of an iteration in which messages were added or received: posts them, and an
 * ACK if one is due. -1 as above. */
int cqn_session_end_turn(cqn_session *self);

/* Called when the program has received a message. Returns -1 with an exception. */
int cqn_session_message_taken(cqn_session *self, const cqn_message *message);

/* Returns the address of a received frame; borrowed. */
static inline const uint8_t *cqn_session_frame(const cqn_session *self, uint32_t slot)
{
    return (const uint8_t *)self->memory.buf + (uint64_t)slot * self->slot_size;
}

#endif
