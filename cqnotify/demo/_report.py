# SPDX-License-Identifier: MIT
"""The demo's figures, their meaning, and the problems that they show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

ASYNCIO: Final = "asyncio"
SOLICITED: Final = "asyncio, solicited only"
BLOCKING: Final = "blocking"
BUSY: Final = "busy polling"
MIN_EVENTS_PER_MESSAGE: Final = 0.9  # with fewer, a receiver did not sleep for each message


@dataclass(frozen=True)
class Result:
    """The figures of one run. Times are in seconds; the CPU time is that of this process."""

    traffic: str
    receiver: str
    messages: int
    events: int
    events_per_message: float
    wakeups: int
    spurious: int
    arms: int
    polls: int
    cpu: float
    wall: float


@dataclass(frozen=True)
class Report:
    """All figures, their meaning, and the problems. `interval` is in seconds."""

    device: str
    peer_device: str
    wire_delay: str | None
    messages: int
    interval: float
    results: list[Result]
    conclusions: list[str]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {**asdict(self), "ok": not self.problems}


def format_report(report: Report) -> str:
    """Return the table and its meaning as text, for a terminal."""
    head = ["traffic", "receiver", "messages", "events", "per message", "wake-ups", "spurious"]
    rows = [[*head, "CPU s", "wall s"]]
    for r in report.results:
        counts = [r.messages, r.events, f"{r.events_per_message:.3f}", r.wakeups, r.spurious]
        rows.append([r.traffic, r.receiver, *map(str, counts), f"{r.cpu:.2f}", f"{r.wall:.2f}"])
    wire = f", {report.wire_delay} of delay on the wire" if report.wire_delay else ""
    title = f"{report.device} with {report.peer_device}{wire}"
    problems = [f"PROBLEM: {problem}" for problem in report.problems]
    legend = (
        "wake-ups: how often a sleeping receiver woke; spurious: events without a new completion"
    )
    return "\n".join([title, "", *_align(rows), legend, "", *report.conclusions, *problems])


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        texts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(cells)]
        lines.append("  ".join(texts))
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def conclusions(results: list[Result]) -> list[str]:
    """Return the meaning of the figures, a sentence for each receiver that sleeps."""
    sentences = []
    busy = {r.traffic: r for r in results if r.receiver == BUSY}
    for r in results:
        if r.receiver != BUSY:
            sentences.append(_conclusion(r, busy[r.traffic]))
    return sentences


def _conclusion(result: Result, busy: Result) -> str:
    factor = busy.cpu / max(result.cpu, 1e-4)
    return (
        f"{result.traffic}, {result.receiver}: woken {result.wakeups} times for {result.messages} "
        f"messages, {result.cpu:.2f} s of CPU; busy polling took {busy.cpu:.2f} s for the same, "
        f"{factor:.1f} times as much."
    )


def problems(results: list[Result]) -> list[str]:
    """Return what is wrong, where the messages are known to come slowly enough to sleep."""
    return [
        f"{r.traffic}, {r.receiver}: {r.events_per_message} events per message: it did not sleep"
        for r in results
        if r.receiver in (ASYNCIO, BLOCKING) and r.events_per_message < MIN_EVENTS_PER_MESSAGE
    ]
