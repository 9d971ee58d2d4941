# SPDX-License-Identifier: MIT
"""A task whose calls never have to sleep lets the others run, whatever CQs these calls are of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support import Link, kernel, start, wait_completions

from cqnotify import CQ, PD, QP, CompletionChannel, Context, QPType, RecvWR, SendWR
from cqnotify.aio import AsyncCQ

IN_A_CQ = 50
AT_MOST = 130  # calls between two turns of another task


class Source:
    """A QP that is connected to itself; the CQ of what it receives is under test."""

    def __init__(self, pd: PD, channel: CompletionChannel) -> None:
        ctx = pd.context
        self.cq = CQ(ctx, IN_A_CQ, channel=channel)
        self.sent = CQ(ctx, IN_A_CQ, channel=CompletionChannel(ctx))
        room = {"max_send_wr": IN_A_CQ, "max_recv_wr": IN_A_CQ}
        self.qp = QP(pd, QPType.RC, send_cq=self.sent, recv_cq=self.cq, **room)
        self.qp.connect(self.qp.address())

    def fill(self) -> None:
        """Its completions, of the wr_ids from 0 on, are there when this returns."""
        self.qp.post_recv([RecvWR(None, wr_id=i) for i in range(IN_A_CQ)])
        self.qp.post_send([SendWR(None) for _ in range(IN_A_CQ)])
        # The receive completes before the send is acknowledged.
        wait_completions(self.sent, IN_A_CQ)


def sources(ctx: Context, channels: int, cqs: int) -> list[Source]:
    pd = PD(ctx)
    found = []
    for _ in range(channels):
        channel = CompletionChannel(ctx)
        found += [Source(pd, channel) for _ in range(cqs)]
    return found


class Turns:
    """How many calls the others make between two turns of this task."""

    def __init__(self) -> None:
        self.calls = 0
        self.most = 0
        self._before = 0

    def _count(self) -> None:
        self.most = max(self.most, self.calls - self._before)
        self._before = self.calls

    async def _run(self) -> None:
        while True:
            self._count()
            await asyncio.sleep(0)

    async def beside(self, consumer: Awaitable[Any]) -> None:
        """At its end it may never have had a turn."""
        task = asyncio.ensure_future(self._run())
        await asyncio.sleep(0)
        await consumer
        self._count()
        task.cancel()
        await asyncio.wait([task])


Call = Callable[[AsyncCQ, Source, int], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "wait": lambda acq, source, i: acq.wait(1),
    "completion": lambda acq, source, i: acq.completion(i),
    "completion, last first": lambda acq, source, i: acq.completion(IN_A_CQ - 1 - i),
    "completion of the QP": lambda acq, source, i: acq.completion(i, qp=source.qp),
    "iteration": lambda acq, source, i: acq.__anext__(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("channels", "cqs"), [(1, 1), (1, 24), (4, 6), (24, 1)])
@pytest.mark.parametrize("order", ["round", "one after the other"])
async def test_another_task_has_its_turn_after_a_bounded_number_of_calls(
    ctx: Context, call: str, channels: int, cqs: int, order: str
) -> None:
    all_sources = sources(ctx, channels, cqs)
    turns = Turns()
    async with contextlib.AsyncExitStack() as stack:
        pairs = [
            (await stack.enter_async_context(AsyncCQ(source.cq)), source) for source in all_sources
        ]
        each = [(acq, source, i) for acq, source in pairs for i in range(IN_A_CQ)]
        if order == "round":
            each.sort(key=lambda one: one[2])

        async def consume() -> None:
            for acq, source, i in each:
                await CALLS[call](acq, source, i)
                turns.calls += 1

        for _ in range(max(1, 24 * 4 // len(pairs) // 4)):
            for source in all_sources:
                source.fill()
            await turns.beside(consume())
        assert turns.calls >= 24 * IN_A_CQ
        assert sum(acq.stats.wakeups for acq, _ in pairs) == 0, "no call has slept"
        assert turns.most <= AT_MOST


async def test_tasks_that_take_turns_do_not_starve_another(ctx: Context) -> None:
    """Each has its own CQ. None goes round, so it is the number of tasks that must not count."""
    all_sources = sources(ctx, 1, 24)
    turns = Turns()
    async with contextlib.AsyncExitStack() as stack:

        async def consume(acq: AsyncCQ) -> None:
            for _ in range(IN_A_CQ):
                await acq.wait(1)
                turns.calls += 1

        acqs = [await stack.enter_async_context(AsyncCQ(source.cq)) for source in all_sources]
        for source in all_sources:
            source.fill()
        await turns.beside(asyncio.gather(*map(consume, acqs)))
        assert turns.calls == 24 * IN_A_CQ
        assert turns.most <= AT_MOST


async def test_sends_that_complete_at_once_let_another_task_have_its_turn(ctx: Context) -> None:
    """On Linux 6.1 rxe sends while it posts; what meets no receive is dropped. Where sends complete
    later the calls sleep, and the turns are more."""
    pd, channel = PD(ctx), CompletionChannel(ctx)
    qps = []
    for _ in range(24):
        cq = CQ(ctx, IN_A_CQ, channel=channel)
        qps.append(QP(pd, QPType.UC, send_cq=cq, max_send_wr=IN_A_CQ, max_recv_wr=1))
        qps[-1].connect(qps[-1].address())
    turns = Turns()
    async with contextlib.AsyncExitStack() as stack:
        pairs = [(await stack.enter_async_context(AsyncCQ(qp.send_cq)), qp) for qp in qps]

        async def consume() -> None:
            for _ in range(IN_A_CQ):
                for acq, qp in pairs:
                    await acq.send(qp, None)
                    turns.calls += 1

        await turns.beside(consume())
        assert turns.calls == 24 * IN_A_CQ
        assert turns.most <= AT_MOST
        if kernel() == (6, 1):
            assert turns.most > 20, "they completed while they were posted"


async def test_what_has_its_completion_at_once_does_not_overtake_those_that_were_woken(
    acq: AsyncCQ, link: Link
) -> None:
    all_were_there = False
    while not all_were_there:
        woken = await start(acq.completion(1))
        for wr_id in (1, 3, 2):
            link.qp.post_send(link.sg, wr_id=wr_id)
        link.take(3)
        while not (wcs := acq.poll(1)):
            pass
        assert [wc.wr_id for wc in wcs] == [3]
        all_were_there = link.qp.outstanding == (0, 0)
        assert not woken.done(), "its task has not gone on"
        late = acq.completion(2)
        late.send(None)  # it gives the loop a turn
        late.close()
        assert (await woken).wr_id == 1
        assert (await acq.completion(2)).wr_id == 2
