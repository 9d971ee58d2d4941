/* SPDX-License-Identifier: MIT */
/* Messages that have arrived, in order, and the receives that wait for the next one. There are
 * either messages or receives that wait. */
#ifndef CQN_MESSAGES_INBOX_H
#define CQN_MESSAGES_INBOX_H

#include "messages/messages.h"

/* A message has come: the first receive that waits gets it, or it stays. -1 with an exception that
 * must end the loop. */
int cqn_inbox_put(cqn_session *self, cqn_message *message);

/* Returns a message to its old place: several tasks can be cancelled, in any order. */
int cqn_inbox_put_back(cqn_session *self, const cqn_message *message);

/* The first message, which there is. */
cqn_message cqn_inbox_pop(cqn_session *self);

/* The receive waits for the next message, behind all others; or no more. */
void cqn_inbox_wait(cqn_session *self, cqn_receive *receive);
void cqn_inbox_leave(cqn_session *self, cqn_receive *receive);

/* Nothing will come any more: all receives fail. -1 as above. */
int cqn_inbox_fail(cqn_session *self, PyObject *error);

#endif
