# SPDX-License-Identifier: MIT
"""The picture of a ping-pong's latencies, drawn by matplotlib."""

from __future__ import annotations

from matplotlib.figure import Figure

from ._pingpong_report import WHAT, Report, histogram, percentiles


def save(report: Report, path: str) -> None:
    """Draw the histogram, and lines at the percentiles, into an SVG or PNG file."""
    plan = report.plan
    buckets = histogram(report.latencies)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xscale="log",
        xlabel=f"usec, {WHAT}",
        ylabel="messages",
        title=f"{plan.service} ping-pong of {plan.iters} x {plan.size} bytes, {report.device}, "
        f"{'sleeping' if plan.events else 'polling'}",
    )
    starts = [bucket.start for bucket in buckets]
    widths = [bucket.end - bucket.start for bucket in buckets]
    counts = [bucket.samples for bucket in buckets]
    axes.bar(starts, counts, widths, align="edge", edgecolor="white", color="tab:blue")
    for name, value in percentiles(report.latencies).items():
        if value is not None and name.startswith("p"):
            axes.axvline(value, color="tab:red", linewidth=1)
            axes.annotate(name, (value, 1), xycoords=("data", "axes fraction"), rotation=90)
    figure.savefig(path)
