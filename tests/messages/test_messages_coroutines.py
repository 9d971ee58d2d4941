# SPDX-License-Identifier: MIT
"""What waits in the core for a message or for credits keeps to the protocol of coroutines, in
whatever order its methods are called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from messages_support import SMALL, SOON, connected, took
from support import start

from cqnotify import Context
from cqnotify.messages import Connection

OVER = "cannot reuse already awaited coroutine"


def try_send(conn: Connection, data: bytes) -> Any:
    return conn._session.send((data,))


@asynccontextmanager
async def waiting(ctx: Context, what: str) -> AsyncIterator[tuple[Any, Callable[[], Any]]]:
    """A coroutine of the core that waits, and what ends its wait."""
    async with connected(ctx, SMALL) as (a, b):
        if what == "receive":
            yield a._session.receive(None, True), lambda: b.send(b"x")
        else:
            while (sending := try_send(a, b"x")) is True:
                pass
            yield sending, lambda: b.recv(timeout=SOON)


each = pytest.mark.parametrize("what", ["receive", "send"])


@each
async def test_it_ends_by_what_is_thrown_into_it(ctx: Context, what: str) -> None:
    async with waiting(ctx, what) as (call, _):
        call.send(None)
        with pytest.raises(TypeError, match="throw expected 1 to 3 arguments"):
            call.throw()
        with pytest.raises(KeyError):
            call.throw(KeyError())
        for again in (lambda: call.send(None), lambda: call.throw(KeyError())):
            with pytest.raises(RuntimeError, match=OVER):
                again()
        call.expire()
        call.close()


@each
async def test_one_that_was_closed_has_ended(ctx: Context, what: str) -> None:
    async with waiting(ctx, what) as (call, _):
        call.send(None)
        call.close()
        call.close()
        with pytest.raises(RuntimeError, match=OVER):
            call.send(None)


@each
async def test_it_is_not_awaited_twice_at_a_time(ctx: Context, what: str) -> None:
    async with waiting(ctx, what) as (call, finish):
        task = await start(call)
        with pytest.raises(RuntimeError, match="being awaited already"):
            await call
        await finish()
        await asyncio.wait_for(task, SOON)
        with pytest.raises(RuntimeError, match=OVER):
            await call


@each
async def test_one_whose_time_is_up_says_so(ctx: Context, what: str) -> None:
    async with waiting(ctx, what) as (call, _):
        task = await start(call)
        call.expire()
        call.expire()
        with pytest.raises(TimeoutError):
            await task


async def test_a_message_for_a_receive_that_is_dropped_goes_to_the_next(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        receive = a._session.receive(None, True)
        receive.send(None)
        await b.send(b"kept")
        while a._session.receives_waiting:
            await asyncio.sleep(0)
        del receive
        assert took(await a.recv(timeout=SOON)) == [b"kept"]


async def test_a_message_for_a_receive_that_is_ended_goes_to_the_next(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        for end in ("close", "throw"):
            receive = a._session.receive(None, True)
            receive.send(None)
            await b.send(b"kept")
            while a._session.receives_waiting:
                await asyncio.sleep(0)
            if end == "close":
                receive.close()
            else:
                with pytest.raises(KeyError):
                    receive.throw(KeyError())
            assert took(await a.recv(timeout=SOON)) == [b"kept"]
