# SPDX-License-Identifier: MIT
"""The observer's logs, read while they grow. Their format is in csrc/check/log.h.

A log is another program's output: unknown lines are skipped, and wrong values are left out.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Finding", "Logs", "Module", "Place", "Process"]

VERBS: Final = "libibverbs.so"
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
    program: str = ""  # its file
    command: tuple[str, ...] = ()
    modules: list[Module] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)  # that were made, by name
    finished: bool = False  # with its counts; if it is killed, they are those so far, or none

    @property
    def name(self) -> str:
        """The program, as it was started."""
        return self.command[0] if self.command else self.program or "a program"

    @property
    def has_verbs(self) -> bool:
        """Whether it loaded libibverbs."""
        return any(os.path.basename(m.path).startswith(VERBS) for m in self.modules)


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
        self.folder: Path = Path(folder)
        self._logs: dict[str, _Log] = {}

    @property
    def processes(self) -> list[Process]:
        """The programs that wrote a log, the oldest log first."""
        return [log.process for log in self._logs.values() if log.process.pid]

    @property
    def findings(self) -> list[Finding]:
        """The findings that still hold, by process."""
        found = (finding for log in self._logs.values() for finding in log.findings.values())
        return [finding for finding in found if not finding.withdrawn]

    @property
    def faults(self) -> Counter[str]:
        """How often each fault was made."""
        return sum((Counter(log.process.faults) for log in self._logs.values()), Counter[str]())

    def read(self) -> list[Finding]:
        """Read what was added, and return the findings that are new, or were withdrawn."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".log"))
        except FileNotFoundError:  # the program removed it
            return []
        for name in names:
            self._open(name)
        return [finding for log in list(self._logs.values()) for finding in log.read()]

    def _open(self, name: str) -> _Log:
        if name not in self._logs:
            self._logs[name] = _Log(self.folder / name, self._modules_of)
        return self._logs[name]

    def _modules_of(self, name: str) -> list[Module]:
        """Return the modules that a log has, which may not have been read yet."""
        log = self._open(os.path.basename(f"{name}.log"))
        log.advance()
        return log.process.modules


class _Log:
    def __init__(self, path: Path, modules_of: Callable[[str], list[Module]]) -> None:
        self.process = Process()
        self.findings: dict[int, Finding] = {}
        self._path = path
        self._modules_of = modules_of
        self._offset = 0  # of the first line that is not whole
        self._busy = False  # a log that names itself as its parent is not read twice
        self._news: dict[int, Finding] = {}
        self._returned: set[int] = set()  # numbers

    def read(self) -> list[Finding]:
        self.advance()
        news = self._news
        self._news = {}
        # The user never saw one that came and was withdrawn since the last time.
        news = {n: f for n, f in news.items() if n in self._returned or not f.withdrawn}
        self._returned |= set(news)
        return list(news.values())

    def advance(self) -> None:
        """Take in the lines that were added."""
        if self._busy:
            return
        self._busy = True
        for line in self._lines():
            if (finding := self._take(line)) is not None:
                self._news[finding.number] = finding
        self._busy = False

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                for line in iter(lambda: file.readline(LINE_LIMIT), b""):
                    if not line.endswith(b"\n") and len(line) < LINE_LIMIT:
                        break  # the rest of it comes
                    self._offset += len(line)
                    try:
                        value = json.loads(line.decode(errors="surrogateescape"))
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
                process.program = str(line.get("program", ""))
                if forked := line.get("forked"):
                    process.modules = list(self._modules_of(str(forked)))
                command = line.get("command")
                process.command = tuple(map(str, command)) if isinstance(command, list) else ()
            case {"kind": "module", "base": base, "path": str(path)}:
                process.modules.append(Module(_number(base), path or process.program))
            case {"kind": "finding", "rule": str(rule)}:
                return self._finding(rule, line)
            case {"kind": "withdrawn", "number": number}:
                if found := self.findings.get(_number(number)):
                    found.withdrawn = True
                return found
            case {"kind": "chaos", "fault": str(fault), "number": number} if is_int(number):
                process.faults[fault] = max(process.faults.get(fault, 0), number)
            case {"kind": "counts" | "so-far" as kind}:
                apart = ("kind", "time")
                process.counts = {k: v for k, v in line.items() if k not in apart and is_int(v)}
                process.finished = kind == "counts"
        return None

    def _finding(self, rule: str, line: dict[str, Any]) -> Finding | None:
        values, where = line.get("values"), line.get("where")
        values = values if isinstance(values, dict) else {}
        number = _number(line.get("number"))
        known = self.findings.get(number)
        if known is not None and known.rule == rule and not known.withdrawn:
            known.values = values  # it happened again
            return None
        if number <= 0 or (known is not None and not known.withdrawn):
            number = -len(self.findings) - 1  # cannot be withdrawn
        finding = Finding(
            process=self.process,
            rule=rule,
            number=number,
            time=_number(line.get("time")),
            tid=_number(line.get("tid")),
            values=values,
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
