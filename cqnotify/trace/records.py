# SPDX-License-Identifier: MIT
"""Timeline files: their records, as csrc/check/record.h defines them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any, Final, NamedTuple

MAGIC: Final = b"cqntime1"
HEADER: Final = struct.Struct("<8sIIQQQQII4000s")
HEADER_SIZE: Final = 4096
RECORD: Final = struct.Struct("<QIHHIIQIIQ")
NO_TIMEOUT: Final = (1 << 64) - 1


class TraceError(Exception):
    """A timeline that cannot be read; has a message for the terminal."""


class What(IntEnum):
    """The kind of a record: `enum record_what`."""

    CHANNEL_CREATED = 1
    CHANNEL_DESTROYED = 2
    CQ_CREATED = 3
    CQ_DESTROYED = 4
    QP_CREATED = 5
    QP_DESTROYED = 6
    SRQ_CREATED = 7
    SRQ_DESTROYED = 8
    POST_SEND = 16
    POST_RECV = 17
    POST_SRQ_RECV = 18
    POST_REFUSED = 19
    COMPLETION = 20
    POLL = 21
    ARM = 32
    ARM_FAILED = 33
    EVENT = 34
    ACK = 35
    ASYNC_EVENT = 36
    CM_EVENT = 37
    SLEEP = 48
    WAKE = 49
    FINDING = 56
    TASK_SLEEP = 60
    TASK_WAKE = 61


class Call(IntEnum):
    """The call that a thread sleeps in: `enum record_call`."""

    GET_CQ_EVENT = 1
    READ = 2
    POLL = 3
    SELECT = 4
    EPOLL_WAIT = 5


class Flag(IntFlag):
    """What else is true of a record: `enum record_flags`."""

    SIGNALED = 1
    SOLICITED = 2
    SEEN = 4
    INJECTED = 8


class Record(NamedTuple):
    """One record: `struct record`. record.h says what its numbers are for each kind."""

    time: int
    tid: int
    what: int
    flags: int
    object: int
    other: int
    value: int
    number: int
    detail: int
    caller: int


@dataclass(frozen=True)
class Finding:
    """A finding of the log beside the timeline: the rule, and the values that go with it."""

    rule: str
    values: dict[str, Any]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.rule}: {values}" if values else self.rule


@dataclass
class Recording:
    """The timeline of one process: what its file and the log beside it hold.

    `records` are ordered by time; those of one thread are in the order of its calls. `end` is the
    last moment that is known of, which the log may know better. `lost` records were overwritten by
    later ones, `unfinished` ones were being written when the process ended, and `unknown` ones are
    of kinds that came later than this program.
    """

    path: Path
    pid: int
    command: str
    records: list[Record]
    end: int
    clock_offset: int
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, in ns."""
    lost: int = 0
    unfinished: int = 0
    unknown: int = 0
    findings: dict[int, Finding] = field(default_factory=dict)
    has_log: bool = False

    @property
    def start(self) -> int:
        return self.records[0].time if self.records else self.end

    def dated_findings(self) -> list[tuple[int, Record, str]]:
        """Return when each finding was made, its record, and what the log says of it.

        Those that turned out not to hold are left out. Without a log all hold, and have no text
        but their number.
        """
        records = [record for record in self.records if record.what == What.FINDING]
        if not self.has_log:
            return [(r.time, r, f"finding {r.other}, {self._of(r)}") for r in records]
        held = [r for r in records if r.other in self.findings]
        return [(r.time, r, str(self.findings[r.other])) for r in held]

    @staticmethod
    def _of(record: Record) -> str:
        return f"CQ {record.object}" if record.object else f"thread {record.tid}"


def read(path: Path) -> list[Recording]:
    """Return what a timeline file holds, or all those of a folder, in the order of their times.

    Raise TraceError if there is none, or one cannot be read.
    """
    if path.is_dir():
        files = sorted(path.glob("*.timeline"))
        if not files:
            raise TraceError(f"{path} has no timeline: no file named *.timeline")
    else:
        files = [path]
    recordings = [read_file(file) for file in files]
    recordings.sort(key=lambda recording: (recording.start, str(recording.path)))
    if not any(recording.records for recording in recordings):
        raise TraceError(f"{path} has no records: the program used no verbs")
    return recordings


def read_file(path: Path) -> Recording:
    """Return what a timeline file holds; TraceError if it is not a timeline, or incomplete."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise TraceError(f"cannot read {path}: {e.strerror}") from e
    if data[: len(MAGIC)] != MAGIC:
        raise TraceError(f"{path} is not a timeline: it does not begin with {MAGIC.decode()}")
    if len(data) < HEADER.size:
        raise TraceError(f"{path} is truncated: {len(data)} bytes, which is less than its header")
    _, header_size, record_size, capacity, written, monotonic, realtime, pid, _, command = (
        HEADER.unpack_from(data)
    )
    if (header_size, record_size) != (HEADER_SIZE, RECORD.size) or not capacity:
        raise TraceError(
            f"{path} has another layout: header of {header_size} bytes, {capacity} records of "
            f"{record_size}; this version reads headers of {HEADER_SIZE}, records of {RECORD.size}"
        )
    kept = min(written, capacity)
    have = (len(data) - HEADER_SIZE) // RECORD.size
    if have < kept:
        raise TraceError(f"{path} is truncated: it has {max(have, 0)} of {kept} records")
    body = memoryview(data)[HEADER_SIZE:]
    oldest = written % capacity if written > capacity else 0
    size = RECORD.size
    ring = [*RECORD.iter_unpack(body[oldest * size : kept * size])]
    ring += RECORD.iter_unpack(body[: oldest * size])
    records = [Record._make(fields) for fields in ring if fields[2] in _KINDS]
    records.sort(key=lambda record: record.time)
    findings, log_end = _read_log(path.with_suffix(".log"))
    unfinished = sum(fields[2] == 0 for fields in ring)
    return Recording(
        path=path,
        pid=pid,
        command=command.partition(b"\0")[0].decode(errors="replace").strip(),
        records=records,
        end=max(records[-1].time if records else monotonic, log_end),
        clock_offset=realtime - monotonic,
        lost=max(written - capacity, 0),
        unfinished=unfinished,
        unknown=len(ring) - len(records) - unfinished,
        findings=findings,
        has_log=path.with_suffix(".log").exists(),
    )


_KINDS: Final = frozenset(int(what) for what in What)


def _read_log(path: Path) -> tuple[dict[int, Finding], int]:
    """Return the findings of a log by their numbers, and its last time; nothing without a log.

    A line that is no JSON object is the last one of a process that was killed.
    """
    findings: dict[int, Finding] = {}
    end = 0
    for line in _lines(path):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            entry = json.loads(line)
            end = max(end, int(entry.get("time", 0)))
            if entry["kind"] == "finding":
                findings[int(entry["number"])] = Finding(entry["rule"], dict(entry["values"]))
            elif entry["kind"] == "withdrawn":
                findings.pop(int(entry["number"]), None)
    return findings, end


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()


def program_number(path: Path) -> int:
    """Return N of `PID.N.timeline`: which of the programs that a process executed; 0 if unnamed."""
    found = re.fullmatch(r"\d+\.(\d+)\.timeline", path.name)
    return int(found[1]) if found else 0
