# SPDX-License-Identifier: MIT
"""The enumerations of <infiniband/verbs.h>, as Python enums.

The values come from the header that the C core was built with. A value from a device or a newer
library that has no name here stays a plain int, see `enum_or_int`.

An enum takes long to build, and a program uses few of them: each is built when its name is first
asked for.
"""

from ._core import constants as _c

TYPE_CHECKING = False
if TYPE_CHECKING:
    import enum
    from typing import TypeVar

    from ._named import NamedFlag as _Flag
    from ._named import NamedInt as _Enum

    _E = TypeVar("_E", bound=enum.Enum)

else:
    _bodies = {}

    class _Later(type):
        """What `class` does below: the name of the base, and the body, are kept."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            _bodies[name] = bases[0].built_from, body

    class _Enum(metaclass=_Later):
        built_from = "NamedInt"

    class _Flag(metaclass=_Later):
        built_from = "NamedFlag"


__all__ = [
    "MTU",
    "AccessFlags",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "AsyncEventType",
    "AtomicCap",
    "CQCreateFlags",
    "CounterDescription",
    "DeviceCapFlags",
    "FlowAttrFlags",
    "FlowAttrType",
    "ForkStatus",
    "GIDType",
    "LinkLayer",
    "MWType",
    "MigState",
    "NodeType",
    "ODPGeneralCaps",
    "ODPTransportCaps",
    "OpsFlags",
    "OpsWROpcode",
    "PlacementType",
    "PortState",
    "QPCreateFlags",
    "QPState",
    "QPType",
    "RawPacketCaps",
    "ReadCountersFlags",
    "RxHashFields",
    "RxHashFunction",
    "SRQType",
    "SelectivityLevel",
    "SendFlags",
    "TMCapFlags",
    "TransportType",
    "WCExFlags",
    "WCFlags",
    "WCOpcode",
    "WCStatus",
    "WQFlags",
    "WQState",
    "WQType",
    "WROpcode",
    "enum_or_int",
]


def enum_or_int(cls: "type[_E]", value: int) -> "_E | int":
    """Return the member of `cls` with this value, or the value itself where there is none."""
    # The lookup that cls(value) does, several times as fast.
    return cls._value2member_map_.get(value, value)  # type: ignore[return-value]


def number_of(value: object, name: str, kind: str) -> int:
    """Return the number of a member that was given as the argument `name`.

    kind: "a QPType such as QPType.RC", for the TypeError.
    """
    from operator import index

    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be {kind}, not {value!r}") from None


class WCStatus(_Enum):
    """How a work request ended: `enum ibv_wc_status`."""

    SUCCESS = _c["IBV_WC_SUCCESS"]
    LOC_LEN_ERR = _c["IBV_WC_LOC_LEN_ERR"]
    LOC_QP_OP_ERR = _c["IBV_WC_LOC_QP_OP_ERR"]
    LOC_EEC_OP_ERR = _c["IBV_WC_LOC_EEC_OP_ERR"]
    LOC_PROT_ERR = _c["IBV_WC_LOC_PROT_ERR"]
    WR_FLUSH_ERR = _c["IBV_WC_WR_FLUSH_ERR"]
    MW_BIND_ERR = _c["IBV_WC_MW_BIND_ERR"]
    BAD_RESP_ERR = _c["IBV_WC_BAD_RESP_ERR"]
    LOC_ACCESS_ERR = _c["IBV_WC_LOC_ACCESS_ERR"]
    REM_INV_REQ_ERR = _c["IBV_WC_REM_INV_REQ_ERR"]
    REM_ACCESS_ERR = _c["IBV_WC_REM_ACCESS_ERR"]
    REM_OP_ERR = _c["IBV_WC_REM_OP_ERR"]
    RETRY_EXC_ERR = _c["IBV_WC_RETRY_EXC_ERR"]
    RNR_RETRY_EXC_ERR = _c["IBV_WC_RNR_RETRY_EXC_ERR"]
    LOC_RDD_VIOL_ERR = _c["IBV_WC_LOC_RDD_VIOL_ERR"]
    REM_INV_RD_REQ_ERR = _c["IBV_WC_REM_INV_RD_REQ_ERR"]
    REM_ABORT_ERR = _c["IBV_WC_REM_ABORT_ERR"]
    INV_EECN_ERR = _c["IBV_WC_INV_EECN_ERR"]
    INV_EEC_STATE_ERR = _c["IBV_WC_INV_EEC_STATE_ERR"]
    FATAL_ERR = _c["IBV_WC_FATAL_ERR"]
    RESP_TIMEOUT_ERR = _c["IBV_WC_RESP_TIMEOUT_ERR"]
    GENERAL_ERR = _c["IBV_WC_GENERAL_ERR"]
    TM_ERR = _c["IBV_WC_TM_ERR"]
    TM_RNDV_INCOMPLETE = _c["IBV_WC_TM_RNDV_INCOMPLETE"]


class WCOpcode(_Enum):
    """The operation that completed: `enum ibv_wc_opcode`.

    The bit of RECV is set for receives, and for nothing else.
    """

    SEND = _c["IBV_WC_SEND"]
    RDMA_WRITE = _c["IBV_WC_RDMA_WRITE"]
    RDMA_READ = _c["IBV_WC_RDMA_READ"]
    COMP_SWAP = _c["IBV_WC_COMP_SWAP"]
    FETCH_ADD = _c["IBV_WC_FETCH_ADD"]
    BIND_MW = _c["IBV_WC_BIND_MW"]
    LOCAL_INV = _c["IBV_WC_LOCAL_INV"]
    TSO = _c["IBV_WC_TSO"]
    RECV = _c["IBV_WC_RECV"]
    RECV_RDMA_WITH_IMM = _c["IBV_WC_RECV_RDMA_WITH_IMM"]
    TM_ADD = _c["IBV_WC_TM_ADD"]
    TM_DEL = _c["IBV_WC_TM_DEL"]
    TM_SYNC = _c["IBV_WC_TM_SYNC"]
    TM_RECV = _c["IBV_WC_TM_RECV"]
    TM_NO_TAG = _c["IBV_WC_TM_NO_TAG"]
    DRIVER1 = _c["IBV_WC_DRIVER1"]
    DRIVER2 = _c["IBV_WC_DRIVER2"]
    DRIVER3 = _c["IBV_WC_DRIVER3"]
    FLUSH = _c["IBV_WC_FLUSH"]
    ATOMIC_WRITE = _c["IBV_WC_ATOMIC_WRITE"]


class WCFlags(_Flag):
    """Which fields of a completion are valid: `enum ibv_wc_flags`."""

    GRH = _c["IBV_WC_GRH"]
    WITH_IMM = _c["IBV_WC_WITH_IMM"]
    IP_CSUM_OK = _c["IBV_WC_IP_CSUM_OK"]
    WITH_INV = _c["IBV_WC_WITH_INV"]
    TM_SYNC_REQ = _c["IBV_WC_TM_SYNC_REQ"]
    TM_MATCH = _c["IBV_WC_TM_MATCH"]
    TM_DATA_VALID = _c["IBV_WC_TM_DATA_VALID"]


class WCExFlags(_Flag):
    """Which fields the completions of a CQ have: `enum ibv_create_cq_wc_flags`."""

    BYTE_LEN = _c["IBV_WC_EX_WITH_BYTE_LEN"]
    IMM = _c["IBV_WC_EX_WITH_IMM"]
    QP_NUM = _c["IBV_WC_EX_WITH_QP_NUM"]
    SRC_QP = _c["IBV_WC_EX_WITH_SRC_QP"]
    SLID = _c["IBV_WC_EX_WITH_SLID"]
    SL = _c["IBV_WC_EX_WITH_SL"]
    DLID_PATH_BITS = _c["IBV_WC_EX_WITH_DLID_PATH_BITS"]
    COMPLETION_TIMESTAMP = _c["IBV_WC_EX_WITH_COMPLETION_TIMESTAMP"]
    CVLAN = _c["IBV_WC_EX_WITH_CVLAN"]
    FLOW_TAG = _c["IBV_WC_EX_WITH_FLOW_TAG"]
    TM_INFO = _c["IBV_WC_EX_WITH_TM_INFO"]
    COMPLETION_TIMESTAMP_WALLCLOCK = _c["IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK"]


class AsyncEventType(_Enum):
    """The events that a device reports besides completions: `enum ibv_event_type`."""

    CQ_ERR = _c["IBV_EVENT_CQ_ERR"]
    QP_FATAL = _c["IBV_EVENT_QP_FATAL"]
    QP_REQ_ERR = _c["IBV_EVENT_QP_REQ_ERR"]
    QP_ACCESS_ERR = _c["IBV_EVENT_QP_ACCESS_ERR"]
    COMM_EST = _c["IBV_EVENT_COMM_EST"]
    SQ_DRAINED = _c["IBV_EVENT_SQ_DRAINED"]
    PATH_MIG = _c["IBV_EVENT_PATH_MIG"]
    PATH_MIG_ERR = _c["IBV_EVENT_PATH_MIG_ERR"]
    DEVICE_FATAL = _c["IBV_EVENT_DEVICE_FATAL"]
    PORT_ACTIVE = _c["IBV_EVENT_PORT_ACTIVE"]
    PORT_ERR = _c["IBV_EVENT_PORT_ERR"]
    LID_CHANGE = _c["IBV_EVENT_LID_CHANGE"]
    PKEY_CHANGE = _c["IBV_EVENT_PKEY_CHANGE"]
    SM_CHANGE = _c["IBV_EVENT_SM_CHANGE"]
    SRQ_ERR = _c["IBV_EVENT_SRQ_ERR"]
    SRQ_LIMIT_REACHED = _c["IBV_EVENT_SRQ_LIMIT_REACHED"]
    QP_LAST_WQE_REACHED = _c["IBV_EVENT_QP_LAST_WQE_REACHED"]
    CLIENT_REREGISTER = _c["IBV_EVENT_CLIENT_REREGISTER"]
    GID_CHANGE = _c["IBV_EVENT_GID_CHANGE"]
    WQ_FATAL = _c["IBV_EVENT_WQ_FATAL"]
    DEVICE_SPEED_CHANGE = _c["IBV_EVENT_DEVICE_SPEED_CHANGE"]


class WROpcode(_Enum):
    """The operation of a send work request: `enum ibv_wr_opcode`."""

    RDMA_WRITE = _c["IBV_WR_RDMA_WRITE"]
    RDMA_WRITE_WITH_IMM = _c["IBV_WR_RDMA_WRITE_WITH_IMM"]
    SEND = _c["IBV_WR_SEND"]
    SEND_WITH_IMM = _c["IBV_WR_SEND_WITH_IMM"]
    RDMA_READ = _c["IBV_WR_RDMA_READ"]
    ATOMIC_CMP_AND_SWP = _c["IBV_WR_ATOMIC_CMP_AND_SWP"]
    ATOMIC_FETCH_AND_ADD = _c["IBV_WR_ATOMIC_FETCH_AND_ADD"]
    LOCAL_INV = _c["IBV_WR_LOCAL_INV"]
    BIND_MW = _c["IBV_WR_BIND_MW"]
    SEND_WITH_INV = _c["IBV_WR_SEND_WITH_INV"]
    TSO = _c["IBV_WR_TSO"]
    DRIVER1 = _c["IBV_WR_DRIVER1"]
    FLUSH = _c["IBV_WR_FLUSH"]
    ATOMIC_WRITE = _c["IBV_WR_ATOMIC_WRITE"]


class SendFlags(_Flag):
    """Options of a send work request: `enum ibv_send_flags`."""

    FENCE = _c["IBV_SEND_FENCE"]
    SIGNALED = _c["IBV_SEND_SIGNALED"]
    SOLICITED = _c["IBV_SEND_SOLICITED"]
    INLINE = _c["IBV_SEND_INLINE"]
    IP_CSUM = _c["IBV_SEND_IP_CSUM"]


class PlacementType(_Flag):
    """Where the bytes are when a FLUSH has completed: `enum ibv_placement_type`.

    GLOBAL: every observer at the peer sees them. PERSISTENT: they outlast a loss of power.
    """

    GLOBAL = _c["IBV_FLUSH_GLOBAL"]
    PERSISTENT = _c["IBV_FLUSH_PERSISTENT"]


class SelectivityLevel(_Enum):
    """What a FLUSH is about, some bytes or the whole MR: `enum ibv_selectivity_level`."""

    RANGE = _c["IBV_FLUSH_RANGE"]
    MR = _c["IBV_FLUSH_MR"]


class AccessFlags(_Flag):
    """The access that an MR, a memory window or a QP allows: `enum ibv_access_flags`."""

    LOCAL_WRITE = _c["IBV_ACCESS_LOCAL_WRITE"]
    REMOTE_WRITE = _c["IBV_ACCESS_REMOTE_WRITE"]
    REMOTE_READ = _c["IBV_ACCESS_REMOTE_READ"]
    REMOTE_ATOMIC = _c["IBV_ACCESS_REMOTE_ATOMIC"]
    MW_BIND = _c["IBV_ACCESS_MW_BIND"]
    ZERO_BASED = _c["IBV_ACCESS_ZERO_BASED"]
    ON_DEMAND = _c["IBV_ACCESS_ON_DEMAND"]
    HUGETLB = _c["IBV_ACCESS_HUGETLB"]
    RELAXED_ORDERING = _c["IBV_ACCESS_RELAXED_ORDERING"]
    FLUSH_GLOBAL = _c["IBV_ACCESS_FLUSH_GLOBAL"]
    FLUSH_PERSISTENT = _c["IBV_ACCESS_FLUSH_PERSISTENT"]


class AdviseMRAdvice(_Enum):
    """What `PD.advise_mr` asks for: `enum ibv_advise_mr_advice`."""

    PREFETCH = _c["IBV_ADVISE_MR_ADVICE_PREFETCH"]
    PREFETCH_WRITE = _c["IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE"]
    PREFETCH_NO_FAULT = _c["IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT"]


class AdviseMRFlags(_Flag):
    """How `PD.advise_mr` goes about it: `enum ibv_advise_mr_flags`."""

    FLUSH = _c["IBV_ADVISE_MR_FLAG_FLUSH"]


class ForkStatus(_Enum):
    """Whether registered memory survives a fork, see `fork_status`: `enum ibv_fork_status`."""

    DISABLED = _c["IBV_FORK_DISABLED"]
    ENABLED = _c["IBV_FORK_ENABLED"]
    UNNEEDED = _c["IBV_FORK_UNNEEDED"]


class MWType(_Enum):
    """Whether a verb (1) or a work request (2) binds a memory window: `enum ibv_mw_type`."""

    TYPE_1 = _c["IBV_MW_TYPE_1"]
    TYPE_2 = _c["IBV_MW_TYPE_2"]


class QPType(_Enum):
    """The transport service of a QP: `enum ibv_qp_type`."""

    RC = _c["IBV_QPT_RC"]
    UC = _c["IBV_QPT_UC"]
    UD = _c["IBV_QPT_UD"]
    RAW_PACKET = _c["IBV_QPT_RAW_PACKET"]
    XRC_SEND = _c["IBV_QPT_XRC_SEND"]
    XRC_RECV = _c["IBV_QPT_XRC_RECV"]
    DRIVER = _c["IBV_QPT_DRIVER"]


class QPState(_Enum):
    """The state of a QP: `enum ibv_qp_state`."""

    RESET = _c["IBV_QPS_RESET"]
    INIT = _c["IBV_QPS_INIT"]
    RTR = _c["IBV_QPS_RTR"]
    RTS = _c["IBV_QPS_RTS"]
    SQD = _c["IBV_QPS_SQD"]
    SQE = _c["IBV_QPS_SQE"]
    ERR = _c["IBV_QPS_ERR"]
    UNKNOWN = _c["IBV_QPS_UNKNOWN"]


class MTU(_Enum):
    """A path's largest packet payload, encoded: `enum ibv_mtu`."""

    MTU_256 = _c["IBV_MTU_256"]
    MTU_512 = _c["IBV_MTU_512"]
    MTU_1024 = _c["IBV_MTU_1024"]
    MTU_2048 = _c["IBV_MTU_2048"]
    MTU_4096 = _c["IBV_MTU_4096"]

    @property
    def bytes(self) -> int:
        """The MTU in bytes."""
        return 128 << self.value


