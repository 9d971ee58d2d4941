# SPDX-License-Identifier: MIT
"""The observer's logs, read while they grow. Their format is in csrc/check/log.h.

A log is another program's output: unknown lines are skipped, and wrong values are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Finding", "Logs", "Module", "Place", "Process"]

LINE_LIMIT: Final = 1 << 20  # a longer line is not one of the observer's


@dataclass(frozen=True)
class Module:
    """A file that a process loaded: an address minus `base` is one of the file's."""

    base: int
    path: str


@dataclass(frozen=True)
class Place:
    """A stack: return addresses, innermost first. `what` says which call it is: sleep, arm, ..."""

    what: str
    tid: int
    frames: tuple[int, ...]


@dataclass
class Process:
    """A program that the observer was in."""

    pid: int = 0
    parent: int = 0
    command: tuple[str, ...] = ()
    libc: str = ""
    modules: list[Module] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    finished: bool = False  # its counts are there: it was not killed, and it is over

    @property
    def name(self) -> str:
        """The program, as it was started."""
        return self.command[0] if self.command else "a program"


@dataclass(eq=False)
class Finding:
    """A rule that a process broke, with what the observer knows of it."""

    process: Process
    rule: str
    number: int
    time: int
    tid: int
    values: Mapping[str, Any]
    where: tuple[Place, ...]
    modules: tuple[Module, ...]  # those loaded at the time
    withdrawn: bool = False


class Logs:
    """The logs of a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._logs: dict[str, _Log] = {}

    @property
    def processes(self) -> list[Process]:
        """The programs that wrote a log, the oldest log first."""
        return [log.process for log in self._logs.values()]

    @property
    def findings(self) -> list[Finding]:
        """The findings that still hold, by process."""
        found = (finding for log in self._logs.values() for finding in log.findings.values())
        return [finding for finding in found if not finding.withdrawn]

    def read(self) -> list[Finding]:
        """Read what was added, and return the findings that are new, or were withdrawn."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(".log"))
        except FileNotFoundError:  # the program removed it
            return []
        for name in names:
            if name not in self._logs:
                self._logs[name] = _Log(self._folder / name)
        return [finding for log in self._logs.values() for finding in log.read()]


class _Log:
    def __init__(self, path: Path) -> None:
        self.process = Process()
        self.findings: dict[int, Finding] = {}
        self._path = path
        self._offset = 0  # of the first line that is not whole

    def read(self) -> list[Finding]:
        known = set(self.findings)
        news: dict[int, Finding] = {}
        for line in self._lines():
            if (finding := self._take(line)) is not None:
                news[finding.number] = finding
        # The user never saw one that came and was withdrawn since the last time.
        return [f for f in news.values() if f.number in known or not f.withdrawn]

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                for line in iter(lambda: file.readline(LINE_LIMIT), b""):
                    if not line.endswith(b"\n") and len(line) < LINE_LIMIT:
                        break  # the rest of it comes
                    self._offset += len(line)
                    try:
                        value = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    if isinstance(value, dict):
                        yield value
        except OSError:
            return

    def _take(self, line: dict[str, Any]) -> Finding | None:
        """Take in a line; return the finding that it has, or withdraws."""
        process = self.process
        match line:
            case {"kind": "process"}:
                process.pid = _number(line.get("pid"))
                process.parent = _number(line.get("parent"))
                process.libc = str(line.get("libc", ""))
                command = line.get("command")
                process.command = tuple(map(str, command)) if isinstance(command, list) else ()
            case {"kind": "module", "base": base, "path": str(path)}:
                process.modules.append(Module(_number(base), path))
            case {"kind": "finding", "rule": str(rule)}:
                return self._finding(rule, line)
            case {"kind": "withdrawn", "number": number}:
                if found := self.findings.get(_number(number)):
                    found.withdrawn = True
                return found
            case {"kind": "counts"}:
                apart = ("kind", "time")
                process.counts = {k: v for k, v in line.items() if k not in apart and is_int(v)}
                process.finished = True
        return None

    def _finding(self, rule: str, line: dict[str, Any]) -> Finding:
        values, where = line.get("values"), line.get("where")
        number = _number(line.get("number"))
        if number <= 0 or number in self.findings:
            number = -len(self.findings) - 1  # cannot be withdrawn
        finding = Finding(
            process=self.process,
            rule=rule,
            number=number,
            time=_number(line.get("time")),
            tid=_number(line.get("tid")),
            values=values if isinstance(values, dict) else {},
            where=tuple(_places(where)) if isinstance(where, list) else (),
            modules=tuple(self.process.modules),
        )
        self.findings[number] = finding
        return finding


def _places(where: list[Any]) -> Iterator[Place]:
    for place in where:
        if isinstance(place, dict) and isinstance(place.get("frames"), list):
            frames = tuple(_number(frame) for frame in place["frames"])
            yield Place(str(place.get("what", "")), _number(place.get("tid")), frames)


def is_int(value: object) -> bool:
    """Whether it is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> int:
    """Return a number, or one in hexadecimal digits; 0 for anything else."""
    if isinstance(value, str):
        try:
            return int(value, 16)
        except ValueError:
            return 0
    return value if isinstance(value, int) else 0
