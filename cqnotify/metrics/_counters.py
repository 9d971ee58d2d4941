# SPDX-License-Identifier: MIT
"""Snapshots of what the core counts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from operator import add, sub
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .. import _core

if TYPE_CHECKING:
    from typing import Self

BOUNDS: Final[tuple[float, ...]] = (0, *(2**i for i in range(38)), math.inf)
"""The largest value of each bucket of a Histogram: 0, 1, 2, 4, 8 and so on, and infinity."""


@dataclass(frozen=True)
class Histogram:
    """How many values were counted in each bucket.

    sum: the sum of all values.
    buckets: how many values were at most BOUNDS[i], and larger than the bound before.
    """

    sum: int = 0
    buckets: tuple[int, ...] = (0,) * len(BOUNDS)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.buckets)

    @property
    def mean(self) -> float:
        """Their average; nan if there is none."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Return the bound that this share of the values does not exceed; nan if there is no value.

        q: from 0 to 1; 0.5 is the median. The exact value is more than half of what is returned.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q}: it must be 0 to 1")
        count = self.count
        for bound, up_to in zip(BOUNDS, accumulate(self.buckets), strict=True):
            if count and up_to >= max(q * count, 1):
                return bound
        return math.nan

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.sum + other.sum, _each(add, self.buckets, other.buckets))

    def __sub__(self, other: Histogram) -> Histogram:
        return Histogram(self.sum - other.sum, _each(sub, self.buckets, other.buckets))


def _each(operator: Any, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(operator, a, b))


@dataclass(frozen=True)
class Counters:
    """The counters of some CQs, those that are closed included. Only `open` ever falls.

    open: how many of the CQs are open.
    arms: how often they were armed.
    events: completion events that were read from their channels.
    acked: events that were acknowledged.
    spurious: events after which the first poll found no completion.
    polls: how often the program, or an AsyncCQ, polled for completions.
    completions: completions that were taken from the device.
    thread_wakeups: how often a thread slept in get_event(), and was woken by an event.
    task_wakeups: how often a task slept in an AsyncCQ, and was woken with what it waited for.
    completions_per_event: how many completions were taken from each event to the next.
    thread_latency: ns from the end of a thread's sleep until it has the GIL, and the event.
    task_latency: ns from the reading of an event until the task that it wakes continues.
    """

    open: int = 0
    arms: int = 0
    events: int = 0
    acked: int = 0
    spurious: int = 0
    polls: int = 0
    completions: int = 0
    thread_wakeups: int = 0
    task_wakeups: int = 0
    completions_per_event: Histogram = Histogram()
    thread_latency: Histogram = Histogram()
    task_latency: Histogram = Histogram()

    @property
    def unacked(self) -> int:
        """Events that were read, and not acknowledged yet."""
        return self.events - self.acked

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as a dict of numbers, lists and dicts, for JSON for example."""
        return _as_dict(self)

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{name: a + getattr(other, name) for name, a in _values(self)})

    def __sub__(self, other: Counters) -> Counters:
        less = {name: a - getattr(other, name) for name, a in _values(self)}
        return Counters(**{**less, "open": self.open})


@dataclass(frozen=True)
class ChannelCounters:
    """The counters of the channels of a context, those that are closed included.

    thread_wakeups: how often a thread slept in get_event(), and was woken by an event.
    timeouts: how often get_event() ended at its timeout, without an event.
    events_per_wake: how many events an event loop's callback has read, each time it was called.
    """

    thread_wakeups: int = 0
    timeouts: int = 0
    events_per_wake: Histogram = Histogram()

    @property
    def loop_wakeups(self) -> int:
        """How often an event loop has called its callback."""
        return self.events_per_wake.count

    @property
    def spurious(self) -> int:
        """How often that found no event: another reader had it, or its CQ was closed."""
        return self.events_per_wake.buckets[0]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as a dict of numbers and dicts, for JSON for example."""
        return _as_dict(self)

    def __add__(self, other: ChannelCounters) -> ChannelCounters:
        return ChannelCounters(**{name: a + getattr(other, name) for name, a in _values(self)})

    def __sub__(self, other: ChannelCounters) -> ChannelCounters:
        return ChannelCounters(**{name: a - getattr(other, name) for name, a in _values(self)})


def _values(counters: Counters | ChannelCounters) -> list[tuple[str, Any]]:
    return [(field.name, getattr(counters, field.name)) for field in fields(counters)]


