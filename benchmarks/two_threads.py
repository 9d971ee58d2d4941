# SPDX-License-Identifier: MIT
"""Two threads with a context and a CQ each: what both get done, compared with one of them alone.

Only without a GIL can it be more than 100 %: ./lab --python 3.14t bench two_threads. On two CPUs
that other programs use as well, two threads that only compute in Python show what can be had.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from cqnotify import WCArray

from .endpoints import FIRST_ID, Loopback
from .harness.plan import Benchmark, Round
from .harness.subject import clock

BATCH = 64
DURATION = 20_000_000  # ns


def compute(_: Loopback) -> Callable[[], None]:
    def once() -> None:
        number = 0
        for i in range(4 * BATCH):
            number = (number + i) & 127

    return once


def objects(end: Loopback) -> Callable[[], None]:
    post, poll, wrs = end.qp.post_send, end.cq.poll, end.wrs[:BATCH]

    def once() -> None:
        post(wrs)
        left = BATCH
        while left:
            wcs = poll(BATCH)
            for wc in wcs:
                last = (wc.wr_id, wc.status)
            left -= len(wcs)
        assert last[0] == FIRST_ID + BATCH - 1

    return once


def ids(end: Loopback) -> Callable[[], None]:
    post, poll, wrs = end.qp.post_send, end.cq.poll_ids, end.wrs[:BATCH]

    def once() -> None:
        post(wrs)
        left = BATCH
        while left:
            left -= len(poll(BATCH))

    return once


def into(end: Loopback) -> Callable[[], None]:
    post, poll, wrs = end.qp.post_send, end.cq.poll_into, end.wrs[:BATCH]
    array = WCArray(BATCH)

    def once() -> None:
        post(wrs)
        left = BATCH
        while left:
            left -= poll(array)

    return once


def done_by(threads: int, make: Callable[[Loopback], Callable[[], None]]) -> int:
    """Return how often the threads have done it. Each makes its own objects, whose references are
    then counted without atomic operations."""
    until: list[int] = []  # of all, from the moment on in which all are ready
    start = threading.Barrier(threads, lambda: until.append(clock() + DURATION))
    done: list[int] = []

    def work() -> None:
        end = Loopback()
        once = make(end)
        for _ in range(10):
            once()
        start.wait()
        count, end_at = 0, until[0]
        while clock() < end_at:
            once()
            count += 1
        done.append(count)
        start.wait()
        end.ctx.close()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done)


def rounds(make: Callable[[Loopback], Callable[[], None]]) -> Round:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the other benchmarks use one CPU

    def share() -> float:
        alone = done_by(1, make)
        return 100 * done_by(2, make) / alone

    return lambda: {"2 threads": {"ops": 1, "total": share()}}


BENCHMARK = Benchmark(
    title="The work of two threads with a CQ each, compared with that of one thread",
    op="batch of 64",
    unit="%",
    subjects={
        "computing in Python": lambda: rounds(compute),
        "cqnotify": lambda: rounds(objects),
        "cqnotify poll_ids": lambda: rounds(ids),
        "cqnotify poll_into": lambda: rounds(into),
    },
    places=("native",),
    realtime=True,
    seconds=15,
)
