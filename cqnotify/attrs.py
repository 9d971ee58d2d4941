# SPDX-License-Identifier: MIT
"""What the queries return: the structs of <infiniband/verbs.h> as named tuples.

The fields have the struct's names and units. Where there is an enum for a field, the value is a
member of it; a value that the enum does not know stays a plain int.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple

from .enums import (
    MTU,
    AccessFlags,
    AtomicCap,
    DeviceCapFlags,
    GIDType,
    LinkLayer,
    MigState,
    NodeType,
    ODPGeneralCaps,
    ODPTransportCaps,
    PortState,
    QPState,
    RawPacketCaps,
    RxHashFields,
    RxHashFunction,
    TMCapFlags,
    TransportType,
)

__all__ = [
    "ECE",
    "AHAttr",
    "CQModerationCaps",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "GIDEntry",
    "ODPCaps",
    "ODPPerTransportCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "RSSCaps",
    "RTValues",
    "RxHashConf",
    "SRQAttr",
    "TMCaps",
    "TSOCaps",
]


class Device(NamedTuple):
    """An RDMA device of this machine, as `devices()` lists it, open or not."""

    name: str
    node_type: NodeType | int
    transport_type: TransportType | int
    guid: int


class DeviceAttr(NamedTuple):
    """What a device can do: `struct ibv_device_attr`. The GUIDs are in host byte order."""

    fw_ver: str
    node_guid: int
    sys_image_guid: int
    max_mr_size: int
    page_size_cap: int
    vendor_id: int
    vendor_part_id: int
    hw_ver: int
    max_qp: int
    max_qp_wr: int
    device_cap_flags: DeviceCapFlags
    max_sge: int
    max_sge_rd: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_pd: int
    max_qp_rd_atom: int
    max_ee_rd_atom: int
    max_res_rd_atom: int
    max_qp_init_rd_atom: int
    max_ee_init_rd_atom: int
    atomic_cap: AtomicCap | int
    max_ee: int
    max_rdd: int
    max_mw: int
    max_raw_ipv6_qp: int
    max_raw_ethy_qp: int
    max_mcast_grp: int
    max_mcast_qp_attach: int
    max_total_mcast_qp_attach: int
    max_ah: int
    max_fmr: int
    max_map_per_fmr: int
    max_srq: int
    max_srq_wr: int
    max_srq_sge: int
    max_pkeys: int
    local_ca_ack_delay: int
    phys_port_cnt: int


class ODPPerTransportCaps(NamedTuple):
    """The operations that can page on demand: `per_transport_caps` of `struct ibv_odp_caps`."""

    rc_odp_caps: ODPTransportCaps
    uc_odp_caps: ODPTransportCaps
    ud_odp_caps: ODPTransportCaps


class ODPCaps(NamedTuple):
    """On-demand paging: `struct ibv_odp_caps`."""

    general_caps: ODPGeneralCaps
    per_transport_caps: ODPPerTransportCaps


class PacketPacingCaps(NamedTuple):
    """The limits of a QP's `rate_limit`, in kbit/s: `struct ibv_packet_pacing_caps`.

    In `supported_qpts` the bit `1 << QPType` stands for a type.
    """

    qp_rate_limit_min: int
    qp_rate_limit_max: int
    supported_qpts: int


class CQModerationCaps(NamedTuple):
    """The limits of `CQ.modify`, in completions and microseconds: `ibv_cq_moderation_caps`."""

    max_cq_count: int
    max_cq_period: int


class TSOCaps(NamedTuple):
    """Segmentation by the device: `struct ibv_tso_caps`.

    `max_tso` is the largest message, in bytes. In `supported_qpts` the bit `1 << QPType` stands for
    a type.
    """

    max_tso: int
    supported_qpts: int


class RSSCaps(NamedTuple):
    """The limits of an `RwqIndTable`, and of `RxHashConf`: `struct ibv_rss_caps`.

    In `supported_qpts` the bit `1 << QPType` stands for a type.
    """

    supported_qpts: int
    max_rwq_indirection_tables: int
    max_rwq_indirection_table_size: int
    rx_hash_fields_mask: RxHashFields
    rx_hash_function: RxHashFunction


class TMCaps(NamedTuple):
    """The limits of an `SRQ` of type TM: `struct ibv_tm_caps`."""

    max_rndv_hdr_size: int
    max_num_tags: int
    flags: TMCapFlags
    max_ops: int
    max_sge: int


class RxHashConf(NamedTuple):
    """How a QP with `rwq_ind_tbl` hashes the headers of packets: `struct ibv_rx_hash_conf`.

    `rx_hash_key` has 1 to 255 bytes, as the device wants them: 40 for TOEPLITZ, mostly.
    """

    rx_hash_function: RxHashFunction | int
    rx_hash_key: bytes
    rx_hash_fields_mask: RxHashFields | int


class ECE(NamedTuple):
    """The options of enhanced connection establishment: `struct ibv_ece`."""

    vendor_id: int
    options: int = 0
    comp_mask: int = 0


class DeviceAttrEx(NamedTuple):
    """What a device can do: `struct ibv_device_attr_ex`, as far as cqnotify has a verb for it.

    A limit that the device does not report is 0.

    `hca_core_clock` is the frequency, in kHz, of the clock that `completion_ts` of a completion and
    `Context.query_rt_values` show; `completion_timestamp_mask` has the bits that the clock counts
    in.
    """

    orig_attr: DeviceAttr
    comp_mask: int
    odp_caps: ODPCaps
    completion_timestamp_mask: int
    hca_core_clock: int
    device_cap_flags_ex: DeviceCapFlags
    tso_caps: TSOCaps
    rss_caps: RSSCaps
    max_wq_type_rq: int
    packet_pacing_caps: PacketPacingCaps
    raw_packet_caps: RawPacketCaps
    tm_caps: TMCaps
    cq_mod_caps: CQModerationCaps
    phys_port_cnt_ex: int
    max_dm_size: int
    xrc_odp_caps: ODPTransportCaps


class RTValues(NamedTuple):
    """The current values of a device: `struct ibv_values_ex`.

    `raw_clock` is its clock in ticks, see `DeviceAttrEx.hca_core_clock`.
    """

    raw_clock: int


class PortAttr(NamedTuple):
    """A port of a device: `struct ibv_port_attr`.

    `active_speed_ex` is 0, and `active_speed` has the speed, where the speed fits that, and where
    rdma-core is older than 50.
    """

    state: PortState | int
    max_mtu: MTU | int
    active_mtu: MTU | int
    gid_tbl_len: int
    port_cap_flags: int
    max_msg_sz: int
    bad_pkey_cntr: int
    qkey_viol_cntr: int
    pkey_tbl_len: int
    lid: int
    sm_lid: int
    lmc: int
    max_vl_num: int
    sm_sl: int
    subnet_timeout: int
    init_type_reply: int
    active_width: int
    active_speed: int
    phys_state: int
    link_layer: LinkLayer | int
    flags: int
    port_cap_flags2: int
    active_speed_ex: int


class GIDEntry(NamedTuple):
    """A valid entry of a port's GID table: `struct ibv_gid_entry`.

    `netdev` is the name of the network device that has this address, or None: InfiniBand has
    no such device, and one in another network namespace is not visible.
    """

    gid: IPv6Address
    index: int  # type: ignore[assignment]  # instead of the method that tuples have
    port_num: int
    gid_type: GIDType | int
    netdev: str | None


class AHAttr(NamedTuple):
    """The path to a peer: `struct ibv_ah_attr`, with its `struct ibv_global_route`.

    Where `dgid` is None the path has no global route header: that is for InfiniBand within a
    subnet, which needs `dlid`. RoCE always needs `dgid`.
    """

    dgid: IPv6Address | None
    sgid_index: int = 0
    port_num: int = 1
    dlid: int = 0
    sl: int = 0
    hop_limit: int = 64
    traffic_class: int = 0
    flow_label: int = 0
    src_path_bits: int = 0
    static_rate: int = 0


class QPCap(NamedTuple):
    """The sizes of a QP's queues, in work requests, SGEs and bytes: `struct ibv_qp_cap`."""

    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int


class QPAttr(NamedTuple):
    """The attributes of a QP: `struct ibv_qp_attr`.

    Which fields are valid depends on the QP's type and state, see ibv_query_qp(3). `rate_limit` can
    be set but not queried: here it is 0.
    """

    qp_state: QPState | int
    cur_qp_state: QPState | int
    path_mtu: MTU | int
    path_mig_state: MigState | int
    qkey: int
    rq_psn: int
    sq_psn: int
    dest_qp_num: int
    qp_access_flags: AccessFlags
    cap: QPCap
    ah_attr: AHAttr
    alt_ah_attr: AHAttr
    pkey_index: int
    alt_pkey_index: int
    en_sqd_async_notify: int
    sq_draining: int
    max_rd_atomic: int
    max_dest_rd_atomic: int
    min_rnr_timer: int
    port_num: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    alt_port_num: int
    alt_timeout: int
    rate_limit: int


class SRQAttr(NamedTuple):
    """The sizes of an SRQ, in receives and SGEs, and its limit: `struct ibv_srq_attr`.

    A limit of 0 is not armed, or has been reached since it was armed.
    """

    max_wr: int
    max_sge: int
    srq_limit: int
