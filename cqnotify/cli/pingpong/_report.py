# SPDX-License-Identifier: MIT
"""The figures of a ping-pong: as JSON, as text for a terminal, and as a picture."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .._peer.percentiles import percentile
from .._plots import picture, scale
from .._terminal import columns, paint
from ._end import Plan

PER_MILLE: Final = {"min": 0, "p50": 500, "p90": 900, "p99": 990, "p99_9": 999, "max": 1000}
STEPS: Final = (1, 1.5, 2, 3, 5, 7)  # the borders of a histogram, in each power of ten
BARS: Final = 60  # of a histogram in a picture
WHAT: Final = "full round trip, from posting a message to polling its answer"


class Bucket(NamedTuple):
    """The number of latencies from `start` to below `end`, in microseconds."""

    start: float
    end: float
    samples: int


@dataclass(frozen=True)
class Report:
    """The figures of one end. Latencies are in nanoseconds.

    yields: whether it polled, and yielded the CPU whenever that found nothing.
    """

    plan: Plan
    device: str
    gid_index: int | None
    path_mtu: int | None
    local: list[dict[str, Any]]
    remote: list[dict[str, Any]]
    nanoseconds: int
    latencies: array[int]
    events: int
    wakeups: int
    spurious: int
    checked: int | None
    yields: bool = False

    @property
    def bytes(self) -> int:
        return 2 * self.plan.size * self.plan.iters

    @property
    def seconds(self) -> float:
        return self.nanoseconds / 1e9

    @property
    def mbit_per_second(self) -> float:
        return self.bytes * 8e3 / self.nanoseconds

    @property
    def usec_per_iter(self) -> float:
        return self.nanoseconds / 1e3 / self.plan.iters

    @property
    def events_per_iter(self) -> float:
        return self.events / self.plan.iters

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        plan = self.plan
        return {
            "type": plan.service,
            "role": "client" if plan.client else "server",
            "device": self.device,
            "port_num": plan.port_num,
            "gid_index": self.gid_index,
            "rdma_cm": plan.rdma_cm,
            "local": self.local,
            "remote": self.remote,
            "size": plan.size,
            "mtu": self.path_mtu,
            "rx_depth": plan.rx_depth,
            "num_qp": plan.num_qp,
            "iters": plan.iters,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "mbit_per_second": self.mbit_per_second,
            "usec_per_iter": self.usec_per_iter,
            "latency": {
                "what": WHAT,
                "unit": "us",
                "count": len(self.latencies),
                **percentiles(self.latencies),
            },
            "histogram": [bucket._asdict() for bucket in histogram(self.latencies)],
            "sleeps": plan.events,
            "yields": self.yields,
            "events": self.events,
            "events_per_iter": self.events_per_iter,
            "wakeups": self.wakeups,
            "spurious": self.spurious,
            "checked": self.checked,
        }

    def as_text(self) -> str:
        """Return the figures as text, including the lines that rdma-core's programs print."""
        plan = self.plan
        lines = [
            f"{plan.service} {'client' if plan.client else 'server'} on {self.device} port "
            f"{plan.port_num}: {plan.iters} messages of {plan.size} bytes each way",
            f"{self.bytes} bytes in {self.seconds:.2f} seconds = "
            f"{self.mbit_per_second:.2f} Mbit/sec",
            f"{plan.iters} iters in {self.seconds:.2f} seconds = "
            f"{self.usec_per_iter:.2f} usec/iter",
        ]
        if self.latencies:
            lines += ["", f"{WHAT}, in usec, {len(self.latencies)} times:"]
            lines += [*_percentile_lines(self), "", *_histogram_lines(self)]
        lines += ["", _event_line(self)]
        if self.checked is not None:
            lines.append(f"{self.checked} messages checked: every byte is right")
        return "\n".join(lines)


def percentiles(latencies: array[int]) -> dict[str, float | None]:
    """Return the percentiles in microseconds; each is one of the latencies."""
    ordered = sorted(latencies)
    if not ordered:
        return dict.fromkeys(PER_MILLE)
    return {name: percentile(ordered, part) / 1e3 for name, part in PER_MILLE.items()}


