# SPDX-License-Identifier: MIT
"""A large message that the core reads into a buffer of the caller: see csrc/messages/reading.c."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from messages_support import SOON, connected, data_of, took
from support import cancel, eventually, on_iwarp, start

from cqnotify import Context, QPState
from cqnotify.messages import Connection, ConnectionLostError, _liveness

LARGE = 300000
BLINK = 0.05  # seconds


@asynccontextmanager
async def offered(ctx: Context, *frames: bytes) -> AsyncIterator[tuple[Connection, Connection]]:
    """A connection over which a message was offered, and its receiver first."""
    async with connected(ctx) as (a, b):
        sending = await start(b.send(*frames))
        await eventually(lambda: a._session.messages_waiting == 1)
        yield a, b
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def stop_answering(conn: Connection) -> None:
    """Its device does not answer any more, as that of a dead host."""
    conn._session._liveness._is_due = lambda: False
    conn._session.resources.qp.modify(qp_state=QPState.RESET)


@pytest.mark.parametrize(
    "sizes", [(LARGE,), (5, LARGE), (LARGE, 0), (0, 1, LARGE, 7, 4000), (1 << 21,)], ids=str
)
async def test_each_frame_comes_into_its_buffer(ctx: Context, sizes: tuple[int, ...]) -> None:
    frames = [data_of(size) for size in sizes]
    async with connected(ctx) as (a, b):
        for _ in range(3):
            into = [bytearray(size + 3) for size in sizes]
            sending = asyncio.ensure_future(b.send(*frames))
            assert took(await a.recv(into=into, timeout=SOON)) == frames
            await sending
            assert [bytes(buffer[:-3]) for buffer in into] == frames
            assert a._session.reads_in_flight == 0
        assert a.stats.messages_received == b.stats.messages_sent == 3


async def calls_of(a: Connection, b: Connection, buffer: Any, target: Any) -> int:
    """How many functions of Python are called for a message."""
    calls = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def receive() -> None:
        await a.recv(into=[target])

    receiving = await start(receive())
    sys.setprofile(called)
    try:
        await b.send(buffer)
        await receiving
    finally:
        sys.setprofile(None)
    return calls


async def test_a_large_message_takes_few_calls(ctx: Context) -> None:
    """Of Python code: the rest is done by the core."""
    numpy = pytest.importorskip("numpy")
    source, target = numpy.arange(1 << 16, dtype="u1"), numpy.zeros(1 << 16, "u1")
    async with connected(ctx) as (a, b):
        await calls_of(a, b, source, target)  # which registers both
        calls = await calls_of(a, b, source, target)
        assert (source == target).all()
        # Turns of the loop add some, as many as it takes.
        assert 0 < calls < 150


@pytest.mark.not_on_iwarp("siw does not stop to answer")
async def test_a_read_that_was_given_up_keeps_its_memory(ctx: Context) -> None:
    async with offered(ctx, data_of(LARGE)) as (a, b):
        stop_answering(b)
        target = bytearray(LARGE)
        receiving = await start(a.recv(into=[target]))
        await eventually(lambda: a._session.reads_in_flight > 0)
        await cancel(receiving)
        assert a._session.reads_in_flight > 0
        assert a._session.messages_waiting == 1, "the next one can have it"
        with pytest.raises(BufferError):
            target.append(1)
        a.abort()
        await a.aclose()
        assert a._session.reads_in_flight == 0
        del receiving
        target.append(1)


@pytest.mark.not_on_iwarp("siw does not stop to answer")
async def test_a_read_takes_no_longer_than_the_timeout(ctx: Context) -> None:
    async with offered(ctx, data_of(LARGE)) as (a, b):
        stop_answering(b)
        for count in (1, 2):
            with pytest.raises(TimeoutError, match="the message was not read in time"):
                await a.recv(into=[bytearray(LARGE)], timeout=BLINK)
            assert a._session.reads_in_flight >= count
            assert a._session.messages_waiting == 1


@pytest.mark.not_on_iwarp("siw does not stop to answer")
async def test_a_read_ends_with_its_connection(ctx: Context) -> None:
    async with offered(ctx, data_of(LARGE)) as (a, b):
        stop_answering(b)
        receiving = await start(a.recv(into=[bytearray(LARGE)]))
        await eventually(lambda: a._session.reads_in_flight > 0)
        b.abort()
        with pytest.raises(ConnectionLostError):
            await asyncio.wait_for(receiving, SOON)
        assert a._session.reads_in_flight == 0


async def test_a_closing_end_waits_for_a_read(ctx: Context) -> None:
    async with offered(ctx, data_of(LARGE)) as (a, _):
        target = bytearray(LARGE)
        receiving = asyncio.ensure_future(a.recv(into=[target]))
        await asyncio.sleep(0)  # until it reads, or has read
        await a.aclose()
        assert took(await receiving) == [data_of(LARGE)]


async def test_a_read_that_does_not_complete_is_asked_for_by_reads(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_iwarp():
        pytest.skip("iWARP: a write completes before the peer has it, so nothing is asked")
    monkeypatch.setattr(_liveness, "PROBE_INTERVAL", 0.01)
    async with offered(ctx, data_of(LARGE)) as (a, b):
        stop_answering(b)
        session = a._session
        first = session._number
        receiving = await start(a.recv(into=[bytearray(LARGE)]))
        await eventually(lambda: session.reads_in_flight > 3)
        assert session.reads_in_flight == session._number - first
        await cancel(receiving)
