# SPDX-License-Identifier: MIT
"""Messages that are sent in one turn of the loop leave together, and none waits for others."""

from __future__ import annotations

import pytest
from messages_support import SMALL, SOON, connected, took
from support import eventually, tick

from cqnotify import Context
from cqnotify.messages import Connection, ConnectionOptions

TOGETHER = 8


def posts(conn: Connection) -> int:
    """How often it has called the verb."""
    return conn._session._posts


async def receive(conn: Connection, count: int) -> list[bytes]:
    return [took(await conn.recv(timeout=SOON))[0] for _ in range(count)]


async def test_the_first_message_of_a_turn_leaves_at_once_and_the_others_together(
    ctx: Context,
) -> None:
    async with connected(ctx) as (a, b):
        await tick()
        before = posts(a)
        messages = [bytes([i]) for i in range(TOGETHER)]
        for message in messages:
            await a.send(message)
        assert posts(a) == before + 1
        assert await receive(b, TOGETHER) == messages
        assert posts(a) == before + 2


async def test_a_message_that_is_answered_leaves_at_once(ctx: Context) -> None:
    """Each of a round trip is alone in its turn of the loop."""
    async with connected(ctx) as (a, b):
        for i in range(TOGETHER):
            for source, target in ((a, b), (b, a)):
                before = posts(source)
                await source.send(bytes([i]))
                assert posts(source) == before + 1
                assert await receive(target, 1) == [bytes([i])]


async def test_an_end_that_waits_for_a_message_sends_its_own_first(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await tick()
        before = posts(a)
        for i in range(TOGETHER):
            await a.send(bytes([i]))
        receiving = a.recv()
        receiving.send(None)  # until it sleeps
        assert posts(a) == before + 2
        receiving.close()
        assert len(await receive(b, TOGETHER)) == TOGETHER


@pytest.mark.parametrize("credits", [2, 3, 16])
async def test_a_sender_without_credits_keeps_nothing_back(ctx: Context, credits: int) -> None:
    async with connected(ctx, ConnectionOptions(credits=credits)) as (a, b):
        await tick()
        before = posts(a)
        for i in range(credits):
            await a.send(bytes([i]))
        assert a._session.flow.credits == 0
        assert posts(a) == before + min(credits, 2)
        assert len(await receive(b, credits)) == credits


async def test_what_was_sent_leaves_before_a_large_message(ctx: Context) -> None:
    """And before the end: the order is that of the calls."""
    async with connected(ctx, SMALL) as (a, b):
        for size in (1, 2):
            await a.send(bytes(size))
        assert [len(one) for one in await receive(b, 2)] == [1, 2]
        await a.send(b"small")
        await a.aclose()
        assert await receive(b, 1) == [b"small"]
        await eventually(lambda: b.closed)


async def test_an_abort_drops_what_has_not_left(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        await tick()
        for i in range(TOGETHER):
            await a.send(bytes([i]))
        a.abort()
        await tick()
        assert a.closed
        await eventually(lambda: b.closed)


async def all_have_come(conn: Connection, count: int) -> None:
    await eventually(
        lambda: bool(conn._session.poll_received() or conn._session.messages_waiting == count)
    )


async def test_the_credits_of_messages_that_are_taken_in_a_row_return_in_one_frame(
    ctx: Context,
) -> None:
    async with connected(ctx, ConnectionOptions(credits=16)) as (a, b):
        for i in range(16):
            await a.send(bytes([i]))
        await all_have_come(b, 16)
        before = posts(b)
        await receive(b, 16)
        assert posts(b) == before + 1
        await eventually(lambda: bool(a._session.poll_received() or a._session.flow.credits == 16))


async def test_a_program_that_stops_in_the_middle_has_returned_the_credits(ctx: Context) -> None:
    async with connected(ctx, ConnectionOptions(credits=16)) as (a, b):
        for i in range(16):
            await a.send(bytes([i]))
        await all_have_come(b, 16)
        before = posts(b)
        await receive(b, 8)
        assert posts(b) == before
        await tick()
        assert posts(b) == before + 1
        await receive(b, 8)
