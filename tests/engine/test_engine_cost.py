# SPDX-License-Identifier: MIT
"""What one of many costs: no more than one of few, whatever is queued and whoever waits.

The time for each, with 2,000 and with 100; a list that is searched for each would make it many
times as much. The best of several, since the machine can have something else to do. So they have
the marker `clock`; with `./lab --icount` the time is a count of instructions.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import select
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest
from support import ALL_REMOTE, DEADLINE, REMOTE, Link, Scenario, fill, start, start_all

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType, SendWR
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.clock

FEW, MANY = 100, 2000
LIMIT = 1.8  # it is 0.4 to 1.5; where a cancelled task is searched for among all, 2.6 to 5
Order = Callable[[list[Any]], Iterable[Any]]
ORDERS = {"first come, first": list, "last come, first": reversed}


def step(clock: Callable[[], float]) -> float:
    start = now = clock()
    while now == start:
        now = clock()
    return now - start


# CPU time, where it is not counted in ticks, as in a kernel that is a process.
CLOCK = time.process_time if step(time.process_time) < 0.0001 else time.perf_counter


@pytest.fixture(scope="module", autouse=True)
def memory_at_hand() -> Iterator[None]:
    """Nothing is given back to the kernel, nor asked of it while it is measured: in a kernel that
    is a process, a page that is touched first costs more than all that is done with it."""
    trim_threshold, top_pad = -1, -2  # of mallopt(3)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(trim_threshold, 1 << 30)
    mallopt(top_pad, 64 << 20)
    ballast = [bytes(200) for _ in range(200_000)]
    pins = ballast[::1000]  # an arena with something in it stays
    del ballast
    yield
    mallopt(trim_threshold, 128 << 10)
    mallopt(top_pad, 0)
    pins.clear()


class Source:
    """A QP whose sends all complete, at once or soon: it is unreliable, and nobody receives."""

    def __init__(self, ctx: Context, cq: CQ | None = None) -> None:
        self.pd = PD(ctx)
        self.cq = cq or CQ(ctx, 2 * MANY, channel=CompletionChannel(ctx))
        self.qp = QP(self.pd, QPType.UC, send_cq=self.cq, max_send_wr=2 * MANY, max_recv_wr=1)
        self.qp.connect(self.qp.address())
        self.mr = MR(self.pd, 64, access=ALL_REMOTE | REMOTE)

    def post(self, wr_ids: Iterable[int]) -> None:
        for wr_id in wr_ids:
            self.qp.post_send(self.mr[0:8], wr_id=wr_id)


@functools.cache
def other_memory() -> bytes:
    return b"." * (16 << 20)


@contextlib.contextmanager
def measured(seconds: list[float], n: int) -> Iterator[None]:
    """The time for each of n. What there is is not looked through meanwhile, and no more of few is
    in the CPU's caches than of many."""
    gc.collect()
    gc.disable()
    other_memory().find(b"!")
    start = CLOCK()
    try:
        yield
    finally:
        seconds.append((CLOCK() - start) / n)
        gc.enable()


Measurement = Callable[[int], Awaitable[float]]


