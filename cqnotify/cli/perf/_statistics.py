# SPDX-License-Identifier: MIT
"""Statistics of the times that were measured."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

from .._peer.percentiles import percentile

FIGURES: Final = ("t_min", "t_max", "t_typical", "t_avg", "t_stdev", "p99", "p99_9")
STRETCHES: Final = 500  # parts of a run among which the fastest stretch is sought


def latencies(nanoseconds: array[int], parts: int) -> dict[str, float]:
    """Return the figures in microseconds, by the names of FIGURES.

    nanoseconds: what was measured, at least once.
    parts: how many latencies each of these has: 2 for round trips, if a latency is one way.

    The typical latency is the median; the percentiles are latencies that were measured.
    """
    ordered = sorted(nanoseconds)
    unit = 1000 * parts
    n = len(ordered)
    average = sum(ordered) / n
    figures = (
        ordered[0],
        ordered[-1],
        (ordered[(n - 1) // 2] + ordered[n // 2]) / 2,
        average,
        math.sqrt(sum((one - average) ** 2 for one in ordered) / n),
        percentile(ordered, 990),
        percentile(ordered, 999),
    )
    return {name: value / unit for name, value in zip(FIGURES, figures, strict=True)}


def fastest(posted: Sequence[int], completed: Sequence[int], messages: Sequence[int]) -> float:
    """Return the messages per nanosecond in the fastest stretch of a run.

    posted, completed: when the batches were posted, and when they completed, both in order.
    messages: how many each batch has.

    A stretch begins when a batch is posted, and ends when that or a later one has completed. In a
    long run, several batches count as one.
    """
    step = -(-len(posted) // STRETCHES)
    begins = posted[::step]
    ends = [completed[min(at + step, len(completed)) - 1] for at in range(0, len(posted), step)]
    counts = [sum(messages[at : at + step]) for at in range(0, len(posted), step)]
    best = 0.0
    for first, begin in enumerate(begins):
        total = 0
        for count, end in zip(counts[first:], ends[first:], strict=True):
            total += count
            best = max(best, total / max(end - begin, 1))
    return best
