# SPDX-License-Identifier: MIT
"""The ways in which a result differs from what is demanded."""

from __future__ import annotations

from enum import Enum


class Deviation(Enum):
    """A way in which a row differs from what was expected."""

    NO_EVENT = "no event"
    SURPLUS_EVENT = "an event too many"
    NO_COMPLETION = "no completion"
    SURPLUS_COMPLETION = "a completion too many"
    OTHER_STATUS = "another status"

    @property
    def of_events(self) -> bool:
        """Whether it contradicts ibv_req_notify_cq(3)."""
        return self in (Deviation.NO_EVENT, Deviation.SURPLUS_EVENT)
