# SPDX-License-Identifier: MIT
"""The queue pair: the core's QP with its state transitions."""

from __future__ import annotations

from . import _core, enums
from ._lazy import lazy_names
from .context import refuse_iwarp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from ._qp_connect import DEFAULT_QKEY as DEFAULT_QKEY
    from ._qp_connect import RECORD_SIZE as RECORD_SIZE
    from ._qp_connect import QPAddress
    from ._qp_connect import QPChanges as QPChanges
    from .attrs import ECE, QPAttr
    from .enums import MTU, AccessFlags, QPState, QPType

__all__ = ["QP", "QPAddress"]

if not TYPE_CHECKING:  # to type checkers any name would be one of them
    __getattr__, __dir__ = lazy_names(
        globals(), {"_qp_connect": "DEFAULT_QKEY RECORD_SIZE QPAddress QPChanges"}
    )


class QP(_core.QP):
    """A queue pair, in state RESET. Wraps ibv_create_qp(3).

    pd: the protection domain of the QP and of the memory that it uses; None for XRC_RECV.
    qp_type: RC, UC, UD, RAW_PACKET, XRC_SEND or XRC_RECV.
    send_cq, recv_cq: the CQs on which sends and receives complete; by default `recv_cq` is
        `send_cq`.
    srq: the shared receive queue to receive from, instead of a receive queue of the QP's own, so
        that `max_recv_wr` and `max_recv_sge` are not given.
    max_send_wr, max_recv_wr: how many work requests each queue has room for, at least; 0 to the
        device's max_qp_wr.
    max_send_sge, max_recv_sge: how many elements a work request can have, 0 to the device's
        max_sge, and 64 at most.
    max_inline_data: how many bytes a send can carry inline.
    sq_sig_all: whether every send completes, signaled or not.
    atomic_write: whether the QP can post ATOMIC_WRITE.
    flush: whether the QP can post FLUSH; Soft-RoCE can from Linux 6.3 and rdma-core 47 on.
    create_flags: `hw.QPCreateFlags`.
    source_qpn: the QP number that its packets say they come from, 24 bits; with it SOURCE_QPN is
        set.
    max_tso_header: how many bytes the header of a TSO can have, 0 to 65535, for RAW_PACKET or UD;
        0: no TSO.
    xrcd: the domain of an XRC_RECV QP, an `hw.XRCD`.
    rwq_ind_tbl: an `hw.RwqIndTable` of the WQs that packets are spread over, for RAW_PACKET or UD.
    rx_hash_conf: by which hash, an `hw.RxHashConf`.
    user_data: any object, kept as an attribute.

    RC and UC are connected to one peer: exchange `address()` with it, then `connect(remote)`. UD is
    not connected: `connect()` without a peer makes it ready, and each send names its receiver. A
    peer may send as soon as it is connected, so post receives before you hand out the address;
    receives can be posted from INIT on (`to_init()`).

    An XRC_SEND QP has no receive queue. An XRC_RECV QP has no queues at all, nor one with
    `rwq_ind_tbl`: these take no CQ, and `pd`, `send_cq` and `recv_cq` raise AttributeError where
    there is none. RAW_PACKET sends and receives whole frames, and needs the capability CAP_NET_RAW.
    Raises ValueError for arguments that the type does not take, VerbsError (EOPNOTSUPP) for what
    the device lacks.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def sq_psn(self) -> int: ...

    @property
    def qp_type(self) -> QPType:
        """The transport service."""
        return enums.QPType(super().qp_type)

    @property
    def state(self) -> QPState | int:
        """The QP's state, queried from the device, which changes it by itself after an error."""
        return enums.enum_or_int(enums.QPState, self._query_state())

    def query(self) -> QPAttr:
        """Return the QP's attributes, as the device has them now. Wraps ibv_query_qp(3)."""
        from ._attr_conversion import qp_attr

        return qp_attr(super().query())

    def query_ece(self) -> ECE:
        """Return the options of enhanced connection establishment.

        Before RTR they are what this end can do, and from then on what both ends do. Send them to
        the peer, for its `set_ece`. Raises VerbsError (EOPNOTSUPP) where the device has none. Wraps
        ibv_query_ece(3).
        """
        from .attrs import ECE

        return ECE(*super().query_ece())

    # The core takes any name and refuses unknown ones; Unpack lets type checkers refuse them, too.
    def modify(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Set attributes; the others stay as they are. A change to RESET drops all work requests
        that have not completed.

        attrs: the fields of `struct ibv_qp_attr` to change, by their names there, with values of
            these types, or in these ranges::

                qp_state, cur_qp_state              QPState
                path_mtu                            MTU
                path_mig_state                      MigState
                qkey                                32 bits
                rate_limit                          kbit/s, 32 bits
                rq_psn, sq_psn, dest_qp_num         24 bits
                qp_access_flags                     AccessFlags
                cap                                 QPCap, or a dict of its fields
                ah_attr, alt_ah_attr                AHAttr, or a dict of its fields
                pkey_index, alt_pkey_index          below the port's pkey_tbl_len
                en_sqd_async_notify                 0 or 1
                max_rd_atomic                       0 to the device's max_qp_init_rd_atom
                max_dest_rd_atomic                  0 to the device's max_qp_rd_atom
                port_num, alt_port_num              1 to the device's phys_port_cnt
                min_rnr_timer                       0 to 31, a code
                timeout, alt_timeout                0 to 31, a code
                retry_cnt, rnr_retry                0 to 7

        Raises ValueError for a value that does not fit its field, VerbsError for what the device
        refuses. Wraps ibv_modify_qp(3).
        """
        from ._attr_conversion import raw_changes

        super().modify(**raw_changes(attrs))

    def check_modify(self, **attrs: Unpack[QPChanges]) -> None:  # type: ignore[override]
        """Check the attributes as `modify` does, and leave the QP as it is.

        attrs: those of `modify`.
        """
        from ._attr_conversion import raw_changes

        super().check_modify(**raw_changes(attrs))

    def address(self, port_num: int = 1, gid_index: int | None = None) -> QPAddress:
        """Return what a peer needs to connect to this QP.

        port_num: the port of the device, counting from 1.
        gid_index: the index of the port's GID to give; pass the same index to `connect`. By default
            it is the first RoCE v2 entry on RoCE (see `Context.find_gid`), and the address has no
            GID on InfiniBand.

        Raises LookupError if a RoCE port has no GID, VerbsError (EOPNOTSUPP) on an iWARP device,
        see `connect`.
        """
        from ._qp_connect import NO_GID, QPAddress, own_gid_index

        refuse_iwarp(self.context)
        port = self.context.query_port(port_num)
        gid = NO_GID
        if gid_index is not None or port.link_layer == enums.LinkLayer.ETHERNET:
            index = own_gid_index(self.context, port_num, gid_index)
            gid = self.context.query_gid(index, port_num).gid
        return QPAddress(port.lid, self.qp_num, self.sq_psn, gid, port.active_mtu)

    def to_init(
        self,
        *,
        port_num: int = 1,
        pkey_index: int = 0,
        access: AccessFlags | int = 0,
        qkey: int | None = None,
    ) -> None:
        """Move from RESET to INIT: receives can be posted from here on.

        The parameters are those of `QP.connect`. Wraps ibv_modify_qp(3).
        """
        from ._qp_connect import init_attrs

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
        """Move from INIT to RTR: the QP receives what the peer sends.

        The parameters are those of `QP.connect`; `access`, if given, replaces that of `to_init`.
        Wraps ibv_modify_qp(3).
        """
        from ._qp_connect import path_from, rtr_attrs

        refuse_iwarp(self.context)
        path = path_from(port_num, hop_limit, sl, traffic_class, flow_label)
        attrs = rtr_attrs(
            self, remote, path, gid_index, path_mtu, max_dest_rd_atomic, min_rnr_timer, access
        )
        self.modify(**attrs)

    def to_rts(
        self,
        *,
        ack_timeout: int = 14,
        retry_cnt: int = 6,
        rnr_retry: int = 7,
        max_rd_atomic: int = 1,
    ) -> None:
        """Move from RTR to RTS: the QP carries out sends.

        The parameters are those of `QP.connect`; UC and UD ignore them. Wraps ibv_modify_qp(3).
        """
        from ._qp_connect import rts_attrs

        refuse_iwarp(self.context)
        self.modify(**rts_attrs(self, ack_timeout, retry_cnt, rnr_retry, max_rd_atomic))

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
        ack_timeout: int = 14,
        retry_cnt: int = 6,
        rnr_retry: int = 7,
        max_rd_atomic: int = 1,
    ) -> None:
        """Make the transitions up to RTS, from RESET or INIT.

        remote: the peer's `address()`, for RC and UC; UD takes none.
        port_num: the port of the device, counting from 1.
        gid_index: the index of our GID, the same as for `address`.
        pkey_index: the index of the partition key, see `Context.get_pkey_index`.
        access: what the peer may do to our memory through this QP: REMOTE_READ, REMOTE_WRITE,
            REMOTE_ATOMIC; by default nothing, or what `to_init` was given. The MR has to allow it,
            too.
        qkey: the Q_Key of a UD QP, 32 bits; 0x11111111 by default.
        path_mtu: an MTU or its bytes, at most what both ports support, and the same at both ends;
            by default our port's, or the peer's if `remote` has it and it is smaller.
        max_rd_atomic, max_dest_rd_atomic: how many RDMA reads and atomics can be in flight from us,
            and to us, up to the device's max_qp_init_rd_atom and max_qp_rd_atom; where it is 0 from
            us, posting refuses them (ValueError).
        min_rnr_timer: how long a peer waits before it sends again when we had no receive posted, as
            a code from 0 to 31: 12 is 0.64 ms.
        hop_limit, traffic_class: fields of the IP header, 0 to 255.
        sl: the service level, 0 to 15.
        flow_label: the IPv6 flow label, 20 bits.
        ack_timeout: how long we wait for an acknowledgement, as a code from 0 to 31: `4.096 us *
            2**ack_timeout`; 0 is forever.
        retry_cnt: how often we send again without an acknowledgement, 0 to 7. On rxe 7 is forever.
        rnr_retry: how often we send again when the peer had no receive posted, 0 to 7; 7 is
            forever, so a peer that posts late only delays us. (On rxe of Linux 6.1 such a send
            fails with RETRY_EXC_ERR all the same, by default after half a second; retry_cnt=7 helps
            there.)

        UC has no retries, timers, reads or atomics, and UD has no path either: the parameters of
        these are ignored there.

        Every argument is checked before the first transition. Raises ValueError where `remote` does
        not fit the QP's type or the port, and for a QP that is past INIT; LookupError where the
        port has no GID; VerbsError for what the device refuses (at RTR, no port has the peer's
        GID), ETIMEDOUT if no host answers for the peer's GID, and EOPNOTSUPP on an iWARP device,
        where only rdma_cm can connect QPs. Wraps ibv_modify_qp(3).
        """
        from ._qp_connect import init_attrs, path_from, rtr_attrs, rts_attrs

        refuse_iwarp(self.context)
        path = path_from(port_num, hop_limit, sl, traffic_class, flow_label)
        state = self.state
        if state not in (enums.QPState.RESET, enums.QPState.INIT):
            name = state.name if isinstance(state, enums.QPState) else state
            raise ValueError(f"this QP is in state {name}: connect() starts in RESET or INIT")
        # A QP that the caller has moved to INIT keeps its access, unless connect() was given one.
        new_access = access if access and state == enums.QPState.INIT else None
        steps = [
            init_attrs(self, port_num, pkey_index, access, qkey),
            rtr_attrs(
                *(self, remote, path, gid_index, path_mtu),
                *(max_dest_rd_atomic, min_rnr_timer, new_access),
            ),
            rts_attrs(self, ack_timeout, retry_cnt, rnr_retry, max_rd_atomic),
        ]
        for attrs in steps:
            self.check_modify(**attrs)
        for attrs in steps[state == enums.QPState.INIT :]:
            self.modify(**attrs)
