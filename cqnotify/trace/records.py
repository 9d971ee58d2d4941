# SPDX-License-Identifier: MIT
"""Timeline files: their records, as csrc/check/record.h defines them."""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..check.rules import WARNING, find_rule

MAGIC: Final = b"cqntime2"
HEADER: Final = struct.Struct("<8sIIQQQQIIQQ")
RECORD: Final = struct.Struct("<QIHHIIQIIQ")
COMPLETION: Final = struct.Struct("<QII")
NO_TIMEOUT: Final = (1 << 64) - 1
SLEEP_RULES: Final = ("lost-wakeup", "nothing-armed", "late-wakeup")


class TraceError(Exception):
    """A timeline that cannot be read; has a message for the terminal."""


class NoRecordsError(TraceError):
    """There is no timeline, or nothing is in it."""


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
    FAULT = 57
    TASK_SLEEP = 60
    TASK_WAKE = 61
    TASK = 62


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
    WITH_COMPLETIONS = 16
    """Only in files: the reader puts the completions before the poll, as records."""


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


def task_name(record: Record) -> str:
    """Return the name that a TASK record has in place of its numbers, or its first 24 bytes."""
    return _text(_START.pack(record.object, record.other) + _END.pack(*record[7:]))


def method_name(record: Record) -> str:
    """Return the name of the method that a TASK_SLEEP record has, or its first 16 bytes."""
    return _text(_END.pack(*record[7:]))


def _text(packed: bytes) -> str:
    return packed.rstrip(b"\0").decode(errors="ignore")


_START: Final = struct.Struct("<2I")
_END: Final = struct.Struct("<2IQ")


class Finding(NamedTuple):
    """What the observer found: when, which thread made the call, the CQ (0: none), and a text.

    `severity` is that of the rule: "error", "warning" or "information".
    """

    time: int
    tid: int
    cq: int
    text: str
    severity: str = WARNING


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
    findings: list[Finding] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.records[0].time if self.records else self.end


def read(path: Path, ended: int = 0) -> list[Recording]:
    """Return what a timeline file holds, or all those of a folder, in the order of their times.

    ended: when the program had ended, by CLOCK_MONOTONIC in ns, if that is known. Processes that
    were killed did not note it.

    Raise TraceError if there is none, or one cannot be read.
    """
    if path.is_dir():
        files = sorted(path.glob("*.timeline"))
        if not files:
            raise NoRecordsError(f"{path} has no timeline: no file named *.timeline")
    else:
        files = [path]
    recordings = [read_file(file, ended) for file in files]
    recordings.sort(key=lambda recording: (recording.start, str(recording.path)))
    if not any(recording.records for recording in recordings):
        raise NoRecordsError(f"{path} has no records: the program used no verbs")
    return recordings


