# SPDX-License-Identifier: MIT
"""At each place where rdma_cm's part of the core lets go of its lock (the table in csrc/cm/cm.h),
another thread closes something before it goes on: whoever waits learns of the end."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from fault_world import core
from flavors import Flavor
from support import DEADLINE, address_of

from cqnotify import CQ, PD, QP, ClosedError, Context, QPType, VerbsError, cm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def new_qp(ctx: Context) -> QP:
    return QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4))


class Pair:
    """Two ends of a connection, and what another thread does once at a place."""

    def __init__(self, ctx: Context, listener: cm.Listener) -> None:
        self.ctx = Context(ctx.name)
        self.client, self.server = new_qp(self.ctx), new_qp(ctx)
        self.listener = listener
        self.passed = 0

    async def connect(self) -> cm.Connection:
        self.conn = await cm.connect(self.client, *self.listener.local, timeout=DEADLINE)
        return self.conn

    async def accept(self) -> cm.Connection:
        request = await self.listener.get_request(DEADLINE)
        self.accepted = await request.accept(self.server, timeout=DEADLINE)
        return self.accepted

    def other_thread_acts_at(self, place: str, act: str) -> None:
        core.before_call(place, lambda: self._pass(act))

    def _pass(self, act: str) -> None:
        self.passed += 1
        thread = threading.Thread(target=ANY_ACTS[act], args=(self,))
        thread.start()
        thread.join()


ACTS: dict[str, Callable[[Pair], object]] = {
    "Connection.close": lambda pair: pair.conn.close(),
    "QP.close": lambda pair: pair.client.close(),
    "Context.close": lambda pair: pair.ctx.close(),
    "the peer closes": lambda pair: pair.accepted.close(),
}
ANY_ACTS = {**ACTS, "Listener.close": lambda pair: pair.listener.close()}


@asynccontextmanager
async def connected(ctx: Context, on: Flavor) -> AsyncIterator[Pair]:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:
        pair = Pair(ctx, listener)
        accepting = start(pair.accept)
        await pair.connect()
        await accepting.result()
        try:
            yield pair
        finally:
            pair.conn.close()
            pair.accepted.close()
            pair.ctx.close()


# What leads to a place when tasks wait for the end, and why the connection is over.
LEADS_TO: dict[str, tuple[Callable[[Pair], object], type[Exception]]] = {
    "cm end": (lambda pair: pair.accepted.close(), cm.DisconnectedError),
    "cm leave": (lambda pair: pair.conn.close(), ClosedError),
    "cm call": (lambda pair: pair.conn.disconnect(), Exception),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("place", ["cm prepare", "cm sleep", *LEADS_TO])
async def test_as_a_connection_ends(ctx: Context, on: Flavor, place: str, act: str) -> None:
    """Those of the first two are passed as the task falls asleep."""
    async with connected(ctx, on) as pair, on.tasks() as start:
        if place in LEADS_TO:
            tasks = [start(pair.conn.wait_closed) for _ in range(2)]
            await on.tick()
            pair.other_thread_acts_at(place, act)
            lead, error = LEADS_TO[place]
            done = lead(pair)
            if isinstance(done, Awaitable):
                await done
        else:
            pair.other_thread_acts_at(place, act)
            tasks, error = [start(pair.conn.wait_closed)], Exception
        for task in tasks:
            await task.result()
        assert pair.passed == 1
        assert isinstance(pair.conn.error, error)


@pytest.mark.parametrize("act", ["QP.close", "Context.close"])
@pytest.mark.parametrize("place", ["cm prepare", "cm sleep"])
async def test_as_a_connection_is_made(ctx: Context, on: Flavor, place: str, act: str) -> None:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:
        pair = Pair(ctx, listener)
        accepting = start(pair.accept)
        await on.tick()
        pair.other_thread_acts_at(place, act)
        with suppress(ClosedError, VerbsError):
            (await pair.connect()).close()
        assert pair.passed == 1
        with suppress(OSError, ClosedError):  # it has learnt of it, or never heard of the client
            accepting.scope.cancel()
        pair.ctx.close()


@pytest.mark.parametrize("place", ["cm prepare", "cm sleep"])
async def test_as_a_listener_waits(ctx: Context, on: Flavor, place: str) -> None:
    async with cm.listen(address_of(ctx), 0) as listener, on.tasks() as start:
        pair = Pair(ctx, listener)
        pair.other_thread_acts_at(place, "Listener.close")
        task = start(listener.get_request)
        with pytest.raises(ClosedError):
            await task.result()
        assert pair.passed == 1
        pair.ctx.close()
