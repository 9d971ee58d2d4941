# SPDX-License-Identifier: MIT
"""Gaps and figures: compared with what a hand computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_support import LOST, PID, Tape, race, receive

from cqnotify.trace import (
    Gap,
    GapKind,
    Summary,
    What,
    analyse,
    format_summary,
    read_file,
    summarize,
)
from cqnotify.trace.records import Call
from cqnotify.trace.summary import percentile

ROOT = Path(__file__).resolve().parents[2]


def gaps_of(tape: Tape, folder: Path, kind: GapKind) -> list[int]:
    """The lengths of a kind, by their start."""
    return [gap.end - gap.start for gap in all_gaps(tape, folder) if gap.kind is kind]


def all_gaps(tape: Tape, folder: Path) -> list[Gap]:
    return analyse(tape.recording(folder)).gaps


def figures(tape: Tape, folder: Path) -> Summary:
    return summarize(tape.recording(folder))


# ---- gaps -----------------------------------------------------------------------------------


def test_an_event_loop_wakes_and_then_reads_the_event(tmp_path: Path) -> None:
    tape = Tape().arm().sleep(Call.EPOLL_WAIT)
    tape.wake(after=5000).event(after=70).ack(after=30).poll(1, after=500)
    assert gaps_of(tape, tmp_path, GapKind.WAKE) == [70]
    assert gaps_of(tape, tmp_path, GapKind.POLL) == [600]
    assert gaps_of(tape, tmp_path, GapKind.EVENT) == []


def test_the_event_may_be_recorded_before_the_wake_up(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().event(after=5000).wake(after=40).poll(1, after=500)
    assert gaps_of(tape, tmp_path, GapKind.WAKE) == [40]
    assert gaps_of(tape, tmp_path, GapKind.POLL) == [500]
    assert figures(tape, tmp_path).counts.wakeups == 1


def test_a_completion_that_was_seen_is_followed_by_its_event(tmp_path: Path) -> None:
    """The first of two counts, and none counts twice."""
    tape = Tape().arm().sleep().seen(1).seen(2, after=10).wake(after=300).event(after=20)
    tape.poll(before=1).poll(before=1)
    tape.arm().sleep().seen(3).wake(after=100).event(after=20).poll(before=1)
    assert gaps_of(tape, tmp_path, GapKind.EVENT) == [330, 120]
    assert gaps_of(tape, tmp_path, GapKind.UNNOTICED) == []


def test_a_completion_without_an_event_waits_until_it_is_polled(tmp_path: Path) -> None:
    tape = Tape().arm().sleep(timeout=10**6).seen(1).seen(2, after=5)
    tape.wake(0, after=900).poll(3, before=2, after=50)
    ((kind, start, end, cq, tid, is_open),) = all_gaps(tape, tmp_path)
    assert (kind, end - start, cq, tid, is_open) == (GapKind.UNNOTICED, 955, 1, PID, False)
    counts = figures(tape, tmp_path).counts
    assert (counts.completions, counts.wakeups, counts.sleeps) == (3, 0, 1)


def test_a_completion_that_nobody_polls_waits_until_the_end(tmp_path: Path) -> None:
    tape = race()
    (gap,) = [gap for gap in all_gaps(tape, tmp_path) if gap.kind is GapKind.UNNOTICED]
    assert gap.open
    assert gap.end - gap.start == 24_200


def test_a_cq_that_is_destroyed_ends_the_wait(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().seen(1).add(What.CQ_DESTROYED, 1, after=700).post_recv(1)
    ((_, start, end, *_, is_open),) = all_gaps(tape, tmp_path)
    assert (end - start, is_open) == (700, False)
    assert figures(tape, tmp_path).counts.arms_without_event == 1


def test_each_cq_that_a_wake_up_brought_an_event_of_has_its_own_gap_to_the_poll(
    tmp_path: Path,
) -> None:
    tape = Tape().create(2).arm().arm(2).sleep().wake(after=100)
    tape.event(after=10).event(2, after=10).poll(1, after=100).poll(2, cq=2, after=100)
    found = [(gap.cq, gap.end - gap.start) for gap in all_gaps(tape, tmp_path)]
    assert found == [(1, 10), (1, 120), (2, 220)]


def test_another_thread_may_poll(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().wake(after=100).event(after=10)
    tape.tid += 1
    tape.poll(1, after=300)
    assert gaps_of(tape, tmp_path, GapKind.POLL) == [310]


def test_a_second_event_of_one_wake_up_has_no_gap_of_its_own(tmp_path: Path) -> None:
    """It was read without a sleep."""
    tape = Tape().arm().sleep().wake(after=100).event(after=10).poll(1, after=20)
    tape.arm().event(after=5).poll(2, after=20)
    assert gaps_of(tape, tmp_path, GapKind.POLL) == [30]
    assert figures(tape, tmp_path).counts.wakeups == 1


def test_a_wake_up_whose_sleep_was_overwritten_counts(tmp_path: Path) -> None:
    tape = Tape().wake().wake(after=100).event(after=10).poll(1, after=20)
    assert gaps_of(tape, tmp_path, GapKind.POLL) == [30]
    assert figures(tape, tmp_path).counts.wakeups == 2


def test_a_task_wakes_after_the_event(tmp_path: Path) -> None:
    tape = Tape().add(What.TASK_SLEEP, value=99).add(What.TASK_SLEEP, value=98)
    tape.arm().sleep(Call.EPOLL_WAIT).wake(after=100).event(after=10).poll(1, 2, after=50)
    tape.add(What.TASK_WAKE, value=99, after=7).add(What.TASK_WAKE, value=98, after=1)
    assert gaps_of(tape, tmp_path, GapKind.TASK) == [57]


# ---- counts ---------------------------------------------------------------------------------


def test_an_event_after_which_the_first_poll_finds_nothing_is_spurious(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().wake().event().poll().poll(1)
    tape.arm().sleep().wake().event().poll(2).poll()
    tape.arm().sleep().wake().event()
    counts = figures(tape, tmp_path).counts
    assert (counts.events, counts.spurious) == (3, 1)
    assert (counts.polls, counts.empty_polls) == (4, 2)


def test_arms_are_those_with_an_event_those_without_and_those_that_last(tmp_path: Path) -> None:
    tape = Tape().create(2).arm().event().arm().arm().event().arm(2)
    counts = figures(tape, tmp_path).counts
    assert (counts.arms, counts.arms_without_event, counts.still_armed) == (4, 1, 1)


def test_failed_completions_are_counted(tmp_path: Path) -> None:
    tape = Tape().completion(1, status=12).completion(2, status=5)
    tape.completion(3, after=0).add(What.POLL, 1, number=3, after=0)
    counts = figures(tape, tmp_path).counts
    assert (counts.completions, counts.failed) == (3, 2)


# ---- percentiles and texts ------------------------------------------------------------------


def test_percentiles_are_by_nearest_rank() -> None:
    hundred = range(1, 101)
    assert [percentile(hundred, percent) for percent in (50, 90, 99)] == [50, 90, 99]
    assert [percentile([7], percent) for percent in (50, 99)] == [7, 7]
    assert percentile([1, 2], 50) == 1


def test_a_summary_of_a_hundred_rounds_is_that_of_a_hand(tmp_path: Path) -> None:
    tape = Tape()
    for wr_id in range(1, 101):
        tape.arm().sleep().wake(after=100).event(after=wr_id).ack(after=1)
        tape.poll(wr_id, after=1000 * wr_id - wr_id - 1)
    summary = figures(tape, tmp_path)
    assert summary.gaps[GapKind.WAKE].__dict__ == {
        **{"count": 100, "p50": 50, "p90": 90, "p99": 99, "max": 100, "open": 0}
    }
    poll = summary.gaps[GapKind.POLL]
    assert (poll.p50, poll.p90, poll.p99, poll.max) == (50_000, 90_000, 99_000, 100_000)
    assert summary.wakeups_per_completion == 1
    assert (summary.records, summary.counts.acked, summary.counts.events) == (700, 100, 100)


def test_wake_ups_for_a_completion_are_fewer_where_one_brings_several(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().wake().event().poll(1, 2, 3, 4)
    assert figures(tape, tmp_path).wakeups_per_completion == 0.25
    assert figures(Tape().arm(), tmp_path).wakeups_per_completion is None


def test_the_text_for_the_terminal(tmp_path: Path) -> None:
    said = format_summary([figures(race(), tmp_path)])
    assert f"```text\n{said}\n```" in (ROOT / "docs/trace.md").read_text()
    figures_part, finding, hint = said.rsplit("\n\n", 2)
    assert hint == "  cqnotify check says where in the program, and what to do"
    assert figures_part == (
        "process 4711: ./receiver rxe0\n"
        "  27 records over 77.8 us\n"
        "\n"
        "                             count       p50       p90       p99       max\n"
        "  completion to event            0         -         -         -         -\n"
        "  event to wake                  2    200 ns    200 ns    200 ns    200 ns\n"
        "  wake to poll                   2   1.25 us   1.25 us   1.25 us   1.25 us\n"
        "  no event until polled          1   24.2 us   24.2 us   24.2 us   24.2 us\n"
        "\n"
        "  completions                    2\n"
        "  polls                          4  2 found nothing\n"
        "  wake-ups                       2  1 for each completion\n"
        "  events                         2\n"
        "  arms                           3  1 still armed at the end"
    )
    assert finding.split() == f"after 53.0 us: {LOST}".split()


def test_what_is_for_information_is_counted(tmp_path: Path) -> None:
    tape = Tape().arm()
    for _ in range(3):
        tape.finding("wr-id-reused", qp=1, wr_id=0, queue="send")
    summary = figures(tape, tmp_path)
    assert summary.findings == []
    assert format_summary([summary]).endswith("\n\n  for information: wr-id-reused (3)")


def test_the_text_says_what_is_missing(tmp_path: Path) -> None:
    tape = Tape(command="").create()
    for wr_id in range(20):
        receive(tape, wr_id)
    tape.add(0)
    path = tape.write(tmp_path, number=2, capacity=50)
    said = format_summary([summarize(read_file(path))])
    assert said.startswith("process 4711, program 2: unknown command\n")
    lost = len(tape.records) - 50
    assert f"{lost} older ones are lost: --records keeps more; 1 were not finished" in said


@pytest.mark.parametrize("number", [0, 1])
def test_a_summary_is_json(tmp_path: Path, number: int) -> None:
    tape = race() if number else Tape().arm()
    found = figures(tape, tmp_path).as_dict()
    assert found["pid"] == PID
    assert found["gaps"]["wake to poll"]["count"] == 2 * number
    assert len(found["findings"]) == number
