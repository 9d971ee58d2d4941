/* SPDX-License-Identifier: MIT */
/*
 * ATOMIC_WRITE: 8 bytes that the peer sees at once, or none of them. ibv_post_send()
 * does not know it: it has a verb of its own, and needs a queue pair that was made
 * for that. Such a queue pair takes the other operations by ibv_post_send() all
 * the same. The posting is in work/post_send.c.
 */

#include "verbs/verbs.h"

/* A device that lacks it may take it all the same, and fail it later. */
int cqn_check_atomic_write(cqn_object *pd)
{
    struct ibv_device_attr_ex attr;
    if (cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    if (!(attr.device_cap_flags_ex & CQN_DEVICE_ATOMIC_WRITE)) {
        cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_create_qp_ex",
                        "atomic_write (query_device_ex().device_cap_flags_ex of %s lack "
                        "ATOMIC_WRITE)",
                        cqn_device_name(pd));
        return -1;
    }
    return 0;
}

/* As ibv_create_qp(), without the GIL. */
struct ibv_qp *cqn_create_atomic_write_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr_ex ex = {
        .qp_context = attr->qp_context,
        .send_cq = attr->send_cq,
        .recv_cq = attr->recv_cq,
        .srq = attr->srq,
        .cap = attr->cap,
        .qp_type = attr->qp_type,
        .sq_sig_all = attr->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &ex);
    attr->cap = ex.cap;
    return qp;
}