class MigState(_Enum):
    """The state of path migration: `enum ibv_mig_state`."""

    MIGRATED = _c["IBV_MIG_MIGRATED"]
    REARM = _c["IBV_MIG_REARM"]
    ARMED = _c["IBV_MIG_ARMED"]


class PortState(_Enum):
    """The logical state of a port: `enum ibv_port_state`."""

    NOP = _c["IBV_PORT_NOP"]
    DOWN = _c["IBV_PORT_DOWN"]
    INIT = _c["IBV_PORT_INIT"]
    ARMED = _c["IBV_PORT_ARMED"]
    ACTIVE = _c["IBV_PORT_ACTIVE"]
    ACTIVE_DEFER = _c["IBV_PORT_ACTIVE_DEFER"]


class LinkLayer(_Enum):
    """The protocol of a port below the transport: `IBV_LINK_LAYER_*`.

    Older drivers report UNSPECIFIED for InfiniBand.
    """

    UNSPECIFIED = _c["IBV_LINK_LAYER_UNSPECIFIED"]
    INFINIBAND = _c["IBV_LINK_LAYER_INFINIBAND"]
    ETHERNET = _c["IBV_LINK_LAYER_ETHERNET"]


class GIDType(_Enum):
    """The protocol that a GID table entry is for: `enum ibv_gid_type`."""

    IB = _c["IBV_GID_TYPE_IB"]
    ROCE_V1 = _c["IBV_GID_TYPE_ROCE_V1"]
    ROCE_V2 = _c["IBV_GID_TYPE_ROCE_V2"]


