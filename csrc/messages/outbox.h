/* SPDX-License-Identifier: MIT */
/* Messages that wait for credits or free memory, and those that the peer has not read: see
 * outbox.c. */
#ifndef CQN_MESSAGES_OUTBOX_H
#define CQN_MESSAGES_OUTBOX_H

#include "messages/messages.h"

/* Adds a message to the end of the waiting ones. */
void cqn_outbox_wait(cqn_session *self, cqn_sending *sending);

/* Posts waiting messages, as far as credits and the send queue allow. Returns -1 with an
 * exception. */
int cqn_outbox_post(cqn_session *self);

/* Ends the first `count` offers, which the peer has read. Returns -1 with an exception that must
 * end the loop. */
int cqn_outbox_offers_read(cqn_session *self, uint64_t count);

/* Drops a waiting message, with its buffers. */
void cqn_outbox_withdraw(cqn_session *self, cqn_sending *sending);

/* Fails all messages, because none of them will be sent or read. -1 as above. */
int cqn_outbox_fail(cqn_session *self, PyObject *error);

/* Removes a message that is being collected from its list. */
void cqn_outbox_forget(cqn_session *self, cqn_sending *sending);

/* Releases everything that the message refers to. */
void cqn_sending_drop(cqn_sending *self);

#endif
