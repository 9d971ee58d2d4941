/* SPDX-License-Identifier: MIT */
/* Credits, see flow.c. */
#ifndef CQN_MESSAGES_FLOW_H
#define CQN_MESSAGES_FLOW_H

#include "messages/wire.h"

/* The counters of one end; they never decrease. */
typedef struct {
    PyObject_HEAD
    uint64_t granted_to_peer, granted_by_peer; /* initial credits */
    /* Messages that this end sent, and how many of them are offers; how many the peer's program has
     * received, and how many offers it has read, by the latest header. */
    uint64_t sent, offers_sent, peer_credits_returned, peer_offers_read;
    /* The same for the peer's messages. */
    uint64_t received, offers_received, credits_returned, offers_read;
    uint64_t last_advertised; /* credits_returned in the latest header sent */
    PyObject *read_early;     /* a set of the offers that were read out of order; or NULL */
    bool peer_needs_credits;
    /* Whether an ACK is due, and whether the peer waits for it. */
    bool is_ack_due, is_ack_urgent;
} cqn_flow;

extern PyType_Spec cqn_message_flow_spec;

/* Returns how many messages can be sent. */
static inline uint64_t cqn_flow_credits(const cqn_flow *self)
{
    return self->granted_by_peer + self->peer_credits_returned - self->sent;
}

/* Whether half of the credits are used up; more may have arrived. */
static inline bool cqn_flow_is_low(const cqn_flow *self)
{
    return 2 * cqn_flow_credits(self) <= self->granted_by_peer;
}

/* Returns the header of the next frame to be sent, and counts it. */
cqn_header cqn_flow_header(cqn_flow *self, cqn_frame_kind kind);

/* Applies the counters of a received frame; *newly: how many more of our offers it reports as read.
 * Returns false with a breach of the protocol. */
bool cqn_flow_on_header(cqn_flow *self, const cqn_header *header, uint64_t *newly,
                        cqn_breach *breach);

/* Called when the program has received a message; its memory is posted again before the next
 * frame. */
void cqn_flow_return_credit(cqn_flow *self);

/* Marks the peer's offer of this number, from 0, as read; the order is arbitrary. Returns -1 with
 * an exception. */
int cqn_flow_mark_read(cqn_flow *self, uint64_t number);

#endif
