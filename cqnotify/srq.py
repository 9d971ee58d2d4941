# SPDX-License-Identifier: MIT
"""The shared receive queue: the core's SRQ with its answer typed."""

from __future__ import annotations

from . import _core
from .attrs import SRQAttr

__all__ = ["SRQ"]


class SRQ(_core.SRQ):
    """A shared receive queue: any number of queue pairs, QP(..., srq=...), receive from it.

    It has room for at least `max_wr` receives of up to `max_sge` elements; `srq_limit` arms its
    limit, see `modify`. A message completes on the receive CQ of the queue pair to which it came,
    and says by its wr_id alone which receive it took: give each its own.

    BusyError at close() while queue pairs use it. What one took of it and did not complete when it
    was closed or reset is kept until the SRQ is closed. By the verbs the queue pairs need not be of
    its PD; on rxe they must, or the receives fail. Wraps ibv_create_srq(3).
    """

    __slots__ = ()

    def query(self) -> SRQAttr:
        """Return its attributes, as the device has them now. Wraps ibv_query_srq(3)."""
        return SRQAttr(**super().query())
