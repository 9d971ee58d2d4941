/* SPDX-License-Identifier: MIT */
/* What the files of the QP share. */
#ifndef CQN_QP_H
#define CQN_QP_H

#include "verbs/verbs.h"

/* The state of a queue pair as the device has it, or `known` if the device does not say; and,
 * unless that is NULL, whether its send queue is still draining. Without the GIL. */
static inline enum ibv_qp_state cqn_qp_query_state(struct ibv_qp *qp, enum ibv_qp_state known,
                                                   bool *draining)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_init_attr init;
    const bool answered = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0;
    if (draining != NULL) {
        *draining = answered && attr.qp_state == IBV_QPS_SQD && attr.sq_draining != 0;
    }
    return answered ? attr.qp_state : known;
}

/* qp_create.c */

/* QP(): a new queue pair of that kind. NULL with an exception. */
PyObject *cqn_qp_create(PyTypeObject *type, const cqn_kind *kind, PyObject *args, PyObject *kwargs);

/* QP.open(): one that another process has created. NULL with an exception. */
PyObject *cqn_qp_open(PyTypeObject *type, const cqn_kind *kind, PyObject *args, PyObject *kwargs);

/* qp_modify.c */
PyObject *cqn_qp_modify(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *cqn_qp_fail(PyObject *self, PyObject *unused);
PyObject *cqn_qp_check_modify(PyObject *self, PyObject *args, PyObject *kwargs);

/* Which queues of a queue pair have no completion left in their CQ. */
typedef struct {
    bool send, recv;
} cqn_drained;

/* Moves what its CQs have to their stashes, before the queue pair is reset or closed. */
cqn_drained cqn_qp_drain(const cqn_qp *self, cqn_object **deferred);

/* After a reset: keeps what the CQs still have, and the wr_ids of what may still complete. */
void cqn_qp_forget_requests(cqn_qp *self);

/* qp_transitions.c */

#define CQN_EXPLAINED 512 /* bytes that any explanation fits in */

/* Writes which attributes a transition lacks or does not take, or that there is no such transition.
 * False: it is none of these, so a value is wrong. */
bool cqn_qp_explain(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask,
                    char buffer[CQN_EXPLAINED]);

/* qp_mcast.c */
PyObject *cqn_qp_attach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_qp_detach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);

/* Destroys a queue pair, which leaves its multicast groups first. Without the GIL. Returns an
 * errno. */
int cqn_qp_destroy_in_groups(struct ibv_qp *qp);

#endif
