# SPDX-License-Identifier: MIT
"""Queues of receives alone: the core's WQ with its enums."""

from __future__ import annotations

from .. import _core, enums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..enums import WQState, WQType

__all__ = ["WQ"]


class WQ(_core.WQ):
    """A queue of receives alone, in state RESET: an `RwqIndTable` spreads packets over several.

    pd: the protection domain of the memory that is posted.
    cq: the CQ on which the receives complete.
    max_wr: how many receives it has room for, at least; 1 to the device's max_qp_wr.
    max_sge: how many elements a receive can have, up to the device's max_sge, and 64 at most.
    wq_type: RQ.
    create_flags: `WQFlags`.
    user_data: any object, kept as an attribute.

    close() raises BusyError while tables name the WQ. Raises VerbsError (EOPNOTSUPP) where the
    device has none. Wraps ibv_create_wq(3).
    """

    __slots__ = ()

    @property
    def wq_type(self) -> WQType | int:
        """RQ."""
        return enums.enum_or_int(enums.WQType, super().wq_type)

    @property
    def state(self) -> WQState | int:
        """The state to which it was brought; the device may have moved it to ERR since."""
        return enums.enum_or_int(enums.WQState, super().state)
