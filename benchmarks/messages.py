# SPDX-License-Identifier: MIT
"""Messages beside asyncio's TCP streams over the same interface: both ends in one process and loop.

A round trip of small ones, and streams of larger ones, which are received into given memory and
sent out of a numpy array; TCP copies them into the kernel and out of it. C does the same by
c/messages.c, with an end in each of two processes.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any, Protocol

import numpy

from cqnotify import messages

from .harness.plan import Benchmark, Figures, InC, Limit, Round

SMALL = 64
TRIPS = 200
# Bytes, and how many.
STREAMS = {"64 B": (64, 512), "64 KiB": (1 << 16, 64), "16 MiB": (1 << 24, 2)}

LENGTH = struct.Struct("<Q")


class Transport(Protocol):
    """One end of either kind of connection."""

    async def send(self, data: Any) -> None: ...
    async def recv(self, into: Any) -> None: ...
    async def close(self) -> None: ...


class Messages:
    def __init__(self, conn: messages.Connection) -> None:
        self._conn = conn

    async def send(self, data: Any) -> None:
        await self._conn.send(data)

    async def recv(self, into: Any) -> None:
        await self._conn.recv(into=[into])

    async def close(self) -> None:
        await self._conn.aclose()


class Stream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: Any) -> None:
        self._writer.write(LENGTH.pack(len(data)))
        self._writer.write(memoryview(data))
        await self._writer.drain()

    async def recv(self, into: Any) -> None:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        memoryview(into)[:length] = await self._reader.readexactly(length)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


Pair = tuple[Transport, Transport]


async def by_messages(host: str, options: messages.ConnectionOptions | None = None) -> Pair:
    async with messages.listen(host, 0, options=options) as listener:
        client = await messages.connect(*listener.local, options=options)
        return Messages(client), Messages(await listener.accept())


async def by_tcp(host: str) -> Pair:
    accepted: asyncio.Queue[Stream] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put(Stream(reader, writer))

    server = await asyncio.start_server(serve, host, 0, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    client = Stream(*await asyncio.open_connection(host, port, limit=1 << 20))
    pair = client, await accepted.get()
    server.close()
    return pair


async def round_trips(a: Transport, b: Transport) -> Figures:
    async def answer() -> None:
        target = bytearray(SMALL)
        for _ in range(TRIPS):
            await b.recv(target)
            await b.send(target)

    answering = asyncio.create_task(answer())
    data, target = bytes(SMALL), bytearray(SMALL)
    start = perf_counter_ns()
    for _ in range(TRIPS):
        await a.send(data)
        await a.recv(target)
    total = perf_counter_ns() - start
    await answering
    return {"ops": TRIPS, "total": total}


async def stream(a: Transport, b: Transport, size: int, count: int) -> Figures:
    data = numpy.zeros(size, numpy.uint8)
    target = numpy.zeros(size, numpy.uint8)

    async def receive(n: int) -> None:
        for _ in range(n):
            await b.recv(target)

    async def send(n: int) -> None:
        for _ in range(n):
            await a.send(data)

    await asyncio.gather(send(1), receive(1))  # page tables, registrations
    start = perf_counter_ns()
    await asyncio.gather(send(count), receive(count))
    return {"ops": count, "total": perf_counter_ns() - start}


async def measure(connect: Callable[[str], Awaitable[Pair]]) -> dict[str, Figures]:
    a, b = await connect(os.environ["BENCH_HOST"])
    figures = {"64 B round trip": await round_trips(a, b)}
    for name, (size, count) in STREAMS.items():
        figures[name] = await stream(a, b, size, count)
    await asyncio.gather(a.close(), b.close())
    return figures


def subject(connect: Callable[[str], Awaitable[Pair]], uvloop: bool = False) -> Callable[[], Round]:
    def start() -> Round:
        def run() -> dict[str, Figures]:
            if not uvloop:
                return asyncio.run(measure(connect))
            import uvloop as loops

            loop = loops.new_event_loop()
            try:
                return loop.run_until_complete(measure(connect))
            finally:
                loop.close()

        return run

    return start


BENCHMARK = Benchmark(
    title="Messages beside C and TCP streams of asyncio: a round trip of 64 bytes, and streams",
    op="message",
    subjects={
        "C": InC("messages", "verbs"),
        "C, READs": InC("messages", "reads"),
        "C, rsockets": InC("messages", "rsockets"),
        "TCP": subject(by_tcp),
        "TCP, uvloop": subject(by_tcp, uvloop=True),
        "cqnotify": subject(by_messages),
        "cqnotify, uvloop": subject(by_messages, uvloop=True),
    },
    # What C takes for small ones differs between boots, in the stream by a fifth. So these have a
    # limit of their own, too.
    limits=(
        Limit("cqnotify", case="64 B round trip", at_most=80_000),
        Limit("cqnotify", case="64 B", at_most=26_300),
        Limit("cqnotify", case="64 B round trip", over="C", at_most=1.85),
        Limit("cqnotify, uvloop", case="64 B round trip", over="C", at_most=1.82),
        Limit("cqnotify", case="64 B", over="C", at_most=1.13),
        Limit("cqnotify", case="64 B", over="TCP, uvloop", at_most=0.92),
        Limit("cqnotify", case="64 KiB", over="C", at_most=1.15),
        Limit("cqnotify", case="16 MiB", over="C", at_most=1.00),
        Limit("cqnotify", case="16 MiB", over="C, READs", at_most=1.03),
    ),
    seconds=75,
)
