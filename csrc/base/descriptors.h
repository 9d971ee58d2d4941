/* SPDX-License-Identifier: MIT */
/* Descriptors that others made, and whether some are free. */
#ifndef CQN_DESCRIPTORS_H
#define CQN_DESCRIPTORS_H

#include <Python.h>

/* -1 with errno, but no exception. */
int cqn_set_nonblocking(int fd);

/* A duplicate, as an int that the caller owns; NULL with OSError. */
PyObject *cqn_dup(int fd);
extern const char cqn_dup_doc[];

/* The descriptors that list_devices() opens at the same time: a socket of netlink, two folders and
 * a file. */
#define CQN_DESCRIPTORS 4
#define CQN_NEEDS_DESCRIPTORS "looking for devices takes 4 free descriptors"

/* Returns 0 where so many are free, else an errno. It comes before a library is loaded, and before
 * devices are listed, since neither the linker nor libibverbs distinguishes a lack of descriptors
 * from what does not exist: a driver that libibverbs could not load is missing for as long as the
 * process lives. Another thread may take them meanwhile. */
int cqn_check_descriptors(void);

#endif