class NodeType(_Enum):
    """The kind of a device: `enum ibv_node_type`."""

    UNKNOWN = _c["IBV_NODE_UNKNOWN"]
    CA = _c["IBV_NODE_CA"]
    SWITCH = _c["IBV_NODE_SWITCH"]
    ROUTER = _c["IBV_NODE_ROUTER"]
    RNIC = _c["IBV_NODE_RNIC"]
    USNIC = _c["IBV_NODE_USNIC"]
    USNIC_UDP = _c["IBV_NODE_USNIC_UDP"]
    UNSPECIFIED = _c["IBV_NODE_UNSPECIFIED"]


class TransportType(_Enum):
    """The transport of a device: `enum ibv_transport_type`."""

    UNKNOWN = _c["IBV_TRANSPORT_UNKNOWN"]
    IB = _c["IBV_TRANSPORT_IB"]
    IWARP = _c["IBV_TRANSPORT_IWARP"]
    USNIC = _c["IBV_TRANSPORT_USNIC"]
    USNIC_UDP = _c["IBV_TRANSPORT_USNIC_UDP"]
    UNSPECIFIED = _c["IBV_TRANSPORT_UNSPECIFIED"]


class AtomicCap(_Enum):
    """Among which accesses a device's atomics are atomic: `enum ibv_atomic_cap`."""

    NONE = _c["IBV_ATOMIC_NONE"]
    HCA = _c["IBV_ATOMIC_HCA"]
    GLOB = _c["IBV_ATOMIC_GLOB"]


