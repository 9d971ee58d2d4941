# SPDX-License-Identifier: MIT
"""A task whose calls never have to sleep lets the others run, whatever CQs these calls are of.

So it delays them by no more than one bounded drain, also under a flood. The guest of the lab is
emulated and can stall, so the delay is counted in calls, not in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from support import (
    Endpoint,
    Lane,
    Link,
    Scenario,
    cancel,
    ids,
    kernel,
    outstanding,
    peer,
    start,
    tick,
    wait_completions,
)

from cqnotify import CQ, PD, QP, CompletionChannel, Context, QPType, RecvWR, SendWR, WorkCompletion
from cqnotify.aio import AsyncCQ

# What is done in one turn of the loop, see csrc/await/engine.c and csrc/await/loop.c
DRAIN = 4 * 16  # completions that are taken from the device and not handed out
STREAK = 64  # completions that are handed out to tasks that need not sleep

IN_A_CQ = 50


def most_in_a_turn(max_entries: int) -> int:
    """Of the loop, with one task that consumes: what it was woken with, then a streak that ends
    with the call after which it is long enough. Twice, if the loop calls it, and then, when it has
    fallen asleep, the reader resumes it."""
    return 2 * (max_entries + STREAK - 1 + max_entries)


AT_MOST = most_in_a_turn(1)  # calls between two turns of another task


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
@pytest.mark.parametrize("order", ["round", "one after the other", "a task each"])
async def test_another_task_has_its_turn_after_a_bounded_number_of_calls(
    ctx: Context, call: str, channels: int, cqs: int, order: str
) -> None:
    all_sources = sources(ctx, channels, cqs)
    turns = Turns()
    async with contextlib.AsyncExitStack() as stack:
        pairs = [
            (await stack.enter_async_context(AsyncCQ(source.cq)), source) for source in all_sources
        ]
        each = [[(acq, source, i) for i in range(IN_A_CQ)] for acq, source in pairs]
        if order == "round":
            each = [list(itertools.chain(*zip(*each, strict=True)))]
        elif order == "one after the other":
            each = [list(itertools.chain(*each))]

        async def consume(calls: list[tuple[AsyncCQ, Source, int]]) -> None:
            for acq, source, i in calls:
                await CALLS[call](acq, source, i)
                turns.calls += 1

        for _ in range(max(1, 24 * 4 // len(pairs) // 4)):
            for source in all_sources:
                source.fill()
            await turns.beside(asyncio.gather(*map(consume, each)))
        assert turns.calls >= 24 * IN_A_CQ
        assert sum(acq.stats.wakeups for acq, _ in pairs) == 0, "no call has slept"
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


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
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
        all_were_there = outstanding(link.qp) == (0, 0)
        assert not woken.done(), "its task has not gone on"
        late = acq.completion(2)
        late.send(None)  # it gives the loop a turn
        late.close()
        assert (await woken).wr_id == 1
        assert (await acq.completion(2)).wr_id == 2


async def test_who_is_woken_by_an_event_does_not_overtake_who_was_woken_by_a_poll(
    acq: AsyncCQ, lane: Lane
) -> None:
    order: list[int] = []

    async def claim(wr_id: int) -> None:
        await acq.completion(wr_id)
        order.append(wr_id)

    def poll() -> None:
        """In the iteration in which the event is read, and before it is."""
        assert acq.poll() == []
        lane.send()

    tasks = [await start(claim(i)) for i in range(2)]
    lane.send()
    asyncio.get_running_loop().call_soon(poll)
    await asyncio.gather(*tasks)
    assert order == [0, 1]


@pytest.mark.parametrize("how", ["completion", "wait"])
async def test_who_never_has_to_sleep_lets_others_run_and_loses_nothing_if_they_cancel_him(
    acq: AsyncCQ, lane: Lane, how: str
) -> None:
    lane.send(200)
    got: list[int] = []

    async def consume() -> None:
        while True:
            wcs = [await acq.completion(len(got))] if how == "completion" else await acq.wait(1)
            got.extend(ids(wcs))

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0)
    assert 0 < len(got) < 100
    await cancel(task)
    left: list[int] = []
    while len(got) + len(left) < 200:
        left += ids(await acq.wait())
    assert got + left == list(range(200))
    assert acq.stats.events == 0


async def test_who_lets_others_run_is_not_overtaken(acq: AsyncCQ, lane: Lane) -> None:
    lane.send(200)
    calls = itertools.count()
    others: list[int] = []

    async def consume(name: str) -> None:
        for _ in range(100):
            call = next(calls)
            (wc,) = await acq.wait(1)
            assert wc.wr_id == call
            if name == "b" and call < 150:
                others.append(call)

    await asyncio.gather(consume("a"), consume("b"))
    assert others, "the second one did not wait for the end of the first"


# ---- under a flood --------------------------------------------------------------------------

BATCH = 16
QUEUE = 4 * STREAK  # completions that are there before it starts

# Says when the queue of the other end has been filled, and goes on.
PEER = f"""
import sys, cqnotify as c
with c.Context() as ctx:
    pd, cq = c.PD(ctx), c.CQ(ctx, 64)
    qp = c.QP(pd, c.QPType.UC, send_cq=cq, max_send_wr=32)
    sys.stdout.buffer.write(qp.address().to_wire())
    sys.stdout.flush()
    qp.connect(c.QPAddress.from_wire(sys.stdin.buffer.read(52)))
    sent = 0
    while True:
        if qp.outstanding_sends < 32:
            qp.post_send([])
        n = len(cq.poll_ids(32))
        if sent < {QUEUE} <= sent + n:
            sys.stdout.buffer.write(b"!")
            sys.stdout.flush()
        sent += n
