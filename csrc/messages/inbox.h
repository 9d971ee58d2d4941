/* SPDX-License-Identifier: MIT */
/* Messages that have arrived, in order, and the receives that wait for the next one. At any time
 * there are only messages or only waiting receives. */
#ifndef CQN_MESSAGES_INBOX_H
#define CQN_MESSAGES_INBOX_H

#include "messages/messages.h"

/* Gives a new message to the first waiting receive, or stores it. Returns -1 with an exception that
 * must end the loop. */
int cqn_inbox_put(cqn_session *self, cqn_message *message);

/* Returns a message to its old place, since several tasks can be cancelled, in any order. -1 as
 * above. */
int cqn_inbox_put_back(cqn_session *self, const cqn_message *message);

/* Removes and returns the first message; there must be one. */
cqn_message cqn_inbox_pop(cqn_session *self);

/* Adds a receive to the end of the list, or removes it. */
void cqn_inbox_wait(cqn_session *self, cqn_receive *receive);
void cqn_inbox_leave(cqn_session *self, cqn_receive *receive);

/* Fails all receives when nothing will arrive any more. -1 as above. */
int cqn_inbox_fail(cqn_session *self, PyObject *error);

#endif
