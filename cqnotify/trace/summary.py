# SPDX-License-Identifier: MIT
"""The figures of a timeline: percentiles of its gaps, and what the wake-ups were for."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..check.rules import INFORMATION
from .gaps import Analysis, Counts, GapKind, analyse
from .records import Recording, program_number
from .words import duration


@dataclass(frozen=True)
class GapFigures:
    """Percentiles of the gaps of a kind, in ns, by nearest rank; zeros if there are none."""

    count: int
    p50: int
    p90: int
    p99: int
    max: int
    open: int
    """Those among them whose second step never came; they last until the end of the trace."""


@dataclass(frozen=True)
class Summary:
    """The figures of one process."""

    pid: int
    program: int
    command: str
    records: int
    lost: int
    unfinished: int
    duration: int
    counts: Counts
    gaps: dict[GapKind, GapFigures]
    findings: list[tuple[int, str]]
    """When, in ns since the start of this process' timeline, and what; without information."""
    information: dict[str, int]
    """How often each rule was met that is for information."""

    @property
    def wakeups_per_completion(self) -> float | None:
        """How often the program woke for one completion; None if there were none."""
        if not self.counts.completions:
            return None
        return self.counts.wakeups / self.counts.completions

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; times are in ns."""
        return {
            "pid": self.pid,
            "program": self.program,
            "command": self.command,
            "records": self.records,
            "lost": self.lost,
            "unfinished": self.unfinished,
            "duration": self.duration,
            **asdict(self.counts),
            "wakeups_per_completion": self.wakeups_per_completion,
            "gaps": {kind.value: asdict(figures) for kind, figures in self.gaps.items()},
            "findings": [{"time": time, "finding": text} for time, text in self.findings],
            "information": self.information,
        }


def summarize(recording: Recording, analysis: Analysis | None = None) -> Summary:
    """Return the figures of a recording; `analysis` is its own, if it has been made already."""
    found = analysis or analyse(recording)
    return Summary(
        pid=recording.pid,
        program=program_number(recording.path),
        command=recording.command,
        records=len(recording.records),
        lost=recording.lost,
        unfinished=recording.unfinished,
        duration=recording.end - recording.start,
        counts=found.counts,
        gaps={kind: _figures(found, kind) for kind in GapKind},
        findings=[
            (each.time - recording.start, each.text)
            for each in recording.findings
            if each.severity != INFORMATION
        ],
        information=Counter(
            each.text.partition(":")[0]
            for each in recording.findings
            if each.severity == INFORMATION
        ),
    )


def _figures(analysis: Analysis, kind: GapKind) -> GapFigures:
    gaps = [gap for gap in analysis.gaps if gap.kind is kind]
    lengths = sorted(gap.end - gap.start for gap in gaps)
    if not lengths:
        return GapFigures(0, 0, 0, 0, 0, 0)
    return GapFigures(
        count=len(lengths),
        p50=percentile(lengths, 50),
        p90=percentile(lengths, 90),
        p99=percentile(lengths, 99),
        max=lengths[-1],
        open=sum(gap.open for gap in gaps),
    )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the smallest value that so many percent of all are not above, by nearest rank."""
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def gap_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return a table's rows: the gaps that there are, their count and percentiles."""
    rows = []
    for kind, figures in summary.gaps.items():
        if not figures.count and kind in (GapKind.TASK, GapKind.UNNOTICED):
            continue
        values = (figures.p50, figures.p90, figures.p99, figures.max)
        times = [duration(value) if figures.count else "-" for value in values]
        rows.append((kind.value, f"{figures.count:,}", *times))
    return rows


def count_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Return a table's rows: what was counted, how often, and what is to be known of it."""
    counts = summary.counts
    ratio = summary.wakeups_per_completion
    per = "" if ratio is None else f"{ratio:.3g} for each completion"
    return [
        ("completions", f"{counts.completions:,}", _notes((counts.failed, "failed"))),
        ("polls", f"{counts.polls:,}", _notes((counts.empty_polls, "found nothing"))),
        ("wake-ups", f"{counts.wakeups:,}", per),
        (
            "events",
            f"{counts.events:,}",
            _notes(
                (counts.spurious, "spurious"),
                (max(counts.events - counts.acked, 0), "not acknowledged"),
            ),
        ),
        (
            "arms",
            f"{counts.arms:,}",
            _notes(
                (counts.arms_without_event, "without an event"),
                (counts.still_armed, "still armed at the end"),
            ),
        ),
    ]


def _notes(*notes: tuple[int, str]) -> str:
    return ", ".join(f"{number:,} {what}" for number, what in notes if number)


def title_of(summary: Summary) -> str:
    """Return a process' heading: its number and its command."""
    again = f", program {summary.program}" if summary.program > 1 else ""
    return f"process {summary.pid}{again}: {summary.command or 'unknown command'}"


def scope_of(summary: Summary) -> str:
    """Return what of a process was recorded."""
    text = f"{summary.records:,} records over {duration(summary.duration)}"
    if summary.lost:
        text += f"; {summary.lost:,} older ones are lost: --records keeps more"
    if summary.unfinished:
        text += f"; {summary.unfinished:,} were not finished"
    return text


def format_summary(summaries: Sequence[Summary]) -> str:
    """Return the figures of all processes, as a text for the terminal."""
    return "\n\n".join(_format(summary) for summary in summaries)


def _format(summary: Summary) -> str:
    lines = [title_of(summary), f"  {scope_of(summary)}", ""]
    head = ("", "count", "p50", "p90", "p99", "max")
    for name, *cells in (head, *gap_rows(summary)):
        lines.append(f"  {name:<22}" + "".join(f"{cell:>10}" for cell in cells))
    lines.append("")
    for name, number, note in count_rows(summary):
        lines.append(f"  {name:<22}{number:>10}" + (f"  {note}" if note else ""))
    if summary.findings:
        lines.append("")
        lines += [_wrapped(f"after {duration(time)}: {text}") for time, text in summary.findings]
        lines += ["", "  cqnotify check says where in the program, and what to do"]
    if summary.information:
        rules = ", ".join(f"{rule} ({number:,})" for rule, number in summary.information.items())
        lines += ["", f"  for information: {rules}"]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 84, initial_indent="  ", subsequent_indent="    ")
