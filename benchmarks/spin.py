# SPDX-License-Identifier: MIT
"""Awaiting an RDMA write that a device completes after 2, 10 or 100 us, by how long the wait spins.

On Soft-RoCE a write completes within the post. So this is on the fake library: a poll finds a
completion once it is due, and a thread brings its event to the sleeper. "Wake-ups" are the writes
that were not served by spinning.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from cqnotify import CQ
from cqnotify.aio import AsyncCQ

from .endpoints import Loopback
from .harness.plan import Benchmark, Figures, Limit, Round
from .harness.subject import clock

OPS = 500
WARM_UP = 300
DELAYS = {"2 us": 2_000, "10 us": 10_000, "100 us": 100_000}
RSOCKETS = 10e-6  # seconds: polling_time of rsockets
BOUND = 50e-6  # that of "auto"
TIME, CPU = "{}", "{}, CPU"  # the names of the cases

Spin = float | Literal["auto"]
Write = Callable[[], Awaitable[object]]


def set_delay(ns: int) -> None:
    ctypes.CDLL(None).fake_delay(ctypes.c_int64(ns))


class Count:
    """What it took since then, the device's time included, or only the CPU."""

    def __init__(self, cq: CQ) -> None:
        self._cq, self._stats = cq, cq.stats
        self._cpu, self._time = time.process_time_ns(), clock()

    def figures(self, delay: str, wakeups: int) -> dict[str, Figures]:
        took, cpu = clock() - self._time, time.process_time_ns() - self._cpu
        stats, before = self._cq.stats, self._stats
        counted: Figures = {
            "ops": OPS,
            "total": took,
            "events": stats.events - before.events,
            "wakeups": wakeups,
            "arms": stats.arms - before.arms,
            "spurious": stats.spurious - before.spurious,
        }
        return {TIME.format(delay): counted, CPU.format(delay): {**counted, "total": cpu}}


def awaits(spin: Spin) -> Round:
    end, loop = Loopback(), asyncio.new_event_loop()
    acq = AsyncCQ(end.cq, spin=spin)

    async def measure() -> dict[str, Figures]:
        figures: dict[str, Figures] = {}
        for delay, ns in DELAYS.items():
            set_delay(ns)
            for _ in range(WARM_UP):  # "auto" looks seldom whether a device has become faster
                await acq.write(end.qp, end.mr[:8], end.mr.addr, end.mr.rkey)
            wakeups, count = acq.stats.wakeups, Count(end.cq)
            for _ in range(OPS):
                await acq.write(end.qp, end.mr[:8], end.mr.addr, end.mr.rkey)
            figures |= count.figures(delay, acq.stats.wakeups - wakeups)
        return figures

    return lambda: loop.run_until_complete(measure())


def in_thread(spin: Spin) -> Round:
    end = Loopback()
    cq, get_event, post, write = end.cq, end.channel.get_event, end.qp.post_send, end.wrs[0]

    def write_once() -> int:
        """Returns how often the thread has slept."""
        slept = 0
        post(write)
        while not (wcs := cq.poll(spin=spin)):
            if cq.arm_if_empty():
                get_event().ack()
                slept += 1
        wcs[0].raise_for_status()
        return slept

    def measure() -> dict[str, Figures]:
        figures: dict[str, Figures] = {}
        for delay, ns in DELAYS.items():
            set_delay(ns)
            for _ in range(WARM_UP):
                write_once()
            count = Count(cq)
            slept = sum(write_once() for _ in range(OPS))
            figures |= count.figures(delay, slept)
        return figures

    return measure


def limits(kind: str) -> tuple[Limit, ...]:
    """With room, because a few instructions decide which waits are probes.

    With 2 and 10 us they decide as well how many of the writes that do not spin sleep, so there
    "auto" is compared with the spin that suffices.
    """
    auto, asleep, spin = (f"{kind}, {how}" for how in ("auto", "asleep", "spin 10 us"))
    return (
        Limit(auto, case="2 us", figure="wakeups", at_most=0.1),
        Limit(auto, case="10 us", figure="wakeups", at_most=0.1),
        Limit(auto, case="100 us", figure="wakeups", at_least=0.9),
        Limit(auto, case=CPU.format("2 us"), over=spin, at_most=1.3),
        Limit(auto, case=CPU.format("10 us"), over=spin, at_most=1.3),
        Limit(auto, case=CPU.format("100 us"), over=asleep, at_most=1.1),
    )


BENCHMARK = Benchmark(
    title="A write that the device completes later",
    op="write",
    subjects={
        "asyncio, asleep": lambda: awaits(0.0),
        "asyncio, spin 10 us": lambda: awaits(RSOCKETS),
        "asyncio, spin 50 us": lambda: awaits(BOUND),
        "asyncio, auto": lambda: awaits("auto"),
        "thread, asleep": lambda: in_thread(0.0),
        "thread, spin 10 us": lambda: in_thread(RSOCKETS),
        "thread, spin 50 us": lambda: in_thread(BOUND),
        "thread, auto": lambda: in_thread("auto"),
    },
    limits=(*limits("asyncio"), *limits("thread")),
    env={"FAKE_CPUS": "2"},
    fake_verbs=True,
    seconds=70,
)
