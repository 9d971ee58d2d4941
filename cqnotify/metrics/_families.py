# SPDX-License-Identifier: MIT
"""What exporters export: the metrics, in the names of Prometheus, and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from ._contexts import Totals
from ._counters import BOUNDS, ChannelCounters, Counters, Histogram

Value = int | Histogram


class Family(NamedTuple):
    """A metric: its name, what it means, and its value, for each kind of waiter where it has any.

    bounds: the buckets of a histogram that are exported, as indices of BOUNDS; and infinity.
    of: what counts it.
    divisor: how much of what it has counted is one in the unit that is exported.
    """

    kind: str
    name: str
    text: str
    read: Callable[[Any], Mapping[str, Value]]
    bounds: range = range(0)
    divisor: float = 1
    of: type[Counters] | type[ChannelCounters] = Counters


def _one(name: str) -> Callable[[Any], Mapping[str, Value]]:
    return lambda counters: {"": getattr(counters, name)}


def _latencies(counters: Counters) -> Mapping[str, Value]:
    both = {"thread": counters.thread_latency, "task": counters.task_latency}
    return {waiter: latency for waiter, latency in both.items() if latency.count}


FAMILIES = (
    Family("counter", "arms", "How often CQs were armed", _one("arms")),
    Family("counter", "events", "Completion events that were read", _one("events")),
    Family("counter", "acked_events", "Events that were acknowledged", _one("acked")),
    Family("counter", "spurious_events", "Events that found no completion", _one("spurious")),
    Family("counter", "polls", "How often CQs were looked at", _one("polls")),
    Family("counter", "completions", "Completions taken from the device", _one("completions")),
    Family(
        "counter",
        "wakeups",
        "Threads and tasks that slept and were woken",
        lambda counters: {"thread": counters.thread_wakeups, "task": counters.task_wakeups},
    ),
    Family("gauge", "unacked_events", "Events that are not acknowledged", _one("unacked")),
    Family("gauge", "open_cqs", "CQs that are open", _one("open")),
    Family(
        "histogram",
        "completions_per_event",
        "Completions taken from one event to the next",
        _one("completions_per_event"),
        bounds=range(14),  # to 4096
    ),
    Family(
        "histogram",
        "wake_latency_seconds",
        "Time from the end of a thread's sleep, or the reading of an event, until the waiter runs",
        _latencies,
        bounds=range(11, 36),  # from 1 us to 17 s
        divisor=1e9,
    ),
    Family(
        "counter",
        "channel_wakeups",
        "Threads in get_event() and callbacks of event loops that were woken",
        lambda counters: {"thread": counters.thread_wakeups, "loop": counters.loop_wakeups},
        of=ChannelCounters,
    ),
    Family(
        "counter",
        "channel_timeouts",
        "Waits for an event that timed out",
        _one("timeouts"),
        of=ChannelCounters,
    ),
    Family(
        "counter",
        "channel_spurious_wakeups",
        "Callbacks of event loops that found no event",
        _one("spurious"),
        of=ChannelCounters,
    ),
    Family(
        "histogram",
        "channel_events_per_wake",
        "Events that a callback of an event loop has read",
        _one("events_per_wake"),
        bounds=range(7),  # to 32
        of=ChannelCounters,
    ),
)


def samples(family: Family, totals: Totals) -> Iterator[tuple[dict[str, str], Value]]:
    """The labels and the values of a metric."""
    for (device, name), counters in totals.items():
        if not isinstance(counters, family.of):
            continue
        for waiter, value in family.read(counters).items():
            labels = {"device": device} if name is None else {"device": device, "cq": name}
            yield (labels | {"waiter": waiter} if waiter else labels), value


def up_to(family: Family, histogram: Histogram) -> Iterator[tuple[str, int]]:
    """For each bound, as Prometheus writes it, the number of values that do not exceed it."""
    counts = list(accumulate(histogram.buckets))
    for i in family.bounds:
        yield repr(float(BOUNDS[i] / family.divisor)), counts[i]
    yield "+Inf", counts[-1]
