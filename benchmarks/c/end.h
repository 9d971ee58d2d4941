/* SPDX-License-Identifier: MIT */
/* One end of an RC connection between a subject and its peer, and what a run with it costs.
 *
 * The two meet on the socket of bench_peer(): the subject writes a line that says what the peer
 * shall do (peer.c knows which), and at the first of them, "connect SIZE", both exchange their
 * addresses, in the records of rdma-core's ping-pong programs. */

#ifndef END_H
#define END_H

#include "bench.h"

enum {
    SLOTS = 64,        /* receives that are posted */
    SIGNAL_EVERY = 32, /* sends: one of them is signaled, and reaped */
    ACK_BATCH = 32,    /* events that are acknowledged at once */
};

/* Receives go into the CQ that bench_open() made, which has a channel; sends into one without. */
struct end {
    struct bench bench;
    struct ibv_cq *send_cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;       /* SLOTS receives, and a message to send */
    uint32_t size;      /* of each receive */
    uint32_t send_size; /* of each message; the same, unless set to less */
    unsigned sent;
    unsigned unacked;
    long events, arms, spurious;
};

/* Posts all receives and connects. An end that sleeps for the first message arms the CQ before the
 * two meet, since neither sends before that. */
void end_open(struct end *end, uint32_t size);
void end_meet(void);
/* For the subject, which is the first to send or to have sent: does both, and makes the other end
 * do so. */
void end_connect(struct end *end, uint32_t size);
void end_order(const char *format, ...);
void end_close(struct end *end);

void end_post_recv(struct end *end, uint64_t slot);
void end_post_send(struct end *end, unsigned send_flags);
void end_reap_send(struct end *end);
/* Writes the time into the message that is sent, as its first 8 bytes. */
void end_stamp(struct end *end, int64_t time);
/* Posts the message, and reaps signaled sends. */
void end_send(struct end *end);

void end_arm(struct end *end, bool solicited_only);
/* Sleeps until there is a completion. */
void end_get_event(struct end *end);
void end_ack_rest(struct end *end);
int end_poll(struct end *end, int max_entries, struct ibv_wc *wcs);

/* What a run uses from start to print. `clock` is that of the world or of our CPU. */
struct meter {
    clockid_t clock;
    int64_t start;
    long events, arms, spurious, wakeups;
};
void meter_start(struct meter *meter, clockid_t clock, const struct end *end);
/* Prints `"name": {...}`, the figures of one case. */
void meter_print(const struct meter *meter, const struct end *end, const char *name, long ops);

#endif
