# SPDX-License-Identifier: MIT
"""The shared receive queue: the core's SRQ, whose query returns a named tuple."""

from __future__ import annotations

from . import _core
from .attrs import SRQAttr

__all__ = ["SRQ"]


class SRQ(_core.SRQ):
    """A shared receive queue: any number of queue pairs, QP(..., srq=...), receive from it.

    max_wr: how many receives it has room for, at least.
    max_sge: how many elements a receive can have.
    srq_limit: the limit to arm, see `modify`.

    A message completes on the receive CQ of the queue pair to which it came. Only the wr_id of the
    completion says which receive the message took, so give each receive its own.

    close() raises BusyError while queue pairs use the SRQ. A receive that a queue pair took and did
    not complete before it was closed or reset stays pinned until the SRQ is closed. The verbs allow
    queue pairs of other PDs; on rxe the receives of these fail. Wraps ibv_create_srq(3).
    """

    __slots__ = ()

    def query(self) -> SRQAttr:
        """Return the SRQ's attributes, as the device has them now. Wraps ibv_query_srq(3)."""
        return SRQAttr(**super().query())
