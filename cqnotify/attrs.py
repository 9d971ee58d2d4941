# SPDX-License-Identifier: MIT
"""What the queries return: the structs of <infiniband/verbs.h> as named tuples.

The fields have the struct's names and units. A value that has an enum here is given as that
enum; one that the enum does not know stays a plain int.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from .enums import (
    MTU,
    AccessFlags,
    AtomicCap,
    GIDType,
    LinkLayer,
    MigState,
    NodeType,
    PortState,
    QPState,
    TransportType,
    enum_or_int,
)

__all__ = ["AHAttr", "Device", "DeviceAttr", "GIDEntry", "PortAttr", "QPAttr", "QPCap", "SRQAttr"]


class Device(NamedTuple):
    """An RDMA device of this machine, as `devices()` lists it; it need not be open."""

    name: str
    node_type: NodeType | int
    transport_type: TransportType | int
    guid: int

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> Device:
        return cls(
            name=raw["name"],
            node_type=enum_or_int(NodeType, raw["node_type"]),
            transport_type=enum_or_int(TransportType, raw["transport_type"]),
            guid=raw["guid"],
        )


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
    device_cap_flags: int
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

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> DeviceAttr:
        return cls(**{**raw, "atomic_cap": enum_or_int(AtomicCap, raw["atomic_cap"])})


class PortAttr(NamedTuple):
    """A port of a device: `struct ibv_port_attr`."""

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

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> PortAttr:
        enums = {
            "state": enum_or_int(PortState, raw["state"]),
            "max_mtu": enum_or_int(MTU, raw["max_mtu"]),
            "active_mtu": enum_or_int(MTU, raw["active_mtu"]),
            # Drivers from before RoCE leave it unspecified, and mean InfiniBand.
            "link_layer": enum_or_int(LinkLayer, raw["link_layer"] or LinkLayer.INFINIBAND),
        }
        return cls(**{**raw, **enums})


class GIDEntry(NamedTuple):
    """A valid entry of a port's GID table: `struct ibv_gid_entry`.

    `netdev` is the name of the network device behind it, None where there is none (InfiniBand)
    or where it is not visible from here (another network namespace).
    """

    gid: IPv6Address
    index: int  # type: ignore[assignment]  # instead of the method that tuples have
    port_num: int
    gid_type: GIDType | int
    netdev: str | None

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> GIDEntry:
        return cls(
            gid=IPv6Address(raw["gid"]),
            index=raw["gid_index"],
            port_num=raw["port_num"],
            gid_type=enum_or_int(GIDType, raw["gid_type"]),
            netdev=_netdev(raw["ndev_ifindex"]),
        )


class AHAttr(NamedTuple):
    """The way to a peer: `struct ibv_ah_attr`, with its `struct ibv_global_route`.

    `dgid` None stands for a path without a global route header: InfiniBand within a subnet,
    which needs `dlid`. RoCE always needs `dgid`.
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

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> AHAttr:
        fields = {name: raw[name] for name in cls._fields}
        fields["dgid"] = IPv6Address(raw["dgid"]) if raw["is_global"] else None
        return cls(**fields)

    def _raw(self) -> dict[str, Any]:
        """The fields as the core takes them."""
        # The core takes an address in any form, and refuses what is none.
        return {**self._asdict(), "is_global": int(self.dgid is not None)}


class QPCap(NamedTuple):
    """The sizes of a QP's queues, in work requests, SGEs and bytes: `struct ibv_qp_cap`."""

    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int


class QPAttr(NamedTuple):
    """Everything that a device tells about a QP: `struct ibv_qp_attr`.

    Which fields mean something depends on the QP's type and state, see ibv_query_qp(3).
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

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> QPAttr:
        converted = {
            "qp_state": enum_or_int(QPState, raw["qp_state"]),
            "cur_qp_state": enum_or_int(QPState, raw["cur_qp_state"]),
            "path_mtu": enum_or_int(MTU, raw["path_mtu"]),
            "path_mig_state": enum_or_int(MigState, raw["path_mig_state"]),
            "qp_access_flags": AccessFlags(raw["qp_access_flags"]),
            "cap": QPCap(**raw["cap"]),
            "ah_attr": AHAttr._of(raw["ah_attr"]),
            "alt_ah_attr": AHAttr._of(raw["alt_ah_attr"]),
        }
        return cls(**{**raw, **converted})


class SRQAttr(NamedTuple):
    """The sizes of an SRQ, in receives and SGEs, and its limit: `struct ibv_srq_attr`.

    A limit of 0 is not armed, or was reached since it was.
    """

    max_wr: int
    max_sge: int
    srq_limit: int


def _netdev(ifindex: int) -> str | None:
    try:
        return socket.if_indextoname(ifindex) if ifindex else None
    except OSError:  # it went away, or lives in another network namespace
        return None
