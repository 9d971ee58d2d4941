/* SPDX-License-Identifier: MIT */
/* The states of an identifier, by name and as what a call needs. */

#include "cm/calls.h"

const char *const cqn_cm_state_names[CQN_CM_STATES] = {
    "NEW",           "BOUND",           "LISTENING",      "RESOLVING_ADDR",
    "ADDR_RESOLVED", "RESOLVING_ROUTE", "ROUTE_RESOLVED", "CONNECTING",
    "RESPONDED",     "REQUESTED",       "ACCEPTING",      "JOINING",
    "ESTABLISHED",   "DISCONNECTING",   "DISCONNECTED",   "FAILED",
};

struct rdma_cm_id *cqn_cm_in_state(const cqn_cm_id *self, const char *verb, unsigned int states)
{
    struct rdma_cm_id *id = cqn_open(&self->base);
    if (id != NULL && !(states & (1u << self->state))) {
        PyErr_Format(PyExc_RuntimeError, "%s(): the state of this CMID is %s", verb,
                     cqn_cm_state_names[self->state]);
        return NULL;
    }
    return id;
}

#define GOALS                                                                      \
    (CQN_CM_IN(ADDR_RESOLVED) | CQN_CM_IN(ROUTE_RESOLVED) | CQN_CM_IN(RESPONDED) | \
     CQN_CM_IN(ESTABLISHED))

int cqn_cm_goal_from(PyObject *name, uint8_t *goal)
{
    for (uint8_t state = 0; PyUnicode_Check(name) && state < CQN_CM_STATES; state++) {
        if ((GOALS & (1u << state)) != 0 &&
            PyUnicode_CompareWithASCIIString(name, cqn_cm_state_names[state]) == 0) {
            *goal = state;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%R is no state that events lead to", name);
    return -1;
}
