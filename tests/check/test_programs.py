# SPDX-License-Identifier: MIT
"""The programs in programs/: each has one mistake, which is found, and a right twin, which is not.

The twin is the same source, built with -DRIGHT. They run on one device and in one process. What
hangs is ended as soon as its finding is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import DEADLINE

pytestmark = pytest.mark.not_on_iwarp(
    "its QPs are connected by rdma_cm alone", only=r"\[(?!.*rdma_cm)"
)
PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = ("-libverbs", "-lrdmacm", "-lpthread")
HANG = {"lost-wakeup", "nothing-armed", "destroy-hangs", "full-unsignaled"}
"""The rules of programs that do not end by themselves."""
INFORMATION = {"failed-completion", "wr-id-reused", "spurious-events"}


class Case(NamedTuple):
    program: str
    rule: str
    words: str
    """Words that the report must have."""
    where: dict[str, str]
    """Functions that must be in these backtraces, with their callers up to main()."""

    @property
    def is_error(self) -> bool:
        return self.rule not in WARNINGS | INFORMATION

    @property
    def hangs(self) -> bool:
        return self.rule in HANG


WARNINGS = {
    "not-polled-after-arm",
    "late-wakeup",
    "solicited-only",
    "arm-per-poll",
    "async-unread",
}

MAY_COME_TOO = {"lost-wakeup": {"not-polled-after-arm"}}
"""Who sleeps again and again without a poll after the arm is warned before a message is lost."""
LOST, NOTHING = "lost-wakeup", "nothing-armed"
GET_EVENT = {"sleep": "next_event"}

CASES = [
    Case("lost_get_event", LOST, "sleeps in ibv_get_cq_event()", {"sleep": "await_message"}),
    Case("lost_poll", LOST, "holds 3 completions", {"sleep": "await_event", "arm": "main"}),
    Case("lost_epoll", LOST, "sleeps in epoll_wait()", {"sleep": "await_readable", "arm": "main"}),
    Case("lost_epoll_pwait2", LOST, "in epoll_wait()", {"sleep": "await_readable", "arm": "main"}),
    Case("lost_duplicate", LOST, "sleeps in epoll_wait()", {"sleep": "await_readable"}),
    Case("lost_select", LOST, "sleeps in select()", {"sleep": "await_readable", "poll": "drain"}),
    Case("lost_nonblocking", LOST, "sleeps in poll()", {"sleep": "await_message"}),
    Case("lost_extended", LOST, "holds 1 completion", {"sleep": "next_event", "poll": "take"}),
    Case("lost_srq", LOST, "holds 1 completion", {"sleep": "await_event", "arm": "await_event"}),
    Case("lost_two_cqs", LOST, "holds 1 completion", GET_EVENT),
    Case("lost_ack_late", LOST, "holds 1 completion", {**GET_EVENT, "arm": "main"}),
    Case("lost_one_per_event", LOST, "holds 4 completions", {"sleep": "take_messages"}),
    Case("lost_batch", LOST, "holds 6 completions", {**GET_EVENT, "poll": "poll_batch"}),
    Case("lost_threads", LOST, "Thread ", {"sleep": "wait_for_message", "poll": "main"}),
    Case("lost_fork", LOST, "holds 1 completion", {"sleep": "child", "arm": "child"}),
    Case("lost_dlopen", LOST, "holds 1 completion", GET_EVENT),
    Case("lost_rdma_cm", LOST, "holds 1 completion", {"sleep": "await_message"}),
    Case("lost_rdma_cm_poll", LOST, "sleeps in poll()", {"sleep": "await_message", "arm": "main"}),
    Case("nothing_armed", NOTHING, "ibv_get_cq_event()", GET_EVENT),
    Case("nothing_armed_again", NOTHING, "1 work request", {"sleep": "await_event", "arm": "main"}),
    Case("nothing_armed_poll", NOTHING, "2 CQs", {"sleep": "await_event"}),
    Case("over_ack", "over-ack", "acknowledged 3 events", {"ack": "main"}),
    Case("over_ack_twice", "over-ack", "returned 3", {"ack": "main"}),
    Case("ack_wrong_cq", "ack-on-wrong-cq", "acknowledged 2 events", {"ack": "main"}),
    Case("ack_wrong_variable", "ack-on-wrong-cq", "acknowledged 1 event", {"ack": "main"}),
    Case("destroy_hangs", "destroy-hangs", "1 event, 0 of them", {"destroy": "close_pair"}),
    Case("destroy_hangs_batch", "destroy-hangs", "6 events, 4 of them", {"destroy": "finish"}),
    Case("destroy_hangs_thread", "destroy-hangs", "1 event, 0 of them", {"destroy": "close_pair"}),
    Case("cq_overflow_recv", "cq-overflow", "It has 7 entries", {}),
    Case("cq_overflow_ud", "cq-overflow", "It has 3 entries", {}),
    Case("cq_too_small", "cq-too-small", "8 signaled sends", {"post": "post_sends"}),
    Case("cq_too_small_two_qps", "cq-too-small", "8 signaled sends", {"post": "post_sends"}),
    Case("cq_too_small_list", "cq-too-small", "the CQ has 7 entries", {"post": "post_list"}),
    Case("cq_too_small_wr", "cq-too-small", "the CQ has 7 entries", {"post": "post_signaled"}),
    Case("full_unsignaled", "full-unsignaled", "refused", {"post": "post_or_wait"}),
    Case("full_unsignaled_writes", "full-unsignaled", "refused", {"post": "post_writes"}),
    Case("mr_in_flight_recv", "mr-in-flight", "1 work request ", {"deregister": "main"}),
    Case("mr_in_flight_send", "mr-in-flight", "the wr_id 1,", {"deregister": "send_buffer"}),
    Case("mr_in_flight_sges", "mr-in-flight", "the wr_id 1,", {"deregister": "send_buffers"}),
    Case("mr_in_flight_srq", "mr-in-flight", "4 work requests ", {"post": "post_recvs"}),
    Case("mr_in_flight_srq_shared", "mr-in-flight", "2 work requests ", {"post": "post_recvs"}),
    Case("mr_unmapped_munmap", "mr-unmapped", "munmap() gave", {"unmap": "give_back"}),
    Case("mr_unmapped_free", "mr-unmapped", "free() gave", {"unmap": "free_buffers"}),
    Case("qp_destroyed", "qp-destroyed", "was polled from", {"poll": "drain", "destroy": "main"}),
    Case("qp_destroyed_shared", "qp-destroyed", "1 completion ", {"destroy": "close_second"}),
    Case("not_polled_after_arm", "not-polled-after-arm", "without having polled", {"arm": "main"}),
    Case("late_wakeup", "late-wakeup", "with no event on its way", {"arm": "main"}),
    Case("solicited_only", "solicited-only", "none raised an event", {"sleep": "await_event"}),
    Case("arm_per_poll", "arm-per-poll", "0 sleeps", {"arm": "main"}),
    Case("async_unread", "async-unread", "were not read", {"close": "main"}),
    Case("failed_completion", "failed-completion", "3 requests ", {"poll": "main"}),
    Case("wr_id_reused", "wr-id-reused", "the wr_id 42", {"post": "post_recvs"}),
    Case("spurious_events", "spurious-events", "20", {}),
]
IDS = [case.program for case in CASES]

Build = Callable[[str, bool], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a program, or its right twin."""
    folder = tmp_path_factory.mktemp("programs")

    def built(name: str, right: bool) -> Path:
        out = folder / (f"{name}.right" if right else name)
        flags = ["-std=gnu11", "-g", "-O0", "-Wall", "-Wextra", "-Werror", *["-DRIGHT"] * right]
        libraries = () if name == "lost_dlopen" else LIBRARIES
        source = PROGRAMS / f"{name}.c"
        subprocess.run(["gcc", *flags, "-o", out, source, *libraries], check=True)
        return out

    return built


