# SPDX-License-Identifier: MIT
"""The queue pair: the core's QP with its state transitions, and the address a peer needs."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from . import _core
from .attrs import AHAttr, QPAttr, QPCap
from .context import find_gid, query_gid, query_port, refuse_iwarp
from .enums import MTU, AccessFlags, LinkLayer, MigState, QPState, QPType, enum_or_int

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["QP", "QPAddress"]

RECORD_SIZE: Final = 52
"""The length of an address record on the wire, in bytes."""

DEFAULT_QKEY: Final = 0x11111111
"""The Q_Key that rdma-core's ping-pong programs use."""

_NO_GID: Final = IPv6Address(0)
_WIRE: Final = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0")


class QPAddress(NamedTuple):
    """What a peer has to know about a QP to connect to it, or to send to it.

    `lid` counts on InfiniBand alone; `gid` is :: where the path needs no GID, which is possible on
    InfiniBand alone. `psn` is the number of the first packet that the QP will send.
    """

    lid: int
    qp_num: int
    psn: int
    gid: IPv6Address

    def to_wire(self) -> bytes:
        """Return the record of 52 bytes that rdma-core's ping-pong programs exchange.

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
        """Read such a record; ValueError unless it is exactly one, down to the last byte."""
        if len(data) != RECORD_SIZE:
            raise ValueError(f"an address record has {RECORD_SIZE} bytes, this has {len(data)}")
        match = _WIRE.fullmatch(data)
        if match is None:
            raise ValueError(f"not an address record: {data!r}")
        lid, qp_num, psn = (int(field, 16) for field in match.groups()[:3])
        return cls(lid, qp_num, psn, IPv6Address(bytes.fromhex(match[4].decode("ascii"))))


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


class QP(_core.QP):
    """A queue pair. Wraps ibv_create_qp(3).

    RC and UC are connected to one peer: exchange `address()` with it, then `connect(remote)`. UD is
    not connected: `connect()` without a peer makes it ready, and each send names its receiver. A
    peer may send as soon as it is connected, so post receives before you give the address away;
    they are allowed from INIT on (`to_init()`). With `srq` they are posted to that SRQ instead.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def sq_psn(self) -> int: ...

    @property
    def qp_type(self) -> QPType:
        """RC, UC or UD."""
        return QPType(super().qp_type)

    @property
    def state(self) -> QPState | int:
        """The QP's state, asked of the device: an error changes it behind our back."""
        return self.query().qp_state

    def query(self) -> QPAttr:
        """Return everything that the device tells about the QP. Wraps ibv_query_qp(3)."""
        return QPAttr._of(super().query())

    # The core takes any name and refuses what it does not know; here a type checker does.
    def modify(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Set attributes by the names that they have in `struct ibv_qp_attr`.

        What is given is what is changed. Raises ValueError for what does not fit its field,
        VerbsError for what the device refuses. Wraps ibv_modify_qp(3).
        """
        super().modify(**_raw_all(attrs))

    def check(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Refuse what `modify` would refuse by itself, without the device; change nothing."""
        super().check(**_raw_all(attrs))

    def address(self, port_num: int = 1, gid_index: int | None = None) -> QPAddress:
        """Return what a peer needs to connect to this QP.

        Without `gid_index` a RoCE port gives its first RoCE v2 address (see `Context.find_gid`)
        and an InfiniBand port gives none. Pass the same index to `connect`. Raises VerbsError
        (EOPNOTSUPP) on an iWARP device, see `connect`.
        """
        refuse_iwarp(self.context)
        port = query_port(self.context, port_num)
        gid = _NO_GID
        if gid_index is not None or port.link_layer == LinkLayer.ETHERNET:
            gid = query_gid(self.context, self._gid_index(port_num, gid_index), port_num).gid
        return QPAddress(port.lid, self.qp_num, self.sq_psn, gid)

    def to_init(
        self,
        *,
        port_num: int = 1,
        pkey_index: int = 0,
        access: AccessFlags | int = 0,
        qkey: int | None = None,
    ) -> None:
        """Move from RESET to INIT: receives can be posted from here on.

        `access` is what the peer may do to our memory through this QP, nothing by default;
        `qkey` is for UD alone, 0x11111111 by default. Wraps ibv_modify_qp(3).
        """
        self.modify(**self._init_attrs(port_num, pkey_index, access, qkey))

    def to_rtr(
        self,
        remote: QPAddress | None = None,
        *,
        port_num: int = 1,
        gid_index: int | None = None,
        path_mtu: MTU | int | None = None,
        max_dest_rd_atomic: int = 1,
        min_rnr_timer: int = 12,
        hop_limit: int = 64,
        sl: int = 0,
        traffic_class: int = 0,
        flow_label: int = 0,
        access: AccessFlags | int | None = None,
    ) -> None:
        """Move from INIT to RTR: what the peer sends is received.

        The parameters are those of `connect`; `access`, if given, replaces that of `to_init`.
        Wraps ibv_modify_qp(3).
        """
        refuse_iwarp(self.context)
        path = AHAttr(
            dgid=None,
            port_num=port_num,
            hop_limit=hop_limit,
            sl=sl,
            traffic_class=traffic_class,
            flow_label=flow_label,
        )
        attrs = self._rtr_attrs(
            remote, path, gid_index, path_mtu, max_dest_rd_atomic, min_rnr_timer, access
        )
        self.modify(**attrs)

    def to_rts(
        self, *, timeout: int = 14, retry_cnt: int = 6, rnr_retry: int = 7, max_rd_atomic: int = 1
    ) -> None:
        """Move from RTR to RTS: sends are carried out.

        The parameters are those of `connect`, and count for RC alone. Wraps ibv_modify_qp(3).
        """
        refuse_iwarp(self.context)
        self.modify(**self._rts_attrs(timeout, retry_cnt, rnr_retry, max_rd_atomic))

    def connect(
        self,
        remote: QPAddress | None = None,
        *,
        port_num: int = 1,
        gid_index: int | None = None,
        pkey_index: int = 0,
        access: AccessFlags | int = 0,
        qkey: int | None = None,
        path_mtu: MTU | int | None = None,
        max_dest_rd_atomic: int = 1,
        min_rnr_timer: int = 12,
        hop_limit: int = 64,
        sl: int = 0,
        traffic_class: int = 0,
        flow_label: int = 0,
        timeout: int = 14,
        retry_cnt: int = 6,
        rnr_retry: int = 7,
        max_rd_atomic: int = 1,
    ) -> None:
        """Make the transitions that are still missing, from RESET or INIT up to RTS.

        RC and UC need `remote`, the peer's `address()`; UD takes none.

        gid_index: our GID's index, the one that was given to `address`.
        access: what the peer may do to our memory through this QP; nothing by default.
        qkey: UD alone; 0x11111111 by default.
        path_mtu: an MTU, or its bytes, no more than both ports have; by default what ours has.
        min_rnr_timer: how long a sender that meets no receive shall wait, as a code: 12 is 0.64 ms.
        timeout: how long we wait for an acknowledgement, `4.096 us * 2**timeout`; 0: for ever.
        retry_cnt: how often we send again after that, 0 to 7. On rxe 7 is for ever.
        rnr_retry: how often we send again when the peer had no receive posted; 7 is for ever, so a
            peer that is slow to post delays us and breaks nothing. (On rxe of Linux 6.1 the send
            fails with RETRY_EXC_ERR all the same, by default after half a second, as if nobody
            had answered; retry_cnt=7 helps there.)
        max_rd_atomic, max_dest_rd_atomic: RDMA reads and atomics in flight from us, and to us.

        UC has no retries, no timers, no reads; UD has no path either: these are ignored there.

        Every argument is checked before the first transition. Raises ValueError where `remote` and
        the QP's type or the port do not go together, and for a QP that is past INIT; LookupError
        where the port has no GID; VerbsError for what the device refuses (at RTR: nobody has that
        GID), and (EOPNOTSUPP) on an iWARP device, whose QPs rdma_cm connects, and nobody else.
        Wraps ibv_modify_qp(3).
        """
        refuse_iwarp(self.context)
        path = AHAttr(
            dgid=None,
            port_num=port_num,
            hop_limit=hop_limit,
            sl=sl,
            traffic_class=traffic_class,
            flow_label=flow_label,
        )
        state = self.state
        if state not in (QPState.RESET, QPState.INIT):
            name = state.name if isinstance(state, QPState) else state
            raise ValueError(f"this QP is in state {name}: connect() starts in RESET or INIT")
        # Somebody else made it INIT, and may have given it rights of his own.
        new_access = access if access and state == QPState.INIT else None
        steps = [
            self._init_attrs(port_num, pkey_index, access, qkey),
            self._rtr_attrs(
                remote, path, gid_index, path_mtu, max_dest_rd_atomic, min_rnr_timer, new_access
            ),
            self._rts_attrs(timeout, retry_cnt, rnr_retry, max_rd_atomic),
        ]
        for attrs in steps:
            self.check(**attrs)
        for attrs in steps[state == QPState.INIT :]:
            self.modify(**attrs)

    def _init_attrs(
        self, port_num: int, pkey_index: int, access: AccessFlags | int, qkey: int | None
    ) -> QPChanges:
        attrs: QPChanges = {"qp_state": QPState.INIT}
        attrs["pkey_index"] = pkey_index
        attrs["port_num"] = port_num
        if self.qp_type == QPType.UD:
            _refuse(self.qp_type, access=access or None)
            attrs["qkey"] = DEFAULT_QKEY if qkey is None else qkey
        else:
            _refuse(self.qp_type, qkey=qkey)
            attrs["qp_access_flags"] = access
        return attrs

    def _rtr_attrs(
        self,
        remote: QPAddress | None,
        path: AHAttr,
        gid_index: int | None,
        path_mtu: MTU | int | None,
        max_dest_rd_atomic: int,
        min_rnr_timer: int,
        access: AccessFlags | int | None,
    ) -> QPChanges:
        attrs: QPChanges = {"qp_state": QPState.RTR}
        self._check_remote(remote)
        if remote is not None:
            port = query_port(self.context, path.port_num)
            attrs["ah_attr"] = path._replace(
                dgid=self._dgid(remote, port.link_layer),
                sgid_index=self._sgid_index(remote, path.port_num, gid_index),
                dlid=remote.lid,
            )
            attrs["path_mtu"] = _path_mtu(path_mtu, port.active_mtu)
            attrs["dest_qp_num"] = remote.qp_num
            attrs["rq_psn"] = remote.psn
        if access is not None:
            attrs["qp_access_flags"] = access
        if self.qp_type == QPType.RC:
            attrs["max_dest_rd_atomic"] = max_dest_rd_atomic
            attrs["min_rnr_timer"] = min_rnr_timer
        return attrs

    def _rts_attrs(
        self, timeout: int, retry_cnt: int, rnr_retry: int, max_rd_atomic: int
    ) -> QPChanges:
        attrs: QPChanges = {"qp_state": QPState.RTS, "sq_psn": self.sq_psn}
        if self.qp_type == QPType.RC:
            attrs["timeout"] = timeout
            attrs["retry_cnt"] = retry_cnt
            attrs["rnr_retry"] = rnr_retry
            attrs["max_rd_atomic"] = max_rd_atomic
        return attrs

    def _check_remote(self, remote: QPAddress | None) -> None:
        if remote is not None and not isinstance(remote, QPAddress):
            raise TypeError(f"remote must be a QPAddress, not {type(remote).__name__}")
        connected = self.qp_type in (QPType.RC, QPType.UC)
        if connected and remote is None:
            raise ValueError(f"{_type_name(self.qp_type)} is connected to one peer: give `remote`")
        if not connected and remote is not None:
            raise ValueError(f"{_type_name(self.qp_type)} is not connected: it takes no `remote`")

    def _dgid(self, remote: QPAddress, link_layer: LinkLayer | int) -> IPv6Address | None:
        if not isinstance(remote.gid, IPv6Address):
            raise TypeError(f"remote.gid must be an IPv6Address, not {type(remote.gid).__name__}")
        if remote.gid != _NO_GID:
            return remote.gid
        if link_layer == LinkLayer.ETHERNET:
            raise ValueError("the peer's address has no GID, which RoCE cannot do without")
        return None

    def _sgid_index(self, remote: QPAddress, port_num: int, gid_index: int | None) -> int:
        return 0 if remote.gid == _NO_GID else self._gid_index(port_num, gid_index)

    def _gid_index(self, port_num: int, gid_index: int | None) -> int:
        if gid_index is not None:
            return gid_index
        return find_gid(self.context, port_num=port_num).index


def _raw(value: Any) -> Any:
    """A value of `QP.modify` as the core takes it."""
    if isinstance(value, AHAttr):
        return value._raw()
    if isinstance(value, QPCap):
        return value._asdict()
    return value


def _raw_all(attrs: QPChanges) -> dict[str, Any]:
    return {name: _raw(value) for name, value in attrs.items()}


def _path_mtu(wanted: MTU | int | None, active: MTU | int) -> MTU | int:
    """The code of a path MTU, which may be given in bytes, too."""
    if wanted is None:
        return active
    by_bytes = {mtu.bytes: mtu for mtu in MTU}
    mtu = enum_or_int(MTU, by_bytes.get(wanted, wanted))
    if not isinstance(mtu, MTU):
        sizes = ", ".join(map(str, by_bytes))
        raise ValueError(f"path_mtu is {wanted}: it must be an MTU, or its bytes: {sizes}")
    if mtu > active:
        limit = active.bytes if isinstance(active, MTU) else active
        raise ValueError(f"path_mtu is {mtu.bytes} bytes: the port's active MTU is {limit}")
    return mtu


def _refuse(qp_type: QPType | int, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} means nothing to a QP of type {_type_name(qp_type)}")


def _type_name(qp_type: QPType | int) -> str:
    known = enum_or_int(QPType, qp_type)
    return known.name if isinstance(known, QPType) else str(known)
