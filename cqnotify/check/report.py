# SPDX-License-Identifier: MIT
"""What the logs of a run say: findings with their backtraces, counted, and those to suppress."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ._log import Finding, Logs, Place, Process
from ._symbols import NO_TOOL, Frame, Symbols
from .rules import ERROR, RULES, Rule, Texts, find_rule

__all__ = ["Finding", "Group", "Logs", "Report", "Suppression", "read_suppressions"]


class Suppression(NamedTuple):
    """Findings to leave out: of a rule, and with a function in one of their backtraces."""

    rule: str
    function: str = "*"

    @classmethod
    def parse(cls, text: str) -> Suppression:
        """Parse RULE or RULE:FUNCTION, where both may have wildcards; ValueError if it is wrong."""
        rule, _, function = (part.strip() for part in text.partition(":"))
        if not fnmatch.filter(RULES, rule):
            raise ValueError(f"there is no rule '{rule}'; there is {', '.join(RULES)}")
        return cls(rule, function or "*")

    def covers(self, rule: str, functions: Iterable[str]) -> bool:
        """Whether it covers a finding of this rule in these functions."""
        if not fnmatch.fnmatchcase(rule, self.rule):
            return False
        return self.function == "*" or any(fnmatch.fnmatchcase(f, self.function) for f in functions)


def read_suppressions(path: str) -> list[Suppression]:
    """Read a file with a suppression in each line; `#` begins a comment."""
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if text := line.partition("#")[0].strip():
            try:
                found.append(Suppression.parse(text))
            except ValueError as e:
                raise ValueError(f"{path}, line {number}: {e}") from None
    return found


@dataclass(eq=False)
class Group:
    """Findings of one rule in the same places."""

    rule: Rule
    findings: list[Finding]
    stacks: list[tuple[Place, list[Frame]]]
    suppressed: bool = False
    known: bool = False  # suppressed without a word

    @property
    def processes(self) -> list[Process]:
        """The processes that had it."""
        return list({id(f.process): f.process for f in self.findings}.values())

    @property
    def sentence(self) -> str:
        """What happened, the first time."""
        finding = self.findings[0]
        whose = f"of {finding.process.name} (process {finding.process.pid})"
        main = finding.tid in (0, finding.process.pid)
        thread = f"{'The main thread' if main else f'Thread {finding.tid}'} {whose}"
        return self.rule.say({**finding.values, "thread": thread})

    @property
    def texts(self) -> Texts:
        """Why it is wrong, and what to do."""
        return self.rule.texts_for(self.findings[0].values)

    @property
    def suppression(self) -> str:
        """The suppression that would leave it out."""
        functions = (frame.function for _, frames in self.stacks for frame in frames)
        inner = next((function for function in functions if function), "")
        return f"{self.rule.name}:{inner}" if inner else self.rule.name


# Findings that are no mistakes. cqnotify itself polls the completions of a QP that it destroyed,
# and drops them: it knows whose they are.
KNOWN: Final = (Suppression("qp-destroyed", "cqn_qp_drain"),)


class Report:
    """Takes findings, and groups those that are alike."""

    def __init__(
        self, suppressions: Iterable[Suppression] = (), symbols: Symbols | None = None
    ) -> None:
        self.symbols: Symbols = Symbols() if symbols is None else symbols
        self._suppressions = tuple(suppressions)
        self._groups: dict[object, Group] = {}

    @property
    def groups(self) -> list[Group]:
        """The findings that hold and are not suppressed."""
        return [group for group in self._groups.values() if not group.suppressed and group.findings]

    @property
    def suppressed(self) -> int:
        """The number of findings that the user suppressed."""
        groups = (g for g in self._groups.values() if g.suppressed and not g.known)
        return sum(len(group.findings) for group in groups)

    @property
    def remark(self) -> str | None:
        """A line about what the backtraces lack."""
        return NO_TOOL if self.symbols.missing else None

    def of(self, severity: str) -> list[Group]:
        """Return the groups of errors, warnings or information."""
        return [group for group in self.groups if group.rule.severity == severity]

    @property
    def has_errors(self) -> bool:
        """Whether an error is certain."""
        return bool(self.of(ERROR))

    def take(self, finding: Finding) -> Group | None:
        """Add a finding, or remove one that was withdrawn; return the group if it is to be shown.

        That is one with a finding that is the first of its kind, or with none that is left.
        """
        places = tuple((place.what, self.symbols.spots(finding, place)) for place in finding.where)
        key = (finding.rule, places)
        group = self._groups.get(key)
        if finding.withdrawn:
            if group is None or finding not in group.findings:
                return None
            group.findings.remove(finding)
            return None if group.findings or group.suppressed else group
        if group is not None and group.findings:
            group.findings.append(finding)
            return None
        self._groups[key] = group = self._group(finding)
        return None if group.suppressed else group

    def _group(self, finding: Finding) -> Group:
        group = Group(find_rule(finding.rule), [finding], self.symbols.backtraces(finding))
        functions = [frame.function for _, frames in group.stacks for frame in frames]
        group.known = any(s.covers(finding.rule, functions) for s in KNOWN)
        mine = any(s.covers(finding.rule, functions) for s in self._suppressions)
        group.suppressed = group.known or mine
        return group

    def as_json(
        self, processes: list[Process], command: list[str], exit_code: int | None
    ) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return {
            "version": 1,
            "command": command,
            "exit_code": exit_code,
            "findings": [_group_as_json(group) for group in self.groups],
            "suppressed": self.suppressed,
            "processes": [
                {
                    "pid": process.pid,
                    "parent": process.parent,
                    "command": list(process.command),
                    "finished": process.finished,
                    "counts": process.counts,
                }
                for process in processes
            ],
            "counts": total(processes),
        }


def total(processes: Iterable[Process]) -> dict[str, int]:
    """Add up what the processes counted."""
    counts: Counter[str] = Counter()
    for process in processes:
        counts.update(process.counts)
    return dict(counts)


def _group_as_json(group: Group) -> dict[str, Any]:
    finding = group.findings[0]
    return {
        "rule": group.rule.name,
        "severity": group.rule.severity,
        "headline": group.rule.headline,
        "sentence": group.sentence,
        "why": group.texts.why,
        "manual": [{"page": page, "text": text} for page, text in group.texts.manual],
        "mend": group.texts.mend,
        "count": len(group.findings),
        "processes": [process.pid for process in group.processes],
        "tid": finding.tid,
        "values": dict(finding.values),
        "where": [
            {
                "what": place.what,
                "tid": place.tid,
                "frames": [
                    {
                        "function": frame.function,
                        "file": frame.file,
                        "line": frame.line,
                        "module": frame.module,
                        "offset": frame.offset,
                    }
                    for frame in frames
                ],
            }
            for place, frames in group.stacks
        ],
    }
