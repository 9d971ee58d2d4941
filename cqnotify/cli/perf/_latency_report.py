# SPDX-License-Identifier: MIT
"""The figures of `cqnotify latency`: as a table, as JSON, and as a picture."""

from __future__ import annotations

from typing import Any, Final

from .._plots import draw_bars, picture, scale, scale_sizes
from .._terminal import paint
from ._description import cpu_percent, describe, title
from ._end import PerfEnd
from ._latency import Latency, parts_of
from ._statistics import FIGURES

HEAD: Final = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]   CPU[%]   peer's CPU[%]"
)
MARKS: Final = {
    "t_min": "shortest",
    "t_typical": "median",
    "p99": "99 %",
    "p99_9": "99.9 %",
    "t_max": "longest",
}
WIDTHS: Final = (15, 15, 17, 15, 17, 23, 25)


def what(op: str) -> str:
    """Return what the latencies of this operation are."""
    if parts_of(op) == 2:
        return "half the round trip, from posting a message to finding its answer"
    return "from posting an operation to polling its completion"


def head(end: PerfEnd) -> str:
    """Return the lines above the table."""
    return f"{title(end)}; {what(end.plan.op)}\n{paint(HEAD, 'bold')}"


def row(done: Latency) -> str:
    """Return the line of a size, in the columns of perftest and two more."""
    figures = "".join(
        f"{done.figures[name]:{width}.2f}" for name, width in zip(FIGURES, WIDTHS, strict=True)
    )
    ours, theirs = map(cpu_percent, (done.ours, done.theirs))
    return f" {done.size:<7} {done.iterations:<10}{figures}{ours:>9}{theirs:>16}"


def to_dict(end: PerfEnd, done: list[Latency]) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        **describe(end),
        "what": what(end.plan.op),
        "unit": "us",
        "results": [
            {
                "size": one.size,
                "iterations": one.iterations,
                **one.figures,
                "local": one.ours,
                "remote": one.theirs,
            }
            for one in done
        ],
    }


def save_plot(end: PerfEnd, done: list[Latency], path: str) -> None:
    """Draw the figures of all sizes into an SVG or PNG file, or all the latencies of one size.

    A server has only the figures of these, too.
    """
    if len(done) > 1:
        heading = f"{title(end)}; {what(end.plan.op)}"
        with picture(path, heading, xlabel="bytes", ylabel="usec") as axes:
            _draw_sizes(axes, done)
        return
    (one,) = done
    heading = f"{title(end)}; {one.size} bytes, {one.iterations} times; {what(end.plan.op)}"
    if one.samples:
        with picture(path, heading, xlabel="percentile", ylabel="usec") as axes:
            _draw_percentiles(axes, one, parts_of(end.plan.op))
    else:
        with picture(path, heading, xlabel="usec") as axes:
            draw_bars(axes, {shown: one.figures[name] for name, shown in MARKS.items()})


def _draw_sizes(axes: Any, done: list[Latency]) -> None:
    sizes = [one.size for one in done]
    for name, shown in MARKS.items():
        axes.plot(sizes, [one.figures[name] for one in done], marker=".", label=shown)
    scale_sizes(axes, sizes)
    scale(axes, "y", [one.figures[name] for one in done for name in MARKS])
    axes.legend()


def _draw_percentiles(axes: Any, one: Latency, parts: int) -> None:
    """Draw how long how many of the latencies were.

    The place of a latency is 1 for the shortest, 2 for the median, 10 for the 90th percentile: how
    many there are for each one that is as long or longer.
    """
    n, ordered = len(one.samples), sorted(one.samples)
    places = [n / (n - rank) for rank in range(n)]
    axes.plot(places, [sample / 1000 / parts for sample in ordered], drawstyle="steps-post")
    for (name, shown), place in zip(MARKS.items(), (1, 2, 100, 1000, n), strict=True):
        if place <= n:
            value = one.figures[name]
            axes.plot([place], [value], "o", label=f"{shown}: {value:,.2f} usec")
    axes.set_xscale("log")
    named = [1, 2, *(10**nines for nines in range(1, len(str(n))))]
    axes.set_xticks(named, [f"{100 - 100 / place:.10g} %" for place in named])
    axes.minorticks_off()
    scale(axes, "y", [one.figures[name] for name in MARKS])
    axes.legend(loc="upper left")
