# SPDX-License-Identifier: MIT
"""cqnotify.messages: what is sent arrives, whatever its size and number of frames."""

from __future__ import annotations

import array
import asyncio
import mmap
from typing import Any

import numpy
import pytest
from messages_support import SMALL, SOON, connected, data_of, eager_limit, took
from support import start

from cqnotify import Context
from cqnotify.messages import Connection, ConnectionOptions

MIB = 1 << 20


async def passes(a: Connection, b: Connection, *frames: bytes) -> list[Any]:
    """A message, which must arrive unchanged."""
    _, got = await asyncio.gather(a.send(*frames), b.recv(timeout=SOON))
    assert took(got) == [bytes(frame) for frame in frames]
    return got


# ---- sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 64, 4096, MIB, 20 * MIB])
async def test_a_frame_of_each_size_arrives(ctx: Context, size: int) -> None:
    async with connected(ctx) as (a, b):
        await passes(a, b, data_of(size))
        await passes(b, a, data_of(size))


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_messages_around_the_eager_limit(ctx: Context, more: int) -> None:
    async with connected(ctx) as (a, b):
        (frame,) = await passes(a, b, data_of(eager_limit(a) + more))
        assert a.stats.waits == (1 if more > 0 else 0), "a larger one is read by the peer"
        assert isinstance(frame, bytearray if more <= 0 else memoryview)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_frames_around_the_size_that_is_registered(ctx: Context, more: int) -> None:
    async with connected(ctx) as (a, b):
        size = a._session.resources.options.eager + more
        await passes(a, b, data_of(size), b"", data_of(size + 1)[1:])
        assert a.stats.memory.registered == (2 if more >= 0 else 0)


