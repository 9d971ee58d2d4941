# SPDX-License-Identifier: MIT
"""cqnotify.cm on trio, and on anyio with each of its backends."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cm_support import NOBODY, SOON, Side, address_of, asleep, check_gone, padded
from flavors import FLAVORS, Flavor, Task
from support import Waiter, is_iwarp, open_fds

from cqnotify import ClosedError, Context, QPState, cm
from cqnotify.cm import blocking
from cqnotify.cm._event_reader import LoopReader

Start = Callable[[Callable[[], Awaitable[Any]]], Task]


async def sleeping(on: Flavor, start: Start, call: Callable[[], Awaitable[Any]]) -> Task:
    """A task that is asleep in the call: what happens from now on must wake it."""
    before = asleep()
    task = start(call)
    while asleep() == before:
        assert not task.done, await task.result()
        await on.tick()
    return task


class ClientAndServer:
    """A client and a server, with a connection between them."""

    def __init__(self, ctx: Context, listener: cm.Listener) -> None:
        self.client, self.server = Side(ctx), Side(ctx)
        self.listener = listener
        self.conn: Any = None
        self.accepted: Any = None

    def connect(self, **options: Any) -> Awaitable[cm.Connection]:
        return cm.connect(self.client.qp, *self.listener.local, **options)

    async def accept(self) -> None:
        request = await self.listener.get_request(SOON)
        self.accepted = await request.accept(self.server.qp, on_init=self.server.post_recv)


@asynccontextmanager
async def connected(ctx: Context, on: Flavor) -> AsyncIterator[tuple[ClientAndServer, Start]]:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:
        ends = ClientAndServer(ctx, listener)
        task = await sleeping(on, start, ends.accept)
        ends.conn = await ends.connect()
        await task.result()
        async with ends.conn, ends.accepted:
            yield ends, start


@pytest.mark.parametrize("how", ["disconnect", "close"])
async def test_both_ends_know_when_one_ends_it(ctx: Context, on: Flavor, how: str) -> None:
    async with connected(ctx, on) as (ends, start):
        task = await sleeping(on, start, ends.accepted.wait_closed)
        if how == "disconnect":
            await ends.conn.disconnect()
            await ends.conn.wait_closed(SOON)
        else:
            ends.conn.close()
        await task.result()
        assert isinstance(ends.accepted.error, cm.DisconnectedError)
        ends.server.check_flushed()


async def test_another_thread_may_close_it(ctx: Context, on: Flavor) -> None:
    async with connected(ctx, on) as (ends, start):
        task = await sleeping(on, start, ends.conn.wait_closed)
        Waiter(ends.client.qp.close).join()
        await task.result()
        assert isinstance(ends.conn.error, ClosedError)
        await ends.accepted.wait_closed(SOON)


async def test_a_request_is_rejected(ctx: Context, on: Flavor) -> None:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:
        ends = ClientAndServer(ctx, listener)
        task = await sleeping(on, start, ends.connect)
        await (await listener.get_request(SOON)).reject(b"no room")
        with pytest.raises(cm.RejectedError, match="CONSUMER_DEFINED") as e:
            await task.result()
        assert e.value.private_data == padded(ctx, b"no room", 148)
        assert ends.client.qp.state == (QPState.ERR if is_iwarp(ctx) else QPState.RESET)


async def test_waits_end_by_their_deadlines(ctx: Context, on: Flavor) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        with pytest.raises(TimeoutError, match="no answer in time"):
            await listener.get_request(0.05)
        for where, enough in ((listener.local, 1), ((NOBODY, 9), 0.05)):  # to reach the listener
            with pytest.raises(TimeoutError, match="no answer in time"):
                await cm.connect(Side(ctx).qp, *where, timeout=enough)
        await check_gone(ctx, await listener.get_request(SOON))
    async with connected(ctx, on) as (ends, _):
        with pytest.raises(TimeoutError):
            await ends.conn.wait_closed(0.05)
        assert ends.conn.error is None
    assert asleep() == 0


@pytest.mark.parametrize("call", ["connect", "resolve", "get_request", "wait_closed"])
async def test_a_cancelled_scope_ends_a_wait(ctx: Context, on: Flavor, call: str) -> None:
    """What was being made is given up; what there is stays."""
    async with connected(ctx, on) as (ends, start):
        side = Side(ctx)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "connect": lambda: cm.connect(side.qp, *ends.listener.local),
            "resolve": lambda: cm.connect(side.qp, NOBODY, 9),
            "get_request": ends.listener.get_request,
            "wait_closed": ends.conn.wait_closed,
        }
        task = await sleeping(on, start, calls[call])
        request = await ends.listener.get_request(SOON) if call == "connect" else None
        task.scope.cancel()
        while not task.done:
            await on.tick()
        assert task.scope.cancelled_caught
        assert asleep() == 0
        assert ends.conn.error is ends.accepted.error is None
        if request is not None:
            await check_gone(ctx, request)
            if is_iwarp(ctx):  # whose QPs try once
                with pytest.raises(ValueError, match=r"is in ERR: .* so use a new QP$"):
                    await cm.connect(side.qp, *ends.listener.local)
                side = Side(ctx)
        again = await sleeping(on, start, lambda: cm.connect(side.qp, *ends.listener.local))
        await (await ends.listener.get_request(SOON)).accept(Side(ctx).qp)
        (await again.result()).close()


async def test_a_call_in_a_cancelled_scope_leaves_nothing(ctx: Context, on: Flavor) -> None:
    before = open_fds()
    side = Side(ctx)
    with on.cancelled() as scope:
        await cm.connect(side.qp, NOBODY, 9)
    assert scope.cancelled_caught
    assert not any(reader.channel.conns for reader in LoopReader._readers.values())
    side.qp.close()
    await on.tick()
    assert open_fds() <= before + 2  # of the CQ's channel and its eventfd


async def test_a_closed_listener_ends_the_loop_over_its_requests(ctx: Context, on: Flavor) -> None:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:

        async def serve() -> int:
            n = 0
            async for request in listener:
                await request.accept(Side(ctx).qp)
                n += 1
            return n

        task = await sleeping(on, start, serve)
        for _ in range(3):
            (await cm.connect(Side(ctx).qp, *listener.local)).close()
        while asleep() == 0:
            await on.tick()
        listener.close()
        assert await task.result() == 3


async def test_threads_and_the_loop_connect_to_each_other(ctx: Context, on: Flavor) -> None:
    async with cm.listen(address_of(ctx), 0) as listener:
        side = Side(ctx)
        waiter = Waiter(lambda: blocking.connect(side.qp, *listener.local))
        accepted = await (await listener.get_request(SOON)).accept(Side(ctx).qp)
        conn = waiter.join()
        conn.close()
        await accepted.wait_closed(SOON)


class Resolver:
    """Of one name: it answers only when it is told to."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = address
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)

    def resolve(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host not in ("some.where", b"some.where"):
            return self.real(host, port, *args, **options)
        if options.get("flags", [*args, 0, 0, 0, 0][3]) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "it is no number")
        self.asked.set()
        assert self.go_on.wait(SOON), "the event loop stands still"
        return self.real(self.address, port, type=socket.SOCK_STREAM)


@pytest.mark.parametrize("on", sorted(FLAVORS.keys() - {"anyio on uvloop"}), indirect=True)
async def test_the_loop_goes_on_while_a_name_is_resolved(
    ctx: Context, on: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop asks in C, see test_cm.py."""
    resolver = Resolver(address_of(ctx), monkeypatch)
    async with on.tasks() as start:
        task = start(lambda: cm.connect(Side(ctx).qp, "some.where", 9))
        while not resolver.asked.is_set():
            await on.tick()
        with pytest.raises(TimeoutError, match="'some.where' was not resolved in time"):
            await cm.connect(Side(ctx).qp, "some.where", 9, timeout=0.05)
        assert not task.done
        resolver.go_on.set()
        with pytest.raises(cm.RejectedError, match="nothing listens on that port"):
            await task.result()
