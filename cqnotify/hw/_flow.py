# SPDX-License-Identifier: MIT
"""Flow steering: rules for which packets a queue pair gets, and what they are made of."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .. import _core
from ..enums import FlowAttrFlags, FlowAttrType

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "Flow",
    "FlowSpec",
    "FlowSpecActionCount",
    "FlowSpecActionDrop",
    "FlowSpecActionTag",
    "FlowSpecEth",
    "FlowSpecIPv4",
    "FlowSpecIPv6",
    "FlowSpecTCP",
    "FlowSpecUDP",
]


class FlowSpecEth(NamedTuple):
    """The header of Ethernet: `struct ibv_flow_spec_eth`.

    dst_mac, src_mac: a MAC address, as text, bytes or a number.
    ether_type: which protocol follows: 0x0800 is IPv4.
    vlan_tag: the priority (3 bits), CFI (1 bit) and number (12 bits) of the VLAN.
    dst_mac_mask, src_mac_mask, ether_type_mask, vlan_tag_mask: the bits that are compared.
    inner: whether the header within a tunnel is meant.
    """

    dst_mac: str | bytes | int | None = None
    dst_mac_mask: str | bytes | int | None = None
    src_mac: str | bytes | int | None = None
    src_mac_mask: str | bytes | int | None = None
    ether_type: int | None = None
    ether_type_mask: int | None = None
    vlan_tag: int | None = None
    vlan_tag_mask: int | None = None
    inner: bool = False


class FlowSpecIPv4(NamedTuple):
    """The header of IPv4: `struct ibv_flow_spec_ipv4_ext`.

    src_ip, dst_ip: an address, as text, `IPv4Address`, bytes or a number.
    proto, tos, ttl: the protocol that follows, the type of service, the time to live.
    flags: the three bits about fragments.
    src_ip_mask, dst_ip_mask, proto_mask, tos_mask, ttl_mask, flags_mask: the bits that are
        compared.
    inner: whether the header within a tunnel is meant.
    """

    src_ip: IPv4Address | str | bytes | int | None = None
    src_ip_mask: IPv4Address | str | bytes | int | None = None
    dst_ip: IPv4Address | str | bytes | int | None = None
    dst_ip_mask: IPv4Address | str | bytes | int | None = None
    proto: int | None = None
    proto_mask: int | None = None
    tos: int | None = None
    tos_mask: int | None = None
    ttl: int | None = None
    ttl_mask: int | None = None
    flags: int | None = None
    flags_mask: int | None = None
    inner: bool = False


class FlowSpecIPv6(NamedTuple):
    """The header of IPv6: `struct ibv_flow_spec_ipv6`.

    src_ip, dst_ip: an address, as text, `IPv6Address`, bytes or a number.
    flow_label, next_hdr, traffic_class, hop_limit: its other fields.
    src_ip_mask, dst_ip_mask: the bits of the addresses that are compared.
    flow_label_mask, next_hdr_mask, traffic_class_mask, hop_limit_mask: the bits of the others.
    inner: whether the header within a tunnel is meant.
    """

    src_ip: IPv6Address | str | bytes | int | None = None
    src_ip_mask: IPv6Address | str | bytes | int | None = None
    dst_ip: IPv6Address | str | bytes | int | None = None
    dst_ip_mask: IPv6Address | str | bytes | int | None = None
    flow_label: int | None = None
    flow_label_mask: int | None = None
    next_hdr: int | None = None
    next_hdr_mask: int | None = None
    traffic_class: int | None = None
    traffic_class_mask: int | None = None
    hop_limit: int | None = None
    hop_limit_mask: int | None = None
    inner: bool = False


class _FlowSpecPorts(NamedTuple):
    """The common part of the headers of TCP and UDP."""

    dst_port: int | None = None
    dst_port_mask: int | None = None
    src_port: int | None = None
    src_port_mask: int | None = None
    inner: bool = False


class FlowSpecTCP(_FlowSpecPorts):
    """The header of TCP: `struct ibv_flow_spec_tcp_udp`.

    dst_port, src_port: the ports.
    dst_port_mask, src_port_mask: the bits that are compared.
    inner: whether the header within a tunnel is meant.
    """

    __slots__ = ()


class FlowSpecUDP(_FlowSpecPorts):
    """The header of UDP: `struct ibv_flow_spec_tcp_udp`.

    dst_port, src_port: the ports.
    dst_port_mask, src_port_mask: the bits that are compared.
    inner: whether the header within a tunnel is meant.
    """

    __slots__ = ()


class FlowSpecActionTag(NamedTuple):
    """Gives the packets' completions a number: `struct ibv_flow_spec_action_tag`.

    tag_id: the number, the `flow_tag` of a completion (see `WCExFlags.FLOW_TAG`).
    """

    tag_id: int


class FlowSpecActionDrop(NamedTuple):
    """Drops the packets: `struct ibv_flow_spec_action_drop`."""


class FlowSpecActionCount(NamedTuple):
    """Counts the packets: `struct ibv_flow_spec_counter_action`.

    counters: by which, a `FlowCounters` with something attached.
    """

    counters: _core.FlowCounters


FlowSpec: TypeAlias = (
    FlowSpecEth
    | FlowSpecIPv4
    | FlowSpecIPv6
    | FlowSpecTCP
    | FlowSpecUDP
    | FlowSpecActionTag
    | FlowSpecActionDrop
    | FlowSpecActionCount
)
"""What a packet must be, or what is done with it: a part of the rule of a `Flow`.

