/* SPDX-License-Identifier: MIT */
/* The posts of a session, see post.c. */
#ifndef CQN_MESSAGES_POST_H
#define CQN_MESSAGES_POST_H

#include "messages/messages.h"

/* Calls a method of the Session: see cqn_do_method(). */
static inline int cqn_session_do(cqn_session *self, const char *method, PyObject *argument)
{
    return cqn_do_method((PyObject *)self, method, argument);
}

/* The same. Steals the argument; NULL: an exception is already set. Returns -1 with an
 * exception. */
int cqn_session_tell(cqn_session *self, const char *method, PyObject *argument);

/* Passes the current exception to the Session, if it is an Exception: the connection is lost.
 * Returns -1 with an exception that must end the loop. */
int cqn_session_failed(cqn_session *self);

/* Posts the receives whose messages were taken, then the pending frames. Returns -1 with an
 * exception. */
int cqn_session_flush(cqn_session *self);

/* Schedules a flush at the end of this iteration: the loop calls _flush() in its next one, unless
 * the callback flushes. Returns -1 with an exception. */
int cqn_session_flush_soon(cqn_session *self);

/* The same as cqn_session_flush(), with a failure being the loss of the connection. Returns -1 with
 * an exception that must end the loop. */
int cqn_session_flush_or_fail(cqn_session *self);

/* Sends an ACK if there is free memory; otherwise it remains due. Returns -1 with an exception. */
int cqn_session_send_ack(cqn_session *self, uint8_t flags);

/* Called when the memory of a message is free, so its receive is posted again. */
void cqn_session_repost(cqn_session *self, uint32_t slot);

/* Handles completions without an event, of receives or reads. Returns -1 with an exception that
 * must end the loop. */
int cqn_session_look(cqn_session *self, cqn_engine *engine);

/* Whether something waits for the completion of a send, except a failure. */
bool cqn_session_awaits_sends(const cqn_session *self);

/* If something does, the completions of sends wake this end from now on. Called whenever that may
 * have begun. Can run arbitrary code. Keeps the current exception. */
void cqn_session_expect_sends(cqn_session *self);

/* Called when something begins to wait for the peer, whose device is then probed from time to time.
 * Returns -1 with an exception. */
int cqn_session_see_to_probes(cqn_session *self);

/* Called for an event of sends: if nothing waited for it, there will be no more. */
void cqn_session_sends_completed(cqn_session *self);

#endif
