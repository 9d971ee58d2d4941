/* SPDX-License-Identifier: MIT */
/*
 * What vendors have agreed on beyond the standard: the options of ECE (enhanced connection
 * establishment), and whether data arrives in order.
 */

#include "verbs/qp.h"

const char cqn_qp_query_ece_doc[] =
    "query_ece($self, /)\n--\n\n"
    "The options of enhanced connection establishment, as (vendor_id, options, comp_mask): before "
    "the connection what this end can do, and from RTR on what both do.\n\n"
    "VerbsError (EOPNOTSUPP) where the device has none.\n\n"
    "Wraps ibv_query_ece(3).";

PyObject *cqn_qp_query_ece(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    struct ibv_ece ece = {.vendor_id = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_ece(qp, &ece));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_ece",
                                 "enhanced connection establishment")
               : Py_BuildValue("(III)", ece.vendor_id, ece.options, ece.comp_mask);
}

const char cqn_qp_set_ece_doc[] =
    "set_ece($self, /, vendor_id, options=0, comp_mask=0)\n--\n\n"
    "Set the options that the peer has sent, before the move to RTR.\n\n"
    "VerbsError (EOPNOTSUPP) where the device has none.\n\n"
    "Wraps ibv_set_ece(3).";

PyObject *cqn_qp_set_ece(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"vendor_id", "options", "comp_mask", NULL};
    PyObject *in[3] = {NULL};
    struct ibv_ece ece = {.vendor_id = 0};
    uint64_t vendor_id;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("set_ece", names, 3, 1, args, nargs, kwnames, in) < 0 ||
        cqn_range(in[0], "vendor_id", 1, UINT32_MAX, &vendor_id) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "options", UINT32_MAX, &ece.options) < 0) ||
        (in[2] != NULL && cqn_u32(in[2], "comp_mask", UINT32_MAX, &ece.comp_mask) < 0)) {
        return NULL;
    }
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    ece.vendor_id = (uint32_t)vendor_id;
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_set_ece(qp, &ece));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_set_ece",
                                 "enhanced connection establishment, vendor_id 0x%x, options 0x%x",
                                 ece.vendor_id, ece.options)
               : Py_NewRef(Py_None);
}

const char cqn_qp_query_data_in_order_doc[] =
    "query_data_in_order($self, /, opcode, flags=0)\n--\n\n"
    "Whether the bytes of a message appear in memory in their order, so that a program may poll "
    "its last byte: 1 if they do, and 0 if that is not sure.\n\n"
    "`opcode` is a WROpcode, and `flags` are those of a later rdma-core, by which the answer has "
    "more bits.\n\n"
    "Wraps ibv_query_qp_data_in_order(3).";

/* The library answers by what it knows of the device. */
PyObject *cqn_qp_query_data_in_order(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                     PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"opcode", "flags", NULL};
    PyObject *in[2] = {NULL};
    uint32_t opcode, flags = 0;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("query_data_in_order", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        cqn_member32(in[0], "opcode", "a WROpcode such as WROpcode.RDMA_WRITE", UINT8_MAX,
                     &opcode) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "flags", UINT32_MAX, &flags) < 0)) {
        return NULL;
    }
    struct ibv_qp *qp = cqn_open(CQN_OBJ(op));
    if (qp == NULL) {
        return NULL;
    }
    int rc = ibv_query_qp_data_in_order(qp, (enum ibv_wr_opcode)opcode, flags);
    return rc < 0 ? cqn_verbs_error(CQN_OBJ(op)->state, -rc, "ibv_query_qp_data_in_order", "")
                  : PyLong_FromLong(rc);
}
