/* SPDX-License-Identifier: MIT */
/* What is asked of librdmacm both by methods and by the steps that the core takes itself. */

#include "cm/calls.h"

/* Where two ask for a neighbour at once, the kernel can miss its answer for one of them, and looks
 * again when its time is over: so the time is split, in milliseconds. */
#define RESOLVE_TRY_MS 500

int cqn_cm_resolve(cqn_cm_id *self, struct sockaddr *from, struct sockaddr *to, PyObject *name)
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
    struct sockaddr_storage to = id->route.addr.dst_storage; /* the library copies it there */
    PyObject *name = cqn_cm_sockaddr_to((struct sockaddr *)&to);
    const int rc = name == NULL ? -1 : cqn_cm_resolve(self, NULL, (struct sockaddr *)&to, name);
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

int cqn_cm_set_option(cqn_cm_id *self, int option, int value)
{
    struct rdma_cm_id *id =
        cqn_cm_in_state(self, "rdma_set_option", ~(CQN_CM_IN(DISCONNECTED) | CQN_CM_IN(FAILED)));
    if (id == NULL) {
        return -1;
    }
    const bool is_byte = option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT;
    uint8_t byte = (uint8_t)value;
    void *at = is_byte ? (void *)&byte : (void *)&value;
    const size_t size = is_byte ? sizeof(byte) : sizeof(value);
    int rc;
    CQN_CM_CALL(rc, self, "rdma_set_option", self->state,
                CQN_CM(set_option, id, RDMA_OPTION_ID, option, at, size), "option %d, value %d",
                option, value);
    return rc;
}
