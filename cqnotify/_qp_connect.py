# SPDX-License-Identifier: MIT
"""How a QP is connected: the attributes of each transition, from the parameters of `QP.connect`.

QP, Endpoint and the command line take these parameters. What a parameter sets, and for which types
of QP, is decided only here.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, TypeVar

from .attrs import AHAttr, QPCap
from .enums import MTU, AccessFlags, LinkLayer, MigState, QPState, QPType, enum_or_int, number_of

if TYPE_CHECKING:
    from .context import Context
    from .qp import QP

_M = TypeVar("_M", bound=int)

RECORD_SIZE: Final = 52
"""The length of an address record on the wire, in bytes."""

DEFAULT_QKEY: Final = 0x11111111
"""The Q_Key that rdma-core's ping-pong programs use."""

NO_GID: Final = IPv6Address(0)
_WIRE: Final = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0")


class QPAddress(NamedTuple):
    """What a peer needs to know about a QP to connect to it, or to send to it.

    lid: the port's LID, which only InfiniBand uses.
    qp_num: the QP's number.
    psn: the number of the first packet that the QP will send.
    gid: the port's GID; :: where the path needs none, which is possible only on InfiniBand.
    mtu: the active MTU of the port; None where it is not known, as in a record from the wire, which
        does not contain it.
    """

    lid: int
    qp_num: int
    psn: int
    gid: IPv6Address
    mtu: MTU | int | None = None

    def to_wire(self) -> bytes:
        """Return the address as the 52 bytes that rdma-core's ping-pong programs exchange, without
        the `mtu`.

        Raises ValueError for a number that does not fit its field.
        """
        for name, limit in (("lid", 0xFFFF), ("qp_num", 0xFFFFFF), ("psn", 0xFFFFFF)):
            if not 0 <= (value := getattr(self, name)) <= limit:
                raise ValueError(f"{name} is {value}: it must be 0 to {limit:#x}")
        if not isinstance(self.gid, IPv6Address):
            raise TypeError(f"gid must be an IPv6Address, not {type(self.gid).__name__}")
        text = f"{self.lid:04x}:{self.qp_num:06x}:{self.psn:06x}:{self.gid.packed.hex()}"
        return text.encode("ascii") + b"\0"

    @classmethod
    def from_wire(cls, data: bytes) -> QPAddress:
        """Parse a record that `to_wire` made.

        data: its 52 bytes; ValueError for anything else.
        """
        if len(data) != RECORD_SIZE:
            raise ValueError(f"an address record has {RECORD_SIZE} bytes, this has {len(data)}")
        match = _WIRE.fullmatch(data)
        if match is None:
            raise ValueError(f"not an address record: {data!r}")
        lid, qp_num, psn = (int(field, 16) for field in match.groups()[:3])
        return cls(lid, qp_num, psn, IPv6Address(bytes.fromhex(match[4].decode("ascii"))))


class PathOptions(TypedDict, total=False):
    """The parameters of `QP.connect` that both ends of a pair share, without `access`."""

    pkey_index: int
    qkey: int | None
    path_mtu: MTU | int | None
    max_dest_rd_atomic: int
    min_rnr_timer: int
    hop_limit: int
    sl: int
    traffic_class: int
    flow_label: int
    ack_timeout: int
    retry_cnt: int
    rnr_retry: int
    max_rd_atomic: int


class ConnectOptions(PathOptions, total=False):
    """The parameters of `QP.connect`, without the peer, the port and the GID."""

    access: AccessFlags | int


PATIENT: Final = 16
"""The `ack_timeout` that the tools use: 0.27 s for each try, as a peer may run in an emulator."""


class QPChanges(TypedDict, total=False):
    """What `QP.modify` takes: the fields of `struct ibv_qp_attr` that can be set."""

    qp_state: QPState | int
    cur_qp_state: QPState | int
    path_mtu: MTU | int
    path_mig_state: MigState | int
    qkey: int
    rq_psn: int
    sq_psn: int
    dest_qp_num: int
    qp_access_flags: AccessFlags | int
    cap: QPCap | dict[str, int]
    ah_attr: AHAttr | dict[str, Any]
    alt_ah_attr: AHAttr | dict[str, Any]
    pkey_index: int
    alt_pkey_index: int
    en_sqd_async_notify: int
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


# ---- the attributes of each transition --------------------------------------------------------


def init_attrs(
    qp: QP, port_num: int, pkey_index: int, access: AccessFlags | int, qkey: int | None
) -> QPChanges:
    """Return the attributes of the transition from RESET to INIT."""
    attrs: QPChanges = {"qp_state": QPState.INIT}
    attrs["pkey_index"] = pkey_index
    attrs["port_num"] = port_num
    if qp.qp_type == QPType.RAW_PACKET:  # which has no keys
        _refuse(qp.qp_type, access=access or None, pkey_index=pkey_index or None, qkey=qkey)
        del attrs["pkey_index"]
    elif qp.qp_type == QPType.UD:
        _refuse(qp.qp_type, access=access or None)
        attrs["qkey"] = DEFAULT_QKEY if qkey is None else qkey
    else:
        _refuse(qp.qp_type, qkey=qkey)
        attrs["qp_access_flags"] = access
    return attrs


def path_from(
    port_num: int, hop_limit: int, sl: int, traffic_class: int, flow_label: int
) -> AHAttr:
    """Return the part of the path that does not depend on the peer; `rtr_attrs` adds the rest."""
    return AHAttr(
        dgid=None,
        port_num=port_num,
        hop_limit=hop_limit,
        sl=sl,
        traffic_class=traffic_class,
        flow_label=flow_label,
    )


