# SPDX-License-Identifier: MIT
"""The figures of `cqnotify latency`: as a table, as JSON, and as a picture."""

from __future__ import annotations

from typing import Any, Final

from .._terminal import paint
from ._description import cpu_percent, describe, title
from ._end import End
from ._latency import Latency, parts_of
from ._statistics import FIGURES

HEAD: Final = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]   CPU[%]   peer's CPU[%]"
)
WIDTHS: Final = (15, 15, 17, 15, 17, 23, 25)


def what(op: str) -> str:
    """Return what the latencies of this operation are."""
    if parts_of(op) == 2:
        return "half the round trip, from posting a message to finding its answer"
    return "from posting an operation to polling its completion"


def head(end: End) -> str:
    """Return the lines above the table."""
    return f"{title(end)}; {what(end.plan.op)}\n{paint(HEAD, 'bold')}"


def row(done: Latency) -> str:
    """Return the line of a size, in the columns of perftest and two more."""
    figures = "".join(
        f"{done.figures[name]:{width}.2f}" for name, width in zip(FIGURES, WIDTHS, strict=True)
    )
    ours, theirs = map(cpu_percent, (done.ours, done.theirs))
    return f" {done.size:<7} {done.iterations:<10}{figures}{ours:>9}{theirs:>16}"


def to_dict(end: End, done: list[Latency]) -> dict[str, Any]:
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


def save_plot(end: End, done: list[Latency], path: str) -> None:
    """Draw the latencies of all sizes into an SVG or PNG file."""
    from matplotlib.figure import Figure  # which only --plot needs

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="bytes", ylabel=f"usec, {what(end.plan.op)}", title=title(end))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = [one.size for one in done]
    for name in ("t_min", "t_typical", "p99", "p99.9"):
        axes.plot(sizes, [one.figures[name] for one in done], marker="o", label=name)
    axes.legend()
    figure.savefig(path)
