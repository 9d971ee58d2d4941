/* SPDX-License-Identifier: MIT */
/* A descriptor for event loops, see pollable_flag.c. */
#ifndef CQN_POLLABLE_FLAG_H
#define CQN_POLLABLE_FLAG_H

#include "base/object.h"

typedef struct {
    int fd, raised_fd;
    bool is_open, raised;
} cqn_pollable_flag;

/* Opens both descriptors. -1 with OSError; then cqn_pollable_flag_close() closes what was opened.
 */
int cqn_pollable_flag_open(cqn_pollable_flag *flag, const struct ibv_context *device);

/* Raises or lowers the flag. In a forked child it does nothing: the file is the parent's. */
void cqn_pollable_flag_set(cqn_pollable_flag *flag, const cqn_object *owner, bool raised);

/* Closes the descriptors, once. */
void cqn_pollable_flag_close(cqn_pollable_flag *flag);

#endif