class DeviceCapFlags(_Flag):
    """What a device can do: `enum ibv_device_cap_flags`, and bits that newer kernels report."""

    RESIZE_MAX_WR = _c["IBV_DEVICE_RESIZE_MAX_WR"]
    BAD_PKEY_CNTR = _c["IBV_DEVICE_BAD_PKEY_CNTR"]
    BAD_QKEY_CNTR = _c["IBV_DEVICE_BAD_QKEY_CNTR"]
    RAW_MULTI = _c["IBV_DEVICE_RAW_MULTI"]
    AUTO_PATH_MIG = _c["IBV_DEVICE_AUTO_PATH_MIG"]
    CHANGE_PHY_PORT = _c["IBV_DEVICE_CHANGE_PHY_PORT"]
    UD_AV_PORT_ENFORCE = _c["IBV_DEVICE_UD_AV_PORT_ENFORCE"]
    CURR_QP_STATE_MOD = _c["IBV_DEVICE_CURR_QP_STATE_MOD"]
    SHUTDOWN_PORT = _c["IBV_DEVICE_SHUTDOWN_PORT"]
    INIT_TYPE = _c["IBV_DEVICE_INIT_TYPE"]
    PORT_ACTIVE_EVENT = _c["IBV_DEVICE_PORT_ACTIVE_EVENT"]
    SYS_IMAGE_GUID = _c["IBV_DEVICE_SYS_IMAGE_GUID"]
    RC_RNR_NAK_GEN = _c["IBV_DEVICE_RC_RNR_NAK_GEN"]
    SRQ_RESIZE = _c["IBV_DEVICE_SRQ_RESIZE"]
    N_NOTIFY_CQ = _c["IBV_DEVICE_N_NOTIFY_CQ"]
    MEM_WINDOW = _c["IBV_DEVICE_MEM_WINDOW"]
    UD_IP_CSUM = _c["IBV_DEVICE_UD_IP_CSUM"]
    XRC = _c["IBV_DEVICE_XRC"]
    MEM_MGT_EXTENSIONS = _c["IBV_DEVICE_MEM_MGT_EXTENSIONS"]
    MEM_WINDOW_TYPE_2A = _c["IBV_DEVICE_MEM_WINDOW_TYPE_2A"]
    MEM_WINDOW_TYPE_2B = _c["IBV_DEVICE_MEM_WINDOW_TYPE_2B"]
    RC_IP_CSUM = _c["IBV_DEVICE_RC_IP_CSUM"]
    RAW_IP_CSUM = _c["IBV_DEVICE_RAW_IP_CSUM"]
    MANAGED_FLOW_STEERING = _c["IBV_DEVICE_MANAGED_FLOW_STEERING"]
    RAW_SCATTER_FCS = _c["IBV_DEVICE_RAW_SCATTER_FCS"]
    PCI_WRITE_END_PADDING = _c["IBV_DEVICE_PCI_WRITE_END_PADDING"]
    FLUSH_GLOBAL = _c["IBV_DEVICE_FLUSH_GLOBAL"]
    FLUSH_PERSISTENT = _c["IBV_DEVICE_FLUSH_PERSISTENT"]
    ATOMIC_WRITE = _c["IBV_DEVICE_ATOMIC_WRITE"]
    CC_DMA_BOUNCE = _c["IBV_DEVICE_CC_DMA_BOUNCE"]


