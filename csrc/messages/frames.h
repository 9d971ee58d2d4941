/* SPDX-License-Identifier: MIT */
/* The bytes of a message that is sent: see frames.c. */
#ifndef CQN_MESSAGES_FRAMES_H
#define CQN_MESSAGES_FRAMES_H

#include "base/base.h"

/* The bytes of one frame. */
typedef struct {
    const void *bytes;
    uint64_t length;
    Py_buffer view; /* or obj == NULL */
} cqn_frame;

/* Gets the frames of n buffers, and how large they are together; *got is how many views there are
 * to drop. This can run any code: the exporters'. False: not all are simple. */
bool cqn_frames_get(PyObject *const *buffers, Py_ssize_t n, cqn_frame *frames, Py_ssize_t *got,
                    uint64_t *nbytes);

/* Lets go of their views, which can run any code. An exception that is set stays set. */
void cqn_frames_drop(cqn_frame *frames, Py_ssize_t n);

/* Moves them to other memory. */
void cqn_frames_move(cqn_frame *to, const cqn_frame *from, Py_ssize_t n);

#endif
