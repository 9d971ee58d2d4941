# SPDX-License-Identifier: MIT
"""Large memory is registered in threads: the event loop goes on while the kernel pins it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from messages_support import SOON, address_of, connected, data_of, took
from support import eventually, start, until

from cqnotify import MR, AccessFlags, ClosedError, Context, VerbsError, _registered, messages
from cqnotify._registered import SLOW, _buffers
from cqnotify.messages import Connection, ConnectionLostError
from cqnotify.messages._resources import Device

LARGE = SLOW + 5


class Kernel:
    """Pins when it is told to; fails as often as it is told to."""

    def __init__(self) -> None:
        self.is_reusable = threading.Event()
        self.entered = 0
        self.failures = 0
        self.loops_thread = threading.get_ident()

    def register(self, pd: Any, memory: Any, access: AccessFlags) -> MR:
        size = memory if isinstance(memory, int) else len(memory)
        if size < SLOW:
            return MR(pd, memory, access=access)
        assert threading.get_ident() != self.loops_thread
        self.entered += 1
        assert self.is_reusable.wait(SOON)
        if self.failures:
            self.failures -= 1
            raise VerbsError(errno.ENOMEM, "ibv_reg_mr")
        return MR(pd, memory, access=access)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    it = Kernel()
    for module in (_registered, _buffers):  # of messages, and of the pools
        monkeypatch.setattr(module, "register", it.register)
    yield it
    it.is_reusable.set()


async def begun(kernel: Kernel, count: int = 1) -> None:
    await eventually(lambda: kernel.entered == count)


def frames() -> list[Any]:
    """Of each kind that is told from others in its own way."""
    return [data_of(LARGE), numpy.frombuffer(data_of(LARGE), numpy.uint8), b"small",
            memoryview(data_of(2 * LARGE))[3 : LARGE + 3]]  # fmt: skip


async def test_the_loop_goes_on_while_the_kernel_pins(ctx: Context, kernel: Kernel) -> None:
    async with connected(ctx) as (a, b):
        sending = await start(a.send(*frames()))
        taking = await start(b.recv(timeout=SOON))
        await begun(kernel)
        await b.send(b"meanwhile")
        assert took(await a.recv(timeout=SOON)) == [b"meanwhile"]
        assert not sending.done()
        kernel.is_reusable.set()
        assert took(await taking) == took(frames())
        await sending
        assert kernel.entered == 5, "the array has the memory of the bytes"
        assert a.stats.memory[:2] == (2, 1)


async def test_messages_keep_their_order(ctx: Context, kernel: Kernel) -> None:
    async with connected(ctx) as (a, b):
        sending = [await start(a.send(data_of(LARGE))), await start(a.send(b"later"))]
        taking = await start(b.recv(timeout=SOON))
        await begun(kernel)
        kernel.is_reusable.set()
        assert took(await taking) == [data_of(LARGE)]
        assert took(await b.recv(timeout=SOON)) == [b"later"]
        await asyncio.gather(*sending)


async def test_the_same_buffer_of_two_messages(ctx: Context, kernel: Kernel) -> None:
    async with connected(ctx) as (a, b):
        array = numpy.frombuffer(data_of(LARGE), numpy.uint8)
        targets = [numpy.zeros(LARGE, numpy.uint8)] * 2
        sending = [await start(a.send(array)), await start(a.send(array))]
        taking = [await start(b.recv(into=[target])) for target in targets]
        await begun(kernel)
        kernel.is_reusable.set()
        await asyncio.gather(*sending, *taking)
        assert targets[0].tobytes() == data_of(LARGE)
        for end in (a, b):
            assert end.stats.memory == (1, 1, 2, 2 * LARGE), "they share what is kept"


@pytest.mark.parametrize("way", ["send", "recv", "into"])
async def test_giving_up_meanwhile(ctx: Context, kernel: Kernel, way: str) -> None:
    """What comes of the thread is let go of, and the connection goes on."""
    async with connected(ctx) as (a, b):
        target = numpy.zeros(LARGE, numpy.uint8)
        into: Any = {"into": [target]} if way == "into" else {}
        kernel.is_reusable.set()
        if way != "send":
            sending = await start(a.send(data_of(LARGE)))
            await eventually(lambda: b._session.messages_waiting > 0)
            kernel.is_reusable.clear()
            giving_up = await start(b.recv(**into))
            await begun(kernel, 2)
        else:
            kernel.is_reusable.clear()
            giving_up = await start(a.send(target))
            await begun(kernel)
        giving_up.cancel()
        await asyncio.wait([giving_up])
        kernel.is_reusable.set()
        if way != "send":
            assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
            await sending
        await a.send(b"on")
        assert took(await b.recv(timeout=SOON)) == [b"on"]
        await asyncio.gather(a.aclose(), b.aclose())


@pytest.mark.parametrize("way", ["send", "recv"])
async def test_the_end_of_the_connection_waits_for_the_kernel(
    ctx: Context, kernel: Kernel, way: str
) -> None:
    async with connected(ctx) as (a, b):
        kernel.is_reusable.set()
        if way == "recv":
            sending = await start(a.send(data_of(LARGE)))
            await eventually(lambda: b._session.messages_waiting > 0)
        kernel.is_reusable.clear()
        first = kernel.entered
        one: Connection = b if way == "recv" else a
        pinning = await start(one.recv() if way == "recv" else one.send(data_of(LARGE)))
        await begun(kernel, first + 1)
        one.abort()
        closing = await start(one.aclose())
        assert not closing.done()
        assert Device._known
        kernel.is_reusable.set()
        await closing
        with pytest.raises(ClosedError, match="aborted"):
            await pinning
        if way == "recv":
            await asyncio.wait([sending])
            sending.exception()
        with contextlib.suppress(ConnectionLostError):  # unless the peer has noticed it before
            await asyncio.gather(a.aclose(), b.aclose())
        assert Device._known == {}


@pytest.mark.parametrize("way", ["send", "recv", "into"])
async def test_the_kernel_refuses(ctx: Context, kernel: Kernel, way: str) -> None:
    """What was kept may be in the way, so it is tried again without that."""
    async with connected(ctx) as (a, b):
        kernel.is_reusable.set()
        array, target = numpy.zeros(50000), numpy.zeros(400000, numpy.uint8)
        await asyncio.gather(a.send(array), b.recv(into=[target], timeout=SOON))
        assert a.stats.memory.kept == b.stats.memory.kept == 2
        into: Any = {"into": [bytearray(LARGE)]} if way == "into" else {}
        if way == "send":
            kernel.failures = 1
            sending = await start(a.send(data_of(LARGE)))
            assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
            await sending
            assert a.stats.memory.kept == 0
            kernel.failures = 1
            with pytest.raises(VerbsError, match="ibv_reg_mr"):
                await a.send(data_of(LARGE))
        else:
            sending = await start(a.send(data_of(LARGE)))
            await eventually(lambda: b._session.messages_waiting > 0)
            kernel.failures = 2
            with pytest.raises(VerbsError, match="ibv_reg_mr"):
                await b.recv(**into)
            kernel.failures = 0
            assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
            await sending
        await a.send(b"on")
        assert took(await b.recv(timeout=SOON)) == [b"on"]


# ---- whose threads --------------------------------------------------------------------------


async def test_the_loops_executor_may_be_full(ctx: Context) -> None:
    """Of threads that wait for the message itself, say."""
    loop, over = asyncio.get_running_loop(), threading.Event()
    async with connected(ctx) as (a, b):
        busy = [loop.run_in_executor(None, over.wait, SOON) for _ in range(40)]
        try:
            sending = await start(a.send(data_of(LARGE)))
            assert took(await b.recv(timeout=SOON)) == [data_of(LARGE)]
            await sending
        finally:
            over.set()
            await asyncio.gather(*busy)


def test_a_loop_that_is_closed_at_once_leaves_nothing_open(
    ctx: Context, kernel: Kernel, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """While a thread registers memory for it."""
    host = address_of(ctx)

    async def scenario() -> list[Context]:
        async with messages.listen(host, 0) as listener:
            a = await messages.connect(*listener.local)
            b = await listener.accept(SOON)
        sending = asyncio.ensure_future(a.send(*frames()))
        await begun(kernel)
        a.abort()
        b.abort()
        with contextlib.suppress(ClosedError):
            await sending
        return [a._session.resources.device.context]

    loop = new_loop()
    contexts = loop.run_until_complete(scenario())
    loop.close()
    assert not contexts[0].closed
    kernel.is_reusable.set()
    until(lambda: contexts[0].closed, "the thread closes what it was for")
