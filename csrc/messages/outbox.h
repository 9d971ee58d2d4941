/* SPDX-License-Identifier: MIT */
/* Messages that wait for credits or room, and those that the peer has not read: see outbox.c. */
#ifndef CQN_MESSAGES_OUTBOX_H
#define CQN_MESSAGES_OUTBOX_H

#include "messages/messages.h"

/* The message waits, behind all others. */
void cqn_outbox_wait(cqn_session *self, cqn_sending *sending);

/* Posts as many of those that wait as credits and the send queue allow. -1 with an exception. */
int cqn_outbox_post(cqn_session *self);

/* The peer has read the first `count` offers, which there are. -1 with an exception that must end
 * the loop. */
int cqn_outbox_offers_read(cqn_session *self, uint64_t count);

/* A message that waits is dropped, with its buffers. */
void cqn_outbox_withdraw(cqn_session *self, cqn_sending *sending);

/* All messages fail, since none of them will be sent or read. -1 as above. */
int cqn_outbox_fail(cqn_session *self, PyObject *error);

/* The message is being collected, and is in no list from now on. */
void cqn_outbox_forget(cqn_session *self, cqn_sending *sending);

/* Drops what the message refers to. */
void cqn_sending_drop(cqn_sending *self);

#endif
