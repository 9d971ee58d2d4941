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
