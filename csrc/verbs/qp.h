/* SPDX-License-Identifier: MIT */
/* What the files of the QP share. */
#ifndef CQN_QP_H
#define CQN_QP_H

#include "verbs/verbs.h"

/* qp_create.c */
PyObject *cqn_qp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* qp_modify.c */
PyObject *cqn_qp_modify(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char cqn_qp_fail_doc[];
PyObject *cqn_qp_fail(PyObject *self, PyObject *unused);
PyObject *cqn_qp_check(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cqn_qp_query(PyObject *self, PyObject *unused);

/* qp_probe.c */
extern const char cqn_qp_probe_doc[];
PyObject *cqn_qp_probe(PyObject *self, PyObject *unused);

/* qp_close.c */
extern const cqn_kind cqn_qp_kind;

/* After a reset. What the CQs still hold is kept, and of the wr_ids those that may still come. */
void cqn_qp_forget_requests(cqn_qp *self);

#endif
