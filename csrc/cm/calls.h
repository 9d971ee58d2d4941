/* SPDX-License-Identifier: MIT */
/* How calls are made: in which state, without the GIL, and how the state changes. */
#ifndef CQN_CM_CALLS_H
#define CQN_CM_CALLS_H

#include "cm/cm.h"

#include <errno.h>

#define CQN_CM_IN(state) (1u << CQN_CM_##state)
#define CQN_CM_CONNECTED \
    (CQN_CM_IN(ESTABLISHED) | CQN_CM_IN(DISCONNECTING) | CQN_CM_IN(DISCONNECTED))

/* ---- resolve.c ---- */

/* Returns the open handle if it is in one of these states; NULL with an exception. */
struct rdma_cm_id *cqn_cm_in_state(const cqn_cm_id *self, const char *verb, unsigned int states);

/* Makes a call without the GIL, and sets `result` to 0, or to -1 with an exception. The state
 * changes before the lock is released, because another thread can read the resulting event before
 * the call returns. A call that fails restores the previous state, unless an event has changed
 * it. */
#define CQN_CM_CALL(result, self, verb, leads_to, call, ...)                        \
    do {                                                                            \
        const uint8_t before = (self)->state;                                       \
        int err;                                                                    \
        (self)->state = (leads_to);                                                 \
        CQN_IN_KERNEL(&(self)->base, (result) = (call) == 0 ? 0 : -1; err = errno); \
        if ((result) < 0) {                                                         \
            (self)->state = (self)->state == (leads_to) ? before : (self)->state;   \
            cqn_verbs_error((self)->base.state, err, verb, __VA_ARGS__);            \
        }                                                                           \
    } while (0)

static inline PyObject *cqn_cm_done(int rc)
{
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* Converts the name of a state that events lead to. Returns -1 with an exception. */
int cqn_cm_target_from(PyObject *name, uint8_t *target);

/* iWARP refuses an address when it is resolved, others when the route is. */
#define CQN_CM_LOOPBACK \
    "a loopback address has no RDMA device: use an address of an interface that has one"

/* Resolve the same address once more, and the route to a resolved address. Return -1 with an
 * exception. */
int cqn_cm_resolve_again(cqn_cm_id *self);
int cqn_cm_resolve_route(cqn_cm_id *self, int timeout_ms);

/* Methods of CMID. */
PyObject *cqn_cm_id_resolve_addr(PyObject *op, PyObject *args);
PyObject *cqn_cm_id_resolve_route(PyObject *op, PyObject *timeout);

/* ---- connect.c ---- */

/* Sets an option of level RDMA_OPTION_ID, with the size of that option. Returns -1 with an
 * exception. */
int cqn_cm_set_option(cqn_cm_id *self, int option, int value);

/* Methods of CMID. */

PyObject *cqn_cm_id_bind_qp(PyObject *op, PyObject *qp);
PyObject *cqn_cm_id_is_for(PyObject *op, PyObject *qp);
PyObject *cqn_cm_id_check_mtu(PyObject *op, PyObject *unused);
PyObject *cqn_cm_id_prepare(PyObject *op, PyObject *options);
PyObject *cqn_cm_id_modify_qp(PyObject *op, PyObject *args);
PyObject *cqn_cm_id_connect(PyObject *op, PyObject *target);
PyObject *cqn_cm_id_accept(PyObject *op, PyObject *unused);
PyObject *cqn_cm_id_establish(PyObject *op, PyObject *unused);

/* ---- calls.c: the same ---- */

PyObject *cqn_cm_id_disconnect(PyObject *op, PyObject *unused);

#endif
