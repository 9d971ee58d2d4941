/* SPDX-License-Identifier: MIT */
/* A descriptor for event loops, see pollable_flag.c. */
#ifndef CQN_POLLABLE_FLAG_H
#define CQN_POLLABLE_FLAG_H

#include "base/object.h"

typedef struct {
    int fd, raised_fd;
    bool is_open, raised;
} cqn_pollable_flag;

/* Opens both descriptors. Returns -1 with OSError; cqn_pollable_flag_close() is needed even
 * then. */
int cqn_pollable_flag_open(cqn_pollable_flag *flag, const struct ibv_context *device);

/* Raises or lowers the flag. Does nothing in a forked child, which shares the file with its
 * parent. */
void cqn_pollable_flag_set(cqn_pollable_flag *flag, const cqn_object *owner, bool raised);

/* Closes the descriptors; a second call does nothing. */
void cqn_pollable_flag_close(cqn_pollable_flag *flag);

#endif
