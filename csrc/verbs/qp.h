/* SPDX-License-Identifier: MIT */
/* What the files of the QP share. */
#ifndef CQN_QP_H
#define CQN_QP_H

#include "verbs/verbs.h"

/* qp_create.c */
PyObject *cqn_qp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
extern const char cqn_qp_open_doc[];
PyObject *cqn_qp_open(PyObject *type, PyObject *args, PyObject *kwargs);

/* qp_ece.c */
extern const char cqn_qp_query_ece_doc[], cqn_qp_set_ece_doc[];
extern const char cqn_qp_query_data_in_order_doc[];
PyObject *cqn_qp_query_ece(PyObject *self, PyObject *unused);
PyObject *cqn_qp_set_ece(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
PyObject *cqn_qp_query_data_in_order(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                     PyObject *kwnames);

/* qp_modify.c */
PyObject *cqn_qp_modify(PyObject *self, PyObject *args, PyObject *kwargs);
extern const char cqn_qp_fail_doc[];
PyObject *cqn_qp_fail(PyObject *self, PyObject *unused);
PyObject *cqn_qp_check(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cqn_qp_query(PyObject *self, PyObject *unused);
extern const char cqn_qp_query_state_doc[];
PyObject *cqn_qp_query_state(PyObject *self, PyObject *unused);

/* The state of a queue pair as the device has it, or `known` where it does not say. Without the
 * GIL. */
enum ibv_qp_state cqn_qp_ask_state(struct ibv_qp *qp, enum ibv_qp_state known);

/* qp_transitions.c */

#define CQN_EXPLAINED 512 /* bytes that any explanation has room in */

/* Says what attributes are missing for a transition or are not of it, or that there is none. False:
 * nothing of that, and so a value is wrong. */
bool cqn_qp_explain(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask,
                    char buffer[CQN_EXPLAINED]);

/* qp_probe.c */
extern const char cqn_qp_probe_doc[];
PyObject *cqn_qp_probe(PyObject *self, PyObject *unused);

/* qp_close.c */
extern const cqn_kind cqn_qp_kind;

/* After a reset. What the CQs still hold is kept, and of the wr_ids those that may still come. */
void cqn_qp_forget_requests(cqn_qp *self);

#endif
