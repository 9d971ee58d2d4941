/* SPDX-License-Identifier: MIT */
/* See end.h. */

#include "end.h"

#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, RECORD = 52 };

/* ---- the connection --------------------------------------------------------------------- */

struct address {
    unsigned lid, qp_num, psn;
    union ibv_gid gid;
};

static void hear(char *text, size_t length)
{
    for (size_t got = 0; got < length;) {
        ssize_t n = read(bench_peer(), text + got, length - got);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

void end_order(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    CHECK(vdprintf(bench_peer(), format, args) > 0);
    va_end(args);
}

static int gid_index(void)
{
    const char *index = getenv("BENCH_GID_INDEX");
    return index == NULL ? -1 : atoi(index);
}

static struct address address_of(const struct end *end)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(end->bench.ctx, PORT, &port) == 0);
    struct address address = {.lid = port.lid, .qp_num = end->qp->qp_num};
    if (gid_index() >= 0) {
        CHECK(ibv_query_gid(end->bench.ctx, PORT, gid_index(), &address.gid) == 0);
    }
    return address;
}

static struct address exchange(struct address ours)
{
    char record[RECORD + 1], *gid = record + 19;
    sprintf(record, "%04x:%06x:%06x:", ours.lid, ours.qp_num, ours.psn);
    for (int i = 0; i < 16; i++) {
        sprintf(gid + 2 * i, "%02x", ours.gid.raw[i]);
    }
    CHECK(write(bench_peer(), record, RECORD) == RECORD);

    struct address theirs;
    hear(record, RECORD);
    CHECK(sscanf(record, "%4x:%6x:%6x", &theirs.lid, &theirs.qp_num, &theirs.psn) == 3);
    for (int i = 0; i < 16; i++) {
        CHECK(sscanf(gid + 2 * i, "%2hhx", &theirs.gid.raw[i]) == 1);
    }
    return theirs;
}

static void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void to_rts(struct ibv_qp *qp, struct address remote)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = remote.qp_num,
        .rq_psn = remote.psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.port_num = PORT, .dlid = (uint16_t)remote.lid},
    };
    if (gid_index() >= 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = remote.gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)gid_index();
        attr.ah_attr.grh.hop_limit = 64;
    }
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 6,
        .max_rd_atomic = 1,
    };
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

void end_open(struct end *end, uint32_t size)
{
    *end = (struct end){.size = size, .send_size = size};
    struct bench *b = &end->bench;
    bench_open(b);
    CHECK((end->memory = calloc(SLOTS + 1, size)) != NULL);
    size_t length = (SLOTS + 1) * (size_t)size;
    CHECK((end->mr = ibv_reg_mr(b->pd, end->memory, length, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    CHECK((end->send_cq = ibv_create_cq(b->ctx, DEPTH, NULL, NULL, 0)) != NULL);
    struct ibv_qp_init_attr init = {
        .send_cq = end->send_cq,
        .recv_cq = b->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK((end->qp = ibv_create_qp(b->pd, &init)) != NULL);
    to_init(end->qp);
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        end_post_recv(end, slot);
    }
    to_rts(end->qp, exchange(address_of(end)));
}

void end_meet(void)
{
    char c;
    CHECK(write(bench_peer(), "+", 1) == 1);
    hear(&c, 1);
}

void end_connect(struct end *end, uint32_t size)
{
    end_order("connect %u\n", size);
    end_open(end, size);
    end_meet();
}

void end_close(struct end *end)
{
    end_ack_rest(end);
    CHECK(ibv_destroy_qp(end->qp) == 0);
    CHECK(ibv_destroy_cq(end->send_cq) == 0);
    CHECK(ibv_dereg_mr(end->mr) == 0);
    CHECK(ibv_dereg_mr(end->bench.mr) == 0);
    CHECK(ibv_destroy_cq(end->bench.cq) == 0);
    CHECK(ibv_destroy_comp_channel(end->bench.channel) == 0);
    CHECK(ibv_dealloc_pd(end->bench.pd) == 0);
    CHECK(ibv_close_device(end->bench.ctx) == 0);
    free(end->memory);
}

/* ---- traffic ---------------------------------------------------------------------------- */

void end_post_recv(struct end *end, uint64_t slot)
{
    uintptr_t addr = (uintptr_t)end->memory + slot * end->size;
    struct ibv_sge sge = {addr, end->size, end->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

void end_stamp(struct end *end, int64_t time)
{
    CHECK(end->send_size >= sizeof(time));
    memcpy(end->memory + SLOTS * (size_t)end->size, &time, sizeof(time));
}

void end_post_send(struct end *end, unsigned send_flags)
{
    uintptr_t addr = (uintptr_t)end->memory + SLOTS * (uintptr_t)end->size;
    struct ibv_sge sge = {addr, end->send_size, end->mr->lkey};
    struct ibv_send_wr *bad, wr = {
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = send_flags,
                             };
    CHECK(ibv_post_send(end->qp, &wr, &bad) == 0);
}

/* Does not spin: a real-time process that spins keeps the kernel's own threads from running. */
void end_reap_send(struct end *end)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(end->send_cq, 1, &wc)) == 0) {
        usleep(10);
    }
    CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

void end_send(struct end *end)
{
    bool signaled = ++end->sent % SIGNAL_EVERY == 0;
    end_post_send(end, signaled ? IBV_SEND_SIGNALED : 0);
    if (signaled) {
        end_reap_send(end);
    }
}

void end_arm(struct end *end, bool solicited_only)
{
    CHECK(ibv_req_notify_cq(end->bench.cq, solicited_only) == 0);
    end->arms++;
}

void end_get_event(struct end *end)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(end->bench.channel, &cq, &context) == 0);
    end->events++;
    if (++end->unacked == ACK_BATCH) {
        end_ack_rest(end);
    }
}

void end_ack_rest(struct end *end)
{
    ibv_ack_cq_events(end->bench.cq, end->unacked);
    end->unacked = 0;
}

int end_poll(struct end *end, int max_entries, struct ibv_wc *wcs)
{
    int n = ibv_poll_cq(end->bench.cq, max_entries, wcs);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        CHECK(wcs[i].status == IBV_WC_SUCCESS);
    }
    return n;
}

/* ---- figures ---------------------------------------------------------------------------- */

static int64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* How often the kernel has put the process to sleep. */
static long sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

void meter_start(struct meter *meter, clockid_t clock, const struct end *end)
{
    *meter = (struct meter){
        .clock = clock,
        .events = end->events,
        .arms = end->arms,
        .spurious = end->spurious,
        .wakeups = sleeps(),
    };
    meter->start = read_clock(clock);
}

void meter_print(const struct meter *meter, const struct end *end, const char *name, long ops)
{
    int64_t total = read_clock(meter->clock) - meter->start;
    printf("\"%s\": {\"ops\": %ld, \"total\": %ld, \"events\": %ld, \"arms\": %ld, "
           "\"spurious\": %ld, \"wakeups\": %ld}",
           name, ops, (long)total, end->events - meter->events, end->arms - meter->arms,
           end->spurious - meter->spurious, sleeps() - meter->wakeups);
}
