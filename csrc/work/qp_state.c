/* SPDX-License-Identifier: MIT */
/* What posting and modify() must know of the state of a queue pair: how long its messages may be,
 * whether it is ready, and whether another thread is changing it. The type is in verbs/qp.c. */

#include "work/objects.h"

/* Asks the port how long a message may be: a datagram must fit one packet. */
uint32_t cqn_qp_ask_limit(struct ibv_qp *qp, uint8_t port_num)
{
    struct ibv_port_attr port = {.flags = 0};
    if (ibv_query_port(qp->context, port_num, &port) != 0) {
        return UINT32_MAX;
    }
    return qp->qp_type == IBV_QPT_UD ? UINT32_C(128) << port.active_mtu : port.max_msg_sz;
}

/* In the midst of a post, which keeps the GIL until the device has the request. */
uint32_t cqn_qp_learn_limit(cqn_qp *self)
{
    self->max_message = cqn_qp_ask_limit(self->base.handle, self->port_num);
    return self->max_message;
}

/* Waits until no other thread is inside a call that changes it, so that what we
 * note of it is what the device did last. */
int cqn_qp_await_turn(cqn_qp *self)
{
    while (cqn_open(&self->base) != NULL) {
        if (self->base.in_use == 0 || cqn_is_ending()) {
            return 0;
        }
        cqn_wait_until_left(self->base.state);
    }
    return -1;
}

int cqn_qp_require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb)
{
    if (qp->state >= least) {
        return 0;
    }
    cqn_verbs_error(qp->base.state, EINVAL, verb, "QP %u is in %s, and needs %s: see QP.connect()",
                    qp->qp_num, cqn_qp_state_name(qp->state), cqn_qp_state_name(least));
    return -1;
}
