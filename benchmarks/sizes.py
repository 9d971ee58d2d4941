# SPDX-License-Identifier: MIT
"""A message of a stream, by its size: copied at both ends, or read by the receiver.

What is copied, by how many credits the receiver gives as well. Both ends are in one process and
loop, and the frame goes out of a numpy array and into another one.
"""

from __future__ import annotations

import asyncio
import os

from cqnotify.messages import ConnectionOptions

from .harness.plan import Benchmark, Figures, Limit, Round
from .messages import by_messages, stream

COUNT = 64
SIZES = (1_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
FEW = (1_000, 30_000)
EAGER = 1 << 17
LEAST = 512  # bytes: larger ones are read

COPIED = ConnectionOptions(eager=EAGER)
READ = ConnectionOptions(eager=LEAST)


def rounds(sizes: tuple[int, ...], options: ConnectionOptions) -> Round:
    async def measure() -> dict[str, Figures]:
        a, b = await by_messages(os.environ["BENCH_HOST"], options)
        figures = {f"{size:,} B": await stream(a, b, size, COUNT) for size in sizes}
        await asyncio.gather(a.close(), b.close())
        return figures

    return lambda: asyncio.run(measure())


def with_credits(credits: int) -> Round:
    return rounds(FEW, ConnectionOptions(credits=credits))


BENCHMARK = Benchmark(
    title="A message of a stream that is copied, or read by the receiver",
    op="message",
    subjects={
        "copied": lambda: rounds(SIZES, COPIED),
        "read": lambda: rounds(SIZES, READ),
        "copied, 16 credits": lambda: with_credits(16),
        "copied, 8 credits": lambda: with_credits(8),
        "copied, 4 credits": lambda: with_credits(4),
        "copied, 2 credits": lambda: with_credits(2),
    },
    limits=(Limit("copied", over="read", at_most=1.0),),
    seconds=60,
)
