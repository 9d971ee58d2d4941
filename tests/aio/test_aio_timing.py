# SPDX-License-Identifier: MIT
"""What AsyncCQ costs the others: nothing while it waits, and one bounded drain under a flood.

The guest of the lab is emulated and can stall, so lateness is counted in completions: those that
were handed out after the ticker's time had come, and before it ran. Seconds come second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from support import (
    IDLE_LIMIT,
    Endpoint,
    Lane,
    MakeLane,
    Scenario,
    cpu_while_idle,
    ids,
    kernel,
    peer,
    start,
    tick,
)

from cqnotify import Context, QPType, WorkCompletion
from cqnotify.aio import AsyncCQ

# What is done in one turn of the loop, see csrc/await/engine_look.c and csrc/await/loop.c
DRAIN = 4 * 16  # completions that are taken from the device and not handed out
STREAK = 64  # completions that are handed out to tasks that need not sleep

# Idle --------------------------------------------------------------------------


async def test_a_cancelled_receive_that_is_in_flight_costs_no_cpu(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    a, b = pair
    async with AsyncCQ(b.rcq) as acq:
        task = asyncio.ensure_future(acq.recv(b.qp, b.mr[0:64]))
        await tick()
        a.qp.post_send(a.mr[0:8])
        await task
        task = asyncio.ensure_future(acq.recv(b.qp, b.mr[0:64]))
        waiter = await start(acq.wait())
        task.cancel()
        assert await cpu_while_idle() < IDLE_LIMIT
        assert acq.stats.events == 1
        a.qp.post_send(a.mr[0:8])
        assert len(await waiter) == 1


async def test_many_that_wait_on_one_channel_cost_no_cpu(ctx: Context, new_lane: MakeLane) -> None:
    lanes = [new_lane() for _ in range(40)]
    async with contextlib.AsyncExitStack() as stack:
        acqs = [await stack.enter_async_context(AsyncCQ(lane.cq)) for lane in lanes]
        tasks = [await start(acq.wait()) for acq in acqs]
        for lane in lanes:
            lane.send()
        await asyncio.gather(*tasks)
        for acq in acqs:
            await start(acq.wait())
        assert await cpu_while_idle() < IDLE_LIMIT
        assert [acq.stats.events for acq in acqs] == [1] * len(acqs)


# Under a flood -----------------------------------------------------------------

BATCH = 16
QUEUE = 4 * STREAK  # completions that are there before it starts
TICK = 0.001
TICKS = 30


def most_in_a_turn(max_entries: int) -> int:
    """Of the loop, with one task that consumes: what it was woken with, then a streak that ends
    with the call after which it is long enough. Twice, if the loop calls it, and then, when it has
    fallen asleep, the reader resumes it."""
    return 2 * (max_entries + STREAK - 1 + max_entries)


class Ticker:
    """A task that runs every millisecond; the consumer tells it of each completion."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = float("inf")
        self._late = 0
        self.handed_out = 0
        self.late: list[int] = []  # completions handed out after the time had come, by tick
        self.seconds: list[float] = []
        self.turns: list[int] = []  # completions handed out by turn of the loop

    def saw(self, wc: WorkCompletion) -> None:
        assert wc.ok
        self.handed_out += 1
        if self._loop.time() >= self._due:
            self._late += 1

    async def tick(self) -> None:
        while len(self.late) < TICKS:
            self._late = 0
            self._due = self._loop.time() + TICK
            await asyncio.sleep(TICK)
            self.seconds.append(self._loop.time() - self._due)
            self.late.append(self._late)

    async def count_turns(self) -> None:
        while True:
            before = self.handed_out
            await asyncio.sleep(0)
            self.turns.append(self.handed_out - before)

    async def beside(self, consumer: Coroutine[Any, Any, None], bound: int) -> None:
        """Tick and count beside the consumer; then judge."""
        tasks = [asyncio.ensure_future(c) for c in (consumer, self.count_turns())]
        start = self._loop.time()
        await self.tick()
        each = (self._loop.time() - start) / max(1, self.handed_out)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result
        assert max(self.turns) <= bound
        # One turn is under way when the time comes, in the next one the loop sees that it has
        # come, and in the third the ticker runs, maybe behind the consumer.
        assert max(self.late) <= 3 * bound, self.late
        # A stall hits some ticks, not half of them; ten such delays are a generous bound.
        assert statistics.median(self.seconds) <= 30 * bound * each, (each, self.seconds)


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
        if qp.outstanding[0] < 32:
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


Take = Callable[[WorkCompletion], None]


async def one_by_one(acq: AsyncCQ, take: Take) -> None:
    async for wc in acq:
        take(wc)


async def in_batches(acq: AsyncCQ, take: Take) -> None:
    async for wcs in acq.batches(BATCH):
        for wc in wcs:
            take(wc)


@pytest.mark.parametrize(("consume", "max_entries"), [(one_by_one, 1), (in_batches, BATCH)])
def test_a_flood_delays_others_by_no_more_than_a_bounded_drain(
    ctx: Context,
    run: Scenario,
    consume: Callable[[AsyncCQ, Take], Coroutine[Any, Any, None]],
    max_entries: int,
) -> None:
    end = Endpoint(ctx, QPType.UC, cqe=2 * QUEUE, max_recv_wr=QUEUE)

    async def scenario() -> None:
        async with AsyncCQ(end.rcq) as acq:
            ticker = Ticker()

            def take(wc: WorkCompletion) -> None:
                end.qp.post_recv(None)
                ticker.saw(wc)

            await ticker.beside(consume(acq, take), most_in_a_turn(max_entries))
            assert max(ticker.turns) >= STREAK, "it was a flood"

    with flooded(end):
        run(scenario())


async def test_sends_that_complete_at_once_delay_others_by_no_more_than_a_bounded_drain(
    uc_pair: tuple[Endpoint, Endpoint],
) -> None:
    a = uc_pair[0]  # what it sends meets no receive and is dropped
    async with AsyncCQ(a.scq) as acq:
        ticker = Ticker()

        async def consumer() -> None:
            while True:
                ticker.saw(await acq.send(a.qp, a.mr[0:8]))

        await ticker.beside(consumer(), most_in_a_turn(1))
        if kernel() == (6, 1):
            assert max(ticker.turns) >= STREAK, "they completed while they were posted"


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
