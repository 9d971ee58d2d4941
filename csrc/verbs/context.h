/* SPDX-License-Identifier: MIT */
/* What the files of the Context share. */
#ifndef CQN_CONTEXT_H
#define CQN_CONTEXT_H

#include "verbs/verbs.h"

/* With what the layers below, which know a context by its head, need for each. */
typedef struct {
    cqn_context base;
    cqn_reports reports;
    cqn_netdev netdev;
    cqn_tally *tallies;            /* see tally.c */
    cqn_port_attr port;            /* the latest that a port has answered, */
    PyObject *port_fields;         /* and as a tuple; or NULL */
    cqn_channel_counters channels; /* of them all, the closed ones included */
    char name[IBV_SYSFS_NAME_MAX]; /* of the device, also when it is closed */
} cqn_device_context;

/* context_query.c */
PyObject *cqn_context_query_device(PyObject *self, PyObject *unused);
PyObject *cqn_context_query_device_ex(PyObject *self, PyObject *unused);
PyObject *cqn_context_query_rt_values(PyObject *self, PyObject *unused);
PyObject *cqn_context_query_port(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *cqn_context_query_pkey(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *cqn_context_query_gid_table(PyObject *self, PyObject *unused);
PyObject *cqn_context_query_gid(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames);

#endif
