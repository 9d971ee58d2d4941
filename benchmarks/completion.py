# SPDX-License-Identifier: MIT
"""Awaiting the completion of one RDMA write after the other, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cqnotify.aio import AsyncCQ

from .end import check
from .endpoints import SIZE, IbverbsLoopback, Loopback, PyverbsLoopback
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

OPS = 500


async def by_operation(end: Loopback, acq: AsyncCQ) -> None:
    qp, sge, addr, rkey = end.qp, end.mr[:SIZE], end.mr.addr, end.mr.rkey
    for _ in range(OPS):
        await acq.write(qp, sge, addr, rkey)


async def by_wr_id(end: Loopback, acq: AsyncCQ) -> None:
    qp, wr = end.qp, end.wrs[0]
    for _ in range(OPS):
        qp.post_send(wr)
        wc = await acq.completion(wr.wr_id)
        wc.raise_for_status()


async def pyverbs_polling(end: PyverbsLoopback) -> None:
    """pyverbs has nothing to await: let other tasks run between two polls."""
    qp, cq, wr = end.qp, end.cq, end.wrs[0]
    for _ in range(OPS):
        qp.post_send(wr)
        n, wcs = cq.poll()
        while not n:
            await asyncio.sleep(0)
            n, wcs = cq.poll()
        check(wcs[0])


async def ibverbs_polling(end: IbverbsLoopback) -> None:
    """ibverbs has nothing to await, either."""
    qp, cq, wr = end.qp, end.cq, end.wrs[0]
    for _ in range(OPS):
        qp.post_send(wr)
        while not (wcs := cq.poll(1)):
            await asyncio.sleep(0)
        wcs[0].raise_for_status()


def rounds(run: Callable[[], Awaitable[None]]) -> Round:
    loop = asyncio.new_event_loop()

    async def measure() -> dict[str, Figures]:
        start = clock()
        await run()
        return {"8 B": {"ops": OPS, "total": clock() - start}}

    return lambda: loop.run_until_complete(measure())


def cqnotify(run: Callable[[Loopback, AsyncCQ], Awaitable[None]]) -> Round:
    end = Loopback()
    acq = AsyncCQ(end.cq)
    return rounds(lambda: run(end, acq))


def pyverbs() -> Round:
    end = PyverbsLoopback()
    return rounds(lambda: pyverbs_polling(end))


def ibverbs() -> Round:
    end = IbverbsLoopback()
    return rounds(lambda: ibverbs_polling(end))


BENCHMARK = Benchmark(
    title="Posting one RDMA write, and awaiting its completion",
    op="operation",
    subjects={
        "C": InC("completion"),
        "pyverbs": pyverbs,
        "ibverbs": ibverbs,
        "cqnotify write": lambda: cqnotify(by_operation),
        "cqnotify completion": lambda: cqnotify(by_wr_id),
    },
    limits=(
        Limit("cqnotify write", over="C", at_most=1.3),
        Limit("cqnotify write", over="ibverbs", at_most=1),
        Limit("cqnotify completion", over="C", at_most=1.3),
    ),
    seconds=25,
)
