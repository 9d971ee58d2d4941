/* SPDX-License-Identifier: MIT */
/* The enumerators of <infiniband/verbs.h>, and the members of the Python enums made from them.
 * Enumerators are not macros, so #ifdef cannot detect those missing from an older header: newer
 * ones are defined by number in constants.h. */

#include "base/constants.h"
#include "base/lock.h"

/* clang-format off */
#define X(name) {#name, name}
static const struct {
    const char *name;
    long long value;
} constants[] = {
    X(IBV_WC_SUCCESS), X(IBV_WC_LOC_LEN_ERR), X(IBV_WC_LOC_QP_OP_ERR),
    X(IBV_WC_LOC_EEC_OP_ERR), X(IBV_WC_LOC_PROT_ERR), X(IBV_WC_WR_FLUSH_ERR),
    X(IBV_WC_MW_BIND_ERR), X(IBV_WC_BAD_RESP_ERR), X(IBV_WC_LOC_ACCESS_ERR),
    X(IBV_WC_REM_INV_REQ_ERR), X(IBV_WC_REM_ACCESS_ERR), X(IBV_WC_REM_OP_ERR),
    X(IBV_WC_RETRY_EXC_ERR), X(IBV_WC_RNR_RETRY_EXC_ERR), X(IBV_WC_LOC_RDD_VIOL_ERR),
    X(IBV_WC_REM_INV_RD_REQ_ERR), X(IBV_WC_REM_ABORT_ERR), X(IBV_WC_INV_EECN_ERR),
    X(IBV_WC_INV_EEC_STATE_ERR), X(IBV_WC_FATAL_ERR), X(IBV_WC_RESP_TIMEOUT_ERR),
    X(IBV_WC_GENERAL_ERR), X(IBV_WC_TM_ERR), X(IBV_WC_TM_RNDV_INCOMPLETE),

    X(IBV_WC_SEND), X(IBV_WC_RDMA_WRITE), X(IBV_WC_RDMA_READ), X(IBV_WC_COMP_SWAP),
    X(IBV_WC_FETCH_ADD), X(IBV_WC_BIND_MW), X(IBV_WC_ATOMIC_WRITE), X(IBV_WC_LOCAL_INV),
    X(IBV_WC_TSO), X(IBV_WC_RECV), X(IBV_WC_RECV_RDMA_WITH_IMM), X(IBV_WC_TM_ADD), X(IBV_WC_TM_DEL),
    X(IBV_WC_TM_SYNC), X(IBV_WC_TM_RECV), X(IBV_WC_TM_NO_TAG), X(IBV_WC_DRIVER1),
    X(IBV_WC_DRIVER2), X(IBV_WC_DRIVER3),

    X(IBV_WC_GRH), X(IBV_WC_WITH_IMM), X(IBV_WC_IP_CSUM_OK), X(IBV_WC_WITH_INV),
    X(IBV_WC_TM_SYNC_REQ), X(IBV_WC_TM_MATCH), X(IBV_WC_TM_DATA_VALID),

    X(IBV_WR_RDMA_WRITE), X(IBV_WR_RDMA_WRITE_WITH_IMM), X(IBV_WR_SEND),
    X(IBV_WR_SEND_WITH_IMM), X(IBV_WR_RDMA_READ), X(IBV_WR_ATOMIC_CMP_AND_SWP),
    X(IBV_WR_ATOMIC_FETCH_AND_ADD), X(IBV_WR_LOCAL_INV), X(IBV_WR_BIND_MW), X(IBV_WR_ATOMIC_WRITE),
    X(IBV_WR_SEND_WITH_INV), X(IBV_WR_TSO), X(IBV_WR_DRIVER1),

    X(IBV_SEND_FENCE), X(IBV_SEND_SIGNALED), X(IBV_SEND_SOLICITED), X(IBV_SEND_INLINE),
    X(IBV_SEND_IP_CSUM),

    X(IBV_ACCESS_LOCAL_WRITE), X(IBV_ACCESS_REMOTE_WRITE), X(IBV_ACCESS_REMOTE_READ),
    X(IBV_ACCESS_REMOTE_ATOMIC), X(IBV_ACCESS_MW_BIND), X(IBV_ACCESS_ZERO_BASED),
    X(IBV_ACCESS_ON_DEMAND), X(IBV_ACCESS_HUGETLB), X(IBV_ACCESS_RELAXED_ORDERING),

    X(IBV_ADVISE_MR_ADVICE_PREFETCH), X(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE),
    X(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT), X(IBV_ADVISE_MR_FLAG_FLUSH),

    X(IBV_FORK_DISABLED), X(IBV_FORK_ENABLED), X(IBV_FORK_UNNEEDED),

    X(IBV_MW_TYPE_1), X(IBV_MW_TYPE_2),

    X(IBV_QPT_RC), X(IBV_QPT_UC), X(IBV_QPT_UD), X(IBV_QPT_RAW_PACKET), X(IBV_QPT_XRC_SEND),
    X(IBV_QPT_XRC_RECV), X(IBV_QPT_DRIVER),

    X(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB), X(IBV_QP_CREATE_SCATTER_FCS),
    X(IBV_QP_CREATE_CVLAN_STRIPPING), X(IBV_QP_CREATE_SOURCE_QPN),
    X(IBV_QP_CREATE_PCI_WRITE_END_PADDING),

    X(IBV_SRQT_BASIC), X(IBV_SRQT_XRC), X(IBV_SRQT_TM),

    X(IBV_WQT_RQ), X(IBV_WQS_RESET), X(IBV_WQS_RDY), X(IBV_WQS_ERR), X(IBV_WQS_UNKNOWN),
    X(IBV_WQ_FLAGS_CVLAN_STRIPPING), X(IBV_WQ_FLAGS_SCATTER_FCS), X(IBV_WQ_FLAGS_DELAY_DROP),
    X(IBV_WQ_FLAGS_PCI_WRITE_END_PADDING),

    X(IBV_RX_HASH_FUNC_TOEPLITZ), X(IBV_RX_HASH_SRC_IPV4), X(IBV_RX_HASH_DST_IPV4),
    X(IBV_RX_HASH_SRC_IPV6), X(IBV_RX_HASH_DST_IPV6), X(IBV_RX_HASH_SRC_PORT_TCP),
    X(IBV_RX_HASH_DST_PORT_TCP), X(IBV_RX_HASH_SRC_PORT_UDP), X(IBV_RX_HASH_DST_PORT_UDP),
    X(IBV_RX_HASH_IPSEC_SPI), {"IBV_RX_HASH_INNER", 1LL << 31},

    X(IBV_RAW_PACKET_CAP_CVLAN_STRIPPING), X(IBV_RAW_PACKET_CAP_SCATTER_FCS),
    X(IBV_RAW_PACKET_CAP_IP_CSUM), X(IBV_RAW_PACKET_CAP_DELAY_DROP), X(IBV_TM_CAP_RC),

    X(IBV_FLOW_ATTR_NORMAL), X(IBV_FLOW_ATTR_ALL_DEFAULT), X(IBV_FLOW_ATTR_MC_DEFAULT),
    X(IBV_FLOW_ATTR_SNIFFER), X(IBV_FLOW_ATTR_FLAGS_DONT_TRAP), X(IBV_FLOW_ATTR_FLAGS_EGRESS),
    X(IBV_COUNTER_PACKETS), X(IBV_COUNTER_BYTES), X(IBV_READ_COUNTERS_ATTR_PREFER_CACHED),

    X(IBV_WR_TAG_ADD), X(IBV_WR_TAG_DEL), X(IBV_WR_TAG_SYNC), X(IBV_OPS_SIGNALED),
    X(IBV_OPS_TM_SYNC),

    X(IBV_QPS_RESET), X(IBV_QPS_INIT), X(IBV_QPS_RTR), X(IBV_QPS_RTS), X(IBV_QPS_SQD),
    X(IBV_QPS_SQE), X(IBV_QPS_ERR), X(IBV_QPS_UNKNOWN),

    X(IBV_MTU_256), X(IBV_MTU_512), X(IBV_MTU_1024), X(IBV_MTU_2048), X(IBV_MTU_4096),

    X(IBV_MIG_MIGRATED), X(IBV_MIG_REARM), X(IBV_MIG_ARMED),

    X(IBV_PORT_NOP), X(IBV_PORT_DOWN), X(IBV_PORT_INIT), X(IBV_PORT_ARMED),
    X(IBV_PORT_ACTIVE), X(IBV_PORT_ACTIVE_DEFER),

    X(IBV_LINK_LAYER_UNSPECIFIED), X(IBV_LINK_LAYER_INFINIBAND), X(IBV_LINK_LAYER_ETHERNET),

    X(IBV_GID_TYPE_IB), X(IBV_GID_TYPE_ROCE_V1), X(IBV_GID_TYPE_ROCE_V2),

    X(IBV_NODE_UNKNOWN), X(IBV_NODE_CA), X(IBV_NODE_SWITCH), X(IBV_NODE_ROUTER),
    X(IBV_NODE_RNIC), X(IBV_NODE_USNIC), X(IBV_NODE_USNIC_UDP), X(IBV_NODE_UNSPECIFIED),

    X(IBV_TRANSPORT_UNKNOWN), X(IBV_TRANSPORT_IB), X(IBV_TRANSPORT_IWARP),
    X(IBV_TRANSPORT_USNIC), X(IBV_TRANSPORT_USNIC_UDP), X(IBV_TRANSPORT_UNSPECIFIED),

    X(IBV_ATOMIC_NONE), X(IBV_ATOMIC_HCA), X(IBV_ATOMIC_GLOB),

    X(IBV_DEVICE_RESIZE_MAX_WR), X(IBV_DEVICE_BAD_PKEY_CNTR),
    X(IBV_DEVICE_BAD_QKEY_CNTR), X(IBV_DEVICE_RAW_MULTI), X(IBV_DEVICE_AUTO_PATH_MIG),
    X(IBV_DEVICE_CHANGE_PHY_PORT), X(IBV_DEVICE_UD_AV_PORT_ENFORCE),
    X(IBV_DEVICE_CURR_QP_STATE_MOD), X(IBV_DEVICE_SHUTDOWN_PORT),
    X(IBV_DEVICE_INIT_TYPE), X(IBV_DEVICE_PORT_ACTIVE_EVENT),
    X(IBV_DEVICE_SYS_IMAGE_GUID), X(IBV_DEVICE_RC_RNR_NAK_GEN),
    X(IBV_DEVICE_SRQ_RESIZE), X(IBV_DEVICE_N_NOTIFY_CQ), X(IBV_DEVICE_MEM_WINDOW),
    X(IBV_DEVICE_UD_IP_CSUM), X(IBV_DEVICE_XRC), X(IBV_DEVICE_MEM_MGT_EXTENSIONS),
    X(IBV_DEVICE_MEM_WINDOW_TYPE_2A), X(IBV_DEVICE_MEM_WINDOW_TYPE_2B),
    X(IBV_DEVICE_RC_IP_CSUM), X(IBV_DEVICE_RAW_IP_CSUM),
    X(IBV_DEVICE_MANAGED_FLOW_STEERING), X(IBV_DEVICE_RAW_SCATTER_FCS),
    X(IBV_DEVICE_PCI_WRITE_END_PADDING),
    /* Bits of the kernel without a name in verbs.h, or without one in older headers. */
    {"IBV_DEVICE_FLUSH_GLOBAL", CQN_DEVICE_FLUSH_GLOBAL},
    {"IBV_DEVICE_FLUSH_PERSISTENT", CQN_DEVICE_FLUSH_PERSISTENT},
    {"IBV_DEVICE_ATOMIC_WRITE", CQN_DEVICE_ATOMIC_WRITE}, {"IBV_DEVICE_CC_DMA_BOUNCE", 1LL << 41},

    X(IBV_ODP_SUPPORT), X(IBV_ODP_SUPPORT_IMPLICIT),
    X(IBV_ODP_SUPPORT_SEND), X(IBV_ODP_SUPPORT_RECV), X(IBV_ODP_SUPPORT_WRITE),
    X(IBV_ODP_SUPPORT_READ), X(IBV_ODP_SUPPORT_ATOMIC), X(IBV_ODP_SUPPORT_SRQ_RECV),
    {"IBV_ODP_SUPPORT_FLUSH", 1 << 6}, {"IBV_ODP_SUPPORT_ATOMIC_WRITE", 1 << 7},

    X(IBV_EVENT_CQ_ERR), X(IBV_EVENT_QP_FATAL), X(IBV_EVENT_QP_REQ_ERR),
    X(IBV_EVENT_QP_ACCESS_ERR), X(IBV_EVENT_COMM_EST), X(IBV_EVENT_SQ_DRAINED),
    X(IBV_EVENT_PATH_MIG), X(IBV_EVENT_PATH_MIG_ERR), X(IBV_EVENT_DEVICE_FATAL),
    X(IBV_EVENT_PORT_ACTIVE), X(IBV_EVENT_PORT_ERR), X(IBV_EVENT_LID_CHANGE),
    X(IBV_EVENT_PKEY_CHANGE), X(IBV_EVENT_SM_CHANGE), X(IBV_EVENT_SRQ_ERR),
    X(IBV_EVENT_SRQ_LIMIT_REACHED), X(IBV_EVENT_QP_LAST_WQE_REACHED),
    X(IBV_EVENT_CLIENT_REREGISTER), X(IBV_EVENT_GID_CHANGE), X(IBV_EVENT_WQ_FATAL),

    X(IBV_CREATE_CQ_ATTR_SINGLE_THREADED), X(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),

    X(IBV_WC_EX_WITH_BYTE_LEN), X(IBV_WC_EX_WITH_IMM), X(IBV_WC_EX_WITH_QP_NUM),
    X(IBV_WC_EX_WITH_SRC_QP), X(IBV_WC_EX_WITH_SLID), X(IBV_WC_EX_WITH_SL),
    X(IBV_WC_EX_WITH_DLID_PATH_BITS), X(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
    X(IBV_WC_EX_WITH_CVLAN), X(IBV_WC_EX_WITH_FLOW_TAG),
    X(IBV_WC_EX_WITH_TM_INFO),
    X(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK),
#undef X
#define X(name) {"IBV_" #name, CQN_##name}
    X(WC_FLUSH), X(WR_FLUSH),
    X(ACCESS_FLUSH_GLOBAL), X(ACCESS_FLUSH_PERSISTENT),
    X(FLUSH_GLOBAL), X(FLUSH_PERSISTENT), X(FLUSH_RANGE), X(FLUSH_MR),
    X(EVENT_DEVICE_SPEED_CHANGE),
};
#undef X
/* clang-format on */

/* The Python enums are built from this dict, so each number is defined in one place. */
PyObject *cqn_constants(void)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < Py_ARRAY_LENGTH(constants); i++) {
        PyObject *value = PyLong_FromLongLong(constants[i].value);
        if (value == NULL || PyDict_SetItemString(dict, constants[i].name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

const char *cqn_qp_type_name(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_RC:
        return "RC";
    case IBV_QPT_UC:
        return "UC";
    case IBV_QPT_RAW_PACKET:
        return "RAW_PACKET";
    case IBV_QPT_XRC_SEND:
        return "XRC_SEND";
    case IBV_QPT_XRC_RECV:
        return "XRC_RECV";
    default:
        return "UD";
    }
}

const char *cqn_qp_state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return (size_t)state < Py_ARRAY_LENGTH(names) ? names[state] : "an unknown state";
}

/* Returns a new reference to a class of cqnotify.enums, which builds it on first use. */
static PyObject *enum_of(const char *name)
{
    PyObject *module = PyImport_ImportModule("cqnotify.enums");
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

/* No Python code runs here, so other threads see the table either empty or complete. */
static int fill_table(PyObject *members, PyObject **table, size_t n)
{
    for (Py_ssize_t i = PyList_GET_SIZE(members); i-- > 0;) {
        PyObject *one = PyList_GET_ITEM(members, i);
        size_t value = PyLong_AsSize_t(one);
        if (value == (size_t)-1 && PyErr_Occurred()) {
            return -1;
        }
        if (value < n && table[value] == NULL) {
            table[value] = Py_NewRef(one);
        }
    }
    return 0;
}

int cqn_know_members(const char *name, PyObject **table, size_t n)
{
    if (table[0] != NULL) {
        return 0;
    }
    PyObject *found = enum_of(name);
    PyObject *members = found == NULL ? NULL : PySequence_List(found);
    int rc = members == NULL ? -1 : fill_table(members, table, n);
    Py_XDECREF(members);
    Py_XDECREF(found);
    assert(rc < 0 || table[0] != NULL);
    return rc;
}

PyObject *cqn_flags(const char *name, PyObject **slot, uint32_t flags)
{
    if (*slot == NULL) {
        PyObject *found = enum_of(name);
        if (found == NULL) {
            return NULL;
        }
        Py_XSETREF(*slot, found);
    }
    return PyObject_CallFunction(*slot, "I", flags);
}