def _shown(counters: Counters | ChannelCounters) -> list[str]:
    """Return those that are not 0, each with its name; of a histogram its mean and two bounds."""
    shown: list[str] = []
    for name, value in _values(counters):
        if not isinstance(value, Histogram):
            shown += [f"{name} {value}"] if value else []
        elif value.count:
            median, worst = value.quantile(0.5), value.quantile(1)
            shown.append(f"{name} {value.mean:.1f} (median <= {median:g}, all <= {worst:g})")
    return shown


def _as_dict(counters: Counters | ChannelCounters) -> dict[str, Any]:
    return {
        name: {"sum": value.sum, "buckets": list(value.buckets)}
        if isinstance(value, Histogram)
        else value
        for name, value in _values(counters)
    }


@dataclass(frozen=True)
class Snapshot:
    """The counters of the CQs and channels of a context at one instant.

    The difference of two snapshots of one context, `later - earlier`, tells what happened in
    between; its `open` are those of the later one.

    device: the name of the device.
    seconds: when it was taken, by time.monotonic(); of a difference, the time in between.
    cqs: the counters by the names of the CQs; those of CQs without a name are at "".
    channels: the counters of all its channels together.
    """

    device: str
    seconds: float
    cqs: Mapping[str, Counters]
    channels: ChannelCounters = ChannelCounters()

    @property
    def total(self) -> Counters:
        """The counters of all CQs."""
        return sum(self.cqs.values(), Counters())

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as a dict of numbers, strings, lists and dicts, for JSON for example."""
        cqs = {name: counters.as_dict() for name, counters in self.cqs.items()}
        return {
            "device": self.device,
            "seconds": self.seconds,
            "cqs": cqs,
            "channels": self.channels.as_dict(),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping that can't be written to pickles as little as it copies: a dict goes instead.
        return _snapshot_of, (self.device, self.seconds, dict(self.cqs), self.channels)

    def __str__(self) -> str:
        """Return the counters as lines of text, without those that are 0."""
        rows = {f"CQs {name!r}" if name else "CQs": _shown(c) for name, c in self.cqs.items()}
        rows["channels"] = _shown(self.channels)
        lines = [f"  {title}: {', '.join(row) or 'nothing'}" for title, row in rows.items()]
        return "\n".join([f"{self.device} at {self.seconds:.3f} s", *lines])

    def __sub__(self, earlier: Self) -> Snapshot:
        if self.device != earlier.device or earlier.cqs.keys() - self.cqs.keys():
            raise ValueError("these are not a later and an earlier snapshot of one context")
        cqs = {name: c - earlier.cqs.get(name, Counters()) for name, c in self.cqs.items()}
        return _snapshot_of(
            self.device,
            self.seconds - earlier.seconds,
            cqs,
            self.channels - earlier.channels,
        )


def _snapshot_of(
    device: str, seconds: float, cqs: dict[str, Counters], channels: ChannelCounters
) -> Snapshot:
    return Snapshot(device, seconds, MappingProxyType(cqs), channels)


# The rows of the core: single numbers in this order, and then the histograms.
_NUMBERS = (
    *("events", "acked", "arms", "polls", "", "spurious"),
    *("completions", "thread_wakeups", "task_wakeups"),
)
_HISTOGRAMS = ("completions_per_event", "thread_latency", "task_latency")


def _counters_of(row: Sequence[int], is_open: int) -> Counters:
    values: dict[str, Any] = dict(zip(_NUMBERS, row, strict=False))
    del values[""]  # those that were handed out
    for i, name in enumerate(_HISTOGRAMS):
        total, *buckets = row[len(_NUMBERS) + i * (len(BOUNDS) + 1) :][: len(BOUNDS) + 1]
        values[name] = Histogram(total, tuple(buckets))
    return Counters(is_open, **values)


def counters(cq: _core.CQ) -> Counters:
    """Return what one CQ has counted since it was created; also of a closed one.

    cq: the CQ.
    """
    if not isinstance(cq, _core.CQ):
        raise TypeError(f"cq must be a CQ, not {type(cq).__name__}")
    return _counters_of(cq._counters(), not cq.closed)


def snapshot(context: _core.Context) -> Snapshot:
    """Return what all CQs and channels of a context have counted, also those that are closed.

    context: the Context; it may be closed, too.

    Any thread may call this. It takes nothing away, and asks nothing of the device.
    """
    if not isinstance(context, _core.Context):
        raise TypeError(f"context must be a Context, not {type(context).__name__}")
    device, rows, row = context._counters()
    cqs = {name: _counters_of(row, is_open) for name, is_open, row in rows}
    timeouts, thread_wakeups, total, *buckets = row
    channels = ChannelCounters(thread_wakeups, timeouts, Histogram(total, tuple(buckets)))
    return _snapshot_of(device, time.monotonic(), cqs, channels)
