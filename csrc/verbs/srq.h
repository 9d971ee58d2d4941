/* SPDX-License-Identifier: MIT */
/* What the files of the SRQ share. */
#ifndef CQN_SRQ_H
#define CQN_SRQ_H

#include "verbs/verbs.h"

/* srq_create.c */
PyObject *cqn_srq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Sets the size or the limit. -1 with an exception. */
int cqn_srq_set(cqn_srq *self, struct ibv_srq_attr attr, int mask);

/* Converts the argument `max_wr`, which the device limits. -1 with an exception. */
int cqn_check_srq_size(const struct ibv_device_attr *device, PyObject *value, uint32_t *out);

/* srq_ops.c */
extern const char cqn_srq_post_ops_doc[];
PyObject *cqn_srq_post_ops(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);

#endif
