/* SPDX-License-Identifier: MIT */
/* Shared by the files of Context. */
#ifndef CQN_CONTEXT_H
#define CQN_CONTEXT_H

#include "verbs/verbs.h"
#include <net/if.h>
#include <unistd.h>

/* A socket for queries of network device names, opened on first use. */
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

/* An entry of a GID table, and the name of its network device; empty if it has none, or none
 * visible in this network namespace. */
typedef struct {
    struct ibv_gid_entry entry;
    char netdev[IFNAMSIZ]; /* padded with zeros: answers are compared as bytes */
} cqn_gid_answer;
_Static_assert(sizeof(cqn_gid_answer) == 32 + IFNAMSIZ, "there are no gaps");

/* The struct of a Context. Lower layers know only its head. */
typedef struct {
    cqn_context base;
    cqn_reports reports;
    cqn_netdev netdev;
    cqn_closed_counters *closed_counters; /* see closed_counters.c */
    cqn_port_attr port;                   /* the latest result of query_port(), */
    PyObject *port_attr;                  /* and as a PortAttr; or NULL */
    cqn_gid_answer gid;                   /* the latest result of query_gid(), */
    PyObject *gid_entry;                  /* and as a GIDEntry; or NULL */
    cqn_channel_counters channels;        /* of all channels, including closed ones */
    char name[IBV_SYSFS_NAME_MAX];        /* of the device; valid when closed, too */
} cqn_device_context;

/* ports.c */

/* Returns a GIDEntry for a valid entry of a GID table, a new reference; NULL with an exception. */
PyObject *cqn_gid_entry(cqn_context *self, const struct ibv_gid_entry *entry);

/* Calls a function of cqnotify._attr_conversion with `raw`. Consumes the reference to `raw` in
 * every case, like cqn_tuple_of(). NULL with an exception. */
PyObject *cqn_converted(const char *function, PyObject *raw);

/* Returns a list of all valid entries of all ports, a new reference; NULL with an exception. */
PyObject *cqn_gid_table(cqn_context *self);

#endif
