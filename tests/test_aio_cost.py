# SPDX-License-Identifier: MIT
"""What an event costs, in instructions: run where time counts these, by
./lab --icount test -m icount tests/test_aio_cost.py
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable

import pytest
from aio_support import tick
from support import ALL_REMOTE

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType, WROpcode
from cqnotify.aio import AsyncCQ

MANY = 500
EVENTS = 1500  # of one measurement
REPEATS = 5
pytestmark = pytest.mark.icount


class Crowd:
    """AsyncCQs on one channel, with a waiter each. One at a time, in turn, gets a completion."""

    def __init__(self, ctx: Context, n: int) -> None:
        pd, channel = PD(ctx), CompletionChannel(ctx)
        mr = MR(pd, 64, access=ALL_REMOTE)
        self.target = {"remote_addr": mr.addr, "rkey": mr.rkey}
        self.acqs = [AsyncCQ(CQ(ctx, 16, channel=channel)) for _ in range(n)]
        self.qps = [QP(pd, QPType.UC, send_cq=acq.cq) for acq in self.acqs]
        for qp in self.qps:
            qp.connect(qp.address(), access=ALL_REMOTE)
        self.events = 0
        self.left = 0

    async def wait(self, acq: AsyncCQ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await acq.wait()
            loop.call_soon(self.next)  # which runs when this waits again

    def next(self) -> None:
        if self.left == 0:
            self.end.set_result(time.perf_counter_ns())
            return
        self.left -= 1
        qp = self.qps[self.left % len(self.qps)]
        qp.post_send([], opcode=WROpcode.RDMA_WRITE, **self.target)

    async def cost(self) -> float:
        """Instructions for each event."""
        self.left = EVENTS
        self.events += EVENTS
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        start = time.perf_counter_ns()
        self.next()
        return (await self.end - start) / EVENTS

    async def run(self) -> None:
        await asyncio.gather(*map(self.wait, self.acqs))

    def close(self) -> None:
        for acq in self.acqs:
            acq.close()
        stats = [acq.cq.stats for acq in self.acqs]
        assert sum(s.events for s in stats) == self.events, "each completion woke a sleeper"


def test_an_event_costs_the_same_however_many_wait_on_its_channel(
    ctx: Context,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def scenario() -> tuple[float, float]:
        one, many = Crowd(ctx, 1), Crowd(ctx, MANY)
        running = [asyncio.ensure_future(crowd.run()) for crowd in (one, many)]
        await tick()
        costs = [(await one.cost(), await many.cost()) for _ in range(1 + REPEATS)]
        for crowd, task in zip((one, many), running, strict=True):
            task.cancel()
            await asyncio.wait([task])
            crowd.close()
        a, b = zip(*costs[1:], strict=True)  # the first ones warmed up
        return statistics.median(a), statistics.median(b)

    with contextlib.closing(new_loop()) as loop:
        one, many = loop.run_until_complete(scenario())
    with capfd.disabled():
        print(f"\ninstructions for an event: {one:.0f}; of {MANY} waiters: {many:.0f}; ", end="")
        print(f"ratio {many / one:.4f}")
    assert many / one <= 1.05
