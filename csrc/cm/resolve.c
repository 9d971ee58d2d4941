/* SPDX-License-Identifier: MIT */
/*
 * The states of an identifier, and its first calls, which resolve an address and its route. Methods
 * make these calls, and so do the steps that the core takes itself (connect.c).
 */

#include "cm/calls.h"

/* ---- states ---- */

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

#define TARGETS                                                                    \
    (CQN_CM_IN(ADDR_RESOLVED) | CQN_CM_IN(ROUTE_RESOLVED) | CQN_CM_IN(RESPONDED) | \
     CQN_CM_IN(ESTABLISHED))

int cqn_cm_target_from(PyObject *name, uint8_t *target)
{
    for (uint8_t state = 0; PyUnicode_Check(name) && state < CQN_CM_STATES; state++) {
        if ((TARGETS & (1u << state)) != 0 &&
            PyUnicode_CompareWithASCIIString(name, cqn_cm_state_names[state]) == 0) {
            *target = state;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "%R is no state that events lead to", name);
    return -1;
}

/* ---- address and route ---- */

/* If two calls resolve the same neighbour at the same time, the kernel can miss the reply for one
 * of them, and checks again when the time of the call is over. So the time is split, into calls of
 * this many milliseconds. */
#define RESOLVE_TRY_MS 500

static int resolve(cqn_cm_id *self, struct sockaddr *from, struct sockaddr *to, PyObject *name)
{
    struct rdma_cm_id *id =
        cqn_cm_in_state(self, "rdma_resolve_addr", CQN_CM_IN(NEW) | CQN_CM_IN(BOUND));
    if (id == NULL) {
        return -1;
    }
    const int ms = Py_MIN(self->left_ms, RESOLVE_TRY_MS);
    self->left_ms -= ms;
    int rc;
    CQN_CM_CALL(rc, self, "rdma_resolve_addr", CQN_CM_RESOLVING_ADDR,
                CQN_CM(resolve_addr, id, from, to, ms), "to %R%s", name,
                err == EINVAL ? "; " CQN_CM_LOOPBACK : "");
    return rc;
}

int cqn_cm_resolve_again(cqn_cm_id *self)
{
    struct rdma_cm_id *id = cqn_open(&self->base);
    if (id == NULL) {
        return -1;
    }
    struct sockaddr_storage to = id->route.addr.dst_storage; /* the library's copy */
    PyObject *name = cqn_cm_sockaddr_to((struct sockaddr *)&to);
    const int rc = name == NULL ? -1 : resolve(self, NULL, (struct sockaddr *)&to, name);
    Py_XDECREF(name);
    return rc;
}

int cqn_cm_resolve_route(cqn_cm_id *self, int timeout_ms)
{
    struct rdma_cm_id *id = cqn_cm_in_state(self, "rdma_resolve_route", CQN_CM_IN(ADDR_RESOLVED));
    if (id == NULL) {
        return -1;
    }
    int rc;
    CQN_CM_CALL(rc, self, "rdma_resolve_route", CQN_CM_RESOLVING_ROUTE,
                CQN_CM(resolve_route, id, timeout_ms), CQN_CM_LOOPBACK);
    return rc;
}

/* ---- methods ---- */

static int milliseconds(PyObject *value, int *out)
{
    uint64_t n;
    if (cqn_uint(value, "timeout_ms", INT32_MAX, &n) < 0) {
        return -1;
    }
    *out = (int)n;
    return 0;
}

/* Arguments: (source or None, destination, milliseconds, target). */
PyObject *cqn_cm_id_resolve_addr(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_cm_id *self = (cqn_cm_id *)op;
    PyObject *source, *destination, *timeout, *target;
    struct sockaddr_storage from, to;
    uint8_t state;
    int ms;
    if (!PyArg_ParseTuple(args, "OOOO:resolve_addr", &source, &destination, &timeout, &target) ||
        (source != Py_None && cqn_cm_sockaddr_from(source, &from) < 0) ||
        cqn_cm_sockaddr_from(destination, &to) < 0 || milliseconds(timeout, &ms) < 0 ||
        cqn_cm_target_from(target, &state) < 0) {
        return NULL;
    }
    self->target = state;
    self->left_ms = ms;
    return cqn_cm_done(resolve(self, source == Py_None ? NULL : (struct sockaddr *)&from,
                               (struct sockaddr *)&to, destination));
}

PyObject *cqn_cm_id_resolve_route(PyObject *op, PyObject *timeout)
{
    CQN_LOCKED;
    int ms;
    return milliseconds(timeout, &ms) < 0 ? NULL
                                          : cqn_cm_done(cqn_cm_resolve_route((cqn_cm_id *)op, ms));
}
