# SPDX-License-Identifier: MIT
"""Memory windows: the core's MW with its type as an enum, and the next key of a window."""

from __future__ import annotations

from . import _core, enums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .enums import MWType

__all__ = ["MW", "inc_rkey"]


class MW(_core.MW):
    """A memory window: a key of its own to a part of an MR. Wraps ibv_alloc_mw(3).

    pd: the PD.
    mw_type: `MWType.TYPE_1` or `TYPE_2`.

    `QP.bind_mw` gives the window its key, and says how to revoke it. Closing the window revokes the
    key at once. While the window is bound, its MR cannot be closed; nor can the QP through which a
    window of TYPE_2 was bound. cqnotify learns from the completions whether a window is bound, so
    poll them before you close.
    """

    __slots__ = ()

    @property
    def mw_type(self) -> MWType | int:
        """TYPE_1 or TYPE_2."""
        return enums.enum_or_int(enums.MWType, super().mw_type)


def inc_rkey(rkey: int) -> int:
    """Return the next key of a window: the last byte is incremented, modulo 256.

    rkey: the key, 32 bits.

    Wraps ibv_inc_rkey(3).
    """
    return rkey & ~0xFF | rkey + 1 & 0xFF