def histogram(latencies: array[int]) -> list[Bucket]:
    """Return a histogram with round borders, from the first filled bucket to the last."""
    if not latencies:
        return []
    borders = _borders(min(latencies), max(latencies))
    counts = [0] * (len(borders) - 1)
    at = 0
    for latency in sorted(latencies):
        while latency >= borders[at + 1]:
            at += 1
        counts[at] += 1
    pairs = zip(borders, borders[1:], counts, strict=False)
    return [Bucket(start / 1e3, end / 1e3, count) for start, end, count in pairs]


def _borders(least: int, most: int) -> list[float]:
    """Return round numbers, the first not above `least` and the last above `most`."""
    powers = range(len(str(most)) + 1)
    every = [0, *(step * 10**power for power in powers for step in STEPS)]
    low = max(border for border in every if border <= least)
    high = min(border for border in every if border > most)
    return [border for border in every if low <= border <= high]


# ---- for a terminal -------------------------------------------------------------------------


def _percentile_lines(report: Report) -> list[str]:
    found = percentiles(report.latencies)
    values = [f"{value:.1f}" for value in found.values()]
    width = max(9, *map(len, values)) + 1
    head = "".join(_shown(name).rjust(width) for name in found)
    return [paint(head, "bold"), "".join(value.rjust(width) for value in values)]


def _shown(name: str) -> str:
    """Return the name of a percentile as people write it; as a key of JSON it has no full stop."""
    return name.replace("_", ".")


def _histogram_lines(report: Report) -> list[str]:
    buckets = histogram(report.latencies)
    most = max(bucket.samples for bucket in buckets)
    starts = [f"{bucket.start:.9g}" for bucket in buckets]
    ends = [f"{bucket.end:.9g}" for bucket in buckets]
    width = max(map(len, ends))
    room = max(10, columns() - 2 * width - len(str(most)) - 9)
    mark = _mark()
    lines = []
    for start, end, bucket in zip(starts, ends, buckets, strict=True):
        bar = mark * math.ceil(bucket.samples / most * room)
        label = f"  {start.rjust(width)} - {end.rjust(width)}"
        lines.append(f"{label}  {bucket.samples:{len(str(most))}}  {paint(bar, 'cyan')}".rstrip())
    return lines


def _mark() -> str:
    """Return the character of the bars: a block, if the terminal's encoding has it."""
    try:
        "█".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"


def _event_line(report: Report) -> str:
    if not report.plan.events:
        how = "polled all the time"
        if report.yields:
            how = "polled, and yielded the only CPU in between"
        return f"{how}: no events, no wake-ups (use --events to sleep)"
    return (
        f"{report.events} events, {report.events_per_iter:.3f} per iteration; woken from sleep "
        f"{report.wakeups} times; {report.spurious} events were spurious"
    )


# ---- as a picture ---------------------------------------------------------------------------


def save_plot(report: Report, path: str) -> None:
    """Draw the histogram, and lines at the percentiles, into an SVG or PNG file."""
    plan = report.plan
    how = "sleeps" if plan.events else "polls"
    title = (
        f"{plan.service} ping-pong of {plan.iters} x {plan.size} bytes, "
        f"{'client' if plan.client else 'server'} on {report.device}: {how}; {WHAT}"
    )
    with picture(path, title, xlabel="usec", ylabel="messages") as axes:
        if not report.latencies:  # of a server's only message
            return
        borders = _fine_borders(report.latencies)
        values = [latency / 1e3 for latency in report.latencies]
        axes.hist(values, borders, edgecolor="white", linewidth=0.3, color="0.7")
        scale(axes, "x", borders)
        for number, (name, value) in enumerate(percentiles(report.latencies).items()):
            if name.startswith("p"):
                label = f"{_shown(name)[1:]} %: {value:,.1f} usec"
                axes.axvline(value, color=f"C{number}", linewidth=1.5, label=label)
        axes.legend()


def _fine_borders(latencies: array[int]) -> list[float]:
    """Return the borders of a histogram in microseconds, as a row with a constant ratio."""
    least, most = min(latencies) / 1e3, max(latencies) / 1e3
    return [least * (most / least) ** (i / BARS) for i in range(BARS + 1)]
