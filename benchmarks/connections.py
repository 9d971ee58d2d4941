# SPDX-License-Identifier: MIT
"""Connections by rdma_cm: both ends of many in one process and one loop, on one event channel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from time import perf_counter_ns

from cqnotify import CQ, PD, QP, Context, QPType, cm

from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import DEVICE

N = 100
WINDOW = 32
PORT = 7474


class Ends:
    """Both ends of the connections; some tasks for each do what c/connections.c does."""

    def __init__(self, ctx: Context, n: int) -> None:
        self.pd, self.n = PD(ctx), n
        self.cq = CQ(ctx, 1024)
        self.clients: list[cm.Connection] = []
        self.servers: list[cm.Connection] = []

    def new_qp(self) -> QP:
        return QP(self.pd, QPType.RC, send_cq=self.cq)

    async def accept(self, listener: cm.Listener, turns: Iterator[int]) -> None:
        for _ in turns:
            request = await listener.get_request()
            self.servers.append(await request.accept(self.new_qp(), timeout=None))

    async def connect(self, host: str, turns: Iterator[int]) -> None:
        for _ in turns:
            self.clients.append(await cm.connect(self.new_qp(), host, PORT, timeout=None))

    async def connect_all(self, host: str) -> None:
        to_connect, to_accept = iter(range(self.n)), iter(range(self.n))
        async with cm.listen(host, PORT, backlog=WINDOW) as listener:
            await asyncio.gather(
                *(self.accept(listener, to_accept) for _ in range(WINDOW)),
                *(self.connect(host, to_connect) for _ in range(WINDOW)),
            )

    async def close(self, conn: cm.Connection) -> None:
        await conn.closed()
        await conn.aclose()
        conn.qp.close()

    async def disconnect(self, clients: Iterator[cm.Connection]) -> None:
        for conn in clients:
            await conn.disconnect()
            await self.close(conn)

    async def follow(self, servers: Iterator[cm.Connection]) -> None:
        for conn in servers:
            await self.close(conn)

    async def close_all(self) -> None:
        clients, servers = iter(self.clients), iter(self.servers)
        await asyncio.gather(
            *(self.follow(servers) for _ in range(WINDOW)),
            *(self.disconnect(clients) for _ in range(WINDOW)),
        )
        self.clients.clear()
        self.servers.clear()


async def measure(ctx: Context) -> dict[str, Figures]:
    ends = Ends(ctx, N)
    start = perf_counter_ns()
    await ends.connect_all(os.environ["BENCH_HOST"])
    connected = perf_counter_ns()
    await ends.close_all()
    end = perf_counter_ns()
    return {
        "connect": {"ops": N, "total": connected - start},
        "close": {"ops": N, "total": end - connected},
    }


def cqnotify() -> Round:
    ctx = Context(DEVICE)
    return lambda: asyncio.run(measure(ctx))


BENCHMARK = Benchmark(
    title="Connections by rdma_cm: to make one, and to close it, both ends",
    op="connection",
    subjects={"C": InC("connections", str(N)), "cqnotify": cqnotify},
    # Instructions of Python beside those of C. In seconds most is the kernel's, of both.
    limits=(
        Limit("cqnotify", case="connect", over="C", at_most=2.3),
        Limit("cqnotify", case="close", over="C", at_most=2.2),
    ),
)
