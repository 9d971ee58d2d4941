/* SPDX-License-Identifier: MIT */
/* Parses and writes the bytes of frames. All numbers are little-endian and unaligned. */

#include "messages/wire.h"

#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

bool cqn_breaks(cqn_breach *breach, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(breach->text, sizeof(breach->text), format, args);
    va_end(args);
    return false;
}

/* ---- numbers ---- */

static uint16_t get16(const uint8_t *at)
{
    uint16_t n;
    memcpy(&n, at, sizeof(n));
    return le16toh(n);
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t n;
    memcpy(&n, at, sizeof(n));
    return le32toh(n);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t n;
    memcpy(&n, at, sizeof(n));
    return le64toh(n);
}

static void put32(uint8_t *at, uint32_t n)
{
    n = htole32(n);
    memcpy(at, &n, sizeof(n));
}

static void put64(uint8_t *at, uint64_t n)
{
    n = htole64(n);
    memcpy(at, &n, sizeof(n));
}

static cqn_remote get_remote(const uint8_t *at)
{
    return (cqn_remote){.length = get64(at), .addr = get64(at + 8), .rkey = get32(at + 16)};
}

static void put_remote(uint8_t *at, const cqn_remote *remote)
{
    put64(at, remote->length);
    put64(at + 8, remote->addr);
    put32(at + 16, remote->rkey);
}

/* ---- the header ---- */

static const struct {
    const char *name;
    uint8_t flags; /* the allowed ones */
} kinds[] = {[CQN_DATA] = {"DATA", CQN_LAST},
             [CQN_OFFER] = {"OFFER", CQN_LAST},
             [CQN_ACK] = {"ACK", CQN_CLOSING},
             [CQN_CLOSE] = {"CLOSE", 0},
             [CQN_ERROR] = {"ERROR", 0}};

bool cqn_parse_header(const uint8_t *frame, size_t size, cqn_header *out, cqn_breach *breach)
{
    if (size < CQN_HEADER_SIZE) {
        return cqn_breaks(breach, "a frame of %zu bytes has no header", size);
    }
    const uint8_t kind = frame[0], flags = frame[1];
    const uint16_t zero = get16(frame + 2);
    if (kind < CQN_DATA || kind > CQN_ERROR) {
        return cqn_breaks(breach, "a frame of the unknown kind %d", kind);
    }
    if (zero != 0 || (flags & ~kinds[kind].flags)) {
        return cqn_breaks(breach, "a frame %s with the flags 0x%x, 0x%x", kinds[kind].name, flags,
                          zero);
    }
    if ((kind == CQN_ACK || kind == CQN_CLOSE) && size != CQN_HEADER_SIZE) {
        return cqn_breaks(breach, "a frame %s of %zu bytes", kinds[kind].name, size);
    }
    *out = (cqn_header){.kind = (cqn_frame_kind)kind,
                        .flags = flags,
                        .credits_returned = get32(frame + 4),
                        .offers_read = get32(frame + 8)};
    return true;
}

void cqn_put_header(uint8_t *into, const cqn_header *header)
{
    into[0] = (uint8_t)header->kind;
    into[1] = header->flags;
    into[2] = into[3] = 0;
    put32(into + 4, header->credits_returned);
    put32(into + 8, header->offers_read);
}

/* ---- messages ---- */

static bool check_count(uint32_t count, const cqn_limits *limits, cqn_breach *breach)
{
    return count <= limits->max_frames ||
           cqn_breaks(breach, "a message of %" PRIu32 " frames: at most %" PRIu32 " are taken",
                      count, limits->max_frames);
}

static bool check_total(uint64_t nbytes, const cqn_limits *limits, cqn_breach *breach)
{
    return nbytes <= limits->max_message ||
           cqn_breaks(breach, "a message of %" PRIu64 " bytes: at most %" PRIu64 " are taken",
                      nbytes, limits->max_message);
}

uint32_t cqn_data_length(const uint8_t *frame, uint32_t i)
{
    return get32(frame + cqn_data_size(i, 0));
}

