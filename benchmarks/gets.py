# SPDX-License-Identifier: MIT
"""Memory that another process exposes, read into a given numpy array, beside messages.

The other process sleeps: it answers only to the first get of each descriptor. A message of the same
bytes is asked for by one of 64 bytes, which wakes the other process up. C reads by c/gets.c.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy

from cqnotify import cm, memory, messages
from cqnotify.aio import new_event_loop

from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

# Bytes, and how many.
CASES = {"4 KiB": (4096, 500), "64 KiB": (1 << 16, 64), "16 MiB": (1 << 24, 2)}
FIRST = 200  # descriptors of 4 KiB that are got once, in each of up to 5 rounds
REQUEST = struct.Struct("<Q56x")

NewLoop = Callable[[], asyncio.AbstractEventLoop]


# ---- the other process ----------------------------------------------------------------------


class Other(NamedTuple):
    """The other process, which ends with this one, and what it has printed."""

    child: subprocess.Popen[bytes]
    told: Any

    @classmethod
    def start(cls, what: str) -> Other:
        command = [sys.executable, "-m", "benchmarks.gets", what]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        return cls(child, json.loads(child.stdout.readline()))


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


def expose() -> None:
    prepare()
    exposed = {
        name: [memory.expose(numpy.zeros(size, numpy.uint8))] for name, (size, _) in CASES.items()
    }
    small = numpy.zeros(CASES["4 KiB"][0], numpy.uint8)
    exposed["first"] = [memory.expose(small) for _ in range(5 * FIRST)]
    memory.blocking.get(
        exposed["first"][0]
    )  # imports what answering takes: waits for no disk later
    tell({name: [each.to_dict() for each in all] for name, all in exposed.items()})
    sys.stdin.read()


async def answer() -> None:
    arrays = {size: numpy.zeros(size, numpy.uint8) for size, _ in CASES.values()}
    async with messages.listen(os.environ["BENCH_HOST"], 0) as listener:
        tell(listener.local[1])
        conn = await listener.accept()
    with suppress(messages.ConnectionLostError):  # it ends with the process at the other end
        async for (request,) in conn:
            (size,) = REQUEST.unpack(request)
            await conn.send(arrays[size])


def prepare() -> None:
    """Load all that connecting takes. A wait for the disk makes the emulated clock leap, perhaps
    beyond a deadline."""
    asyncio.run(cm.resolve(os.environ["BENCH_HOST"], timeout=None))


# ---- the subjects ---------------------------------------------------------------------------


class Exposed:
    """Descriptors of what the other process exposes."""

    def __init__(self) -> None:
        prepare()
        self._other = Other.start("expose")
        told = {
            name: map(memory.Descriptor.from_dict, all) for name, all in self._other.told.items()
        }
        self.first = told.pop("first")
        self.by_case = {name: next(each) for name, each in told.items()}


async def gets(get: Callable[[str, Any], Awaitable[object]]) -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    for name, (size, count) in CASES.items():
        into = numpy.zeros(size, numpy.uint8)
        await get(name, into)  # page tables, registrations
        start = clock()
        for _ in range(count):
            await get(name, into)
        figures[name] = {"ops": count, "total": clock() - start}
    return figures


def awaits(new_loop: NewLoop) -> Round:
    exposed, loop = Exposed(), new_loop()

    async def measure() -> dict[str, Figures]:
        figures = await gets(lambda name, into: memory.get(exposed.by_case[name], into))
        into = numpy.zeros(CASES["4 KiB"][0], numpy.uint8)
        descriptors = list(islice(exposed.first, FIRST))
        assert len(descriptors) == FIRST
        start = clock()
        for descriptor in descriptors:
            await memory.get(descriptor, into)
        return {**figures, "4 KiB, first": {"ops": FIRST, "total": clock() - start}}

    return lambda: loop.run_until_complete(measure())


def blocks() -> Round:
    exposed, get = Exposed(), memory.blocking.get

    def measure() -> dict[str, Figures]:
        figures: dict[str, Figures] = {}
        for name, (size, count) in CASES.items():
            into, descriptor = numpy.zeros(size, numpy.uint8), exposed.by_case[name]
            get(descriptor, into)
            start = clock()
            for _ in range(count):
                get(descriptor, into)
            figures[name] = {"ops": count, "total": clock() - start}
        return figures

    return measure


def asks() -> Round:
    prepare()
    other = Other.start("answer")
    loop = asyncio.new_event_loop()
    conn = loop.run_until_complete(
        messages.connect(os.environ["BENCH_HOST"], other.told, timeout=None)
    )

    async def ask(_: str, into: Any) -> None:
        await conn.send(REQUEST.pack(into.nbytes))
        await conn.recv(into=[into])

    return lambda: loop.run_until_complete(gets(ask))


def uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


BENCHMARK = Benchmark(
    title="Reading exposed memory into a numpy array, beside C and messages",
    op="get",
    subjects={
        "C": InC("gets", "events"),
        "C, polls first": InC("gets", "polls"),
        "C, pieces": InC("gets", "pieces"),
        "messages": asks,
        "cqnotify": lambda: awaits(asyncio.new_event_loop),
        "cqnotify new_event_loop": lambda: awaits(new_event_loop),
        "cqnotify uvloop": lambda: awaits(uvloop),
        "cqnotify blocking": blocks,
    },
    limits=(
        Limit("cqnotify", case="4 KiB", over="C", at_most=1.6),
        Limit("cqnotify", case="16 MiB", over="C", at_most=1.1),
    ),
    seconds=75,
)

if __name__ == "__main__":
    if sys.argv[1] == "expose":
        expose()
    else:
        prepare()
        asyncio.run(answer())
