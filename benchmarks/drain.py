# SPDX-License-Identifier: MIT
"""Draining a CQ: N completions wait in it, and are polled in batches of at most B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqnotify import CQ, WCArray, WCStatus

from .endpoints import FIRST_ID, Loopback, PyverbsLoopback
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock, clock_cost

CASES = ((1, 16), (16, 16), (256, 1), (256, 16), (256, 64), (1024, 64))
OPS = 1024  # of each case in one round


def objects(cq: CQ, waiting: int, batch: int) -> tuple[int, int]:
    """Reads wr_id and status of each; returns those of the last."""
    while waiting:
        wcs = cq.poll(batch)
        for wc in wcs:
            wr_id = wc.wr_id
            status = wc.status
        waiting -= len(wcs)
    return wr_id, status


def pyverbs_objects(cq: Any, waiting: int, batch: int) -> tuple[int, int]:
    while waiting:
        n, wcs = cq.poll(batch)
        for wc in wcs:
            wr_id = wc.wr_id
            status = wc.status
        waiting -= n
    return wr_id, status


def ids(cq: CQ, waiting: int, batch: int) -> tuple[int, int]:
    """Has wr_id of each in a list; poll_ids() raises for the first that failed."""
    while waiting:
        wr_ids = cq.poll_ids(batch)
        waiting -= len(wr_ids)
    return wr_ids[-1], WCStatus.SUCCESS


def each_id(cq: CQ, waiting: int, batch: int) -> tuple[int, int]:
    """The same, and looks at each in Python."""
    while waiting:
        wr_ids = cq.poll_ids(batch)
        for last in wr_ids:
            wr_id = last
        waiting -= len(wr_ids)
    return wr_id, WCStatus.SUCCESS


def rounds(end: Loopback | PyverbsLoopback, drain: Callable[..., tuple[int, int]]) -> Round:
    cost = clock_cost()

    def case(waiting: int, batch: int) -> Figures:
        total = 0
        for _ in range(OPS // waiting):
            end.fill(waiting)
            start = clock()
            last = drain(end.cq, waiting, batch)
            total += clock() - start - cost
            assert last == (FIRST_ID + waiting - 1, WCStatus.SUCCESS), last
        return {"ops": OPS, "total": total}

    return lambda: {f"{waiting}/{batch}": case(waiting, batch) for waiting, batch in CASES}


def poll_into() -> Round:
    wcs = {batch: WCArray(batch) for _, batch in CASES}

    def drain(cq: CQ, waiting: int, batch: int) -> tuple[int, int]:
        """Into memory, where numpy would look at it; reads the last alone."""
        array = wcs[batch]
        while waiting:
            waiting -= cq.poll_into(array)
        return array[-1].wr_id, array[-1].status

    return rounds(Loopback(), drain)


BENCHMARK = Benchmark(
    title="Draining a CQ: completions waiting / batch",
    op="completion",
    subjects={
        "C": InC("drain"),
        "pyverbs": lambda: rounds(PyverbsLoopback(), pyverbs_objects),
        "cqnotify": lambda: rounds(Loopback(), objects),
        "cqnotify poll_ids": lambda: rounds(Loopback(), ids),
        "cqnotify poll_ids, each": lambda: rounds(Loopback(), each_id),
        "cqnotify poll_into": poll_into,
    },
    places=("native", "device"),
    limits=(
        Limit("cqnotify", case="256/64", at_most=580),
        Limit("cqnotify", case="256/64", over="pyverbs", at_most=1 / 16),
        Limit("cqnotify poll_ids", case="256/64", at_most=222),
        Limit("cqnotify poll_ids", case="256/64", over="pyverbs", at_most=1 / 30),
        Limit("cqnotify poll_into", case="256/64", at_most=120),
    ),
    quick=True,
)
