# SPDX-License-Identifier: MIT
"""Many connections in one event loop: they all work, and while they are idle they cost nothing."""

from __future__ import annotations

import asyncio
import gc
import os

from messages_support import SMALL, SOON, address_of, took
from support import need_room_for_queues, sleeps

from cqnotify import Context, messages
from cqnotify.messages import Connection
from cqnotify.messages._resources import Device

SANITIZED = os.environ.keys() & {"ASAN_OPTIONS", "TSAN_OPTIONS"}
MANY = 100 if SANITIZED else 500  # there each takes a second of a busy CPU
WINDOW = 16  # connections that are being made
# Bytes of both ends of a connection; ThreadSanitizer has some of its own for each.
MOST = (800 if "TSAN_OPTIONS" in os.environ else 160) << 10


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def pairs(ctx: Context, count: int) -> list[tuple[Connection, Connection]]:
    window = asyncio.Semaphore(WINDOW)

    async def one(listener: messages.Listener, number: int) -> Connection:
        async with window:
            conn = await messages.connect(*listener.local, options=SMALL, timeout=3 * SOON)
            await conn.send(str(number).encode())
            return conn

    async with messages.listen(address_of(ctx), 0, options=SMALL, backlog=count) as listener:
        making = [asyncio.ensure_future(one(listener, i)) for i in range(count)]
        accepted = {}
        for _ in range(count):
            conn = await listener.accept(3 * SOON)
            ((number,),) = [took(await conn.recv(timeout=SOON))]
            accepted[int(number)] = conn
        made = await asyncio.gather(*making)
    return [(conn, accepted[i]) for i, conn in enumerate(made)]


def test_many_connections_idle_and_work(ctx: Context) -> None:
    need_room_for_queues(ctx)
    asyncio.run(asyncio.wait_for(many(ctx), 300))


async def many(ctx: Context) -> None:
    before = resident()
    conns = await pairs(ctx, MANY)
    assert (resident() - before) / MANY < MOST
    taking = [asyncio.ensure_future(b.recv()) for _, b in conns]

    def woken() -> int:
        return sum(a.stats.wakeups + b.stats.wakeups for a, b in conns)

    assert await sleeps(more=woken), "idle connections keep the process awake"
    await asyncio.gather(*(a.send(bytes([i % 251]) * 1000) for i, (a, _) in enumerate(conns)))
    for i, frames in enumerate(await asyncio.gather(*taking)):
        assert took(frames) == [bytes([i % 251]) * 1000]
    ends = [end for pair in conns for end in pair]
    await asyncio.gather(*(end.aclose() for end in ends))
    assert Device._known == {}
