/* SPDX-License-Identifier: MIT */
/* What a session posts, and when: see post.c. */
#ifndef CQN_MESSAGES_POST_H
#define CQN_MESSAGES_POST_H

#include "messages/messages.h"

/* Calls a method of the Session: see cqn_do_method(). */
static inline int cqn_session_do(cqn_session *self, const char *method, PyObject *argument)
{
    return cqn_do_method((PyObject *)self, method, argument);
}

/* The same. Steals the argument; NULL is one that could not be made. */
int cqn_session_tell(cqn_session *self, const char *method, PyObject *argument);

/* Has the Session handle the exception that is set, if it is an Exception: the connection is lost.
 * -1 with one that must end the loop. */
int cqn_session_failed(cqn_session *self);

/* Posts the receives whose messages were taken, and then the frames that wait for that. -1 with an
 * exception. */
int cqn_session_flush(cqn_session *self);

/* Has what waits posted at the end of this turn: asks the loop to call _flush() in its next one,
 * unless the callback does so. -1 with an exception. */
int cqn_session_flush_soon(cqn_session *self);

/* Posts them; a failure is the loss of the connection. -1 with an exception that must end the loop.
 */
int cqn_session_flush_or_fail(cqn_session *self);

/* Sends an ACK if there is room for it; else it remains due. -1 with an exception. */
int cqn_session_send_ack(cqn_session *self, uint8_t flags);

/* The memory of a message is free: the receive is to be posted again. */
void cqn_session_repost(cqn_session *self, uint32_t slot);

/* Handles what has completed without an event: receives, or reads. -1 with an exception that must
 * end the loop. */
int cqn_session_look(cqn_session *self, cqn_engine *engine);

/* Whether something waits for the completion of a send, other than a failure. */
bool cqn_session_awaits_sends(const cqn_session *self);

/* If something does, the completions of sends wake this end from now on. To be called when that may
 * have begun. It can run any code. An exception that is set stays set. */
void cqn_session_expect_sends(cqn_session *self);

/* Something waits for the peer now, whose device is probed from time to time. -1 with an exception.
 */
int cqn_session_see_to_probes(cqn_session *self);

/* An event of sends has come: if nothing has waited for it, there are no more. */
void cqn_session_sends_completed(cqn_session *self);

#endif
