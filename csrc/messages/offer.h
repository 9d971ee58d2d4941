/* SPDX-License-Identifier: MIT */
/* Offers a message to the peer, which reads it: see offer.c. */
#ifndef CQN_MESSAGES_OFFER_H
#define CQN_MESSAGES_OFFER_H

#include "messages/messages.h"

/* Whether this code offers a message of these frames: the peer takes it, and nothing about it takes
 * long. Else the Session does, or says what is wrong. */
bool cqn_offer_is_simple(const cqn_session *self, const cqn_frame *frames, Py_ssize_t n,
                         uint64_t nbytes);

/* Registers the frames of the message that is next, and offers it. 1; 0: it has to wait; -1 with an
 * exception; or *error is set, a new reference: the message cannot be sent. It can run any code. */
int cqn_offer_post(cqn_session *self, cqn_sending *sending, PyObject **error);

/* Lets go of what was registered for it. An exception that is set stays set. */
void cqn_offer_release(cqn_sending *sending);

#endif
