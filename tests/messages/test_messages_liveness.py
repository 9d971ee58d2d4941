# SPDX-License-Identifier: MIT
"""An end that waits for its peer asks from time to time if its device is there.

What that finds out is tested between hosts: tests/lab/test_messages_between_hosts.py."""

from __future__ import annotations

import asyncio

import pytest
from messages_support import SMALL, SOON, connected, data_of, read_slowly, reads, took
from support import eventually, on_iwarp, start

from cqnotify import Context, QPState
from cqnotify.messages import Connection, ConnectionOptions, _liveness

LARGE = 300000
OFTEN = 0.01  # seconds


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    if on_iwarp():
        pytest.skip("iWARP: a write completes before the peer has it, so nothing is asked")
    monkeypatch.setattr(_liveness, "PROBE_INTERVAL", OFTEN)


def posted(conn: Connection) -> int:
    """Work requests, since the connection was made."""
    return conn._session._number


async def is_quiet(*conns: Connection) -> bool:
    """Whether they come to post no more."""
    for _ in range(20):
        before = [posted(conn) for conn in conns]
        await asyncio.sleep(10 * OFTEN)
        if [posted(conn) for conn in conns] == before:
            return True
    return False


async def test_the_sender_of_what_is_not_read_asks(ctx: Context) -> None:
    """The peer's program is not woken for it, and nothing is asked when the message was read."""
    async with connected(ctx) as (a, b):
        sending = await start(a.send(data_of(LARGE)))
        await eventually(lambda: b._session.messages_waiting > 0)
        first, woken = posted(a), b.stats.wakeups
        await eventually(lambda: posted(a) > first + 5)
        assert b.stats.wakeups == woken
        assert not sending.done()
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await sending
        assert await is_quiet(a)


async def test_a_sender_without_credits_asks(ctx: Context) -> None:
    messages = [b"1", b"2", b"3"]
    async with connected(ctx, SMALL) as (a, b):
        for message in messages[:2]:
            await a.send(message)
        sending = await start(a.send(messages[2]))
        first = posted(a)
        await eventually(lambda: posted(a) > first + 5)
        assert not sending.done()
        assert [took(await b.recv(timeout=SOON)) for _ in messages] == [[m] for m in messages]
        await sending


async def test_what_is_asked_never_fills_the_queue(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        sending = await start(a.send(data_of(LARGE)))
        await eventually(lambda: posted(a) > a._session.resources.send_depth + 10)
        await b.send(b"on")
        assert took(await a.recv(timeout=SOON)) == [b"on"]
        assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
        await sending


async def test_reads_that_do_not_complete_are_asked_for_by_reads(ctx: Context) -> None:
    """They take the memory of a message that was given up only if nothing else is read."""
    async with connected(ctx) as (a, b):
        await start(b.send(data_of(LARGE)))
        await eventually(lambda: a._session.messages_waiting > 0)
        b._session._liveness._is_due = lambda: False
        b._session.resources.qp.modify(qp_state=QPState.RESET)  # a device that does not answer
        first = posted(a)
        receiving = await start(a.recv(allocate=bytearray))  # which no other goes on with
        await eventually(lambda: posted(a) > first + 1)
        (old,) = a._session.reader._readings
        assert old.in_flight == posted(a) - first
        receiving.cancel()
        so_far = old.in_flight
        await eventually(lambda: old.in_flight > so_far)
        await start(a.recv())
        new = a._session.reader._readings[-1]
        so_far = old.in_flight
        await eventually(lambda: new.in_flight > 3)
        assert (new is not old, old.is_over, old.in_flight) == (True, True, so_far)
        assert new.in_flight + so_far == posted(a) - first


async def test_reads_that_complete_are_not_asked_for(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        read_slowly(a)
        session, queue = a._session, a._session._queue
        session._liveness._is_due = lambda: False
        sending = await start(b.send(data_of(LARGE)))
        await eventually(lambda: session.messages_waiting > 0)
        receiving = asyncio.ensure_future(a.recv())
        await reads(a)
        while not session.reader.is_idle:
            before, oldest = posted(a), queue.oldest
            session._probe()
            assert posted(a) == before
            while queue.oldest == oldest:
                await asyncio.sleep(0)
        assert took(await receiving) == [data_of(LARGE)]
        await sending


async def test_an_idle_connection_asks_nothing(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await a.send(b"1")
        assert took(await b.recv(timeout=SOON)) == [b"1"]
        assert await is_quiet(a, b)
        assert not a._session._queue.is_empty, "so it is not that which has asked"


async def test_with_a_keepalive_the_send_queue_gets_empty(ctx: Context) -> None:
    """Which rdma_cm's keepalive waits for. Without one it does not: see the test before."""
    async with connected(ctx, ConnectionOptions(keepalive=1.0)) as (a, b):
        for i in range(3):
            await a.send(bytes([i]))
            assert took(await b.recv(timeout=SOON)) == [bytes([i])]
        await eventually(lambda: a._session._queue.is_empty)
        assert await is_quiet(a)
