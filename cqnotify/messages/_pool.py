# SPDX-License-Identifier: MIT
"""What is registered in a protection domain, for all connections that share it.

A registration of a numpy array is found by the memory that it contains: a slice of what is
registered is registered. A peer is granted nothing that was not offered, so a slice is registered
together with what it overlaps, and never the whole array for the sake of a slice.

A pool is used in the thread of its event loop. An array can be freed in any thread, and in the
middle of anything: then its registrations end before its memory does, and the pool takes them out
of its lists later.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from .. import MR, PD, AccessFlags, ClosedError, VerbsError, _core

if TYPE_CHECKING:
    from ._memory import Registering, Registrations
    from ._pinning import Pinning


Wanted = _core.MessageMemory  # a buffer that is to be registered


class Region:
    """Registered memory.

    users: how many messages use it; meanwhile it keeps `memory` alive.
    array: the numpy array that has the memory, without keeping it; None if it is not to be kept.
    key: of another buffer.
    is_listed: whether it is to be found.
    """

    def __init__(self, mr: MR, wanted: Wanted, start: int) -> None:
        self.mr: MR = mr
        self.addr: int = mr.addr
        self.rkey: int = mr.rkey
        self.nbytes: int = mr.length
        self.start: int = start
        self.end: int = start + self.nbytes
        self.access: AccessFlags = wanted.access
        self.key: Hashable = wanted.key
        self.users: int = 1
        self.memory: Any = wanted.view if wanted.array is None else wanted.array
        self.array: weakref.ref[Any] | None = None
        self.is_listed: bool = True


class Spans:
    """Regions in the order of their starts. None contains another one, so that is the order of
    their ends, too: of those that start before a place, the last one reaches farthest."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []

    def find(self, start: int, end: int) -> Region | None:
        """One that contains all of that."""
        i = bisect_right(self._starts, start) - 1
        if i >= 0 and self._regions[i].end >= end:
            return self._regions[i]
        return None

    def overlapping(self, start: int, end: int) -> list[Region]:
        first = bisect_right(self._regions, start, key=lambda region: region.end)
        return self._regions[first : bisect_left(self._starts, end)]

    def add(self, region: Region) -> list[Region]:
        """Return those that it contains, which are not listed any more."""
        assert self.find(region.start, region.end) is None, "it would have been used"
        first = bisect_left(self._starts, region.start)
        behind = bisect_right(self._regions, region.end, key=lambda other: other.end)
        contained = self._regions[first:behind]
        self._regions[first:behind] = [region]
        self._starts[first:behind] = [region.start]
        return contained

    def remove(self, region: Region) -> None:
        i = bisect_left(self._starts, region.start)
        assert self._regions[i] is region, "it is listed"
        del self._starts[i], self._regions[i]