def read_file(path: Path, ended: int = 0) -> Recording:
    """Return what a timeline file holds; TraceError if it is not a timeline, or incomplete."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise TraceError(f"cannot read {path}: {e.strerror}") from e
    header = _read_header(path, data)
    ring, overwritten = _with_completions(path, data, header, _read_ring(path, data, header))
    records = [Record._make(fields) for fields in ring if fields[2] in _KINDS]
    records.sort(key=lambda record: record.time)
    log = _read_log(path.with_suffix(".log"))
    findings = log.findings if log.is_there else _findings_without_log(records)
    unfinished = sum(fields[2] == 0 for fields in ring)
    last = max(records[-1].time if records else header.monotonic, log.last)
    return Recording(
        path=path,
        pid=header.pid,
        command=header.command,
        records=records,
        end=last if log.is_whole else max(last, ended),
        clock_offset=header.realtime - header.monotonic,
        lost=max(header.written - header.capacity, 0) + overwritten,
        unfinished=unfinished,
        unknown=len(ring) - len(records) - unfinished,
        findings=sorted(_at_their_sleep(findings, records), key=lambda finding: finding.time),
    )


def _at_their_sleep(findings: Sequence[Finding], records: Sequence[Record]) -> Iterator[Finding]:
    """Move the findings about a sleep, which are made after many looks, to where it began."""
    sleeps: dict[int, list[int]] = {}
    for record in records:
        if record.what == What.SLEEP:
            sleeps.setdefault(record.tid, []).append(record.time)
    for finding in findings:
        times = sleeps.get(finding.tid, [])
        before = bisect_right(times, finding.time)
        is_of_sleep = finding.text.partition(": ")[0] in SLEEP_RULES
        yield finding._replace(time=times[before - 1]) if is_of_sleep and before else finding


_KINDS: Final = frozenset(int(what) for what in What)


class _Header(NamedTuple):
    size: int
    capacity: int
    written: int
    monotonic: int
    realtime: int
    pid: int
    completions: int
    completed: int
    command: str


def _read_header(path: Path, data: bytes) -> _Header:
    if data[: len(MAGIC)] != MAGIC:
        raise TraceError(f"{path} is not a timeline: it does not begin with {MAGIC.decode()}")
    if len(data) < HEADER.size:
        raise TraceError(f"{path} is truncated: {len(data)} bytes, which is less than its header")
    fields = HEADER.unpack_from(data)
    _, size, record_size, capacity, written, monotonic, realtime, pid = fields[:8]
    completions, completed = fields[9:]
    if size < HEADER.size or record_size != RECORD.size or not capacity:
        raise TraceError(
            f"{path} has another layout: a header of {size} bytes, {capacity} records of "
            f"{record_size}; this version reads records of {RECORD.size}"
        )
    command = data[HEADER.size : size].partition(b"\0")[0].decode(errors="replace").strip()
    return _Header(
        size, capacity, written, monotonic, realtime, pid, completions, completed, command
    )


def _read_ring(path: Path, data: bytes, header: _Header) -> list[tuple[int, ...]]:
    """Return the fields of all records that the ring holds, the oldest first."""
    kept = min(header.written, header.capacity)
    have = max(len(data) - header.size, 0) // RECORD.size
    if have < kept:
        raise TraceError(f"{path} is truncated: it has {have} of {kept} records")
    body = memoryview(data)[header.size : header.size + kept * RECORD.size]
    is_full = header.written > header.capacity
    oldest = header.written % header.capacity * RECORD.size if is_full else 0
    return [*RECORD.iter_unpack(body[oldest:]), *RECORD.iter_unpack(body[:oldest])]


def _with_completions(
    path: Path, data: bytes, header: _Header, ring: list[tuple[int, ...]]
) -> tuple[list[tuple[int, ...]], int]:
    """Put the completions that polls have in the ring behind the records before these polls.

    Records up to a poll whose completions were overwritten are left out; return their number, too.
    """
    start = header.size + header.capacity * RECORD.size
    kept = min(header.completed, header.completions)
    have = max(len(data) - start, 0) // COMPLETION.size
    if have < kept:
        raise TraceError(f"{path} is truncated: it has {have} of {kept} completions")
    oldest = header.completed - kept
    polls = [
        index
        for index, fields in enumerate(ring)
        if fields[2] == What.POLL and fields[3] & Flag.WITH_COMPLETIONS
    ]
    skipped = max((index + 1 for index in polls if ring[index][6] < oldest), default=0)
    whole: list[tuple[int, ...]] = []
    done = skipped
    for index in polls:
        if index < skipped:
            continue
        whole += ring[done:index]
        done = index + 1
        time, tid, what, flags, cq, qp, first, number, *rest = ring[index]
        if first + number > header.completed:
            raise TraceError(f"{path} is damaged: a poll has completions that were not written")
        for place in range(first, first + number):
            at = start + place % header.completions * COMPLETION.size
            wr_id, length, opcode = COMPLETION.unpack_from(data, at)
            whole.append((time, tid, What.COMPLETION, 0, cq, qp, wr_id, length, opcode, 0))
        whole.append((time, tid, what, flags & ~Flag.WITH_COMPLETIONS, cq, 0, 0, number, *rest))
    return whole + ring[done:], skipped


# ---- the log beside it ----------------------------------------------------------------------


class _Log(NamedTuple):
    is_there: bool
    is_whole: bool
    """The process ended by itself, and noted that."""
    last: int
    findings: list[Finding]


def _read_log(path: Path) -> _Log:
    """Return what a log says; the last line of a process that was killed may be incomplete."""
    found: dict[int, Finding] = {}
    last = 0
    is_whole = False
    for line in _lines(path):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            entry = json.loads(line)
            last = max(last, int(entry.get("time", 0)))
            is_whole |= entry["kind"] == "counts"
            if entry["kind"] == "finding":
                first = found.get(entry["number"])
                found[entry["number"]] = _finding(entry, first.time if first else entry["time"])
            elif entry["kind"] == "withdrawn":
                found.pop(entry["number"], None)
    findings = sorted(found.values(), key=lambda finding: finding.time)
    return _Log(path.exists(), is_whole, last, findings)


def _finding(entry: dict[str, Any], time: int) -> Finding:
    """Return a finding of the log; one that comes again has the time of the first."""
    values, tid = entry["values"], int(entry["tid"])
    rule = find_rule(str(entry["rule"]))
    text = rule.say({"thread": f"Thread {tid}", **values})
    return Finding(int(time), tid, int(values.get("cq", 0)), f"{rule.name}: {text}", rule.severity)


def _findings_without_log(records: list[Record]) -> list[Finding]:
    """Return those findings that are records; they have no text but their number."""
    return [
        Finding(record.time, record.tid, record.object, f"finding {record.other}: see the log")
        for record in records
        if record.what == What.FINDING
    ]


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()


def program_number(path: Path) -> int:
    """Return N of `PID.N.timeline`: which of the programs that a process executed; 0 if unnamed."""
    found = re.fullmatch(r"\d+\.(\d+)\.timeline", path.name)
    return int(found[1]) if found else 0
