/* SPDX-License-Identifier: MIT */
/* One end of a connection: see session.c. */
#ifndef CQN_MESSAGES_SESSION_H
#define CQN_MESSAGES_SESSION_H

#include "messages/messages.h"

extern const cqn_taker_calls cqn_session_takes;

/* Has posted what can be posted; the Session handles failures. -1 with an exception that must end
 * the loop. */
int cqn_session_post_pending(cqn_session *self);

/* The turn of the loop ends in which messages were added, or received: posts them, and an ACK. -1
 * as above. */
int cqn_session_end_turn(cqn_session *self);

/* The program has received the message. -1 with an exception. */
int cqn_session_message_taken(cqn_session *self, const cqn_message *message);

/* Where a frame is that was received. */
static inline const uint8_t *cqn_session_frame(const cqn_session *self, uint32_t slot)
{
    return (const uint8_t *)self->memory.buf + (uint64_t)slot * self->slot_size;
}

#endif
