/* SPDX-License-Identifier: MIT */
/* What the files of the Context share. */
#ifndef CQN_CONTEXT_H
#define CQN_CONTEXT_H

#include "verbs/verbs.h"
#include <net/if.h>
#include <unistd.h>

/* A socket to ask for the names of network devices, opened when it is first needed. */
typedef struct {
    int fd;
    bool is_open;
} cqn_netdev;

static inline void cqn_netdev_close(cqn_netdev *self)
{
    if (self->is_open) {
        close(self->fd);
        self->is_open = false;
    }
}

/* An entry of a GID table, and the name of its network device; empty: it has none, or none that is
 * visible in this network namespace. */
typedef struct {
    struct ibv_gid_entry entry;
    char netdev[IFNAMSIZ]; /* zeros follow the name: answers are compared as bytes */
} cqn_gid_answer;
_Static_assert(sizeof(cqn_gid_answer) == 32 + IFNAMSIZ, "there are no gaps");

/* The struct of a Context. The layers below know only its head. */
typedef struct {
    cqn_context base;
    cqn_reports reports;
    cqn_netdev netdev;
    cqn_closed_counters *closed_counters; /* see closed_counters.c */
    cqn_port_attr port;                   /* the latest answer to query_port(), */
    PyObject *port_attr;                  /* and as a PortAttr; or NULL */
    cqn_gid_answer gid;                   /* the latest answer to query_gid(), */
    PyObject *gid_entry;                  /* and as a GIDEntry; or NULL */
    cqn_channel_counters channels;        /* of all channels, the closed ones included */
    char name[IBV_SYSFS_NAME_MAX];        /* of the device, even when it is closed */
} cqn_device_context;

/* ports.c */

/* A GIDEntry of a valid entry of a port's GID table. NULL with an exception. */
PyObject *cqn_gid_entry(cqn_context *self, const struct ibv_gid_entry *entry);

/* What a function of cqnotify._attr_conversion makes of `raw`, a new reference that it takes over
 * in any case, as cqn_tuple_of() does. NULL with an exception. */
PyObject *cqn_converted(const char *function, PyObject *raw);

/* A list of all valid entries of all ports. NULL with an exception. */
PyObject *cqn_gid_table(cqn_context *self);

#endif