/* The sum cannot overflow: there are at most 2^32 lengths of 32 bits. */
bool cqn_parse_data(const uint8_t *frame, size_t size, const cqn_limits *limits, uint32_t *count,
                    cqn_breach *breach)
{
    if (size < cqn_data_size(0, 0)) {
        return cqn_breaks(breach, "a frame DATA of %zu bytes", size);
    }
    const uint32_t n = get32(frame + CQN_HEADER_SIZE);
    const uint64_t table = cqn_data_size(n, 0);
    if (!check_count(n, limits, breach)) {
        return false;
    }
    if (size < table) {
        return cqn_breaks(breach, "a frame DATA of %zu bytes for %" PRIu32 " frames", size, n);
    }
    uint64_t nbytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        nbytes += cqn_data_length(frame, i);
    }
    if (table + nbytes != size) {
        return cqn_breaks(breach, "a frame DATA of %zu bytes, by its table %" PRIu64, size,
                          table + nbytes);
    }
    *count = n;
    return check_total(nbytes, limits, breach);
}

void cqn_put_count(uint8_t *into, uint32_t frames)
{
    put32(into + CQN_HEADER_SIZE, frames);
}

void cqn_put_length(uint8_t *into, uint32_t i, uint32_t length)
{
    put32(into + cqn_data_size(i, 0), length);
}

/* ---- offers ---- */

/* The peer's memory must not be empty, and must end within the address space. */
static bool check_remote(const cqn_remote *remote, cqn_breach *breach)
{
    return (remote->length > 0 && remote->length <= UINT64_C(0) - remote->addr) ||
           cqn_breaks(breach, "an offer of %" PRIu64 " bytes at address 0x%" PRIx64, remote->length,
                      remote->addr);
}

bool cqn_parse_offer(const uint8_t *frame, size_t size, const cqn_limits *limits, cqn_offer *out,
                     cqn_breach *breach)
{
    if (size < CQN_OFFER_SIZE) {
        return cqn_breaks(breach, "a frame OFFER of %zu bytes", size);
    }
    const cqn_offer offer = {get32(frame + CQN_HEADER_SIZE),
                             get_remote(frame + CQN_HEADER_SIZE + CQN_COUNT_SIZE)};
    const uint64_t length = offer.body.length, table = (uint64_t)offer.frames * CQN_ENTRY_SIZE;
    if (!check_count(offer.frames, limits, breach) ||
        (length > table && !check_total(length - table, limits, breach))) {
        return false;
    }
    if (length < table) {
        return cqn_breaks(breach,
                          "an offer of %" PRIu32 " frames with a table of %" PRIu64 " bytes",
                          offer.frames, length);
    }
    *out = offer;
    if (offer.body.addr == 0) {
        return size - CQN_OFFER_SIZE == length ||
               cqn_breaks(breach, "a frame OFFER of %zu bytes with %" PRIu64 " behind it", size,
                          length);
    }
    if (size != CQN_OFFER_SIZE) {
        return cqn_breaks(breach, "a frame OFFER of %zu bytes with its body elsewhere", size);
    }
    return check_remote(&offer.body, breach);
}

void cqn_put_offer(uint8_t *into, const cqn_offer *offer)
{
    cqn_put_count(into, offer->frames);
    put_remote(into + CQN_HEADER_SIZE + CQN_COUNT_SIZE, &offer->body);
}

cqn_remote cqn_entry_at(const uint8_t *body, uint32_t i)
{
    return get_remote(body + (size_t)i * CQN_ENTRY_SIZE);
}

void cqn_put_entry(uint8_t *body, uint32_t i, const cqn_remote *remote)
{
    put_remote(body + (size_t)i * CQN_ENTRY_SIZE, remote);
}

/* The sums cannot overflow: each is compared with the limit before the next length is added. */
bool cqn_parse_body(const uint8_t *body, size_t size, uint32_t count, const cqn_limits *limits,
                    cqn_breach *breach)
{
    uint64_t at = (uint64_t)count * CQN_ENTRY_SIZE, total = 0, smallest = limits->least_remote;
    if (size < at) {
        return cqn_breaks(breach, "an offer with a body of %zu bytes for %" PRIu32 " frames", size,
                          count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const cqn_remote one = cqn_entry_at(body, i);
        total = one.length > UINT64_MAX - total ? UINT64_MAX : total + one.length;
        if (!check_total(total, limits, breach) || (one.addr != 0 && !check_remote(&one, breach))) {
            return false;
        }
        if (one.addr == 0) {
            at += one.length;
        }
        else if (one.length < smallest) {
            smallest = one.length;
        }
    }
    if (at != size) {
        return cqn_breaks(breach, "an offer with a body of %zu bytes, by its table %" PRIu64, size,
                          at);
    }
    return smallest >= limits->least_remote ||
           cqn_breaks(breach,
                      "an offer whose frame of %" PRIu64
                      " bytes does not follow its table: frames of less than %" PRIu64 " bytes do",
                      smallest, limits->least_remote);
}
