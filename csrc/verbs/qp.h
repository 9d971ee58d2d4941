/* SPDX-License-Identifier: MIT */
/* Shared by the files of QP. */
#ifndef CQN_QP_H
#define CQN_QP_H

#include "verbs/verbs.h"

/* qp_create.c */

/* QP(): creates a queue pair of this kind. NULL with an exception. */
PyObject *cqn_qp_create(PyTypeObject *type, const cqn_kind *kind, PyObject *args, PyObject *kwargs);

/* QP.open(): opens a queue pair of another process. NULL with an exception. */
PyObject *cqn_qp_open(PyTypeObject *type, const cqn_kind *kind, PyObject *args, PyObject *kwargs);

/* qp_modify.c */
PyObject *cqn_qp_modify(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cqn_qp_fail(PyObject *self, PyObject *unused);
PyObject *cqn_qp_check_modify(PyObject *self, PyObject *args, PyObject *kwargs);

/* The queues of a queue pair whose CQ has no completion of theirs. */
typedef struct {
    bool send, recv;
} cqn_drained;

/* Moves the completions in its CQs to their stashes, before the queue pair is reset or closed. */
cqn_drained cqn_qp_drain(const cqn_qp *self, cqn_object **deferred);

/* After a reset: keeps the completions still in the CQs, and the wr_ids of requests that may yet
 * complete. */
void cqn_qp_forget_requests(cqn_qp *self);

/* qp_transitions.c */

#define CQN_EXPLAINED 512 /* the size of the longest explanation */

/* Explains that attributes of a transition are missing or not allowed, or that there is no such
 * transition. Returns false if neither is the case: then a value is wrong. */
bool cqn_qp_explain(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask,
                    char buffer[CQN_EXPLAINED]);

/* qp_mcast.c */
PyObject *cqn_qp_attach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_qp_detach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);

/* Detaches a queue pair from its multicast groups and destroys it. Called without the GIL. Returns
 * an errno. */
int cqn_qp_destroy_in_groups(struct ibv_qp *qp);

#endif
