# SPDX-License-Identifier: MIT
"""The queue pair: the core's QP with its state transitions, and the address a peer needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from ._answers import qp_attr, raw_changes
from ._connection import DEFAULT_QKEY as DEFAULT_QKEY
from ._connection import (
    NO_GID,
    QPAddress,
    init_attrs,
    own_gid_index,
    path_from,
    rtr_attrs,
    rts_attrs,
)
from ._connection import RECORD_SIZE as RECORD_SIZE
from ._connection import QPChanges as QPChanges
from .attrs import QPAttr
from .context import query_gid, query_port, refuse_iwarp
from .enums import MTU, AccessFlags, LinkLayer, QPState, QPType

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["QP", "QPAddress"]


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
        return qp_attr(super().query())

    # The core takes any name and refuses what it does not know; here a type checker does.
    def modify(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Set attributes by the names that they have in `struct ibv_qp_attr`.

        What is given is what is changed. Raises ValueError for what does not fit its field,
        VerbsError for what the device refuses. Wraps ibv_modify_qp(3).
        """
        super().modify(**raw_changes(attrs))

    def check(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Refuse what `modify` would refuse by itself, without the device; change nothing."""
        super().check(**raw_changes(attrs))

    def address(self, port_num: int = 1, gid_index: int | None = None) -> QPAddress:
        """Return what a peer needs to connect to this QP.

        Without `gid_index` a RoCE port gives its first RoCE v2 address (see `Context.find_gid`)
        and an InfiniBand port gives none. Pass the same index to `connect`. Raises VerbsError
        (EOPNOTSUPP) on an iWARP device, see `connect`.
        """
        refuse_iwarp(self.context)
        port = query_port(self.context, port_num)
        gid = NO_GID
        if gid_index is not None or port.link_layer == LinkLayer.ETHERNET:
            gid = query_gid(
                self.context, own_gid_index(self.context, port_num, gid_index), port_num
            ).gid
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
        self.modify(**init_attrs(self, port_num, pkey_index, access, qkey))

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
        path = path_from(port_num, hop_limit, sl, traffic_class, flow_label)
        attrs = rtr_attrs(
            self, remote, path, gid_index, path_mtu, max_dest_rd_atomic, min_rnr_timer, access
        )
        self.modify(**attrs)

    def to_rts(
        self, *, timeout: int = 14, retry_cnt: int = 6, rnr_retry: int = 7, max_rd_atomic: int = 1
    ) -> None:
        """Move from RTR to RTS: sends are carried out.

        The parameters are those of `connect`, and count for RC alone. Wraps ibv_modify_qp(3).
        """
        refuse_iwarp(self.context)
        self.modify(**rts_attrs(self, timeout, retry_cnt, rnr_retry, max_rd_atomic))

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
        path = path_from(port_num, hop_limit, sl, traffic_class, flow_label)
        state = self.state
        if state not in (QPState.RESET, QPState.INIT):
            name = state.name if isinstance(state, QPState) else state
            raise ValueError(f"this QP is in state {name}: connect() starts in RESET or INIT")
        # Somebody else made it INIT, and may have given it rights of his own.
        new_access = access if access and state == QPState.INIT else None
        steps = [
            init_attrs(self, port_num, pkey_index, access, qkey),
            rtr_attrs(
                *(self, remote, path, gid_index, path_mtu),
                *(max_dest_rd_atomic, min_rnr_timer, new_access),
            ),
            rts_attrs(self, timeout, retry_cnt, rnr_retry, max_rd_atomic),
        ]
        for attrs in steps:
            self.check(**attrs)
        for attrs in steps[state == QPState.INIT :]:
            self.modify(**attrs)
