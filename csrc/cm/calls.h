/* SPDX-License-Identifier: MIT */
/* How a call is made: in which state, without the GIL, and what becomes of the state. */
#ifndef CQN_CM_CALLS_H
#define CQN_CM_CALLS_H

#include "cm/cm.h"

#include <errno.h>

#define CQN_CM_IN(state) (1u << CQN_CM_##state)
#define CQN_CM_CONNECTED \
    (CQN_CM_IN(ESTABLISHED) | CQN_CM_IN(DISCONNECTING) | CQN_CM_IN(DISCONNECTED))

/* ---- resolve.c ---- */

/* The open handle in one of these states, or NULL with an exception. */
struct rdma_cm_id *cqn_cm_in_state(const cqn_cm_id *self, const char *verb, unsigned int states);

/* Makes a call without the GIL, and sets `result` to 0, or to -1 with an exception. The state
 * changes before the lock is released: the event that follows can be read by another thread before
 * the call returns. A call that fails leaves the state that was before, unless an event has changed
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

/* From the name of a state that events lead to. -1 with an exception. */
int cqn_cm_target_from(PyObject *name, uint8_t *target);

/* On iWARP an address is refused as it is resolved, else as the route is. */
#define CQN_CM_LOOPBACK \
    "a loopback address has no RDMA device: use an address of an interface that has one"

/* Finds the way to the same address once more, and the way to an address that is known. -1 with an
 * exception. */
int cqn_cm_resolve_again(cqn_cm_id *self);
int cqn_cm_resolve_route(cqn_cm_id *self, int timeout_ms);

/* Methods of CMID. */
PyObject *cqn_cm_id_resolve_addr(PyObject *op, PyObject *args);
PyObject *cqn_cm_id_resolve_route(PyObject *op, PyObject *timeout);

/* ---- connect.c ---- */

/* Sets one of RDMA_OPTION_ID; its size is that of the option. -1 with an exception. */
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
