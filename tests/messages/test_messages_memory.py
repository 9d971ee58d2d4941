# SPDX-License-Identifier: MIT
"""Registered memory: registered once, let go of, bounded; and its limit is named."""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import weakref
from array import array
from typing import Any

import numpy
import pytest
from messages_support import SOON, address_of, connected, data_of, took

from cqnotify import Context
from cqnotify.messages import Connection, ConnectionOptions, MemoryStats
from cqnotify.messages._memory import bytes_of

LARGE = 100000


async def send(a: Connection, b: Connection, *frames: Any) -> list[Any]:
    _, got = await asyncio.gather(a.send(*frames), b.recv(timeout=SOON))
    assert took(got) == [bytes(memoryview(frame).cast("B")) for frame in frames]
    return got


def memory(conn: Connection) -> MemoryStats:
    return conn.stats.memory


@pytest.mark.parametrize("source", [bytearray(10), numpy.zeros((3, 4)), array("d", [1, 2])])
def test_a_memoryview_can_be_collected_together_with_its_bytes(source: Any) -> None:
    view = memoryview(source)
    own = bytes_of(view)
    assert (own.nbytes, own.format, own.ndim) == (view.nbytes, "B", 1)
    cycle: list[object] = [view, own]
    cycle.append(cycle)
    del view, own, cycle
    gc.collect()  # which crashes up to Python 3.12 if there is a PickleBuffer of the memoryview


async def test_an_array_that_comes_again_is_not_registered_again(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        array = numpy.arange(LARGE)
        for i in range(10):
            array[i] = -i
            await send(a, b, array)
        assert memory(a) == MemoryStats(1, 9, 1, array.nbytes)
        await send(a, b, memoryview(array))
        await send(a, b, array[:])
        assert memory(a) == MemoryStats(1, 11, 1, array.nbytes)
        await send(a, b, array[10:])
        await send(a, b, array[LARGE // 3 : LARGE // 2])
        assert memory(a) == MemoryStats(1, 13, 1, array.nbytes)


async def test_what_is_freed_is_let_go_of(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        for i in range(20):  # often at the same address
            array = numpy.full(LARGE, i)
            alive = weakref.ref(array)
            await send(a, b, array)
            assert memory(a).kept == 1
            del array
            gc.collect()
            assert alive() is None, "the registration does not keep it"
            assert memory(a) == MemoryStats(i + 1, 0, 0, 0)


async def test_an_array_that_is_registered_is_not_resized(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        array = numpy.arange(LARGE)
        await send(a, b, array)
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(2 * LARGE, refcheck=False)


@pytest.mark.parametrize("kind", [bytes, bytearray])
async def test_other_buffers_are_registered_while_a_message_uses_them(
    ctx: Context, kind: type[Any]
) -> None:
    async with connected(ctx) as (a, b):
        frame = kind(data_of(LARGE))
        for i in range(3):
            await send(a, b, frame, frame, frame)
            assert memory(a) == MemoryStats(i + 1, 2 * (i + 1), 0, 0)
        sending = [asyncio.ensure_future(a.send(frame)) for _ in range(4)]
        for _ in range(4):
            await b.recv(timeout=SOON)
        await asyncio.gather(*sending)
        assert memory(a).registered == 4
        if kind is bytearray:
            frame.extend(b"it is let go of")


async def test_parts_of_a_buffer_are_not_mistaken_for_each_other(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        for whole in (data_of(4 * LARGE), numpy.frombuffer(data_of(4 * LARGE), numpy.uint8)):
            views = [memoryview(whole)[i : i + LARGE] for i in (0, 1, LARGE, 2 * LARGE + 7)]
            await send(a, b, *views, *views)


async def test_what_was_received_is_sent_on(ctx: Context) -> None:
    """Large frames are memory that the device has filled, and that is not registered any more."""
    async with connected(ctx) as (a, b):
        frames: list[Any] = [data_of(LARGE), data_of(5), data_of(2 * LARGE)]
        for _ in range(3):
            frames = await send(a, b, *frames)
            frames = await send(b, a, frames[0], frames[1], frames[2][:LARGE])


async def test_given_memory_is_registered_once(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        target = numpy.zeros(LARGE, numpy.uint8)
        for i in range(5):
            frame = bytes([i]) * LARGE
            await asyncio.gather(a.send(frame), b.recv(into=[target], timeout=SOON))
            assert target.tobytes() == frame
        assert memory(b) == MemoryStats(1, 4, 1, LARGE)


async def test_the_memory_that_is_kept_is_bounded(ctx: Context) -> None:
    async with connected(ctx, ConnectionOptions(cache=250000)) as (a, b):
        arrays = [numpy.full(LARGE, i, numpy.uint8) for i in range(4)]
        for array in arrays:
            await send(a, b, array)
        assert memory(a) == MemoryStats(4, 0, 2, 2 * LARGE)
        await send(a, b, arrays[3])
        await send(a, b, arrays[2])
        assert memory(a) == MemoryStats(4, 2, 2, 2 * LARGE)
        await send(a, b, arrays[0])
        await send(a, b, arrays[2])
        assert memory(a) == MemoryStats(5, 3, 2, 2 * LARGE)
        await send(a, b, numpy.zeros(300000, numpy.uint8))  # is never kept
        assert memory(a).kept == 2


async def test_nothing_is_kept_if_so_told(ctx: Context) -> None:
    async with connected(ctx, ConnectionOptions(cache=0)) as (a, b):
        array = numpy.arange(LARGE)
        for i in range(3):
            await send(a, b, array)
            assert memory(a) == MemoryStats(i + 1, 0, 0, 0)
        array.resize(LARGE + 1, refcheck=False)


async def test_arrays_may_outlive_the_connection_or_not(ctx: Context) -> None:
    array, target = numpy.arange(LARGE), numpy.zeros(LARGE * 8, numpy.uint8)
    async with connected(ctx) as (a, b):
        await asyncio.gather(a.send(array), b.recv(into=[target], timeout=SOON))
    assert memory(a) == MemoryStats(1, 0, 0, 0)
    del array, target
    gc.collect()


def test_the_limit_of_locked_memory_is_named(ctx: Context) -> None:
    """And what did not fit leaves the connection as it was."""
    program = f"""
import asyncio, cqnotify._attr_conversion, encodings.idna, os, resource  # nobody reads them later
from cqnotify import VerbsError, messages
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({1 << 19}, {1 << 19}))
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root is not bound by it

async def main():
    small = messages.ConnectionOptions(credits=2, eager=512, offers=1)
    async with messages.listen({address_of(ctx)!r}, 0, options=small) as listener:
        a = await messages.connect(*listener.local, options=small)
        b = await listener.accept()
    async with a, b:
        try:
            await a.send(bytes(1 << 20))
        except VerbsError as e:
            print(e)
        sending = asyncio.ensure_future(a.send(bytes(1000)))
        got = await b.recv(allocate=bytearray)
        await sending
        print([len(frame) for frame in got])
        try:
            await messages.connect({address_of(ctx)!r}, 9)  # with more memory than there is
        except OSError as e:
            print(e)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=3 * SOON
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert "1048576 bytes were asked for, and this process may lock 524288 bytes" in first
    assert "memlock" in first
    assert second == "[1000]"
    assert "may lock 524288 bytes" in third
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != 1 << 19
