/* SPDX-License-Identifier: MIT */
/*
 * The bytes of frames. Only wire.c parses a peer's frames. It knows nothing of devices, allocates
 * nothing, and reads no byte before it has compared the offset with the length of the frame.
 * docs/internals.md shows the format.
 */
#ifndef CQN_MESSAGES_WIRE_H
#define CQN_MESSAGES_WIRE_H

#include "base/base.h"

typedef enum {
    CQN_DATA = 1, /* a message */
    CQN_OFFER,    /* a message that the receiver reads */
    CQN_ACK,      /* only the counters of the header */
    CQN_CLOSE,    /* the last frame: everything sent by the sender was received */
    CQN_ERROR     /* why the sender closes the connection */
} cqn_frame_kind;

/* Flags. */
#define CQN_LAST 1    /* of a message: it took the last credit */
#define CQN_CLOSING 2 /* of an ACK: the sender receives no more, and waits for its own */

enum {
    CQN_HEADER_SIZE = 12, /* kind, flags, 0, credits_returned, offers_read */
    CQN_COUNT_SIZE = 4,
    CQN_OFFER_SIZE = CQN_HEADER_SIZE + 24, /* and frames; length, address and rkey of the body */
    CQN_ENTRY_SIZE = 20                    /* length, address and rkey of a frame */
};

/* The beginning of each frame. */
typedef struct {
    cqn_frame_kind kind;
    uint8_t flags;
    uint32_t credits_returned, offers_read; /* modulo 2^32 */
} cqn_header;

/* The largest message that this end receives, as announced in its hello; and the smallest frame
 * that an offer leaves in the peer's memory. */
typedef struct {
    uint32_t max_frames;
    uint64_t max_message, least_remote;
} cqn_limits;

/* Memory of the peer; address 0 stands for the bytes that follow. */
typedef struct {
    uint64_t length, addr;
    uint32_t rkey;
} cqn_remote;

/* An offered message. */
typedef struct {
    uint32_t frames;
    cqn_remote body;
} cqn_offer;

/* A breach of the protocol, as text. */
typedef struct {
    char text[160];
} cqn_breach;

/* Fills in a breach, with a format in printf's style. Returns false. */
bool cqn_breaks(cqn_breach *breach, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* These functions return false with a breach of the protocol. */
bool cqn_parse_header(const uint8_t *frame, size_t size, cqn_header *out, cqn_breach *breach);

/* A DATA: `*count` lengths, then the frames. */
bool cqn_parse_data(const uint8_t *frame, size_t size, const cqn_limits *limits, uint32_t *count,
                    cqn_breach *breach);
bool cqn_parse_offer(const uint8_t *frame, size_t size, const cqn_limits *limits, cqn_offer *out,
                     cqn_breach *breach);

/* Checks the table of an offer's body; cqn_entry_at() returns one entry of it. */
bool cqn_parse_body(const uint8_t *body, size_t size, uint32_t count, const cqn_limits *limits,
                    cqn_breach *breach);
cqn_remote cqn_entry_at(const uint8_t *body, uint32_t i);

/* Returns the size of a DATA; with nbytes 0, the offset at which its frames begin. */
static inline uint64_t cqn_data_size(uint64_t frames, uint64_t nbytes)
{
    return CQN_HEADER_SIZE + CQN_COUNT_SIZE * (1 + frames) + nbytes;
}

/* Returns the length of frame i of a parsed DATA. */
uint32_t cqn_data_length(const uint8_t *frame, uint32_t i);

/* Write the parts of a frame; there must be enough memory. */
void cqn_put_header(uint8_t *into, const cqn_header *header);
void cqn_put_count(uint8_t *into, uint32_t frames);              /* of a DATA */
void cqn_put_length(uint8_t *into, uint32_t i, uint32_t length); /* of a DATA */
void cqn_put_offer(uint8_t *into, const cqn_offer *offer);
void cqn_put_entry(uint8_t *body, uint32_t i, const cqn_remote *remote);

#endif
