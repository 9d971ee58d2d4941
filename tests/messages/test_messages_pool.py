# SPDX-License-Identifier: MIT
"""Registrations that connections share: found by the memory that they contain."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import random
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy
import pytest
from messages_support import SOON, address_of, connected, data_of, took
from support import eventually, start

from cqnotify import MR, PD, AccessFlags, ClosedError, Context, messages
from cqnotify._registered import SLOW
from cqnotify.messages import Connection, ConnectionOptions
from cqnotify.messages._memory import READABLE
from cqnotify.messages._resources import Device

PEERS = 8
LARGE = 100000
IWARP = "each connection has a domain of its own"
Pair = tuple[Connection, Connection]


def array_of(size: int) -> Any:
    return numpy.frombuffer(bytearray(data_of(size)), numpy.uint8)


@asynccontextmanager
async def pairs(
    ctx: Context, options: ConnectionOptions | None = None
) -> AsyncIterator[list[Pair]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(connected(ctx, options, ConnectionOptions(cache=0)))
            for _ in range(PEERS)
        ]


async def to_all(ends: list[Pair], *frames: Any) -> None:
    taking = [asyncio.ensure_future(b.recv(timeout=SOON)) for _, b in ends]
    await asyncio.gather(*(a.send(*frames) for a, _ in ends))
    for got in await asyncio.gather(*taking):
        assert took(got) == [bytes(memoryview(frame)) for frame in frames]


def registered(ends: list[Pair]) -> tuple[int, int]:
    stats = [a.stats.memory for a, _ in ends]
    return sum(one.registered for one in stats), sum(one.reused for one in stats)


# ---- connections ------------------------------------------------------------------------------


@pytest.mark.not_on_iwarp(IWARP)
@pytest.mark.parametrize("size", [LARGE, SLOW + 5])
async def test_an_array_is_registered_once_for_all_peers(ctx: Context, size: int) -> None:
    """Whether the event loop does it or a thread, and whether they are sent at once."""
    array = array_of(size)
    async with pairs(ctx) as ends:
        await to_all(ends, array)
        assert registered(ends) == (1, PEERS - 1)
        for one in ends:
            await to_all([one], array, array[5:])
        assert registered(ends) == (1, 3 * PEERS - 1)
        assert ends[0][0].stats.memory[2:] == ends[1][0].stats.memory[2:] == (1, size)


@pytest.mark.not_on_iwarp(IWARP)
@pytest.mark.parametrize("size", [LARGE, SLOW + 5])
async def test_a_buffer_is_registered_once_while_peers_read_it(ctx: Context, size: int) -> None:
    async with pairs(ctx, ConnectionOptions(cache=0)) as ends:
        for frame in (data_of(size), array_of(size)):
            before = registered(ends)
            sending = [await start(a.send(frame)) for a, _ in ends]
            for _, b in ends:
                await eventually(lambda b=b: b._session.messages_waiting > 0)  # type: ignore[misc]
            assert registered(ends) == (before[0] + 1, before[1] + PEERS - 1)
            for _, b in ends:
                assert took(await b.recv(timeout=SOON)) == [data_of(size)]
            await asyncio.gather(*sending)
            assert ends[0][0].stats.memory.kept == 0


async def test_an_isolated_connection_shares_nothing(ctx: Context) -> None:
    async with pairs(ctx, ConnectionOptions(isolated=True)) as ends:
        await to_all(ends, array_of(LARGE))
        assert registered(ends) == (PEERS, 0)
        assert len({id(a._session.resources.pd) for a, _ in ends}) == PEERS
    with pytest.raises(TypeError, match="isolated must be a bool"):
        ConnectionOptions(isolated=1)  # type: ignore[arg-type]


async def test_random_slices_of_an_array_are_reused(ctx: Context) -> None:
    """As soon as those that were sent cover it."""
    array, size, count = array_of(50 * LARGE), 5 * LARGE, 200
    rng = random.Random(1)
    async with connected(ctx) as (a, b):
        for _ in range(count):
            at = rng.randrange(len(array) - size)
            _, got = await asyncio.gather(a.send(array[at : at + size]), b.recv(timeout=SOON))
            assert bytes(got[0]) == bytes(array[at : at + size])
        memory = a.stats.memory
        assert memory.registered + memory.reused == count
        assert memory.registered < count / 4
        assert memory.kept_bytes <= len(array), "nothing is kept twice"


async def test_slices_are_received_into_what_is_registered(ctx: Context) -> None:
    target = numpy.zeros(10 * LARGE, numpy.uint8)
    async with connected(ctx, ConnectionOptions(cache=0), ConnectionOptions()) as (a, b):
        for at, nbytes in ((0, 10 * LARGE), (3 * LARGE + 7, LARGE), (LARGE, 8 * LARGE)):
            target[:] = 0
            into: Any = [target[at : at + nbytes]]
            await asyncio.gather(a.send(data_of(nbytes)), b.recv(into=into, timeout=SOON))
            assert bytes(target[at : at + nbytes]) == data_of(nbytes)
            assert not target[:at].any()
            assert not target[at + nbytes :].any()
        assert b.stats.memory[:2] == (1, 2)


async def test_a_connection_goes_and_the_others_keep_what_it_used(ctx: Context) -> None:
    array = array_of(LARGE)
    async with connected(ctx) as (a, b):
        async with connected(ctx) as (c, d):
            await to_all([(c, d)], array)
            sending = await start(c.send(array))
            await eventually(lambda: d._session.messages_waiting > 0)
            c.abort()
            with pytest.raises(ClosedError):
                await sending
        await to_all([(a, b)], array)
        assert gc.collect() >= 0
        assert a.stats.memory.kept == 1


@pytest.mark.not_on_iwarp(IWARP)
async def test_the_one_that_began_goes_while_a_thread_registers_for_all(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reusable, entered = threading.Event(), threading.Event()

    def register(pd: PD, memory: Any, access: AccessFlags) -> MR:
        if access & READABLE:
            entered.set()
            assert is_reusable.wait(SOON)
        return MR(pd, memory, access=access)

    monkeypatch.setattr("cqnotify._registered._buffers.register", register)
    array = array_of(SLOW + 5)
    async with pairs(ctx) as ends:
        sending = [await start(a.send(array)) for a, _ in ends]
        await eventually(entered.is_set)
        ends[0][0].abort()
        is_reusable.set()
        with pytest.raises(ClosedError):
            await sending[0]
        for _, b in ends[1:]:
            assert took(await b.recv(timeout=SOON)) == [data_of(SLOW + 5)]
        await asyncio.gather(*sending[1:])
        assert registered(ends) == (1, PEERS - 1)
    assert Device._known == {}


@pytest.mark.filterwarnings("ignore:unclosed <Connection:ResourceWarning")
async def test_what_a_dropped_connection_used_goes_in_the_loop(ctx: Context) -> None:
    """The collector may run in another thread, while the loop looks for a registration."""
    async with connected(ctx) as (a, b):
        pool = a._session.resources._pool
        async with messages.listen(address_of(ctx), 0) as listener:
            dropped = await messages.connect(*listener.local)
            peer = await listener.accept(SOON)
        array = array_of(LARGE)
        sending = await start(dropped.send(array))
        await eventually(lambda: peer._session.messages_waiting > 0)
        sending.cancel()
        await asyncio.wait([sending])
        held = [dropped, sending]
        del dropped, sending
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join(SOON)
        assert not held
        await eventually(lambda: gc.collect() >= 0 and pool.table.joined < 4)
        peer.abort()
        await peer.aclose()
        await to_all([(a, b)], array)


async def test_an_array_is_freed_in_another_thread(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        held = [array_of(LARGE)]
        await to_all([(a, b)], held[0])
        assert a.stats.memory.kept == 1
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join(SOON)
        assert a.stats.memory[2:] == (0, 0)


async def test_arrays_are_freed_in_another_thread_while_others_are_sent(ctx: Context) -> None:
    """Often at the same address: no registration outlives its memory, and none is lost."""
    dropped: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drop() -> None:
        while dropped.get() is not None:
            pass

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        async with connected(ctx, ConnectionOptions(cache=4 * LARGE)) as (a, b):
            for i in range(100):
                array = numpy.full(2 * LARGE, i, numpy.uint8)
                for part in (array[: LARGE + i], array[LARGE - i :], array):
                    sent, got = await asyncio.gather(a.send(part), b.recv(timeout=SOON))
                    assert bytes(got[0]) == bytes([i]) * len(part), sent
                del part
                dropped.put(array)
                del array
            dropped.put(None)
            thread.join(SOON)
            assert a.stats.memory[2:] == (0, 0)
    finally:
        dropped.put(None)


async def test_a_forked_child_registers_anew(ctx: Context) -> None:
    async with connected(ctx) as (a, b):
        array = array_of(LARGE)
        await to_all([(a, b)], array)
        name = ctx.name
        known = Device._known[id(a._session.loop), name]
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                del array  # which ends nothing of the parent's
                asyncio._set_running_loop(a._session.loop)  # of which an id is the same
                device = Device.of(name)
                assert device is not known
                pool = device.pool(a._session.resources.options)
                MR(pool.pd, 4096).close()
                device.leave()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await to_all([(a, b)], array)
        assert a.stats.memory == (1, 1, 1, LARGE)