class ODPGeneralCaps(_Flag):
    """The kinds of on-demand paging that a device supports: `enum ibv_odp_general_caps`."""

    SUPPORT = _c["IBV_ODP_SUPPORT"]
    SUPPORT_IMPLICIT = _c["IBV_ODP_SUPPORT_IMPLICIT"]


class ODPTransportCaps(_Flag):
    """The operations of a transport that can page on demand: `enum ibv_odp_transport_cap_bits`."""

    SEND = _c["IBV_ODP_SUPPORT_SEND"]
    RECV = _c["IBV_ODP_SUPPORT_RECV"]
    WRITE = _c["IBV_ODP_SUPPORT_WRITE"]
    READ = _c["IBV_ODP_SUPPORT_READ"]
    ATOMIC = _c["IBV_ODP_SUPPORT_ATOMIC"]
    SRQ_RECV = _c["IBV_ODP_SUPPORT_SRQ_RECV"]
    FLUSH = _c["IBV_ODP_SUPPORT_FLUSH"]
    ATOMIC_WRITE = _c["IBV_ODP_SUPPORT_ATOMIC_WRITE"]


class CQCreateFlags(_Flag):
    """Options of a new CQ: `enum ibv_create_cq_attr_flags`."""

    SINGLE_THREADED = _c["IBV_CREATE_CQ_ATTR_SINGLE_THREADED"]
    IGNORE_OVERRUN = _c["IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN"]


