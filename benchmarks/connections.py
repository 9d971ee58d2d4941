# SPDX-License-Identifier: MIT
"""Connections by rdma_cm: both ends of many in one process and one loop, on one event channel."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Iterator
from time import perf_counter_ns

from cqnotify import CQ, PD, QP, AccessFlags, Context, QPType, cm
from cqnotify._core import CMID, CMChannel
from cqnotify.cm import CMEventType
from cqnotify.cm._errors import Event
from cqnotify.cm._link import Options

from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import DEVICE

N = 1000
KEEPALIVE, TIMEOUT = 60.0, 60.0  # seconds, which no round reaches
WINDOW = 32
PORT = 7474


class Connections:
    """Both ends of the connections; some tasks for each do what c/connections.c does."""

    def __init__(self, ctx: Context, n: int, *, watched: bool) -> None:
        self.pd, self.n = PD(ctx), n
        self.cq = CQ(ctx, 1024)
        self.keepalive = KEEPALIVE if watched else None
        self.timeout = TIMEOUT if watched else None
        self.clients: list[cm.Connection] = []
        self.servers: list[cm.Connection] = []

    def new_qp(self) -> QP:
        return QP(self.pd, QPType.RC, send_cq=self.cq)

    async def accept(self, listener: cm.Listener, turns: Iterator[int]) -> None:
        for _ in turns:
            request = await listener.get_request()
            self.servers.append(
                await request.accept(self.new_qp(), keepalive=self.keepalive, timeout=self.timeout)
            )

    async def connect(self, host: str, turns: Iterator[int]) -> None:
        for _ in turns:
            self.clients.append(
                await cm.connect(
                    self.new_qp(), host, PORT, keepalive=self.keepalive, timeout=self.timeout
                )
            )

    async def connect_all(self, host: str) -> None:
        to_connect, to_accept = iter(range(self.n)), iter(range(self.n))
        async with cm.listen(host, PORT, backlog=WINDOW) as listener:
            await asyncio.gather(
                *(self.accept(listener, to_accept) for _ in range(WINDOW)),
                *(self.connect(host, to_connect) for _ in range(WINDOW)),
            )

    async def close(self, conn: cm.Connection) -> None:
        await conn.wait_closed()
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


class Core:
    """The same by the calls of the core alone: no tasks, no event loop, no deadlines."""

    def __init__(self, ctx: Context, n: int) -> None:
        self.pd, self.cq, self.n = PD(ctx), CQ(ctx, 1024), n
        self.channel = CMChannel()
        self.poller = select.poll()
        self.poller.register(self.channel.fileno(), select.POLLIN)
        self.clients: list[CMID] = []
        self.servers: list[CMID] = []

    def take_qp(self, cmid: CMID) -> None:
        cmid.bind_qp(QP(self.pd, QPType.RC, send_cq=self.cq))
        cmid.prepare(Options(access=AccessFlags.REMOTE_WRITE))

    def next_event(self) -> Event:
        while not (raw := self.channel.read_event()):
            if raw is None:
                self.poller.poll()
        return Event(*raw)

    def ask(self, host: str) -> None:
        cmid = CMID(self.channel)
        self.take_qp(cmid)
        cmid.resolve_addr(None, (host, PORT), 4000, "ESTABLISHED")
        self.clients.append(cmid)

    def connect_all(self, host: str) -> None:
        listener = CMID(self.channel)
        listener.bind_addr((host, PORT))
        listener.listen(1024)
        ended = 0
        while ended < 2 * self.n:
            while len(self.clients) < min(self.n, ended // 2 + WINDOW):
                self.ask(host)
            event = self.next_event()
            if event.request is not None:
                self.take_qp(event.request)
                event.request.accept()
                self.servers.append(event.request)
            else:
                ended += 1
        listener.close()

    def close_all(self) -> None:
        for cmid in self.clients:
            hang_up(cmid)
        servers, left = set(self.servers), 2 * self.n
        while left > 0:
            event = self.next_event()
            if event.event == CMEventType.DISCONNECTED:
                left -= 1
                if event.id in servers:
                    hang_up(event.id)
                close(event.id)
        self.channel.close()


def hang_up(cmid: CMID) -> None:
    assert cmid.qp is not None
    cmid.qp._fail()
    cmid.disconnect()


def close(cmid: CMID) -> None:
    qp = cmid.qp
    assert qp is not None
    cmid.close()
    qp.close()


def figures(start: int, connected: int, end: int) -> dict[str, Figures]:
    return {
        "connect": {"ops": N, "total": connected - start},
        "close": {"ops": N, "total": end - connected},
    }


def measure_core(ctx: Context) -> dict[str, Figures]:
    ends = Core(ctx, N)
    start = perf_counter_ns()
    ends.connect_all(os.environ["BENCH_HOST"])
    connected = perf_counter_ns()
    ends.close_all()
    return figures(start, connected, perf_counter_ns())


async def measure(ctx: Context, watched: bool) -> dict[str, Figures]:
    ends = Connections(ctx, N, watched=watched)
    start = perf_counter_ns()
    await ends.connect_all(os.environ["BENCH_HOST"])
    connected = perf_counter_ns()
    await ends.close_all()
    return figures(start, connected, perf_counter_ns())


def cqnotify(*, watched: bool) -> Round:
    ctx = Context(DEVICE)
    return lambda: asyncio.run(measure(ctx, watched))


def core() -> Round:
    ctx = Context(DEVICE)
    return lambda: measure_core(ctx)


BENCHMARK = Benchmark(
    title="Connections by rdma_cm: to make one, and to close it, both ends",
    op="connection",
    subjects={
        "C": InC("connections", str(N)),
        "core": core,
        "cqnotify": lambda: cqnotify(watched=False),
        "cqnotify, keepalive and timeout": lambda: cqnotify(watched=True),
    },
    # Instructions of Python beside those of C. In seconds most is the kernel's, of both.
    limits=(
        Limit("cqnotify", case="connect", over="C", at_most=1.35),
        Limit("cqnotify", case="close", over="C", at_most=1.3),
        Limit("cqnotify, keepalive and timeout", case="connect", over="C", at_most=1.85),
        Limit("cqnotify, keepalive and timeout", case="close", over="C", at_most=1.35),
    ),
    seconds=130,
)
