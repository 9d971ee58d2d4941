/* SPDX-License-Identifier: MIT */
/*
 * Extended CQs: polled by ibv_start_poll(), ibv_next_poll() and ibv_end_poll(), and read field by
 * field. Their functions are members of the CQ, which the observer replaces.
 *
 * The CQ's lock is held from start to end, as providers do. Completions kept by a look are returned
 * first, then those of the device.
 */
#include <errno.h>

#include "chaos.h"
#include "hooks.h"
#include "ops.h"

struct cq_ex {
    struct ibv_cq_ex real; /* the functions of the provider */
    struct kept current;
    bool in_kept; /* the program reads `current` */
    bool started; /* the device's poll has begun */
    int got;
    bool emptied;
};

static struct cq *of(struct ibv_cq_ex *ibv)
{
    return cqn_replaced(ibv);
}

/* ---- a completion of the device ------------------------------------------------------------- */

/* Reads the fields that the observer needs, if the CQ was created with them. */
static struct ibv_wc brief(struct cq *cq)
{
    struct ibv_cq_ex *ibv = (struct ibv_cq_ex *)cq->ibv;
    const struct ibv_cq_ex *real = &cq->ex->real;
    struct ibv_wc wc = {.wr_id = ibv->wr_id, .status = ibv->status};
    if (ibv->status == IBV_WC_SUCCESS)
        wc.opcode = real->read_opcode(ibv);
    else
        wc.vendor_err = real->read_vendor_err(ibv);
    if (real->read_qp_num)
        wc.qp_num = real->read_qp_num(ibv);
    if (cqn_timeline && real->read_byte_len && ibv->status == IBV_WC_SUCCESS)
        wc.byte_len = real->read_byte_len(ibv);
    return wc;
}

static void read_all(struct cq *cq, struct kept *kept)
{
    struct ibv_cq_ex *ibv = (struct ibv_cq_ex *)cq->ibv;
    const struct ibv_cq_ex *real = &cq->ex->real;
    *kept = (struct kept){.wc = brief(cq)};
    if (ibv->status != IBV_WC_SUCCESS)
        return;
    kept->wc.wc_flags = real->read_wc_flags(ibv);
#define READ(function, field) \
    if (real->function)       \
        kept->field = real->function(ibv);
    READ(read_byte_len, wc.byte_len)
    READ(read_imm_data, wc.imm_data)
    READ(read_src_qp, wc.src_qp)
    READ(read_sl, wc.sl)
    READ(read_dlid_path_bits, wc.dlid_path_bits)
    READ(read_completion_ts, timestamp)
    READ(read_completion_wallclock_ns, wallclock)
    READ(read_cvlan, cvlan)
    READ(read_flow_tag, flow_tag)
#undef READ
    if (real->read_slid)
        kept->wc.slid = (uint16_t)real->read_slid(ibv);
    if (real->read_tm_info)
        real->read_tm_info(ibv, &kept->tm_info);
}

bool cqn_cq_ex_take(struct cq *cq, struct kept *kept)
{
    struct ibv_cq_ex *ibv = (struct ibv_cq_ex *)cq->ibv;
    struct ibv_poll_cq_attr attr = {0};
    if (cq->ex->real.start_poll(ibv, &attr) != 0)
        return false;
    read_all(cq, kept);
    cq->ex->real.end_poll(ibv);
    return true;
}

/* ---- the program's polls -------------------------------------------------------------------- */

static bool show_kept(struct cq *cq)
{
    struct ibv_cq_ex *ibv = (struct ibv_cq_ex *)cq->ibv;
    const struct kept *kept = cqn_cq_next_kept(cq);
    cq->ex->in_kept = kept != NULL;
    if (!kept)
        return false;
    cq->ex->current = *kept;
    if (cqn_chaos_faults)
        cqn_chaos_status(cq, &cq->ex->current.wc);
    kept = &cq->ex->current;
    ibv->wr_id = kept->wc.wr_id;
    ibv->status = kept->wc.status;
    cq->ex->got++;
    cqn_cq_completed(cq, &kept->wc, true, 0);
    return true;
}

/* Processes the device's result of start or next. Returns it. */
static int show_device(struct cq *cq, int result)
{
    if (result == 0) {
        struct ibv_wc wc = brief(cq);
        if (cqn_chaos_faults) {
            cqn_chaos_status(cq, &wc);
            ((struct ibv_cq_ex *)cq->ibv)->status = wc.status;
        }
        cq->ex->got++;
        cqn_cq_completed(cq, &wc, false, 0);
    }
    else if (result == ENOENT)
        cq->ex->emptied = true;
    return result;
}

static int start_device(struct cq *cq, struct ibv_poll_cq_attr *attr)
{
    int result = cq->ex->real.start_poll((struct ibv_cq_ex *)cq->ibv, attr);
    cq->ex->started = result == 0;
    return show_device(cq, result);
}

static void finish(struct cq *cq)
{
    cqn_cq_polled(cq, cq->ex->got + cq->ex->emptied, cq->ex->got, 0);
    cqn_unlock(&cq->lock);
}