Each field of a header has a value, and a mask of the bits that are compared, by default all. A
field without a value is not compared.
"""


class _Layout(NamedTuple):
    """The type of a spec, what its filter is aligned to, and its fields: their bytes and bits."""

    type: int
    align: int = 2
    fields: tuple[tuple[str, int, int], ...] = ()


_PORTS = (("dst_port", 2, 16), ("src_port", 2, 16))
_LAYOUTS: dict[type, _Layout] = {
    FlowSpecEth: _Layout(
        0x20,
        fields=(
            ("dst_mac", 6, 48),
            ("src_mac", 6, 48),
            ("ether_type", 2, 16),
            ("vlan_tag", 2, 16),
        ),
    ),
    FlowSpecIPv4: _Layout(
        0x32,
        4,
        (
            ("src_ip", 4, 32),
            ("dst_ip", 4, 32),
            ("proto", 1, 8),
            ("tos", 1, 8),
            ("ttl", 1, 8),
            ("flags", 1, 8),
        ),
    ),
    FlowSpecIPv6: _Layout(
        0x31,
        4,
        (
            ("src_ip", 16, 128),
            ("dst_ip", 16, 128),
            ("flow_label", 4, 20),
            ("next_hdr", 1, 8),
            ("traffic_class", 1, 8),
            ("hop_limit", 1, 8),
        ),
    ),
    FlowSpecTCP: _Layout(0x40, fields=_PORTS),
    FlowSpecUDP: _Layout(0x41, fields=_PORTS),
}
_INNER = 0x100
_ACTION_TAG, _ACTION_DROP = 0x1000, 0x1001


class Flow(_core.Flow):
    """A rule: packets that come to a port and match all `specs` go to a QP.

    qp: the QP, of type RAW_PACKET or UD.
    specs: what a packet must be, a `FlowSpec...` for each header from the outermost on, and then
        what is done with it, with one `FlowSpecActionCount` at most. Without any, all packets match
        that `flow_type` means.
    flow_type: NORMAL, or one of the rules for all packets that no other one matches.
    priority: 0 to 65535; of several rules that match, the one of the lowest number counts.
    flags: `FlowAttrFlags`.
    port_num: the port of the device, counting from 1.

    Closing its QP, or the `FlowCounters` of its specs, closes the Flow. Raises VerbsError
    (EOPNOTSUPP) where the device steers no flows, and (EPERM) without the capability CAP_NET_RAW.
    Wraps ibv_create_flow(3).
    """

    __slots__ = ()

    def __new__(
        cls,
        qp: _core.QP,
        specs: Iterable[FlowSpec] = (),
        *,
        flow_type: FlowAttrType | int = FlowAttrType.NORMAL,
        priority: int = 0,
        flags: FlowAttrFlags | int = 0,
        port_num: int = 1,
    ) -> Self:
        data, counters = b"", None
        for spec in specs:
            if not isinstance(spec, FlowSpecActionCount):
                data += _bytes_of(spec)
            elif counters is None:
                counters = spec.counters
            else:
                raise ValueError("specs has a second FlowSpecActionCount: it can have one")
        return super().__new__(
            cls,
            qp,
            data,
            flow_type=flow_type,
            priority=priority,
            flags=flags,
            port_num=port_num,
            counters=counters,
        )


def _bytes_of(spec: FlowSpec) -> bytes:
    """Return its `struct ibv_flow_spec_*`; the fields of headers are in network byte order."""
    if isinstance(spec, FlowSpecActionTag):
        tag = _number(spec.tag_id, "tag_id", 2**32 - 1, 4)
        return _spec(_ACTION_TAG, bytes(2) + struct.pack("=I", tag))
    if isinstance(spec, FlowSpecActionDrop):
        return _spec(_ACTION_DROP, b"")
    layout = _LAYOUTS.get(type(spec))
    if layout is None or isinstance(spec, FlowSpecActionCount):  # that is given as an object
        raise TypeError(f"specs has a {type(spec).__name__}: it must have only FlowSpecs")
    values = masks = b""
    for name, size, bits in layout.fields:
        value, mask = _value_and_mask(spec, name, size, bits)
        values += value.to_bytes(size, "big")
        masks += mask.to_bytes(size, "big")
    whole = _up(len(values), layout.align)
    body = values.ljust(whole, b"\0") + masks.ljust(whole, b"\0")
    kind = layout.type | (_INNER if spec.inner else 0)
    return _spec(kind, bytes(_up(_HEAD, layout.align) - _HEAD) + body)


def _value_and_mask(spec: FlowSpec, name: str, size: int, bits: int) -> tuple[int, int]:
    value, mask = getattr(spec, name), getattr(spec, f"{name}_mask")
    if value is None:
        if mask is not None:
            raise ValueError(f"{name}_mask was given without {name}")
        return 0, 0
    every = (1 << bits) - 1
    number = _number(value, name, every, size)
    compared = every if mask is None else _number(mask, f"{name}_mask", every, size)
    if number & ~compared:
        raise ValueError(f"{name} is {number:#x}: {name}_mask, {compared:#x}, lacks bits of it")
    return number, compared


_HEAD = 6  # bytes of a spec's type and size


def _up(n: int, align: int) -> int:
    return -(-n // align) * align


def _spec(kind: int, body: bytes) -> bytes:
    size = _up(_HEAD + len(body), 4)
    return struct.pack("=IH", kind, size) + body.ljust(size - _HEAD, b"\0")


def _number(value: Any, name: str, most: int, size: int) -> int:
    """Convert a number, an address or its text."""
    if isinstance(value, str):
        value = _from_text(value, name, size)
    if isinstance(value, (IPv4Address, IPv6Address)):
        if len(value.packed) != size:
            raise ValueError(f"{name} is {value}: it must be an address of {size} bytes")
        value = int(value)
    if isinstance(value, (bytes, bytearray)):
        if len(value) != size:
            raise ValueError(f"{name} has {len(value)} bytes: it must have {size}")
        value = int.from_bytes(value, "big")
    try:
        number = value.__index__()
    except AttributeError:
        kind = type(value).__name__
        raise TypeError(f"{name} must be an integer or an address, not {kind}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {number}: it must be 0 to {most}")
    return int(number)


def _from_text(text: str, name: str, size: int) -> IPv4Address | IPv6Address | bytes:
    try:
        if size == 6:
            return bytes.fromhex(text.replace(":", "").replace("-", ""))
        return IPv4Address(text) if size == 4 else IPv6Address(text)
    except ValueError as e:
        raise ValueError(f"{name} is {text!r}: it is no address of {size} bytes") from e