class Pool:
    """A protection domain, and the registrations in it.

    in_flight: what threads are registering.
    """

    def __init__(self, pd: PD, cache_limit: int) -> None:
        """cache_limit: how many bytes stay registered that no message uses."""
        self.pd: PD = pd
        self.is_closed: bool = False
        self.in_flight: list[Registering] = []
        self._cache_limit = cache_limit
        self._users: set[Registrations] = set()
        self._open = 0  # connections that may use the domain: also for what their threads do
        self._arrays: dict[AccessFlags, Spans] = {}
        self._others: dict[Hashable, Region] = {}  # which are in use
        self._kept: OrderedDict[Region, None] = OrderedDict()  # the oldest first
        self._kept_bytes = 0
        self._freed: deque[Region] = deque()  # whose array has gone

    # ---- connections ----

    def join(self, user: Registrations) -> None:
        self._users.add(user)
        self._open += 1

    def leave(self, user: Registrations) -> None:
        """It uses nothing any more. With the last one goes what is kept."""
        self._users.discard(user)
        if not self._users:
            self.is_closed = True
            self.drop_all(user.pinning)

    def close_if_last(self) -> None:
        """Nor do the threads of a connection that has left."""
        self._open -= 1
        if not self._open:
            with contextlib.suppress(VerbsError):  # of a device that is gone
                self.pd.close()

    # ---- in use ----

    def _found(self, wanted: Wanted) -> tuple[Region, Any] | None:
        """What has it registered, and the memory, which stays as long as this refers to it."""
        self._forget_freed()
        if wanted.array is None:
            other = self._others.get(wanted.key)
            return None if other is None else (other, other.memory)
        spans = self._spans(wanted.access)
        region = spans.find(wanted.start, wanted.end)
        while region is not None:
            memory = region.memory
            if memory is None and region.array is not None:
                memory = region.array()
            if memory is not None:
                return region, memory
            self._unlist(region)  # its array is being freed
            region = spans.find(wanted.start, wanted.end)
        return None

    def has(self, wanted: Wanted) -> bool:
        return self._found(wanted) is not None

    def acquire(self, wanted: Wanted) -> Region | None:
        """What has it registered, for a message."""
        found = self._found(wanted)
        if found is None:
            return None
        region, memory = found
        region.memory = memory
        self._unkeep(region)
        region.users += 1
        return region

    def extent(self, wanted: Wanted) -> tuple[int, int]:
        """What to register for it: with what it overlaps, so that slices of an array become one
        registration, which contains those that are to come."""
        start, end = wanted.start, wanted.end
        if wanted.array is not None:
            for region in self._spans(wanted.access).overlapping(start, end):
                if region.array is not None and region.array() is wanted.array:
                    start, end = min(start, region.start), max(end, region.end)
        return (start, end) if end - start <= self._cache_limit else (wanted.start, wanted.end)

    def add(self, mr: MR, wanted: Wanted, start: int, pinning: Pinning) -> Region:
        """What was registered, from `start` on, for a message. Nothing that has() contained it."""
        region = Region(mr, wanted, start)
        if wanted.array is None:
            self._others[wanted.key] = region
            return region
        for contained in self._spans(wanted.access).add(region):
            contained.is_listed = False
            if not contained.users:
                self._drop(contained, pinning)
        if region.nbytes <= self._cache_limit:
            self._watch(region, wanted.array)
        return region

    def release(self, region: Region, pinning: Pinning) -> None:
        """A message does not use it any more."""
        region.users -= 1
        if region.users:
            return
        if region.array is not None and region.is_listed and not self.is_closed:
            self._kept[region] = None
            self._kept_bytes += region.nbytes
            while self._kept_bytes > self._cache_limit:
                self._drop(next(iter(self._kept)), pinning)
        else:
            self._drop(region, pinning)
        region.memory = None  # last: perhaps this frees the array

    def _spans(self, access: AccessFlags) -> Spans:
        spans = self._arrays.get(access)
        if spans is None:
            spans = self._arrays[access] = Spans()
        return spans

    def _unlist(self, region: Region) -> None:
        region.is_listed = False
        if region.key is not None:
            del self._others[region.key]
        else:
            self._spans(region.access).remove(region)

    # ---- kept ----

    @property
    def kept(self) -> tuple[int, int]:
        """How many registrations, and of how many bytes."""
        self._forget_freed()
        return len(self._kept), self._kept_bytes

    def _watch(self, region: Region, array: Any) -> None:
        """End the registration before the memory is freed, in whichever thread that is."""
        mr, freed = region.mr, self._freed

        def gone(_: object) -> None:
            with contextlib.suppress(VerbsError, ClosedError):
                mr.close()
            freed.append(region)

        region.array = weakref.ref(array, gone)

    def _forget_freed(self) -> None:
        while self._freed:
            region = self._freed.popleft()
            self._unkeep(region)
            if region.is_listed:
                self._unlist(region)

    def _drop(self, region: Region, pinning: Pinning) -> None:
        """Nothing uses it."""
        self._unkeep(region)
        if region.is_listed:
            self._unlist(region)
        region.array = None  # otherwise numpy would still refuse to resize it
        pinning.close(region.mr)

    def _unkeep(self, region: Region) -> None:
        if region in self._kept:
            del self._kept[region]
            self._kept_bytes -= region.nbytes

    def drop_oldest(self, pinning: Pinning) -> bool:
        """Let go of what is kept, which may be in the way. Return False if nothing is."""
        self._forget_freed()
        if not self._kept:
            return False
        self._drop(next(iter(self._kept)), pinning)
        return True

    def drop_all(self, pinning: Pinning) -> bool:
        is_any = False
        while self.drop_oldest(pinning):
            is_any = True
        return is_any


def memory_of(wanted: Wanted, start: int, end: int) -> Any:
    """What an MR is made of. It does not keep an array alive."""
    if wanted.array is None:
        return wanted.view
    return (ctypes.c_char * (end - start)).from_address(start)