class Checked(NamedTuple):
    code: int
    text: str
    report: dict[str, Any]

    def rules(self, *severities: str) -> set[str]:
        """The rules of the findings."""
        found: list[dict[str, Any]] = self.report["findings"]
        return {f["rule"] for f in found if f["severity"] in severities}


def check(program: Path, end_at: str | None = None) -> Checked:
    """Run a program under the command, and end it once it reported a rule."""
    report = program.with_name(f"{program.name}.json")
    options = ["--error-exitcode", "66", "-v", "--json", report]
    command = [sys.executable, "-m", "cqnotify", "check", *options, "--", program]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE, process.terminate)
        deadline.start()
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if end_at is not None and f"[{end_at}]" in line:
                process.terminate()
                end_at = None
        process.wait()
        deadline.cancel()
    assert end_at is None, f"not reported: {lines}"
    return Checked(process.returncode, "".join(lines), json.loads(report.read_text()))


def test_each_program_is_a_case() -> None:
    assert sorted(IDS) == sorted(path.stem for path in PROGRAMS.glob("*.c"))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_mistake_is_found(case: Case, build: Build) -> None:
    found = check(build(case.program, False), case.rule if case.hangs else None)
    also = MAY_COME_TOO.get(case.rule, set())
    assert found.rules("error", "warning") - also == {case.rule} - INFORMATION, found.text
    assert case.rule in found.rules("error", "warning", "information"), found.text
    assert found.code == (66 if case.is_error else 0)
    assert case.words in " ".join(found.text.split()), found.text
    (finding,) = (f for f in found.report["findings"] if f["rule"] == case.rule)
    for what, function in case.where.items():
        (place,) = (place for place in finding["where"] if place["what"] == what)
        functions = [frame["function"] for frame in place["frames"]]
        assert function in functions, functions


@pytest.mark.parametrize(
    ("program", "rule", "counts"),
    [
        ("lost_get_event", LOST, {"arms": 1, "events": 0, "completions": 1, "posts": 2}),
        ("nothing_armed", NOTHING, {"arms": 0, "events": 0, "sleeps": 1}),
        ("destroy_hangs", "destroy-hangs", {"arms": 1, "events": 1, "acks": 0, "posts": 2}),
    ],
)
def test_what_hung_and_was_killed_is_counted_until_it_hung(
    program: str, rule: str, counts: dict[str, int], build: Build
) -> None:
    found = check(build(program, False), end_at=rule)
    assert "so counted until a thread hung: " in found.text
    (process,) = found.report["processes"]
    assert not process["finished"]
    assert {name: process["counts"][name] for name in counts} == counts


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_right_twin_is_not_accused(case: Case, build: Build) -> None:
    found = check(build(case.program, True))
    assert found.rules("error", "warning") == set(), found.text
    assert case.rule not in found.rules("information"), found.text
    assert found.code == 0
