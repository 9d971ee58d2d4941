/* SPDX-License-Identifier: MIT */
/* The bytes of a message to be sent: see frames.c. */
#ifndef CQN_MESSAGES_FRAMES_H
#define CQN_MESSAGES_FRAMES_H

#include "base/base.h"

/* The bytes of one frame. */
typedef struct {
    const void *bytes;
    uint64_t length;
    Py_buffer view; /* obj == NULL: none */
} cqn_frame;

/* Gets the frames of n buffers and their total size; *got: how many of them the caller must drop.
 * Can run arbitrary code of the exporters. Returns false without an exception if not all are
 * simple. */
bool cqn_frames_get(PyObject *const *buffers, Py_ssize_t n, cqn_frame *frames, Py_ssize_t *got,
                    uint64_t *nbytes);

/* Releases the views, which can run arbitrary code. Keeps the current exception. */
void cqn_frames_drop(cqn_frame *frames, Py_ssize_t n);

/* Moves frames to other memory. */
void cqn_frames_move(cqn_frame *to, const cqn_frame *from, Py_ssize_t n);

#endif
