# SPDX-License-Identifier: MIT
"""The report of `cqnotify check` as text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ._log import Finding, Place, Process
from ._symbols import Frame
from .report import Group, Report, total
from .rules import ERROR, INFORMATION, WARNING

__all__ = ["Writer"]

PREFIX: Final = "cqnotify check: "
FRAMES: Final = 12  # shown of a backtrace, unless it is verbose
COLORS: Final = {ERROR: "red", WARNING: "yellow", INFORMATION: "cyan"}

HERE: Final = {
    "sleep": "It sleeps here",
    "arm": "Last armed here",
    "poll": "Last polled here",
    "ack": "Last acknowledged here",
    "destroy": "Destroyed here",
    "post": "Posted here",
    "deregister": "Deregistered here",
    "unmap": "Given back here",
    "close": "Closed here",
}
COUNTED: Final = {
    "cqs": "CQ",
    "arms": "arm",
    "events": "event",
    "acks": "ack",
    "polls": "poll",
    "completions": "completion",
}

Paint = Callable[[str, str], str]


class Writer:
    """Makes the text: of a finding as it comes, and of the end.

    Args:
        paint: colours a text.
        width: of a line.
        verbose: whole backtraces, information in full, all that was counted.
    """

    def __init__(
        self, paint: Paint = lambda text, color: text, width: int = 100, verbose: bool = False
    ) -> None:
        self._paint = paint
        self._width = width
        self._verbose = verbose

    def finding(self, group: Group) -> str:
        """Return what, where, why and what to do."""
        return "\n".join([self._headline(group), *self._body(group)]) + "\n"

    def withdrawn(self, group: Group, finding: Finding) -> str:
        """Return a line about a finding that was shown, and turned out not to hold."""
        process = f"process {finding.process.pid}"
        return f"{PREFIX}withdrawn: {group.rule.name} in {process} does not hold any more\n"

    def line(self, text: str) -> str:
        """Return a remark."""
        return f"{PREFIX}{text}\n"

    def end(
        self,
        report: Report,
        processes: list[Process],
        shown: Iterable[Group] = (),
        explained: bool = False,
    ) -> str:
        """Return the report of the end: what was not shown yet, and the sums.

        Args:
            report: the findings.
            processes: the programs that the observer was in.
            shown: groups of findings that were printed before.
            explained: a line has said why the program cannot be observed.
        """
        was_shown = {id(group) for group in shown}
        parts = []
        for severity in (ERROR, WARNING, INFORMATION):
            brief = severity == INFORMATION and not self._verbose
            for group in report.of(severity):
                if id(group) in was_shown:
                    parts.append(self._again(group))
                elif brief:
                    parts.append(self._brief(group))
                else:
                    parts.append(self.finding(group))
        lines = [*self._summary(report, processes), *self._remarks(report, processes, explained)]
        return "".join(parts) + "".join(self.line(line) for line in lines)

    def _headline(self, group: Group) -> str:
        rule = group.rule
        severity = self._paint(rule.severity, COLORS[rule.severity])
        return f"{PREFIX}{severity}: {self._paint(rule.headline, 'bold')} [{rule.name}]"

    def _again(self, group: Group) -> str:
        times = _times(group)
        return f"{self._headline(group)}{times}, the first is shown above\n" if times else ""

    def _brief(self, group: Group) -> str:
        severity = self._paint(group.rule.severity, COLORS[group.rule.severity])
        return self.line(f"{severity}: {group.sentence} [{group.rule.name}]{_times(group)}")

    def _body(self, group: Group) -> Iterator[str]:
        yield from self._wrapped(group.sentence)
        if len(group.findings) > 1:
            yield from self._wrapped(f"Found{_times(group)}.")
        for place, frames in group.stacks:
            yield f"  {_here(place, group.findings[0])}:"
            yield from self._frames(frames)
        texts = group.texts
        if texts.why:
            yield from self._wrapped(" ".join([texts.why, *texts.cite()]), "Why:")
        if texts.mend:
            yield from self._wrapped(texts.mend, "What to do:")

    def _frames(self, frames: list[Frame]) -> Iterator[str]:
        shown = frames if self._verbose or len(frames) <= FRAMES + 1 else frames[:FRAMES]
        widest = max((len(frame.function) for frame in shown), default=0)
        for frame in shown:
            line = f"    {frame.function or '?':{min(widest, 40)}}  {_shown_place(frame)}"
            yield self._paint(line, "dim") if frame.of_library else line
        if more := len(frames) - len(shown):
            yield f"    ... and {more} more, which -v shows"
        if not frames:
            yield "    not known"

    def _wrapped(self, text: str, label: str = "") -> Iterator[str]:
        lines = textwrap.wrap(
            f"{label} {text}".strip(),
            self._width,
            initial_indent="  ",
            subsequent_indent="  " if not label else "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if label and lines:
            lines[0] = lines[0].replace(label, self._paint(label, "bold"), 1)
        yield from lines

    def _summary(self, report: Report, processes: list[Process]) -> Iterator[str]:
        if not processes:
            return
        counts = total(processes)
        errors, warnings = (
            sum(len(group.findings) for group in report.of(severity))
            for severity in (ERROR, WARNING)
        )
        found = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
        if report.suppressed:
            found += f", {report.suppressed} suppressed"
        found += f"; {_count(len(processes), 'process')}"
        with_verbs = sum(process.has_verbs for process in processes)
        if len(processes) > 1 and with_verbs:
            found += f", {with_verbs} of them with libibverbs"
        if any(counts.values()):
            known = [_count(counts.get(name, 0), noun) for name, noun in COUNTED.items()]
            found += f": {', '.join(known)}"
        yield found
        if self._verbose and counts:
            rest = [f"{name} {n:,}" for name, n in counts.items() if name not in COUNTED]
            yield f"counted as well: {', '.join(rest) or 'nothing'}"

    def _remarks(self, report: Report, processes: list[Process], explained: bool) -> Iterator[str]:
        if report.remark:
            yield report.remark
        if not processes:
            if not explained:
                yield (
                    "the observer was in no program. It cannot get into setuid and static "
                    "programs, nor where LD_AUDIT is removed from the environment, as sudo does, "
                    "nor into programs that run on other machines"
                )
            return
        with_verbs = [process for process in processes if process.has_verbs]
        counts = total(processes)
        if not with_verbs:
            yield "no program loaded libibverbs: there was nothing to check"
        elif all(process.finished for process in with_verbs) and not counts.get("cqs"):
            yield "no program created a CQ: there was nothing to check"
        cut = [process for process in with_verbs if not process.finished]
        for what, some in (
            ("without counts", [process for process in cut if not process.counts]),
            ("counted until a thread hung", [process for process in cut if process.counts]),
        ):
            if some:
                yield f"ended by a signal or still running, so {what}: {_names(some)}"


def _names(processes: list[Process]) -> str:
    names = ", ".join(f"{process.name} ({process.pid})" for process in processes[:5])
    return names + (f" and {len(processes) - 5} more" if len(processes) > 5 else "")


def _count(n: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def _times(group: Group) -> str:
    times, processes = len(group.findings), len(group.processes)
    if times == 1:
        return ""
    return f" {times} times" + (f" in {processes} processes" if processes > 1 else "")


def _here(place: Place, finding: Finding) -> str:
    text = HERE.get(place.what, f"{place.what.capitalize()} here")
    other = place.tid and finding.tid and place.tid != finding.tid
    return f"{text}, by thread {place.tid}" if other else text


def _shown_place(frame: Frame) -> str:
    """The place, relative to the current folder if the file is below it."""
    here = os.getcwd() + os.sep
    return frame.place.removeprefix(here)