async def compare(measure: Measurement, at_once: bool = True) -> None:
    """Judge the ratio of what one of many and one of few costs, by the best of each.

    If all are measured `at_once`, many are measured as long as twenty times the few: what else goes
    on in the machine hits the one as often as the other. Else each takes so short that it is hit as
    a whole or not, and more of them are measured.
    """
    rounds, enough = (MANY // FEW, 2) if at_once else (1, 4)
    few = many = float("inf")
    for i in range(1, 21):
        few = min(few, sum([await measure(FEW) for _ in range(rounds)]) / rounds)
        many = min(many, await measure(MANY))
        if i >= enough and many < LIMIT * few:
            return
    raise AssertionError(f"one of {MANY} costs {many / few:.1f} times as much as one of {FEW}")


async def cancel_all(
    acq: AsyncCQ, source: Source, calls: Iterable[Awaitable[Any]], order: str
) -> float:
    """The time in which each of a few of these calls ends, when it is cancelled while all wait.

    A task that ends so arms the CQ for the others, which is a system call. Where the kernel is a
    process, which takes turns with that of the program, it costs 9 us while the two share a CPU of
    the machine, and 60 us while each has its own: so much more than all else that nothing else
    would be measured. So another task waits for a completion, which comes just before; until that
    task has it, nothing is armed.
    """
    seconds: list[float] = []
    first = await start(acq.wait(1))
    tasks = list(ORDERS[order](await start_all(*calls)))
    arms = source.cq.stats.arms
    loop = asyncio.get_running_loop()
    steps = contextlib.ExitStack()

    def begin() -> None:
        source.post([1 << 30])
        assert select.select([source.cq.channel], [], [], DEADLINE)[0]
        steps.enter_context(measured(seconds, FEW))

    loop.call_soon(begin)
    for task in tasks[:FEW]:
        task.cancel()
    loop.call_soon(steps.close)
    for task in tasks[FEW:]:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert source.cq.stats.arms < arms + 10  # not for each of them
    await first
    return seconds[0]


# ---- beside queued completions --------------------------------------------------------------


@pytest.mark.parametrize("what", ["comes", "is queued"])
def test_completion_beside_many_that_are_queued(ctx: Context, run: Scenario, what: str) -> None:
    """A hundred times: of one that is posted now, or of one of those in the queue."""
    source = Source(ctx)

    async def measure(n: int) -> float:
        seconds: list[float] = []
        calls = 100
        async with AsyncCQ(source.cq) as acq:
            source.post(range(n + calls))
            # Behind the last one nothing is left to be fetched.
            source.post([1 << 20])
            await acq.completion(1 << 20)
            with measured(seconds, calls):
                for i in range(calls):
                    if what == "comes":
                        source.post([1 << 30])
                    await acq.completion(1 << 30 if what == "comes" else n + i)
            left = n + (calls if what == "comes" else 0)
            while left:
                left -= len(await acq.wait(MANY))
        return seconds[0]

    run(compare(measure, at_once=False))


# ---- those that wait for room ---------------------------------------------------------------


@pytest.mark.not_on_iwarp("a send completes when TCP has it, so that none waits")
@pytest.mark.parametrize("order", ORDERS)
def test_the_cancellation_of_many_that_wait_for_room(
    ctx: Context, run: Scenario, order: str
) -> None:
    link = Link(ctx, max_send_wr=1)
    source = Source(ctx, link.a.scq)

    async def measure(n: int) -> float:
        async with AsyncCQ(link.a.scq) as acq:
            full = await fill(acq, link)
            waiting = [acq.send(link.qp, link.sg) for _ in range(n)]
            seconds = await cancel_all(acq, source, waiting, order)
            link.take(len(full))
            await asyncio.gather(*full)
        return seconds

    run(compare(measure, at_once=False))


def test_many_that_wait_for_room_are_posted(ctx: Context, run: Scenario) -> None:
    source = Source(ctx)
    qp = QP(source.pd, QPType.UC, send_cq=source.cq, max_send_wr=16, max_recv_wr=1)
    qp.connect(qp.address())

    async def measure(n: int) -> float:
        seconds: list[float] = []
        async with AsyncCQ(source.cq) as acq:
            tasks = [asyncio.ensure_future(acq.send(qp, source.mr[0:8])) for _ in range(n)]
            with measured(seconds, n):
                await asyncio.gather(*tasks)
        return seconds[0]

    run(compare(measure))


# ---- those that wait for anything, or for one -----------------------------------------------


def calls(acq: AsyncCQ, what: str, n: int) -> list[Awaitable[Any]]:
    if what == "wait":
        return [acq.wait(1) for _ in range(n)]
    if what == "completion of one":  # all of the same
        return [acq.completion(7) for _ in range(n)]
    return [acq.completion(i) for i in range(n)]


WHAT = ["wait", "completion", "completion of one"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", WHAT)
def test_the_cancellation_of_many_that_wait(
    ctx: Context, run: Scenario, what: str, order: str
) -> None:
    source = Source(ctx)

    async def measure(n: int) -> float:
        async with AsyncCQ(source.cq) as acq:
            return await cancel_all(acq, source, calls(acq, what, n), order)

    run(compare(measure, at_once=False))


@pytest.mark.parametrize("what", WHAT)
def test_many_that_wait_are_served(ctx: Context, run: Scenario, what: str) -> None:
    """All completions are there, or nearly, when the loop comes to serve them."""
    source = Source(ctx)

    async def measure(n: int) -> float:
        seconds: list[float] = []
        async with AsyncCQ(source.cq) as acq:
            tasks = [asyncio.ensure_future(call) for call in calls(acq, what, n)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            wr_ids = [7] * n if what == "completion of one" else range(n)
            source.qp.post_send([SendWR(source.mr[0:8], wr_id=wr_id) for wr_id in wr_ids])
            with measured(seconds, n):
                await asyncio.gather(*tasks)
        return seconds[0]

    run(compare(measure))
