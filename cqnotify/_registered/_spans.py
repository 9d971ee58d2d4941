# SPDX-License-Identifier: MIT
"""What is registered with the same access, in the order of its addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, Protocol, TypeVar


class _Span(Protocol):
    start: int
    end: int


_S = TypeVar("_S", bound=_Span)


class Spans(Generic[_S]):
    """Regions in the order of their starts. None contains another one, so that is the order of
    their ends, too: of those that start before a place, the last one reaches farthest."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[_S] = []

    def find(self, start: int, end: int) -> _S | None:
        """One that contains all of that."""
        i = bisect_right(self._starts, start) - 1
        if i >= 0 and self._regions[i].end >= end:
            return self._regions[i]
        return None

    def overlapping(self, start: int, end: int) -> list[_S]:
        first = bisect_right(self._regions, start, key=lambda region: region.end)
        return self._regions[first : bisect_left(self._starts, end)]

    def add(self, region: _S) -> list[_S]:
        """Return those that it contains, which are not listed any more."""
        assert self.find(region.start, region.end) is None, "it would have been used"
        first = bisect_left(self._starts, region.start)
        behind = bisect_right(self._regions, region.end, key=lambda other: other.end)
        contained = self._regions[first:behind]
        self._regions[first:behind] = [region]
        self._starts[first:behind] = [region.start]
        return contained

    def remove(self, region: _S) -> None:
        i = bisect_left(self._starts, region.start)
        assert self._regions[i] is region, "it is listed"
        del self._starts[i], self._regions[i]
