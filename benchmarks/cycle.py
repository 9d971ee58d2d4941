# SPDX-License-Identifier: MIT
"""The cycle of an event: arm, get the event (which is there at once), acknowledge, poll."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqnotify import CQ, CompletionChannel

from .endpoints import FIRST_ID, IbverbsLoopback, Loopback, PyverbsLoopback
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

CYCLES = 1000


def cycles(cq: CQ, channel: CompletionChannel) -> int:
    for _ in range(CYCLES):
        cq.req_notify()
        channel.get_event()
        cq.ack()
        wcs = cq.poll()
    return wcs[0].wr_id


def pyverbs_cycles(cq: Any, channel: Any) -> int:
    for _ in range(CYCLES):
        cq.req_notify()
        channel.get_cq_event(cq)
        cq.ack_events(1)
        _, wcs = cq.poll()
    wr_id: int = wcs[0].wr_id
    return wr_id


def ibverbs_cycles(cq: Any, channel: Any) -> int:
    for _ in range(CYCLES):
        cq.req_notify()
        channel.get_cq_event()
        cq.ack_events()
        wcs = cq.poll(16)
    wr_id: int = wcs[0].wr_id
    return wr_id


def cqnotify() -> Round:
    end = Loopback()

    def run() -> dict[str, Figures]:
        end.fill(CYCLES)
        before = end.cq.stats
        start = clock()
        last = cycles(end.cq, end.channel)
        total = clock() - start
        assert last == FIRST_ID + CYCLES - 1, last
        events, arms = end.cq.stats.events - before.events, end.cq.stats.arms - before.arms
        return {"cycle": {"ops": CYCLES, "total": total, "events": events, "arms": arms}}

    return run


def without_counters(
    end: PyverbsLoopback | IbverbsLoopback, cycles: Callable[[Any, Any], int]
) -> Round:
    def run() -> dict[str, Figures]:
        end.fill(CYCLES)
        start = clock()
        last = cycles(end.cq, end.channel)
        total = clock() - start
        assert last == FIRST_ID + CYCLES - 1, last
        return {"cycle": {"ops": CYCLES, "total": total, "events": CYCLES, "arms": CYCLES}}

    return run


BENCHMARK = Benchmark(
    title="The cycle of an event: arm, sleep, acknowledge, poll",
    op="event",
    subjects={
        "C": InC("cycle"),
        "pyverbs": lambda: without_counters(PyverbsLoopback(), pyverbs_cycles),
        "ibverbs": lambda: without_counters(IbverbsLoopback(), ibverbs_cycles),
        "cqnotify": cqnotify,
    },
    places=("native", "device"),
    fake_verbs=True,
    env={"FAKE_COMPLETE_ON_ARM": "1"},
    limits=(
        Limit("cqnotify", over="C", at_most=1.9),
        Limit("cqnotify", over="pyverbs", at_most=0.29),
        Limit("cqnotify", over="ibverbs", at_most=0.72),
        Limit("cqnotify", figure="events", at_most=1, at_least=1),
        Limit("cqnotify", figure="events", at_most=1, at_least=1, place="native"),
    ),
    quick=True,
)
