/* SPDX-License-Identifier: MIT */
/* Offers a message to the peer, which reads it: see offer.c. */
#ifndef CQN_MESSAGES_OFFER_H
#define CQN_MESSAGES_OFFER_H

#include "messages/messages.h"

/* Whether this code can offer a message of these frames: within the peer's limits, and quickly.
 * Otherwise the Session does, or raises what is wrong. */
bool cqn_offer_is_simple(const cqn_session *self, const cqn_frame *frames, Py_ssize_t n,
                         uint64_t nbytes);

/* Registers the frames of the next message, and offers it. Returns 1; 0 if it has to wait; -1 with
 * an exception. If the message cannot be sent, *error is set to a new reference. Can run arbitrary
 * code. */
int cqn_offer_post(cqn_session *self, cqn_sending *sending, PyObject **error);

/* Releases the registrations of a message. Keeps the current exception. */
void cqn_offer_release(cqn_sending *sending);

#endif
