# SPDX-License-Identifier: MIT
"""Each fault of `cqnotify chaos`: the log and the timeline have it where it happened, and the
program saw it.

The program has one thread. Its calls are records, and each fault is one among them: what comes
right before and after it is what the fault did.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import DEADLINE

from cqnotify import WCStatus
from cqnotify.check.chaos import FAULTS, VARIABLE, setting
from cqnotify.check.running import observed_environment
from cqnotify.trace.records import Call, Flag, Record, What, read
from cqnotify.trace.timeline import build
from cqnotify.trace.words import describe

pytestmark = pytest.mark.usefixtures("ctx")
CHAOS_C = Path(__file__).parents[2] / "csrc" / "check" / "chaos.c"
MS = 10**6
WAYS = {
    "split": "batch",
    "hold": "batch",
    "eintr": "right",
    "late": "right",
    "destroy": "destroy",
    "arm": "arm",
    "create": "refused",
    "register": "refused",
    "post": "list",
    "fail": "fail",
    "async": "async",
}
"""The way of chaos_program.c that has calls for the fault."""
RATES = {"create": 20, "register": 20, "fail": 4, "arm": 2}
"""More of these would refuse what the program begins with."""


NONE = Record(*[0] * len(Record._fields))


class Made(NamedTuple):
    """A fault, with the records right before and after it."""

    before: Record
    fault: Record
    after: Record

    @property
    def detail(self) -> int:
        return self.fault.value


class Run(NamedTuple):
    """What a run printed, and what was recorded of it."""

    code: int
    words: list[str]
    errors: str
    records: list[Record]
    log: list[dict[str, Any]]
    marks: list[str]
    """The texts of the faults in the picture."""

    @property
    def faults(self) -> list[Made]:
        around = zip([NONE, *self.records], self.records, [*self.records[1:], NONE], strict=False)
        return [Made(*three) for three in around if three[1].what == What.FAULT]


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    (log,) = folder.glob("*.log")
    for line in log.read_text().splitlines():
        if (entry := json.loads(line))["kind"] == "chaos":
            yield entry


def run(program: Path, folder: Path, fault: str, seed: int = 0, way: str = "") -> Run:
    chaos = {VARIABLE: setting(seed, (fault,), RATES.get(fault, 2))}
    env = observed_environment(folder, environment=os.environ | chaos, timeline_records=100_000)
    command = [program, way or WAYS[fault]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE)
    (recording,) = read(folder)
    (process,) = build([recording]).processes
    calls = [lane for row in process.rows if row.kind == "thread" for lane in row.lanes]
    return Run(
        done.returncode,
        done.stdout.split(),
        done.stderr,
        recording.records,
        list(lines(folder)),
        [mark.text for lane in calls for mark in lane.marks if mark.kind == "fault"],
    )


def waiting(records: list[Record], fault: Record) -> int:
    """How many completions the CQ polled next has: taken from the device, and not handed out."""
    at = records.index(fault)
    cq = next(r for r in records[at:] if r.what == What.POLL).object
    mine = [record for record in records[:at] if record.object == cq]
    taken = sum(record.what == What.COMPLETION for record in mine)
    return taken - sum(record.number for record in mine if record.what == What.POLL)


def test_the_faults_are_numbered_as_the_observer_numbers_them() -> None:
    names = re.findall(r'\[CHAOS_([A-Z]+)\] = \{"(\w+)"', CHAOS_C.read_text())
    assert [name for _, name in names] == list(FAULTS)
    assert all(constant == name.upper() for constant, name in names)
    header = CHAOS_C.with_suffix(".h").read_text()
    assert re.findall(r"^    CHAOS_([A-Z]+),", header, re.MULTILINE)[:-1] == [
        constant for constant, _ in names
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_log_and_the_timeline_have_each_fault_where_it_happened(
    program: Path, tmp_path: Path, fault: str
) -> None:
    done = run(program, tmp_path, fault)
    made = [each.fault for each in done.faults]
    assert made
    assert all(record.detail == FAULTS.index(fault) for record in made)
    assert all(record.flags == Flag.INJECTED for record in made)
    assert [line["number"] for line in done.log] == list(range(1, len(made) + 1))
    assert {line["fault"] for line in done.log} == {fault}
    assert [(line["tid"], line["detail"]) for line in done.log] == [
        (record.tid, record.value) for record in made
    ]
    assert all(a["call"] < b["call"] for a, b in zip(done.log, done.log[1:], strict=False))
    assert done.marks == [describe(record) for record in made]


def test_split_hands_out_fewer_completions_than_there_are(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "split")
    assert done.code == 0, done.errors
    for made in done.faults:
        assert (made.after.what, made.after.number) == (What.POLL, made.detail)
        assert made.detail < min(made.after.detail, waiting(done.records, made.fault))


def test_hold_hands_out_none_of_those_there_are(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "hold")
    assert done.code == 0, done.errors
    for made in done.faults:
        assert (made.after.what, made.after.number) == (What.POLL, 0)
        assert made.detail == waiting(done.records, made.fault) > 0


def test_eintr_ends_a_sleep(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "eintr")
    assert done.code == 0, done.errors
    assert done.words == ["interrupted"] * len(done.faults)
    assert {made.detail for made in done.faults} == {Call.GET_CQ_EVENT}


def test_eintr_ends_no_call_that_the_program_knows_to_return(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "eintr", way="told")
    assert done.code == 0, done.errors
    assert done.words == ["interrupted"] * len(done.faults) != []
    assert {made.detail for made in done.faults} == {Call.POLL}


def test_late_keeps_a_thread_that_was_woken(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "late")
    assert done.code == 0, done.errors
    for made in done.faults:
        before = done.records[: done.records.index(made.fault)]
        state = [record for record in before if record.what in (What.SLEEP, What.WAKE)]
        assert state[-1].what == What.SLEEP
        assert (made.after.what, made.after.object) == (What.WAKE, state[-1].object)
        assert 1 <= made.detail <= 20
        assert made.after.time - made.fault.time >= made.detail * MS
    sleeps = [record for record in done.records if record.what == What.SLEEP]
    assert len(done.faults) < len(sleeps)


def test_destroy_takes_longer(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "destroy")
    assert done.code == 0, done.errors
    for made in done.faults:
        assert 1 <= made.detail <= 20
        assert made.after.time - made.fault.time >= made.detail * MS
    cqs = [made for made in done.faults if made.after.what == What.CQ_DESTROYED]
    assert 0 < len(cqs) < len(done.faults)  # the others are of regions


def test_arm_is_refused(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "arm")
    assert done.code == 0, done.errors
    assert done.words.count(str(errno.ENOMEM)) == len(done.faults)
    for made in done.faults:
        assert made.before.what == What.ARM
        assert made.after.what == What.ARM_FAILED
        assert (made.after.flags, made.after.detail) == (Flag.INJECTED, errno.ENOMEM)
        assert made.detail == errno.ENOMEM


@pytest.mark.parametrize(("fault", "what"), [("create", "cq"), ("register", "mr")])
def test_an_object_is_refused(program: Path, tmp_path: Path, fault: str, what: str) -> None:
    done = run(program, tmp_path, fault)
    assert done.code == 0, done.errors
    assert done.words[1:] == [what, *os.strerror(errno.ENOMEM).split()]
    (made,) = (record for record in done.records if record.what == What.FAULT)
    assert made.value == errno.ENOMEM


def test_post_refuses_the_rest_of_a_list(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "post")
    assert done.code == 0, done.errors
    results = zip(done.words[::2], done.words[1::2], strict=True)
    lists = [made for made in done.faults if made.before.what == What.POST_RECV]
    assert [int(posted) for code, posted in results if code == str(errno.ENOMEM)] == [
        made.detail for made in lists
    ]
    for made in lists:
        assert (made.after.what, made.after.detail) == (What.POST_REFUSED, errno.ENOMEM)


@pytest.mark.parametrize("seed", range(3))
def test_fail_is_the_status_of_the_send(program: Path, tmp_path: Path, seed: int) -> None:
    done = run(program, tmp_path, "fail", seed)
    assert done.code == 0, done.errors
    (made,) = done.faults
    assert made.before.what == What.POST_SEND
    assert done.words == [str(made.detail), str(int(WCStatus.WR_FLUSH_ERR))]
    assert made.detail not in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR)


def test_async_events_are_those_that_were_made(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "async")
    assert done.code == 0, done.errors
    assert done.words == [str(made.detail) for made in done.faults]
    for made in done.faults:
        assert (made.after.what, made.after.flags) == (What.ASYNC_EVENT, Flag.INJECTED)
        assert made.after.detail == made.detail
