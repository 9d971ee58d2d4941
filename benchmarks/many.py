# SPDX-License-Identifier: MIT
"""One of many queue pairs of an AsyncCQ: a task awaits a completion on each.

The completion of one, by a wr_id of its own or by the same for all, and the closing of one: it
costs as much among 16,000 as among 1,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPState, QPType, SendWR
from cqnotify.aio import AsyncCQ

from .harness.plan import Benchmark, Figures, Limit, Round
from .harness.subject import DEVICE, clock


class Many:
    def __init__(self, n: int) -> None:
        ctx = Context(DEVICE)
        pd = PD(ctx)
        self.cq = CQ(ctx, ctx.query_device().max_cqe, channel=CompletionChannel(ctx))
        self.acq = AsyncCQ(self.cq)
        self.mr = MR(pd, 64)
        self.qps = [QP(pd, QPType.RC, send_cq=self.cq, max_send_wr=4) for _ in range(n)]
        for qp in self.qps:
            qp.modify(qp_state=QPState.RTS)

    async def claim(self, wr_ids: Iterable[int]) -> list[asyncio.Task[object]]:
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(self.acq.completion(wr_id, qp=qp))
            for wr_id, qp in zip(wr_ids, self.qps, strict=True)
        ]
        await asyncio.sleep(0)
        return tasks

    async def completions(self, wr_ids: list[int]) -> Figures:
        """The last that asked gets its completion first."""
        tasks = await self.claim(wr_ids)
        wrs = [SendWR(self.mr[:8], wr_id=wr_id) for wr_id in wr_ids]
        start = clock()
        for qp, wr in zip(reversed(self.qps), reversed(wrs), strict=True):
            qp.post_send(wr)
        await asyncio.wait(tasks)
        return {"ops": len(tasks), "total": clock() - start}

    async def closing(self) -> Figures:
        tasks = await self.claim([0] * len(self.qps))
        start = clock()
        for qp in self.qps:
            qp.close()
        figures: Figures = {"ops": len(tasks), "total": clock() - start}
        await asyncio.gather(*tasks, return_exceptions=True)
        return figures


def among(n: int) -> Callable[[], Round]:
    async def measure() -> dict[str, Figures]:
        many = Many(n)
        figures = {
            "a wr_id of its own": await many.completions(list(range(n))),
            "one wr_id for all": await many.completions([0] * n),
            "closing": await many.closing(),
        }
        many.acq.cq.context.close()
        return figures

    return lambda: lambda: asyncio.run(measure())


BENCHMARK = Benchmark(
    title="One of many queue pairs that tasks wait for",
    op="queue pair",
    subjects={"of 1,000": among(1000), "of 16,000": among(16000)},
    limits=(Limit("of 16,000", over="of 1,000", at_most=1.3),),
    fake_verbs=True,
    seconds=50,
)
