# SPDX-License-Identifier: MIT
"""From the core's answers, which are numbers by name or place, to the named tuples of attrs.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any

from .attrs import (
    AHAttr,
    CQModerationCaps,
    Device,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    ODPPerTransportCaps,
    PacketPacingCaps,
    PortAttr,
    QPAttr,
    QPCap,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
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
    enum_or_int,
)


def device(raw: Mapping[str, Any]) -> Device:
    enums = {
        "node_type": enum_or_int(NodeType, raw["node_type"]),
        "transport_type": enum_or_int(TransportType, raw["transport_type"]),
    }
    return Device(**{**raw, **enums})


def device_attr(raw: Mapping[str, Any]) -> DeviceAttr:
    enums = {
        "device_cap_flags": DeviceCapFlags(raw["device_cap_flags"]),
        "atomic_cap": enum_or_int(AtomicCap, raw["atomic_cap"]),
    }
    return DeviceAttr(**{**raw, **enums})


def device_attr_ex(raw: Mapping[str, Any]) -> DeviceAttrEx:
    tree = _nested(raw)
    converted = {
        "orig_attr": device_attr(raw["orig_attr"]),
        "odp_caps": _odp_caps(tree["odp_caps"]),
        "device_cap_flags_ex": DeviceCapFlags(raw["device_cap_flags_ex"]),
        "tso_caps": TSOCaps(**tree["tso_caps"]),
        "rss_caps": _rss_caps(tree["rss_caps"]),
        "packet_pacing_caps": PacketPacingCaps(**tree["packet_pacing_caps"]),
        "raw_packet_caps": RawPacketCaps(raw["raw_packet_caps"]),
        "tm_caps": TMCaps(**{**tree["tm_caps"], "flags": TMCapFlags(raw["tm_caps.flags"])}),
        "xrc_odp_caps": ODPTransportCaps(raw["xrc_odp_caps"]),
        "cq_mod_caps": CQModerationCaps(**tree["cq_mod_caps"]),
    }
    rest = {name: tree[name] for name in DeviceAttrEx._fields if name in tree}
    return DeviceAttrEx(**{**rest, **converted})


def _odp_caps(raw: Mapping[str, Any]) -> ODPCaps:
    transports = {k: ODPTransportCaps(v) for k, v in raw["per_transport_caps"].items()}
    return ODPCaps(ODPGeneralCaps(raw["general_caps"]), ODPPerTransportCaps(**transports))


def _rss_caps(raw: Mapping[str, Any]) -> RSSCaps:
    enums = {
        "rx_hash_fields_mask": RxHashFields(raw["rx_hash_fields_mask"]),
        "rx_hash_function": RxHashFunction(raw["rx_hash_function"]),
    }
    return RSSCaps(**{**raw, **enums})


def _nested(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Turn names with dots into nested dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in raw.items():
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def _port_attr(raw: tuple[int, ...]) -> PortAttr:
    fields: list[Any] = list(raw)
    for i, members in _PORT_ENUMS:
        fields[i] = members.get(fields[i], fields[i])
    return tuple.__new__(PortAttr, fields)  # what _make() does, without its check of the length


# For each field of PortAttr that has an enum: its index, and the members by value. (Calling
# enum_or_int() four times would take as long as the verb.) Drivers from before RoCE leave the link
# layer unspecified, which means InfiniBand.
_PORT_ENUMS: list[tuple[int, dict[int, Any]]] = [
    (PortAttr._fields.index(name), members)
    for name, members in {
        "state": {**PortState._value2member_map_},
        "max_mtu": {**MTU._value2member_map_},
        "active_mtu": {**MTU._value2member_map_},
        "link_layer": {**LinkLayer._value2member_map_, 0: LinkLayer.INFINIBAND},
    }.items()
]


def _gid_entry(raw: tuple[bytes, int, int, int, str | None]) -> GIDEntry:
    gid, index, port_num, gid_type, netdev = raw
    return GIDEntry(IPv6Address(gid), index, port_num, enum_or_int(GIDType, gid_type), netdev)


# Programs ask for ports and GIDs often, and get the same answer for long. The device is asked each
# time; what is kept is which tuple stands for which answer: here for several ports and entries, and
# in the core for the latest answer of a context.
port_attr = lru_cache(64)(_port_attr)
gid_entry = lru_cache(1024)(_gid_entry)


def ah_attr(raw: Mapping[str, Any]) -> AHAttr:
    fields = {name: raw[name] for name in AHAttr._fields}
    fields["dgid"] = IPv6Address(raw["dgid"]) if raw["is_global"] else None
    return AHAttr(**fields)


def qp_attr(raw: Mapping[str, Any]) -> QPAttr:
    converted = {
        "qp_state": enum_or_int(QPState, raw["qp_state"]),
        "cur_qp_state": enum_or_int(QPState, raw["cur_qp_state"]),
        "path_mtu": enum_or_int(MTU, raw["path_mtu"]),
        "path_mig_state": enum_or_int(MigState, raw["path_mig_state"]),
        "qp_access_flags": AccessFlags(raw["qp_access_flags"]),
        "cap": QPCap(**raw["cap"]),
        "ah_attr": ah_attr(raw["ah_attr"]),
        "alt_ah_attr": ah_attr(raw["alt_ah_attr"]),
    }
    return QPAttr(**{**raw, **converted})


def raw_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse: the arguments of `QP.modify` as the core takes them."""
    return {name: _raw(value) for name, value in changes.items()}


def _raw(value: object) -> object:
    if isinstance(value, AHAttr):
        # The core parses `dgid` in any form of an address, and refuses everything else.
        return {**value._asdict(), "is_global": int(value.dgid is not None)}
    return value._asdict() if isinstance(value, QPCap) else value
