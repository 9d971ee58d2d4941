/* SPDX-License-Identifier: MIT */
/*
 * What only queue pairs take that were made for it: ATOMIC_WRITE, 8 bytes that the peer sees at
 * once, or none of them; and FLUSH. ibv_post_send() does not know them, they have verbs of their
 * own, see work/post_send.c. Such a queue pair takes the other operations by ibv_post_send() all
 * the same.
 */

#include "verbs/verbs.h"

static int refuse_ops(cqn_object *pd, const char *argument, const char *flags)
{
    cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_create_qp_ex",
                    "%s (query_device_ex().device_cap_flags_ex of %s lack %s)", argument,
                    cqn_device_name(pd), flags);
    return -1;
}

int cqn_check_ops(cqn_object *pd, uint64_t ops)
{
    struct ibv_device_attr_ex attr;
    if (ops == 0) {
        return 0;
    }
    if (cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    const uint64_t has = attr.device_cap_flags_ex;
    if ((ops & IBV_QP_EX_WITH_ATOMIC_WRITE) && !(has & CQN_DEVICE_ATOMIC_WRITE)) {
        return refuse_ops(pd, "atomic_write", "ATOMIC_WRITE");
    }
    if ((ops & CQN_QP_EX_WITH_FLUSH) &&
        !(has & (CQN_DEVICE_FLUSH_GLOBAL | CQN_DEVICE_FLUSH_PERSISTENT))) {
        return refuse_ops(pd, "flush", "FLUSH_GLOBAL and FLUSH_PERSISTENT");
    }
    return 0;
}

void cqn_refuse_provider(cqn_object *qp, uint64_t ops)
{
    const bool flush = ops & CQN_QP_EX_WITH_FLUSH;
    cqn_verbs_error(qp->state, EOPNOTSUPP, "ibv_create_qp_ex",
                    "%s: %s has it, but not its provider of this libibverbs; that of Soft-RoCE has "
                    "it from rdma-core %d on",
                    flush ? "flush" : "atomic_write", cqn_device_name(qp), flush ? 47 : 44);
}
