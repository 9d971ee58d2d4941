# SPDX-License-Identifier: MIT
"""What the tests of cqnotify.aio share: a lane of messages, and tasks that are asleep."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from support import Endpoint, connect, wait_completions

from cqnotify import CQ, CompletionChannel, Context, QPType, SendFlags, WorkCompletion
from cqnotify.aio import AsyncCQ

SOLICITED = SendFlags.SIGNALED | SendFlags.SOLICITED

Scenario = Callable[[Coroutine[Any, Any, Any]], Any]
_T = TypeVar("_T")


class Lane:
    """A one-way connection on one device, into a CQ of the test's choice."""

    def __init__(self, ctx: Context, channel: CompletionChannel, cq_type: type[CQ] = CQ) -> None:
        self.cq = cq_type(ctx, 255, channel=channel)
        self.sent = 0
        self._in = Endpoint(ctx, QPType.RC)
        self._out = Endpoint(ctx, QPType.RC, max_recv_wr=1)
        self._in.qp.close()
        self._in.qp = type(self._in.qp)(
            self._in.pd, QPType.RC, send_cq=self._in.scq, recv_cq=self.cq, max_recv_wr=255
        )
        connect(self._out, self._in)

    def send(self, n: int = 1, flags: SendFlags = SendFlags.SIGNALED) -> None:
        for _ in range(n):
            self._in.qp.post_recv(self._in.mr[0:64], wr_id=self.sent)
            self._out.qp.post_send(self._out.mr[0:8], wr_id=self.sent, send_flags=flags)
            self.sent += 1
            # The receive completes before the send is acknowledged.
            wait_completions(self._out.scq, 1)

    @property
    def untaken(self) -> int:
        """Messages whose completions nobody has taken from the device."""
        return self._in.qp.outstanding[1]

    def close(self) -> None:
        self._in.qp.close()


MakeLane = Callable[..., Lane]


async def tick() -> None:
    """Let every task that can run do so, up to where it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


@types.coroutine
def just_before_it_sleeps(call: Awaitable[_T], act: Callable[[], None]) -> Generator[Any, Any, _T]:
    """Await it. When it is about to sleep for the first time, and the loop is not told yet, act."""
    steps = call.__await__()
    try:
        yielded = steps.send(None)
        act()
        while True:
            try:
                value = yield yielded
            except BaseException as e:
                yielded = steps.throw(e)
            else:
                yielded = steps.send(value)
    except StopIteration as e:
        result: _T = e.value
        return result


async def sleeper(acq: AsyncCQ, *args: Any, **kwargs: Any) -> asyncio.Task[list[WorkCompletion]]:
    """A task that waits, and is asleep by now."""
    task = asyncio.ensure_future(acq.wait(*args, **kwargs))
    await tick()
    assert not task.done()
    return task


async def start(*calls: Callable[[], Awaitable[Any]]) -> list[asyncio.Task[Any]]:
    """Tasks that are asleep."""
    tasks = [asyncio.ensure_future(call()) for call in calls]
    await tick()
    assert not any(task.done() for task in tasks)
    return tasks


def ids(wcs: list[WorkCompletion]) -> list[int]:
    return [wc.wr_id for wc in wcs]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


IDLE = 5.0  # seconds
IDLE_LIMIT = 0.01 * IDLE


async def cpu_of_a_sleep(seconds: float) -> float:
    start = time.process_time()
    await asyncio.sleep(seconds)
    return time.process_time() - start


async def cpu_while_idle() -> float:
    """Beyond what it takes to fall asleep and to wake; the best of a few times, since a stall of
    the machine can look like work."""
    await tick()
    gc.collect()
    took = IDLE_LIMIT
    for _ in range(3):
        if took >= IDLE_LIMIT:
            once = await cpu_of_a_sleep(0.01)
            took = await cpu_of_a_sleep(IDLE) - once
    return took
