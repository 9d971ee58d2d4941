# SPDX-License-Identifier: MIT
"""For the tests of new_event_loop(): a loop that counts its turns, and what wakes it."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support import DEADLINE, Lane, MakeLane, start

from cqnotify import CompletionChannel, Context
from cqnotify.aio import AsyncCQ
from cqnotify.aio._loop_adapters import AsyncioLoop
from cqnotify.aio._selector import Selector

ROUNDS = 64  # in one call of select(), see csrc/await/selector.c
MESSAGES = 300  # that each of two tasks gets

Loop = asyncio.SelectorEventLoop


class Counting(Selector):
    """Counts the turns of the loop, and the callbacks that were called between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.most = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        before = self._called
        try:
            return super().select(timeout)
        finally:
            self.most = max(self.most, self._called - before)


def bounded(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(asyncio.wait_for(call, DEADLINE))


class PingPong:
    """Two tasks, each of which sends to the other whatever it gets."""

    def __init__(self, new_lane: MakeLane, ctx: Context, messages: int = MESSAGES) -> None:
        self.lanes = [new_lane(on=CompletionChannel(ctx)) for _ in range(2)]
        self.messages = messages
        self.got = 0
        self.each: Callable[[], object] = lambda: None  # is called with each message

    async def play(self, acq: AsyncCQ, other: Lane) -> None:
        for _ in range(self.messages):
            assert len(await acq.wait()) == 1
            self.got += 1
            self.each()
            other.send()

    async def run(self) -> None:
        a, b = self.lanes
        async with AsyncCQ(a.cq) as to_a, AsyncCQ(b.cq) as to_b:
            tasks = [await start(self.play(to_a, b)), await start(self.play(to_b, a))]
            a.send()
            await asyncio.gather(*tasks)
            assert len(to_a.poll()) == 1  # the last, for which no task is left
        assert self.got == 2 * self.messages


class Hook:
    """A channel whose callback calls `call` when the hook was rung.

    The channel is closed, so that its callback calls what is to be told of its failure.
    """

    def __init__(self, ctx: Context, loop: Loop, call: Callable[[], object]) -> None:
        self.loop, self.call = loop, call
        self.calls = 0
        self.channel: Any = CompletionChannel(ctx)
        self.channel.close()
        self.channel._set_loop(AsyncioLoop(loop), self._failed)
        self._r, self._w = os.pipe()
        loop.add_reader(self._r, self.channel._on_event)

    @property
    def fd(self) -> int:
        return self._r

    def _failed(self, _: Exception) -> object:
        os.read(self._r, 1)
        self.calls += 1
        return self.call()

    def ring(self) -> None:
        os.write(self._w, b"x")

    def close(self) -> None:
        self.channel._set_loop(None, None)
        self.loop.remove_reader(self._r)
        os.close(self._r)
        os.close(self._w)


MakeHook = Callable[[Loop, Callable[[], object]], Hook]


def run_for(loop: Loop, *rung: Hook) -> None:
    """Ring the hooks when the loop is about to sleep, and let it run until a hook stops it."""

    def ring() -> None:
        for hook in rung:
            hook.ring()

    loop.call_later(0, ring)
    limit = loop.call_later(DEADLINE, lambda: pytest.fail("nothing has stopped the loop"))
    try:
        loop.run_forever()
    finally:
        limit.cancel()
