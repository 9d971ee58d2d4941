/* SPDX-License-Identifier: MIT */
/*
 * Copies a message into a frame, and decides when it is posted: the first one of an iteration of
 * the event loop at once; later ones when there are many, when the credits are used up, or at the
 * end of the iteration.
 */

#include "messages/send.h"
#include "await/loop.h"
#include "messages/post.h"

#define MANY 32 /* messages that are posted before the end of the iteration */

bool cqn_send_is_copied(const cqn_session *self, uint64_t frames, uint64_t nbytes)
{
    return frames <= self->peer_max_frames && nbytes <= self->peer_max_message &&
           cqn_data_size(frames, nbytes) <= self->eager;
}

/* If the ring or the queue is full, polls for completions of sends once. */
uint8_t *cqn_send_reserve(cqn_session *self, uint64_t size, bool *failed)
{
    uint8_t *into = cqn_send_queue_reserve(&self->queue, size);
    *failed = false;
    if (into == NULL && !self->taking) {
        *failed = cqn_session_flush(self) < 0 || cqn_session_look(self, self->send_engine) < 0;
        into = *failed || cqn_session_is_over(self) ? NULL
                                                    : cqn_send_queue_reserve(&self->queue, size);
    }
    return into;
}

static void write_message(cqn_session *self, uint8_t *into, const cqn_frame *frames, uint32_t n)
{
    const cqn_header header = cqn_flow_header(self->flow, CQN_DATA);
    uint8_t *at = into + cqn_data_size(n, 0);
    cqn_put_header(into, &header);
    cqn_put_count(into, n);
    for (uint32_t i = 0; i < n; i++) {
        cqn_put_length(into, i, (uint32_t)frames[i].length);
        if (frames[i].length > 0) { /* else `bytes` may be NULL */
            memcpy(at, frames[i].bytes, frames[i].length);
        }
        at += frames[i].length;
    }
}

/* Called after a message was added. Returns -1 with an exception. */
static int post_now_or_soon(cqn_session *self)
{
    const uint64_t now = cqn_iteration_now();
    if (self->turn != now && !self->flush_is_due) {
        self->turn = now;
        return cqn_session_flush(self);
    }
    if (self->queue.pending >= MANY || cqn_flow_credits(self->flow) == 0) {
        return cqn_session_flush(self);
    }
    return cqn_session_flush_soon(self);
}

int cqn_send_frames(cqn_session *self, uint8_t *into, const cqn_frame *frames, Py_ssize_t n)
{
    assert(cqn_flow_credits(self->flow) > 0 && !cqn_session_is_over(self));
    write_message(self, into, frames, (uint32_t)n);
    cqn_send_queue_add(&self->queue, true, NULL);
    return post_now_or_soon(self);
}