async def test_a_message_without_frames(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        assert await passes(a, b) == []


async def test_the_smaller_eager_size_counts(ctx: Context) -> None:
    async with connected(ctx, SMALL, ConnectionOptions()) as (a, b):
        for _ in range(5):
            await passes(a, b, data_of(300), b"1")
            await passes(b, a, data_of(300), b"2")
            await passes(b, a, data_of(200))


@pytest.mark.parametrize("count", [1, 2, 100, 5000])
@pytest.mark.parametrize("size", [0, 7, 40000])
async def test_many_frames_are_one_message(ctx: Context, count: int, size: int) -> None:
    if count * size > 8 * MIB:
        size = 1000
    async with connected(ctx) as (a, b):
        await passes(a, b, *(data_of(size + i % 3) for i in range(count)))


async def test_small_and_large_frames_mix(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sizes = (10, 100000, 0, 33000, 32767, MIB, 5)
        await passes(a, b, *map(data_of, sizes))
        # So many small ones that the table of the frames does not fit into the offer.
        await passes(a, b, *(data_of(i % 50) for i in range(3000)), data_of(MIB), b"last")


async def test_a_large_frame_is_read_in_parts(ctx: Context) -> None:
    """Devices have a largest message, and so a largest read."""
    async with connected(ctx) as (a, b):
        b._session.resources.device.max_msg_sz = 4096
        await passes(a, b, data_of(100001), data_of(4096 * 9), data_of(4096 * 9 + 1))


# ---- order and directions -------------------------------------------------------------------


async def test_messages_arrive_in_the_order_of_send(ctx: Context) -> None:
    async with connected(ctx, SMALL) as (a, b):
        sizes = [(i * 7919) % 1000 for i in range(100)]
        sending = [asyncio.ensure_future(a.send(data_of(size))) for size in sizes]
        for size in sizes:
            assert took(await b.recv(timeout=SOON)) == [data_of(size)]
        await asyncio.gather(*sending)


async def test_receivers_take_turns(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        taking = [await start(b.recv()) for _ in range(4)]
        sizes = (1, 100000, 2, 50000)
        sending = [a.send(data_of(size), bytes([i])) for i, size in enumerate(sizes)]
        got = await asyncio.gather(*taking, *sending)
        assert [bytes(frames[1]) for frames in got[:4]] == [b"\0", b"\1", b"\2", b"\3"]


@pytest.mark.parametrize("size", [64, 200000])
async def test_both_directions_at_once(ctx: Context, size: int) -> None:
    async def send(conn: Connection) -> None:
        for i in range(100):
            await conn.send(data_of(size), bytes([i]))

    async def receive(conn: Connection) -> None:
        for i in range(100):
            assert took(await conn.recv(timeout=SOON)) == [data_of(size), bytes([i])]

    async with connected(ctx) as (a, b):
        await asyncio.gather(send(a), send(b), receive(a), receive(b))


async def test_requests_and_answers_with_few_credits(ctx: Context) -> None:
    async def serve(conn: Connection) -> None:
        async for frames in conn:
            await conn.send(*frames)

    async with connected(ctx, SMALL) as (a, b):
        serving = asyncio.ensure_future(serve(b))
        for i in range(300):
            size = (i * 131) % 700
            await a.send(data_of(size))
            assert took(await a.recv(timeout=SOON)) == [data_of(size)]
        await a.aclose()
        await serving


# ---- buffers --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 50000])
async def test_any_contiguous_buffer_is_a_frame(ctx: Context, n: int) -> None:
    mapped = mmap.mmap(-1, 8 * n)
    mapped.write(data_of(8 * n))
    frames: list[Any] = [
        data_of(n),
        bytearray(data_of(n)),
        memoryview(data_of(3 * n))[n : 2 * n],
        array.array("d", range(n)),
        mapped,
        numpy.arange(n),
        numpy.arange(n, dtype=">i8"),
        numpy.ones((n, 2), dtype=[("a", "i4"), ("b", "f8")]),
        numpy.asfortranarray(numpy.arange(2 * n).reshape(n, 2)),
        numpy.array(3.0),
        numpy.empty((0, 3)),
        numpy.arange(n).astype("M8[s]"),
        numpy.asfortranarray(numpy.arange(2 * n).reshape(n, 2).astype("m8[ms]")),
        numpy.ones(n, dtype=[("when", "M8[s]"), ("much", "f8")]),
        numpy.array(7).astype("M8[s]"),
        numpy.arange(n).astype("M8[s]").view(numpy.recarray),
    ]
    wanted = [bytes(frame) if i < 5 else frame.tobytes("A") for i, frame in enumerate(frames)]
    async with connected(ctx) as (a, b):
        _, got = await asyncio.gather(a.send(*frames), b.recv(timeout=SOON))
        assert took(got) == wanted


@pytest.mark.parametrize("n", [4, 40000])
async def test_frames_are_writable_and_the_callers_own(ctx: Context, n: int) -> None:
    async with connected(ctx) as (a, b):
        got = []
        for i in range(20):
            _, (frame,) = await asyncio.gather(a.send(bytes([i]) * n), b.recv(timeout=SOON))
            frame[0] = 99
            got.append(frame)
        await a.aclose()
        await b.aclose()
        for i, frame in enumerate(got):
            assert bytes(frame) == bytes([99]) + bytes([i]) * (n - 1)
        assert numpy.frombuffer(got[0], numpy.uint8).flags.writeable


async def test_what_is_no_buffer_is_refused(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        with pytest.raises(TypeError, match="a frame must be a bytes-like object, not str"):
            await a.send(b"1", "2")  # type: ignore[arg-type]
        with pytest.raises(BufferError, match="contiguous in memory: this ndarray is not"):
            await a.send(numpy.zeros((9, 9))[:, 1])
        with pytest.raises(BufferError, match="contiguous in memory: this array is not"):
            await a.send(numpy.zeros((9, 9), "M8[s]")[:, 1])
        await passes(a, b, b"and it goes on")


@pytest.mark.parametrize("n", [3, 9000])
async def test_references_to_objects_are_refused(ctx: Context, n: int) -> None:
    """They mean nothing to the peer, and what it sends in their place would crash Python."""
    refused: list[Any] = [
        numpy.array([object()] * n),
        memoryview(numpy.array([object()] * n)),
        numpy.zeros(n, [("when", "M8[s]"), ("what", "O")]),
    ]
    words = "must have bytes of its own: this .* has references to Python objects"
    async with connected(ctx) as (a, b):
        for array_of_objects in refused:
            with pytest.raises(TypeError, match=words):
                await a.send(array_of_objects)
        sending = asyncio.ensure_future(a.send(bytes(8 * n)))
        with pytest.raises(TypeError, match=words):
            await b.recv(into=[refused[0]], timeout=SOON)
        assert took(await b.recv(timeout=SOON)) == [bytes(8 * n)]
        await sending


async def test_a_message_that_the_peer_does_not_take_is_refused_here(ctx: Context) -> None:
    async with connected(ctx, None, ConnectionOptions(max_message=1000, max_frames=3)) as (a, b):
        with pytest.raises(ValueError, match="1001 bytes: the peer takes at most 1000"):
            await a.send(bytes(1001))
        with pytest.raises(ValueError, match="4 frames: the peer takes at most 3"):
            await a.send(b"", b"", b"", b"")
        await passes(a, b, bytes(998), b"1", b"2")
        await passes(b, a, bytes(1001))


# ---- memory of the caller -------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 300000])
async def test_a_message_is_received_into_given_memory(ctx: Context, size: int) -> None:
    async with connected(ctx) as (a, b):
        target = numpy.zeros(size + 5, numpy.uint8)
        small = bytearray(20)
        _, got = await asyncio.gather(
            a.send(data_of(size), b"small"), b.recv(into=[target, small], timeout=SOON)
        )
        assert took(got) == [data_of(size), b"small"]
        assert target.tobytes() == data_of(size) + bytes(5)
        assert small == b"small".ljust(20, b"\0")


@pytest.mark.parametrize("size", [10, 300000])
async def test_memory_is_allocated_by_the_caller(ctx: Context, size: int) -> None:
    made = []

    def allocate(nbytes: int) -> bytearray:
        made.append(bytearray(nbytes))
        return made[-1]

    async with connected(ctx) as (a, b):
        _, got = await asyncio.gather(
            a.send(data_of(size), b"", b"small"), b.recv(allocate=allocate, timeout=SOON)
        )
        assert took(got) == list(map(bytes, made)) == [data_of(size), b"", b"small"]


@pytest.mark.parametrize("size", [10, 300000])
async def test_a_message_that_does_not_fit_remains(ctx: Context, size: int) -> None:
    def fails(nbytes: int) -> bytearray:
        raise MemoryError(f"no {nbytes} bytes")

    async with connected(ctx) as (a, b):
        sending = asyncio.ensure_future(a.send(data_of(size), b"2"))
        with pytest.raises(ValueError, match="of 2 frames does not fit into 1 buffers"):
            await b.recv(into=[bytearray(size)], timeout=SOON)
        with pytest.raises(ValueError, match="a frame of 1 bytes does not fit into 0 bytes"):
            await b.recv(into=[bytearray(size), bytearray()], timeout=SOON)
        with pytest.raises(TypeError, match="cannot receive into a read-only bytes"):
            await b.recv(into=[bytearray(size), b"2"], timeout=SOON)  # type: ignore[list-item]
        with pytest.raises(MemoryError, match=f"no {size} bytes"):
            await b.recv(allocate=fails, timeout=SOON)
        with pytest.raises(TypeError, match="give into or allocate, not both"):
            await b.recv(into=[], allocate=fails)
        assert took(await b.recv(timeout=SOON)) == [data_of(size), b"2"]
        await sending
        await passes(a, b, data_of(size))


async def test_iterating_ends_when_the_peer_has_closed(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await a.send(b"1")
        await a.send(b"2", b"3")
        await a.aclose()
        assert [took(frames) async for frames in b] == [[b"1"], [b"2", b"3"]]
        assert [frames async for frames in b] == []


async def test_it_tells_its_addresses(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        assert a.local == b.peer
        assert a.peer == b.local
        assert repr(a).endswith(", open>")
        assert not a.closed
        assert a.error is None
        await a.aclose()
        assert repr(a).endswith(", ClosedError>")
        assert a.closed
