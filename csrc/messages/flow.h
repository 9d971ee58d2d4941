/* SPDX-License-Identifier: MIT */
/* Credits, see flow.c. */
#ifndef CQN_MESSAGES_FLOW_H
#define CQN_MESSAGES_FLOW_H

#include "messages/wire.h"

/* The counters of one end; all of them only grow. */
typedef struct {
    PyObject_HEAD
    uint64_t granted_to_peer, granted_by_peer; /* credits at the beginning */
    /* Our messages, and how many of them are offers; how many of them the peer's program has
     * received, and how many offers it has read, by the latest header. */
    uint64_t sent, offers_sent, peer_credits_returned, peer_offers_read;
    /* The same of the peer's messages. */
    uint64_t received, offers_received, credits_returned, offers_read;
    uint64_t last_advertised; /* credits_returned in the latest header that was sent */
    PyObject *read_early;     /* a set: offers that were read before an earlier one; or NULL */
    bool peer_needs_credits;
    /* Whether counters are to be sent, and whether the peer waits for them. */
    bool is_ack_due, is_ack_urgent;
} cqn_flow;

extern PyType_Spec cqn_message_flow_spec;

/* How many messages can be sent. */
static inline uint64_t cqn_flow_credits(const cqn_flow *self)
{
    return self->granted_by_peer + self->peer_credits_returned - self->sent;
}

/* Whether half of the credits are used up, and more may have come. */
static inline bool cqn_flow_is_low(const cqn_flow *self)
{
    return 2 * cqn_flow_credits(self) <= self->granted_by_peer;
}

/* The header of a frame, which must be sent, before any other. */
cqn_header cqn_flow_header(cqn_flow *self, cqn_frame_kind kind);

/* Takes the counters of a frame that has arrived, and stores how many of our offers it reports as
 * read. False with a breach of the protocol. */
bool cqn_flow_on_header(cqn_flow *self, const cqn_header *header, uint64_t *newly,
                        cqn_breach *breach);

/* The program has received a message, whose memory is posted again before the next frame. */
void cqn_flow_return_credit(cqn_flow *self);

/* The peer's offer of this number, from 0, was read; offers can be read out of order. -1 with an
 * exception. */
int cqn_flow_mark_read(cqn_flow *self, uint64_t number);

#endif
