# SPDX-License-Identifier: MIT
"""What is registered is found by its addresses, and bounded."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from cqnotify import MR, PD, AccessFlags, Context
from cqnotify._core import RegisteredRegion, RegisteredTable

NONE, WRITE, BIND = AccessFlags(0), AccessFlags.LOCAL_WRITE, AccessFlags.MW_BIND
READ, ATOMIC = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_ATOMIC
RELAXED = AccessFlags.RELAXED_ORDERING
SIZE = 1 << 20


@pytest.fixture
def pd(ctx: Context) -> Iterator[PD]:
    """Of which no MR is left at the end: else it could not be closed."""
    pd = PD(ctx)
    yield pd
    pd.close()


class Memory:
    """An array, parts of which are registered."""

    def __init__(self, pd: PD, table: RegisteredTable, access: AccessFlags = NONE) -> None:
        self.array: Any = numpy.zeros(SIZE, numpy.uint8)
        self.base: int = self.array.ctypes.data
        self.pd, self.table, self.access = pd, table, access

    def add(self, start: int, end: int, holder: Any = "") -> tuple[RegisteredRegion, list[MR]]:
        mr = MR(self.pd, memoryview(self.array)[start:end], access=self.access)
        return self.table.add(mr, self.base + start, self.access, holder or self.array, 1)

    def find(self, start: int, end: int) -> RegisteredRegion | None:
        return self.table.find(self.base + start, self.base + end, self.access)

    def bounds(self, region: RegisteredRegion) -> tuple[int, int]:
        return region.start - self.base, region.end - self.base


def close(mrs: list[MR] | tuple[list[MR], object] | None) -> int:
    """What a table returned: how many MRs were to be closed."""
    if isinstance(mrs, tuple):
        mrs, _ = mrs
    for mr in mrs or ():
        mr.close()
    return len(mrs or ())


def table_of(most: int = SIZE, count: int = 1000) -> RegisteredTable:
    table = RegisteredTable(most, count, None)
    table.join()
    return table


def test_what_contains_memory_is_found(pd: PD) -> None:
    """The same as one finds by looking at all, whatever is added and released."""
    rng, table = random.Random(2), table_of()
    memory = Memory(pd, table)
    listed: list[tuple[int, int]] = []  # what is found
    used: list[RegisteredRegion] = []
    for _ in range(3000):
        start = rng.randrange(1000)
        end = start + 1 + rng.randrange(100)
        containing = [one for one in listed if one[0] <= start and end <= one[1]]
        region = memory.find(start, end)
        if region is None:
            assert not containing
            region, dropped = memory.add(start, end)
            assert not dropped, "each is in use"
            listed = [one for one in listed if not (start <= one[0] and one[1] <= end)]
            listed.append((start, end))
        else:
            assert memory.bounds(region) in containing
        used.append(region)
        if rng.random() < 0.6:
            gone = used.pop(rng.randrange(len(used)))
            if close(table.release(gone)) and memory.bounds(gone) in listed:
                listed.remove(memory.bounds(gone))
    assert table.in_use == len({id(region) for region in used})
    for region in used:
        close(table.release(region))
    assert (table.in_use, table.in_use_bytes, table.kept) == (0, 0, 0)


@pytest.mark.parametrize(
    ("own", "wanted", "is_found"),
    [
        (NONE, NONE, True),
        (WRITE | BIND, NONE, True),
        (WRITE | BIND, WRITE, True),
        (WRITE | BIND, BIND, True),
        (BIND, WRITE, False),
        (READ | WRITE | BIND, READ, True),
        (READ, READ | WRITE, False),
        (READ, NONE, False),
        (READ | WRITE, WRITE, False),
        (READ | ATOMIC | WRITE, READ | WRITE, False),
        (WRITE | RELAXED, WRITE, False),
        (WRITE, WRITE | RELAXED, False),
    ],
)
def test_a_registration_has_the_access_that_is_wanted_and_no_more_for_peers(
    pd: PD, own: AccessFlags, wanted: AccessFlags, is_found: bool
) -> None:
    table = table_of()
    memory = Memory(pd, table, own)
    region, _ = memory.add(0, 4096)
    found = table.find(memory.base, memory.base + 4096, wanted)
    assert (found is not None) == is_found
    assert table.has(memory.base, memory.base + 4096, wanted) == is_found
    for one in (region, found):
        if one is not None:
            close(table.release(one))


def test_the_extent_of_a_slice_is_bounded_and_of_one_array(pd: PD) -> None:
    table = table_of(3000)
    memory = Memory(pd, table)
    regions = [memory.add(start, start + 1000)[0] for start in (0, 1500, 5000)]
    for region in regions:
        region.watch(memory.array, weakref.ref(memory.array))

    def extent(start: int, end: int, array: Any) -> tuple[int, int]:
        low, high = table.extent(memory.base + start, memory.base + end, 0, array)
        return low - memory.base, high - memory.base

    assert extent(900, 1000, memory.array) == (0, 1000)
    assert extent(900, 1600, memory.array) == (0, 2500)
    assert extent(1000, 1500, memory.array) == (1000, 1500), "they touch it, at most"
    assert extent(2400, 5100, memory.array) == (2400, 5100), "together it is too much"
    assert extent(900, 1600, numpy.zeros(1)) == (900, 1600)
    assert extent(900, 1600, None) == (900, 1600)
    for region in regions:
        close(table.release(region))
    assert close(table.drop_all()) == 3


def test_what_is_kept_is_bounded_by_number_and_bytes_the_oldest_first(pd: PD) -> None:
    table = table_of(10000, 3)
    memory = Memory(pd, table)

    def kept(start: int, nbytes: int) -> tuple[list[MR], object] | None:
        region, _ = memory.add(start, start + nbytes)
        region.watch(memory.array, weakref.ref(memory.array))
        return table.release(region)

    assert [close(kept(start, 1000)) for start in (0, 2000, 4000)] == [0, 0, 0]
    again = memory.find(0, 1000)
    assert again is not None
    assert (table.kept, table.in_use) == (2, 1)
    assert table.release(again) is None
    assert close(kept(6000, 1000)) == 1, "by number"
    assert memory.find(2000, 3000) is None, "the oldest one"
    assert close(kept(10000, 8500)) == 2, "by number, and by bytes"
    assert (table.kept, table.kept_bytes) == (2, 9500)
    used = memory.find(6000, 7000)
    assert used is not None
    assert close(table.set_limits(0, 0)) == 1, "never what is in use"
    assert close(table.release(used)) == 1
    assert (table.kept, table.kept_bytes, table.in_use) == (0, 0, 0)


def test_without_users_nothing_is_kept(pd: PD) -> None:
    table = table_of()
    memory = Memory(pd, table)
    for is_kept in (True, False):
        region, _ = memory.add(0, 4096)
        region.watch(memory.array, weakref.ref(memory.array))
        assert close(table.release(region)) == (0 if is_kept else 1)
        if is_kept:
            assert close(table.leave()) == 1


def test_what_another_thread_has_registered_meanwhile_is_used(pd: PD) -> None:
    table = table_of()
    memory = Memory(pd, table)
    first, _ = memory.add(0, 4096)
    mr = MR(pd, memoryview(memory.array)[10:20], access=0)
    second, dropped = table.add(mr, memory.base + 10, NONE, memory.array, 2)
    assert (second, dropped) == (first, [])
    mr.close()
    assert (table.registered, table.reused, table.in_use) == (2, 2, 1)
    assert [close(table.release(first)) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ValueError, match="no region of this table that is in use"):
        table.release(first)


def test_a_larger_region_takes_the_place_of_those_it_contains(pd: PD) -> None:
    table = table_of()
    memory = Memory(pd, table)
    parts = [memory.add(start, start + 100)[0] for start in (0, 100, 300)]
    whole, dropped = memory.add(0, 400)
    assert dropped == []
    assert memory.find(100, 200) is whole
    for one in (*parts, whole, whole):
        close(table.release(one))
    assert memory.find(100, 200) is None


@pytest.mark.parametrize("kind", [bytes, bytearray, numpy.zeros])
def test_a_buffer_is_found_by_its_memory(pd: PD, kind: Any) -> None:
    table = table_of()
    buffer: Any = kind(4096)
    start = numpy.frombuffer(buffer, numpy.uint8).ctypes.data
    mr = MR(pd, memoryview(buffer), access=0)
    region, _ = table.add(mr, start, NONE, buffer, 1)
    for part in (buffer, memoryview(buffer).cast("B")[5:50]):
        found = table.acquire(part, 0)
        assert found is region
        close(table.release(found))
    assert table.acquire(bytes(9), 0) is None
    if kind is bytes:
        with pytest.raises(BufferError):
            table.acquire(buffer, WRITE)
    close(table.release(region))
