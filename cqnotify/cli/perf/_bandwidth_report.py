# SPDX-License-Identifier: MIT
"""The figures of `cqnotify bandwidth`: as a table, as JSON, and as a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._plots import draw_bars, picture, scale_sizes
from .._terminal import paint
from ._bandwidth import Bandwidth, Rate
from ._description import cpu_percent, describe, title
from ._end import PerfEnd


class Unit(NamedTuple):
    """A unit of bandwidth, and the bytes per second that it is."""

    name: str
    bytes: float


MIB, GBIT = Unit("MiB/sec", 2**20), Unit("Gb/sec", 1e9 / 8)


def total(done: Bandwidth) -> Rate:
    """Return the sum of both directions."""
    rates = [rate for rate in (done.sent, done.received) if rate is not None]
    lost = [rate.lost for rate in rates if rate.lost is not None]
    return Rate(
        sum(rate.messages for rate in rates),
        sum(rate.average for rate in rates),
        sum(rate.peak for rate in rates),
        sum(lost) if len(lost) == len(rates) else None,
    )


def head(end: PerfEnd, unit: Unit) -> str:
    """Return the lines above the table."""
    columns = (
        f" #bytes     #iterations    BW peak[{unit.name}]    BW average[{unit.name}]   "
        "MsgRate[Mpps]   CPU[%]   peer's CPU[%]"
    ) + ("   lost" if end.plan.loses else "")
    return f"{title(end)}\n{paint(columns, 'bold')}"


def row(done: Bandwidth, unit: Unit, loses: bool) -> str:
    """Return the line of a size, in the columns of perftest and two more, or three."""
    rate = total(done)
    peak, average = (done.size * each / unit.bytes for each in (rate.peak, rate.average))
    wide = len(unit.name)
    ours, theirs = map(cpu_percent, (done.ours, done.theirs))
    lost = f"{'-' if rate.lost is None else rate.lost:>7}" if loses else ""
    return (
        f" {done.size:<11}{rate.messages:<12}{peak:{wide + 12}.2f}{average:{wide + 15}.2f}"
        f"{rate.average / 1e6:16.6f}{ours:>9}{theirs:>16}{lost}"
    )


def to_dict(end: PerfEnd, done: list[Bandwidth]) -> dict[str, Any]:
    """Return what `--json` prints."""
    plan = end.plan
    return {
        **describe(end),
        "tx_depth": plan.tx_depth,
        "rx_depth": plan.rx_depth,
        "bidirectional": plan.bidirectional,
        "results": [_to_dict(one) for one in done],
    }


def _to_dict(done: Bandwidth) -> dict[str, Any]:
    return {
        "size": done.size,
        **_rate(total(done), done.size),
        "sent": done.sent and _rate(done.sent, done.size),
        "received": done.received and _rate(done.received, done.size),
        "local": done.ours,
        "remote": done.theirs,
    }


def _rate(rate: Rate, size: int) -> dict[str, Any]:
    return {
        "iterations": rate.messages,
        "lost": rate.lost,
        "messages_per_second": rate.average,
        "bytes_per_second": rate.average * size,
        "peak_bytes_per_second": rate.peak * size,
    }


def save_plot(end: PerfEnd, done: list[Bandwidth], path: str, unit: Unit = MIB) -> None:
    """Draw the bandwidths into an SVG or PNG file: of all sizes, or as bars those of one."""
    if len(done) == 1:
        (one,) = done
        heading = f"{title(end)}; {total(one).messages} messages of {one.size} bytes"
        with picture(path, heading, xlabel=unit.name) as axes:
            _draw_bars(axes, one, unit)
        return
    with picture(path, title(end), xlabel="bytes", ylabel=unit.name) as axes:
        sizes = [one.size for one in done]
        for name in ("peak", "average"):
            values = [getattr(total(one), name) * one.size / unit.bytes for one in done]
            axes.plot(sizes, values, marker=".", label=name)
        scale_sizes(axes, sizes)
        axes.legend()


def _draw_bars(axes: Any, one: Bandwidth, unit: Unit) -> None:
    rates = {"": total(one)}
    if one.sent and one.received:
        rates |= {"sent: ": one.sent, "received: ": one.received}
    values = {
        f"{which}{name}": getattr(rate, name) * one.size / unit.bytes
        for which, rate in rates.items()
        for name in ("average", "peak")
    }
    draw_bars(axes, values)
