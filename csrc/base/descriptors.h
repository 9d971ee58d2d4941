/* SPDX-License-Identifier: MIT */
/* Helpers for descriptors that other code opened, and a check for free ones. */
#ifndef CQN_DESCRIPTORS_H
#define CQN_DESCRIPTORS_H

#include <Python.h>

/* Returns 0, or -1 with errno set and no exception. */
int cqn_set_nonblocking(int fd);

/* Returns a duplicate of the descriptor as an int; the caller owns both. NULL with OSError. */
PyObject *cqn_dup(int fd);
extern const char cqn_dup_doc[];

/* The number of descriptors that list_devices() has open at the same time: a netlink socket, two
 * directories and a file. */
#define CQN_DESCRIPTORS 4
#define CQN_NEEDS_DESCRIPTORS "looking for devices takes 4 free descriptors"

/* Returns 0 if CQN_DESCRIPTORS descriptors are free, otherwise an errno. Called before the library
 * is loaded and before devices are listed, because neither the dynamic linker nor libibverbs
 * distinguishes a lack of descriptors from a missing file: a driver that libibverbs fails to load
 * stays missing until the process ends. Another thread can still take the descriptors after the
 * check. */
int cqn_check_descriptors(void);

#endif
