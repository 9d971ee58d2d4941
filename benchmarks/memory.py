# SPDX-License-Identifier: MIT
"""The memory of a process for each object, including the libraries', but not the kernel's.

PYTHONMALLOC makes Python allocate all of it by malloc(), which reports how much is in use. It
counts what its caches of freed blocks hold, so there are none.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy

import cqnotify.memory
from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType, cm
from cqnotify.aio import AsyncCQ

from .endpoints import IbverbsLoopback, Loopback, PyverbsLoopback
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import DEVICE

N = 100
MANY = 10_000


class Mallinfo2(ctypes.Structure):
    _fields_ = (
        *((f"before_{i}", ctypes.c_size_t) for i in range(4)),
        ("hblkhd", ctypes.c_size_t),  # in mappings of their own
        *((f"between_{i}", ctypes.c_size_t) for i in range(2)),
        ("uordblks", ctypes.c_size_t),  # in the heap
        *((f"after_{i}", ctypes.c_size_t) for i in range(2)),
    )
    hblkhd: int
    uordblks: int


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2


def in_use() -> int:
    gc.collect()
    info: Mallinfo2 = mallinfo2()
    return info.uordblks + info.hblkhd


def of_each(make: Callable[[], object], n: int = N) -> Figures:
    """Measure n objects that are kept, without the list of them."""
    kept: list[object] = [None] * n
    before = in_use()
    for i in range(n):
        kept[i] = make()
    return {"ops": n, "total": in_use() - before}


def of_each_in(make: Callable[[int], list[Any]]) -> Figures:
    """Measure N completions that one call returns."""
    before = in_use()
    kept = make(N)
    total = in_use() - before
    assert len(kept) == N
    return {"ops": N, "total": total - 8 * N}


async def of_each_task(wait: Callable[[], Awaitable[object]]) -> Figures:
    async def waiter() -> None:
        await wait()

    before = in_use()
    tasks = [asyncio.ensure_future(waiter()) for _ in range(N)]
    await asyncio.sleep(0)
    total = in_use() - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {"ops": N, "total": total - 8 * N}


async def of_each_connection(ctx: Context) -> Figures:
    """Measure both ends, without their queue pairs."""
    pd, cq = PD(ctx), CQ(ctx, 16)
    qps = [QP(pd, QPType.RC, send_cq=cq) for _ in range(2 * N + 2)]
    kept: list[object] = [None] * N

    async def connect(listener: cm.Listener) -> object:
        asking = asyncio.create_task(cm.connect(qps.pop(), *listener.local))
        accepted = await (await listener.get_request()).accept(qps.pop())
        return accepted, await asking

    async with cm.listen(os.environ["BENCH_HOST"], 0) as listener:
        first = await connect(listener)  # includes what the first one sets up
        before = in_use()
        for i in range(N):
            kept[i] = await connect(listener)
        total = in_use() - before
        del first
    return {"ops": N, "total": total}


async def of_each_opened(exposures: list[Any], into: Any) -> Figures:
    """Measure what both ends have of one that was got, here both in this process."""
    first, *others = exposures
    await cqnotify.memory.get(first, into)  # includes the connection
    before = in_use()
    for each in others:
        await cqnotify.memory.get(each, into)
    return {"ops": len(others), "total": in_use() - before}


def of_exposures() -> dict[str, Figures]:
    array, into = numpy.zeros(4096, numpy.uint8), numpy.zeros(4096, numpy.uint8)
    expose, from_dict = partial(cqnotify.memory.expose, array), cqnotify.memory.Descriptor.from_dict
    told = json.dumps(expose().to_dict())
    figures = {
        "Exposure": of_each(expose, MANY),
        "Descriptor": of_each(lambda: from_dict(json.loads(told)), MANY),
        "Exposure that was got": asyncio.run(of_each_opened([expose() for _ in range(N)], into)),
    }
    cqnotify.memory.close()
    return figures


def of_cqnotify() -> Round:
    end = Loopback()
    buffer = bytearray(4096)

    async def waits() -> Figures:
        async with AsyncCQ(end.cq) as acq:
            await of_each_task(acq.wait)  # includes what the first wait sets up once
            return await of_each_task(acq.wait)

    def run() -> dict[str, Figures]:
        end.fill(N)
        completions = of_each_in(end.cq.poll)
        waiting = asyncio.run(waits())
        with Context(DEVICE) as ctx:
            pd, channel = PD(ctx), CompletionChannel(ctx)
            cq = CQ(ctx, 16, channel=channel)
            return {
                "CQ": of_each(lambda: CQ(ctx, 16, channel=channel)),
                "QP": of_each(lambda: QP(pd, QPType.RC, send_cq=cq)),
                "MR": of_each(lambda: MR(pd, buffer)),
                "WorkCompletion": completions,
                "task that waits": waiting,
                "connection": asyncio.run(of_each_connection(ctx)),
                **of_exposures(),
            }

    return run


def pyverbs() -> Round:
    from pyverbs import cq, enums, mr, qp

    end = PyverbsLoopback()
    cap = qp.QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
    init = qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=end.cq, rcq=end.cq, cap=cap)

    def region() -> object:
        return mr.MR(end.pd, 4096, enums.IBV_ACCESS_LOCAL_WRITE, end.mr.buf)

    def run() -> dict[str, Figures]:
        end.fill(N)
        completions = of_each_in(lambda n: end.cq.poll(n)[1])
        return {
            "CQ": of_each(lambda: cq.CQ(end.ctx, 16, None, end.channel)),
            "QP": of_each(lambda: qp.QP(end.pd, init)),
            "MR": of_each(region),
            "WorkCompletion": completions,
        }

    return run


def ibverbs() -> Round:
    import ibverbs

    end = IbverbsLoopback()
    init = ibverbs.QPInitAttr(end.cq, end.cq, max_send_wr=16, max_recv_wr=16)

    def region() -> object:
        return end.pd.reg_mr(end.mr.addr, 4096, ibverbs.AccessFlags.LOCAL_WRITE)

    def run() -> dict[str, Figures]:
        end.fill(N)
        completions = of_each_in(end.cq.poll)
        return {
            "CQ": of_each(lambda: end.ctx.create_cq(16, end.channel)),
            "QP": of_each(lambda: end.pd.create_qp(init)),
            "MR": of_each(region),
            "WorkCompletion": completions,
        }

    return run


def bare_asyncio() -> Round:
    """Measure a task that waits for a future."""

    async def waits() -> Figures:
        return await of_each_task(asyncio.get_running_loop().create_future)

    return lambda: {"task that waits": asyncio.run(waits())}


BENCHMARK = Benchmark(
    title="Memory of one object",
    op="object",
    unit="bytes",
    subjects={
        "C": InC("memory"),
        "asyncio": bare_asyncio,
        "pyverbs": pyverbs,
        "ibverbs": ibverbs,
        "cqnotify": of_cqnotify,
    },
    limits=(
        Limit("cqnotify", case="CQ", over="ibverbs", at_most=2.4),
        Limit("cqnotify", case="QP", over="ibverbs", at_most=2.05),
        Limit("cqnotify", case="MR", over="ibverbs", at_most=3.8),
        Limit("cqnotify", case="WorkCompletion", over="ibverbs", at_most=0.85),
    ),
    env={"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
    seconds=35,
)
