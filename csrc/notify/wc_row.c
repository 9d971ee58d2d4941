/* SPDX-License-Identifier: MIT */
/* A completion as a row: what WCArray shows of it, and by which it is compared and pickled. */

#include "notify/cq.h"

/* Which fields are valid, as WCExFlags. Those that tell of the sender are there
 * for a received datagram. */
uint32_t cqn_wc_fields(const struct ibv_wc *raw)
{
    uint32_t fields = IBV_WC_EX_WITH_QP_NUM;
    if (raw->status != IBV_WC_SUCCESS) {
        return fields;
    }
    fields |= IBV_WC_EX_WITH_BYTE_LEN;
    if (raw->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) {
        fields |= IBV_WC_EX_WITH_IMM;
    }
    if ((raw->opcode & IBV_WC_RECV) && (raw->wc_flags & CQN_WC_DATAGRAM)) {
        fields |= IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                  IBV_WC_EX_WITH_DLID_PATH_BITS;
    }
    return fields & ~(raw->wc_flags >> 24);
}

/* Fields that are not valid are 0. */
cqn_wc_row cqn_wc_row_of(const struct ibv_wc *wc)
{
    const uint32_t fields = cqn_wc_fields(wc);
    cqn_wc_row r = {
        .wr_id = wc->wr_id,
        .status = wc->status,
        .vendor_err = wc->status == IBV_WC_SUCCESS ? 0 : wc->vendor_err,
        .qp_num = wc->qp_num,
        .fields = (uint16_t)fields,
    };
    if (wc->status == IBV_WC_SUCCESS) {
        r.opcode = wc->opcode;
        r.wc_flags = wc->wc_flags & ~CQN_WC_OURS;
    }
    r.byte_len = fields & IBV_WC_EX_WITH_BYTE_LEN ? wc->byte_len : 0;
    r.imm_data = fields & IBV_WC_EX_WITH_IMM ? wc->imm_data : 0;
    if (fields & IBV_WC_EX_WITH_SRC_QP) {
        r.src_qp = wc->src_qp;
        r.pkey_index = wc->pkey_index;
    }
    r.slid = fields & IBV_WC_EX_WITH_SLID ? wc->slid : (uint16_t)0;
    r.sl = fields & IBV_WC_EX_WITH_SL ? wc->sl : (uint8_t)0;
    r.dlid_path_bits = fields & IBV_WC_EX_WITH_DLID_PATH_BITS ? wc->dlid_path_bits : (uint8_t)0;
    return r;
}

/* The other way: as poll() would have returned it. Fields that are not valid are None. */
struct ibv_wc cqn_wc_of_row(const cqn_wc_row *r)
{
    struct ibv_wc wc = {
        .wr_id = r->wr_id,
        .status = r->status,
        .opcode = r->opcode,
        .vendor_err = r->vendor_err,
        .byte_len = r->byte_len,
        .imm_data = r->imm_data,
        .qp_num = r->qp_num,
        .src_qp = r->src_qp,
        .wc_flags = r->wc_flags,
        .pkey_index = r->pkey_index,
        .slid = r->slid,
        .sl = r->sl,
        .dlid_path_bits = r->dlid_path_bits,
    };
    if (wc.status == IBV_WC_SUCCESS) {
        wc.wc_flags |= CQN_WC_DATAGRAM | CQN_WC_LACKS(IBV_WC_STANDARD_FLAGS & ~r->fields);
    }
    return wc;
}