static int start_poll(struct ibv_cq_ex *ibv, struct ibv_poll_cq_attr *attr)
{
    struct cq *cq = of(ibv);
    SITE_HERE(&cq->poll);
    cqn_lock(&cq->lock);
    cq->ex->got = 0;
    cq->ex->started = cq->ex->emptied = false;
    if (cqn_chaos_faults && attr->comp_mask == 0 && cqn_chaos_batch(cq, 1) == 0) {
        finish(cq);
        return ENOENT;
    }
    if (attr->comp_mask == 0 && show_kept(cq))
        return 0;
    int result = start_device(cq, attr);
    if (result != 0)
        finish(cq);
    return result;
}

static int next_poll(struct ibv_cq_ex *ibv)
{
    struct cq *cq = of(ibv);
    if (show_kept(cq))
        return 0;
    if (cq->ex->started)
        return show_device(cq, cq->ex->real.next_poll(ibv));
    struct ibv_poll_cq_attr attr = {0};
    return start_device(cq, &attr);
}

static void end_poll(struct ibv_cq_ex *ibv)
{
    struct cq *cq = of(ibv);
    if (cq->ex->started)
        cq->ex->real.end_poll(ibv);
    finish(cq);
}

/* ---- reading fields ------------------------------------------------------------------------- */

#define READER(type, function, field)                                    \
    static type function(struct ibv_cq_ex *ibv)                          \
    {                                                                    \
        const struct cq_ex *ex = of(ibv)->ex;                            \
        return ex->in_kept ? ex->current.field : ex->real.function(ibv); \
    }

READER(enum ibv_wc_opcode, read_opcode, wc.opcode)
READER(uint32_t, read_vendor_err, wc.vendor_err)
READER(uint32_t, read_byte_len, wc.byte_len)
READER(__be32, read_imm_data, wc.imm_data)
READER(uint32_t, read_qp_num, wc.qp_num)
READER(uint32_t, read_src_qp, wc.src_qp)
READER(unsigned int, read_wc_flags, wc.wc_flags)
READER(uint32_t, read_slid, wc.slid)
READER(uint8_t, read_sl, wc.sl)
READER(uint8_t, read_dlid_path_bits, wc.dlid_path_bits)
READER(uint64_t, read_completion_ts, timestamp)
READER(uint16_t, read_cvlan, cvlan)
READER(uint32_t, read_flow_tag, flow_tag)
READER(uint64_t, read_completion_wallclock_ns, wallclock)

static void read_tm_info(struct ibv_cq_ex *ibv, struct ibv_wc_tm_info *info)
{
    const struct cq_ex *ex = of(ibv)->ex;
    if (ex->in_kept)
        *info = ex->current.tm_info;
    else
        ex->real.read_tm_info(ibv, info);
}

/* ---- create --------------------------------------------------------------------------------- */

static void wrap(struct cq *cq)
{
    struct ibv_cq_ex *ibv = (struct ibv_cq_ex *)cq->ibv;
    cq->ex = cqn_alloc(sizeof(*cq->ex));
    if (!cq->ex)
        return;
    cq->ex->real = *ibv;
#define REPLACE(function) ibv->function = ibv->function ? function : NULL;
    REPLACE(start_poll)
    REPLACE(next_poll)
    REPLACE(end_poll)
    REPLACE(read_opcode)
    REPLACE(read_vendor_err)
    REPLACE(read_byte_len)
    REPLACE(read_imm_data)
    REPLACE(read_qp_num)
    REPLACE(read_src_qp)
    REPLACE(read_wc_flags)
    REPLACE(read_slid)
    REPLACE(read_sl)
    REPLACE(read_dlid_path_bits)
    REPLACE(read_completion_ts)
    REPLACE(read_cvlan)
    REPLACE(read_flow_tag)
    REPLACE(read_tm_info)
    REPLACE(read_completion_wallclock_ns)
#undef REPLACE
}

/* Always requests the number of the QP; if the device refuses it, creates the CQ without it. */
struct ibv_cq_ex *cqn_op_create_cq_ex(struct ibv_context *ibv_context,
                                      struct ibv_cq_init_attr_ex *attr)
{
    struct context *context = cqn_replaced(ibv_context);
    if (cqn_chaos_refuses(CHAOS_CREATE))
        return NULL;
    uint64_t asked = attr->wc_flags;
    attr->wc_flags |= IBV_WC_EX_WITH_QP_NUM;
    struct ibv_cq_ex *ibv = context->create_cq_ex(ibv_context, attr);
    bool refused = !ibv && attr->wc_flags != asked;
    attr->wc_flags = asked;
    if (refused)
        ibv = context->create_cq_ex(ibv_context, attr);
    struct cq *cq = cqn_cq_add((struct ibv_cq *)ibv);
    if (cq)
        wrap(cq);
    return ibv;
}

void cqn_cq_ex_free(struct cq_ex *ex)
{
    cqn_free(ex, sizeof(*ex));
}
