# SPDX-License-Identifier: MIT
"""The shared receive queue: the core's SRQ, whose query returns a named tuple."""

from __future__ import annotations

from . import _core, enums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attrs import SRQAttr
    from .enums import SRQType

__all__ = ["SRQ"]


class SRQ(_core.SRQ):
    """A shared receive queue: any number of queue pairs, QP(..., srq=...), receive from it.

    pd: the protection domain of the memory that is posted.
    max_wr: how many receives it has room for, at least; 1 to the device's max_srq_wr.
    max_sge: how many elements a receive can have, up to the device's max_srq_sge, and 64 at most.
    srq_limit: the limit to arm, see `modify`.
    srq_type: an `hw.SRQType`: BASIC, XRC or TM.
    xrcd: the domain of an SRQ of type XRC, an `hw.XRCD`.
    cq: the CQ on which messages complete, for XRC and TM.
    max_num_tags: how many receives the list of tags of type TM has room for, 1 to the device's
        tm_caps.max_num_tags.
    max_ops: how many operations on that list can be under way, 1 to the device's tm_caps.max_ops.
    user_data: any object, kept as an attribute.

    A message completes on the receive CQ of the queue pair to which it came. Only the wr_id of the
    completion says which receive the message took, so give each receive its own.

    close() raises BusyError while queue pairs use the SRQ. A receive that a queue pair took and did
    not complete before it was closed or reset stays pinned until the SRQ is closed. The verbs allow
    queue pairs of other PDs; on rxe the receives of these fail.

    An SRQ of type XRC gets the messages that name its number, `get_srq_num`, through any XRC_RECV
    QP of its domain, and they complete on `cq`. One of type TM matches tags, see `post_ops`. Raises
    VerbsError (EOPNOTSUPP) where the device lacks these. Wraps ibv_create_srq(3), and for XRC and
    TM ibv_create_srq_ex(3).
    """

    __slots__ = ()

    @property
    def srq_type(self) -> SRQType | int:
        """BASIC, XRC or TM."""
        return enums.enum_or_int(enums.SRQType, super().srq_type)

    def query(self) -> SRQAttr:
        """Return the SRQ's attributes, as the device has them now. Wraps ibv_query_srq(3)."""
        from .attrs import SRQAttr

        return SRQAttr(**super().query())
