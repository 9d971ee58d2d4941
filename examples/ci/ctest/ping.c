/* SPDX-License-Identifier: MIT
 * A ping between two QPs of the first device, with libibverbs: exits with 0 if it arrives. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)        \
    do {                        \
        if (!(condition)) {     \
            perror(#condition); \
            exit(1);            \
        }                       \
    } while (0)

enum { PORT = 1, GID_INDEX = 0 };

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp);
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid)
{
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = PORT,
                    .grh = {.dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 1}},
    };
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

    CHECK(!ibv_modify_qp(qp, &init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    CHECK(!ibv_modify_qp(qp, &rtr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    CHECK(!ibv_modify_qp(qp, &rts,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
    static char buffer[64] = "ping"; /* the message, and 32 bytes on the place where it arrives */
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context);
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, PORT, GID_INDEX, &gid));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct ibv_cq *cq = ibv_create_cq(context, 2, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp *a = create_qp(pd, cq), *b = create_qp(pd, cq);
    connect_to(a, b->qp_num, gid);
    connect_to(b, a->qp_num, gid);

    struct ibv_sge to = {(uintptr_t)buffer + 32, 32, mr->lkey};
    struct ibv_sge from = {(uintptr_t)buffer, 5, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    CHECK(!ibv_post_recv(b, &receive, &bad_receive));
    CHECK(!ibv_post_send(a, &send, &bad_send));
    for (int completed = 0; completed < 2;) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq, 1, &wc);
        CHECK(polled >= 0);
        if (polled && wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
            return 1;
        }
        completed += polled;
    }
    CHECK(!strcmp(buffer + 32, "ping"));
    printf("%s: ping arrived\n", ibv_get_device_name(devices[0]));

    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    ibv_free_device_list(devices);
    return 0;
}