class QPCreateFlags(_Flag):
    """Options of a new QP: `enum ibv_qp_create_flags`."""

    BLOCK_SELF_MCAST_LB = _c["IBV_QP_CREATE_BLOCK_SELF_MCAST_LB"]
    SCATTER_FCS = _c["IBV_QP_CREATE_SCATTER_FCS"]
    CVLAN_STRIPPING = _c["IBV_QP_CREATE_CVLAN_STRIPPING"]
    SOURCE_QPN = _c["IBV_QP_CREATE_SOURCE_QPN"]
    PCI_WRITE_END_PADDING = _c["IBV_QP_CREATE_PCI_WRITE_END_PADDING"]


class CounterDescription(_Enum):
    """What is counted of the packets of a Flow: `enum ibv_counter_description`."""

    PACKETS = _c["IBV_COUNTER_PACKETS"]
    BYTES = _c["IBV_COUNTER_BYTES"]


class ReadCountersFlags(_Flag):
    """How counters are read: `enum ibv_read_counters_flags`."""

    PREFER_CACHED = _c["IBV_READ_COUNTERS_ATTR_PREFER_CACHED"]


class SRQType(_Enum):
    """What an SRQ is for: `enum ibv_srq_type`."""

    BASIC = _c["IBV_SRQT_BASIC"]
    XRC = _c["IBV_SRQT_XRC"]
    TM = _c["IBV_SRQT_TM"]


class OpsWROpcode(_Enum):
    """What an operation does to the list of tags of an SRQ: `enum ibv_ops_wr_opcode`."""

    TAG_ADD = _c["IBV_WR_TAG_ADD"]
    TAG_DEL = _c["IBV_WR_TAG_DEL"]
    TAG_SYNC = _c["IBV_WR_TAG_SYNC"]