def rtr_attrs(
    qp: QP,
    remote: QPAddress | None,
    path: AHAttr,
    gid_index: int | None,
    path_mtu: MTU | int | None,
    max_dest_rd_atomic: int,
    min_rnr_timer: int,
    access: AccessFlags | int | None,
) -> QPChanges:
    """Return the attributes of the transition from INIT to RTR; `remote` completes `path`."""
    attrs: QPChanges = {"qp_state": QPState.RTR}
    _check_remote(qp.qp_type, remote)
    if remote is not None:
        port = qp.context.query_port(path.port_num)
        attrs["ah_attr"] = path._replace(
            dgid=_dgid(remote, port.link_layer),
            sgid_index=0
            if remote.gid == NO_GID
            else own_gid_index(qp.context, path.port_num, gid_index),
            dlid=remote.lid,
        )
        attrs["path_mtu"] = _path_mtu(path_mtu, port.active_mtu, remote.mtu)
        attrs["dest_qp_num"] = remote.qp_num
        attrs["rq_psn"] = remote.psn
    if access is not None:
        attrs["qp_access_flags"] = access
    if qp.qp_type in (QPType.RC, QPType.XRC_RECV):
        attrs["max_dest_rd_atomic"] = max_dest_rd_atomic
        attrs["min_rnr_timer"] = min_rnr_timer
    return attrs


def rts_attrs(
    qp: QP, ack_timeout: int, retry_cnt: int, rnr_retry: int, max_rd_atomic: int
) -> QPChanges:
    """Return the attributes of the transition from RTR to RTS."""
    attrs: QPChanges = {"qp_state": QPState.RTS}
    if qp.qp_type != QPType.RAW_PACKET:
        attrs["sq_psn"] = qp.sq_psn
    if qp.qp_type in (QPType.RC, QPType.XRC_SEND, QPType.XRC_RECV):
        attrs["timeout"] = _timeout_code(ack_timeout)
    if qp.qp_type in (QPType.RC, QPType.XRC_SEND):
        attrs["retry_cnt"] = retry_cnt
        attrs["rnr_retry"] = rnr_retry
        attrs["max_rd_atomic"] = max_rd_atomic
    return attrs


def _timeout_code(ack_timeout: int) -> int:
    """Check it here: the core knows it by its name in `struct ibv_qp_attr`, `timeout`."""
    code = number_of(ack_timeout, "ack_timeout", "an integer")
    if not 0 <= code <= 31:
        raise ValueError(f"ack_timeout is {code}: it must be 0 to 31 (4.096 us * 2**ack_timeout)")
    return code


def own_gid_index(context: Context, port_num: int, gid_index: int | None) -> int:
    """Return `gid_index`, or the index of the port's best GID if it is None."""
    return context.find_gid(port_num=port_num).index if gid_index is None else gid_index


def _check_remote(qp_type: QPType, remote: QPAddress | None) -> None:
    if remote is not None and not isinstance(remote, QPAddress):
        raise TypeError(f"remote must be a QPAddress, not {type(remote).__name__}")
    mtu = None if remote is None else remote.mtu
    if mtu is not None and number_of(mtu, "remote.mtu", "an MTU or None") < 1:
        raise ValueError(f"remote.mtu is {mtu}: it must be an MTU, or None")
    connected = qp_type not in (QPType.UD, QPType.RAW_PACKET)
    if connected and remote is None:
        raise ValueError(f"{_type_name(qp_type)} is connected to one peer: give `remote`")
    if not connected and remote is not None:
        raise ValueError(f"{_type_name(qp_type)} is not connected: it takes no `remote`")


def _dgid(remote: QPAddress, link_layer: LinkLayer | int) -> IPv6Address | None:
    if not isinstance(remote.gid, IPv6Address):
        raise TypeError(f"remote.gid must be an IPv6Address, not {type(remote.gid).__name__}")
    if remote.gid != NO_GID:
        return remote.gid
    if link_layer == LinkLayer.ETHERNET:
        raise ValueError("the peer's address has no GID: RoCE needs one")
    return None


def smaller_mtu(ours: _M, theirs: _M | None) -> _M:
    """Return the path MTU of two ports, as both must take its packets; None is not known."""
    return ours if theirs is None else min(ours, theirs)


def _path_mtu(wanted: MTU | int | None, active: MTU | int, peers: MTU | int | None) -> MTU | int:
    """Return the path MTU as a code; `wanted` may be a code or a number of bytes."""
    if wanted is None:
        return smaller_mtu(active, peers)
    wanted = number_of(wanted, "path_mtu", "an MTU such as MTU.MTU_1024")
    by_bytes = {mtu.bytes: mtu for mtu in MTU}
    mtu = enum_or_int(MTU, by_bytes.get(wanted, wanted))
    if not isinstance(mtu, MTU):
        sizes = ", ".join(map(str, by_bytes))
        raise ValueError(f"path_mtu is {wanted}: it must be an MTU, or its bytes: {sizes}")
    for whose, port in (("the", active), ("the peer's", peers)):
        if port is not None and mtu > port:
            limit = port.bytes if isinstance(port, MTU) else port
            raise ValueError(f"path_mtu is {mtu.bytes} bytes: {whose} port's active MTU is {limit}")
    return mtu


def _refuse(qp_type: QPType | int, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} has no meaning for a QP of type {_type_name(qp_type)}")


def _type_name(qp_type: QPType | int) -> str:
    known = enum_or_int(QPType, qp_type)
    return known.name if isinstance(known, QPType) else str(known)