"""


@contextlib.contextmanager
def flooded(end: Endpoint) -> Iterator[None]:
    """Another process sends as fast as it can. What meets no receive is dropped."""
    end.qp.to_init()
    for _ in range(QUEUE):
        end.qp.post_recv(None)
    with peer(end, PEER) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"!"
        yield


async def one_by_one(acq: AsyncCQ) -> AsyncIterator[list[WorkCompletion]]:
    async for wc in acq:
        yield [wc]


@pytest.mark.parametrize(
    ("batches", "max_entries"), [(one_by_one, 1), (lambda acq: acq.batches(BATCH), BATCH)]
)
def test_a_flood_delays_others_by_no_more_than_a_bounded_drain(
    ctx: Context, run: Scenario, batches: Any, max_entries: int
) -> None:
    end = Endpoint(ctx, QPType.UC, cqe=2 * QUEUE, max_recv_wr=QUEUE)
    turns = Turns()

    async def consume(acq: AsyncCQ) -> None:
        async for wcs in batches(acq):
            for wc in wcs:
                assert wc.ok
                end.qp.post_recv(None)
            turns.calls += len(wcs)
            if turns.calls > 20 * QUEUE:
                return

    async def scenario() -> None:
        async with AsyncCQ(end.rcq) as acq:
            await turns.beside(consume(acq))

    with flooded(end):
        run(scenario())
    assert turns.most >= STREAK, "it was a flood"
    assert turns.most <= most_in_a_turn(max_entries)


async def test_completions_that_nobody_takes_are_drained_a_bounded_number_at_a_time(
    acq: AsyncCQ, lane: Lane
) -> None:
    task = asyncio.ensure_future(acq.completion(12345))
    await tick()
    lane.send(200)
    left = [lane.untaken]
    assert left == [200]
    while left[-1] > 0:
        await asyncio.sleep(0)
        left.append(lane.untaken)
    assert max(a - b for a, b in itertools.pairwise(left)) == DRAIN
    task.cancel()
    assert ids(acq.poll(200)) == list(range(200))


async def test_who_lets_others_run_does_not_lose_his_completion_to_them(
    acq: AsyncCQ, lane: Lane
) -> None:
    """completion() goes before wait(), after a streak, too."""
    lane.send(STREAK)
    for _ in range(STREAK):
        await acq.wait(1)
    other = asyncio.ensure_future(acq.wait())
    lane.send(1)
    assert (await acq.completion(STREAK)).wr_id == STREAK
    lane.send(1)
    assert ids(await other) == [STREAK + 1]