class OpsFlags(_Flag):
    """Options of an operation on the list of tags of an SRQ: `enum ibv_ops_flags`."""

    SIGNALED = _c["IBV_OPS_SIGNALED"]
    TM_SYNC = _c["IBV_OPS_TM_SYNC"]


class WQType(_Enum):
    """What a WQ is for: `enum ibv_wq_type`."""

    RQ = _c["IBV_WQT_RQ"]


class WQState(_Enum):
    """The state of a WQ: `enum ibv_wq_state`."""

    RESET = _c["IBV_WQS_RESET"]
    RDY = _c["IBV_WQS_RDY"]
    ERR = _c["IBV_WQS_ERR"]
    UNKNOWN = _c["IBV_WQS_UNKNOWN"]


class WQFlags(_Flag):
    """Options of a WQ: `enum ibv_wq_flags`."""

    CVLAN_STRIPPING = _c["IBV_WQ_FLAGS_CVLAN_STRIPPING"]
    SCATTER_FCS = _c["IBV_WQ_FLAGS_SCATTER_FCS"]
    DELAY_DROP = _c["IBV_WQ_FLAGS_DELAY_DROP"]
    PCI_WRITE_END_PADDING = _c["IBV_WQ_FLAGS_PCI_WRITE_END_PADDING"]


class RxHashFunction(_Flag):
    """How a hash of packet headers is made: `enum ibv_rx_hash_function_flags`."""

    TOEPLITZ = _c["IBV_RX_HASH_FUNC_TOEPLITZ"]


class RxHashFields(_Flag):
    """What goes into a hash of packet headers: `enum ibv_rx_hash_fields`."""

    SRC_IPV4 = _c["IBV_RX_HASH_SRC_IPV4"]
    DST_IPV4 = _c["IBV_RX_HASH_DST_IPV4"]
    SRC_IPV6 = _c["IBV_RX_HASH_SRC_IPV6"]
    DST_IPV6 = _c["IBV_RX_HASH_DST_IPV6"]
    SRC_PORT_TCP = _c["IBV_RX_HASH_SRC_PORT_TCP"]
    DST_PORT_TCP = _c["IBV_RX_HASH_DST_PORT_TCP"]
    SRC_PORT_UDP = _c["IBV_RX_HASH_SRC_PORT_UDP"]
    DST_PORT_UDP = _c["IBV_RX_HASH_DST_PORT_UDP"]
    IPSEC_SPI = _c["IBV_RX_HASH_IPSEC_SPI"]
    INNER = _c["IBV_RX_HASH_INNER"]


class FlowAttrType(_Enum):
    """The kinds of rules for packets: `enum ibv_flow_attr_type`."""

    NORMAL = _c["IBV_FLOW_ATTR_NORMAL"]
    ALL_DEFAULT = _c["IBV_FLOW_ATTR_ALL_DEFAULT"]
    MC_DEFAULT = _c["IBV_FLOW_ATTR_MC_DEFAULT"]
    SNIFFER = _c["IBV_FLOW_ATTR_SNIFFER"]


class FlowAttrFlags(_Flag):
    """Options of a rule for packets: `enum ibv_flow_flags`."""

    DONT_TRAP = _c["IBV_FLOW_ATTR_FLAGS_DONT_TRAP"]
    EGRESS = _c["IBV_FLOW_ATTR_FLAGS_EGRESS"]


class RawPacketCaps(_Flag):
    """What a device can do with raw packets: `enum ibv_raw_packet_caps`."""

    CVLAN_STRIPPING = _c["IBV_RAW_PACKET_CAP_CVLAN_STRIPPING"]
    SCATTER_FCS = _c["IBV_RAW_PACKET_CAP_SCATTER_FCS"]
    IP_CSUM = _c["IBV_RAW_PACKET_CAP_IP_CSUM"]
    DELAY_DROP = _c["IBV_RAW_PACKET_CAP_DELAY_DROP"]


class TMCapFlags(_Flag):
    """The transports that can match tags: `enum ibv_tm_cap_flags`."""

    RC = _c["IBV_TM_CAP_RC"]


if not TYPE_CHECKING:
    for _name in _bodies:
        del globals()[_name]

    def __getattr__(name):
        if name not in _bodies:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import _named

        # If several threads come here at once, all of them use the class of the first.
        return globals().setdefault(name, _named.build(name, *_bodies[name]))

    def __dir__():
        return __all__
