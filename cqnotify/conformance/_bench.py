# SPDX-License-Identifier: MIT
"""What trials share: the objects of a batch, and how their queue pairs are connected."""

from __future__ import annotations

import errno
from collections import Counter
from typing import Final

from .._core import CQ, MR, MW, PD, SGE, CompletionChannel
from .._qp_connect import PATIENT, ConnectOptions
from ..context import Context, is_iwarp
from ..enums import AccessFlags, AsyncEventType, AtomicCap, LinkLayer, MWType, QPType
from ..qp import QP, QPAddress
from ..testing import Endpoint

__all__ = [
    "COMPLETE",
    "GRH",
    "LACKS_COMPLETION",
    "LACKS_EVENT",
    "RECV_AT",
    "REFUSALS",
    "REMOTE_AT",
    "SEND_AT",
    "SIZE",
    "TIMERS",
    "Bench",
]

SIZE: Final = 8  # bytes of a message: what an atomic operation works on
GRH: Final = 40  # bytes that come before a datagram
SEND_AT, REMOTE_AT, RECV_AT = 0, 8, 16  # where in the memory that all trials write to

# The errors by which providers and kernels refuse what they do not support.
REFUSALS: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPROTONOSUPPORT, errno.EINVAL)

# A retry count of 7 would be retries without end.
TIMERS: Final[ConnectOptions] = {"ack_timeout": PATIENT, "retry_cnt": 6, "rnr_retry": 0}

# A wait ends after so many seconds in which nothing came: while due completions are missing, while
# due events are missing, and otherwise.
LACKS_COMPLETION, LACKS_EVENT, COMPLETE = 5.0, 1.0, 0.3


class Bench:
    """The objects that many trials share, and that none of them changes."""

    def __init__(self, context: Context, port_num: int, gid_index: int | None) -> None:
        self.context = context
        self.port_num = port_num
        self.is_iwarp = is_iwarp(context)
        port = context.query_port(port_num)
        if gid_index is None and not self.is_iwarp and port.link_layer == LinkLayer.ETHERNET:
            gid_index = context.find_gid(port_num=port_num).index
        self.gid_index = gid_index
        self.access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
        if context.query_device().atomic_cap != AtomicCap.NONE:
            self.access |= AccessFlags.REMOTE_ATOMIC
        self.pd = PD(context)
        self.mr = MR(self.pd, 256, access=self.access | AccessFlags.LOCAL_WRITE)
        self.channel = CompletionChannel(context)
        self.unwatched = CQ(context, 1)  # at most for completions of the preparation
        self._template: QPAddress | None = None
        self._bindable: MR | None = None
        self._windows: list[MW] = []
        self.overflows: Counter[CQ] = Counter()  # reports of the device

    def address(self, qp: QP) -> QPAddress:
        """Return what `qp.address()` does, with one query of the device for all QPs."""
        if self._template is None:
            self._template = qp.address(self.port_num, self.gid_index)
        return self._template._replace(qp_num=qp.qp_num, psn=qp.sq_psn)

    def new_end(
        self, qp_type: QPType, *, send_cq: CQ, recv_cq: CQ, depth: int, sq_sig_all: bool = False
    ) -> Endpoint:
        """Return an end with a QP of its own, whose queues have `depth` entries."""
        return Endpoint(
            self.context,
            qp_type,
            pd=self.pd,
            channel=self.channel,
            send_cq=send_cq,
            recv_cq=recv_cq,
            mr=self.mr,
            max_send_wr=depth,
            max_recv_wr=depth,
            sq_sig_all=sq_sig_all,
        )

    def to_rts(self, end: Endpoint, peer: Endpoint, options: ConnectOptions) -> None:
        """Bring the QP of an end to RTS, towards a peer; not on iWARP."""
        end.connect(
            self.address(peer.qp), port_num=self.port_num, gid_index=self.gid_index, **options
        )

    def new_window(self) -> tuple[MW, SGE]:
        """Return a window of type 2, and memory to bind it to."""
        if self._bindable is None:
            access = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
            self._bindable = MR(self.pd, 256, access=access)
        self._windows.append(MW(self.pd, MWType.TYPE_2))  # kept, or it would be closed
        return self._windows[-1], self._bindable[:]

    def count_overflows(self) -> None:
        """Take the device's reports, and count those of CQs that have overflowed."""
        while (report := self.context.try_get_async_event()) is not None:
            if report.event_type is AsyncEventType.CQ_ERR and report.cq is not None:
                self.overflows[report.cq] += 1

    def drain(self) -> bool:
        """Take all events, which the CQs' statistics count; return whether there were any."""
        any_came = False
        while (cq := self.channel.try_get_event()) is not None:
            cq.ack()
            any_came = True
        return any_came
