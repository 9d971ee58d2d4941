# SPDX-License-Identifier: MIT
"""The rows of a picture: what is in their lanes."""

from __future__ import annotations

from pathlib import Path

from trace_support import FLUSHED, PID, REALTIME, SEND, UD, Tape, many, race

from cqnotify.check.chaos import FAULTS
from cqnotify.trace import What, build, read
from cqnotify.trace.records import Call, Flag, Record
from cqnotify.trace.timeline import OWN_ROWS, Lane, Process, Row
from cqnotify.trace.words import describe, duration


def process_of(tape: Tape, folder: Path) -> Process:
    (process,) = build([tape.recording(folder)]).processes
    return process


def row_of(process: Process, name: str) -> Row:
    (row,) = [row for row in process.rows if row.name == name]
    return row


def lane_of(tape: Tape, folder: Path, row: str, label: str) -> Lane:
    lanes = row_of(process_of(tape, folder), row).lanes
    (lane,) = [lane for lane in lanes if lane.label == label]
    return lane


def spans(lane: Lane) -> list[tuple[str, int, int, bool]]:
    return [(span.kind, span.start, span.end, span.open) for span in lane.spans]


def marks(lane: Lane) -> list[tuple[str, int]]:
    return [(mark.kind, mark.time) for mark in lane.marks]


def steps(lane: Lane) -> list[tuple[int, int]]:
    return [(step.time, step.value) for step in lane.steps]


THREAD = f"thread {PID}"


def test_the_rows_are_threads_tasks_and_objects(tmp_path: Path) -> None:
    tape = Tape()
    tape.tid += 1
    tape.create(2).add(What.SRQ_CREATED, 1, number=8).add(What.TASK_SLEEP, value=9)
    tape.tid -= 1
    tape.arm()
    process = process_of(tape, tmp_path)
    assert [(row.kind, row.name, row.note) for row in process.rows] == [
        ("thread", "thread 4711", "main"),
        ("thread", "thread 4712", ""),
        ("task", "task 1", ""),
        ("CQ", "CQ 1", "channel 1, 16 entries"),
        ("CQ", "CQ 2", "channel 1, 16 entries"),
        ("QP", "QP 1", "number 17, CQ 1"),
        ("QP", "QP 2", "number 18, CQ 2"),
        ("SRQ", "SRQ 1", ""),
    ]
    assert process.name == "process 4711: ./receiver rxe0"


def test_a_thread_runs_sleeps_and_wakes(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().wake(after=500).event(after=10).sleep(after=90)
    lane = lane_of(tape, tmp_path, THREAD, "state")
    assert spans(lane) == [
        ("running", 0, 1000, False),
        ("asleep", 1000, 1500, False),
        ("running", 1500, 1600, False),
        ("asleep", 1600, 1600, True),
    ]
    slept = "sleeps in ibv_get_cq_event() on channel 1"
    assert lane.spans[1].text == f"{slept}; wakes: channel 1 is readable"
    assert lane.spans[3].text == f"{slept}; still asleep at the end"


def test_a_thread_whose_first_record_is_a_wake_up_slept_before(tmp_path: Path) -> None:
    tape = Tape().arm()
    tape.tid += 1
    tape.wake(after=800).poll()
    assert spans(lane_of(tape, tmp_path, "thread 4712", "state")) == [
        ("asleep", 0, 800, False),
        ("running", 800, 1800, False),
    ]


def test_the_calls_of_a_thread_are_marks_of_its_row_and_of_the_objects(tmp_path: Path) -> None:
    tape = Tape().arm().arm(solicited=True).poll().sleep().wake().event().ack(2).poll(7, 8)
    calls = marks(lane_of(tape, tmp_path, THREAD, "calls"))
    kinds = ["arm", "solicited", "empty", "sleep", "wake", "event", "ack", "poll"]
    assert [kind for kind, _ in calls] == kinds
    lane = lane_of(tape, tmp_path, "CQ 1", "calls")
    assert marks(lane) == [mark for mark in calls if mark[0] not in ("sleep", "wake")]
    assert [mark.number for mark in lane.marks] == [0, 0, 0, 0, 2, 2]


def test_a_cq_is_armed_until_its_event(tmp_path: Path) -> None:
    tape = Tape().arm().arm().event().arm(solicited=True).arm().add(What.CQ_DESTROYED, 1)
    tape.arm().post_recv(1)
    assert spans(lane_of(tape, tmp_path, "CQ 1", "armed")) == [
        ("armed", 0, 2000, False),
        ("solicited", 3000, 4000, False),
        ("armed", 4000, 5000, False),
        ("armed", 6000, 7000, True),
    ]


def test_completions_that_were_seen_wait_until_polls_hand_them_out(tmp_path: Path) -> None:
    tape = Tape().arm().sleep().seen(1).seen(2).seen(3, after=0).wake()
    tape.poll(before=2).poll(4, before=1)
    lane = lane_of(tape, tmp_path, "CQ 1", "waiting")
    # They came before the arm, which is the first record: else there had been an event.
    assert steps(lane) == [(0, 1), (0, 2), (0, 3), (5000, 1), (6000, 0)]
    assert [kind for kind, _ in marks(lane)] == ["seen"] * 3
    came = lane_of(tape, tmp_path, "CQ 1", "came")
    assert spans(came) == [("came", 0, 0, False)]


def test_a_completion_that_raised_no_event_came_between_the_last_poll_and_the_arm(
    tmp_path: Path,
) -> None:
    tape = Tape().create().poll().arm().sleep().seen(1)
    lanes = {lane.label: lane for lane in row_of(process_of(tape, tmp_path), "CQ 1").lanes}
    polled, armed = (lanes["calls"].marks[n].time for n in (1, 2))
    assert spans(lanes["came"]) == [("came", polled, armed, False)]
    assert steps(lanes["waiting"]) == [(armed, 1)]


def test_without_an_arm_for_all_it_came_before_it_was_seen(tmp_path: Path) -> None:
    for tape in (Tape().create().poll(), Tape().create().poll().arm(solicited=True)):
        tape.sleep().seen(1)
        lanes = {lane.label: lane for lane in row_of(process_of(tape, tmp_path), "CQ 1").lanes}
        (seen,) = lanes["waiting"].marks
        assert spans(lanes["came"]) == [("came", lanes["calls"].marks[1].time, seen.time, False)]
        assert steps(lanes["waiting"]) == [(seen.time, 1)]


def test_one_that_raised_an_event_came_when_it_was_seen(tmp_path: Path) -> None:
    tape = Tape().create().poll().arm().sleep().seen(1).wake().event().poll(before=1)
    labels = [lane.label for lane in row_of(process_of(tape, tmp_path), "CQ 1").lanes]
    assert "waiting" in labels
    assert "came" not in labels


def test_polls_of_another_thread_do_not_take_what_was_seen(tmp_path: Path) -> None:
    """Its completions stand before its own poll."""
    tape = Tape().arm().sleep().seen(1)
    tape.tid += 1
    tape.completion(2)
    tape.tid += 1
    tape.poll()
    tape.tid -= 1
    tape.add(What.POLL, 1, number=1)
    assert steps(lane_of(tape, tmp_path, "CQ 1", "waiting")) == [(0, 1)]


def test_events_that_are_acknowledged_at_once_have_no_lane(tmp_path: Path) -> None:
    row = row_of(process_of(Tape().event().ack().event().ack(), tmp_path), "CQ 1")
    assert "unacknowledged" not in [lane.label for lane in row.lanes]
    tape = Tape().event().event().ack(2).event()
    lane = lane_of(tape, tmp_path, "CQ 1", "unacknowledged")
    assert steps(lane) == [(0, 1), (1000, 2), (2000, 0), (3000, 1)]


def test_a_cq_has_a_lane_for_each_kind_of_gap_that_it_has(tmp_path: Path) -> None:
    process = process_of(race(), tmp_path)
    lanes = [lane.label for lane in row_of(process, "CQ 1").lanes]
    assert lanes == [
        *("armed", "calls", "came", "waiting"),
        *("event to wake", "wake to poll", "no event until polled"),
    ]
    (gap,) = row_of(process, "CQ 1").lanes[-1].spans
    assert (gap.end - gap.start, gap.open) == (24_200, True)


# ---- work requests --------------------------------------------------------------------------


def test_sends_are_in_flight_until_a_later_signaled_one_completes(tmp_path: Path) -> None:
    tape = Tape()
    tape.post_send(1, signaled=False).post_send(2, signaled=False).post_send(3).post_send(4)
    tape.completion(3, opcode=0).completion(4, opcode=0)
    lane = lane_of(tape, tmp_path, "QP 1", "sends")
    assert steps(lane) == [(0, 1), (1000, 2), (2000, 3), (3000, 4), (4000, 1), (5000, 0)]


def test_equal_wr_ids_are_told_apart_by_the_signal(tmp_path: Path) -> None:
    tape = Tape().post_send(0, signaled=False).post_send(0).post_send(0, signaled=False)
    tape.completion(0, opcode=0).completion(0, opcode=0, status=FLUSHED)
    lane = lane_of(tape, tmp_path, "QP 1", "sends")
    assert steps(lane) == [(0, 1), (1000, 2), (2000, 3), (3000, 1), (4000, 0)]


def test_a_completion_that_was_seen_is_of_the_qp_that_has_its_wr_id(tmp_path: Path) -> None:
    """The observer does not name its QP."""
    tape = Tape().create(2).post_recv(5, 1).post_recv(5, 2).post_recv(6, 2)
    tape.seen(5, 2, other=0).seen(6, 1, other=0)
    process = process_of(tape, tmp_path)
    second = {lane.label: lane for lane in row_of(process, "QP 2").lanes}
    assert [kind for kind, _ in marks(second["requests"])][-1] == "completion"
    assert steps(second["receives"])[-1] == (8000, 1)
    assert [kind for kind, _ in marks(row_of(process, "QP 1").lanes[0])][-1] == "recv"


def test_receives_are_posted_until_they_complete(tmp_path: Path) -> None:
    tape = Tape().post_recv(1).post_recv(2).completion(1).completion(99).completion(2)
    assert steps(lane_of(tape, tmp_path, "QP 1", "receives")) == [
        *((0, 1), (1000, 2), (2000, 1), (4000, 0))
    ]


def test_a_failed_completion_is_of_the_direction_that_has_its_wr_id(tmp_path: Path) -> None:
    tape = Tape().post_recv(1).post_send(2)
    tape.completion(2, status=FLUSHED).completion(1, status=FLUSHED, opcode=0)
    assert steps(lane_of(tape, tmp_path, "QP 1", "sends"))[-1] == (2000, 0)
    assert steps(lane_of(tape, tmp_path, "QP 1", "receives"))[-1] == (3000, 0)
    requests = marks(lane_of(tape, tmp_path, "QP 1", "requests"))
    assert [kind for kind, _ in requests] == ["recv", "send", "failed", "failed"]


def test_a_qp_that_is_destroyed_has_nothing_in_flight(tmp_path: Path) -> None:
    tape = Tape().post_recv(1).post_recv(1).add(What.QP_DESTROYED, 1)
    assert steps(lane_of(tape, tmp_path, "QP 1", "receives"))[-1] == (2000, 0)


def test_a_refused_post_and_a_refused_arm_have_failed(tmp_path: Path) -> None:
    tape = Tape().add(What.POST_REFUSED, 1, detail=12).add(What.ARM_FAILED, 1, detail=12)
    assert marks(lane_of(tape, tmp_path, "QP 1", "requests")) == [("failed", 0)]
    assert marks(lane_of(tape, tmp_path, "CQ 1", "calls")) == [("failed", 1000)]


# ---- tasks ----------------------------------------------------------------------------------


def test_each_task_has_a_row_of_its_name(tmp_path: Path) -> None:
    tape = Tape().task(1, "reader").add(What.TASK_SLEEP, 3, value=5, number=0x76636572)
    tape.task(2, "a name that is cut after 24 bytes").add(What.TASK_SLEEP, value=6)
    tape.add(What.TASK_WAKE, value=5).add(What.TASK_WAKE, value=1234)  # its sleep was lost
    tape.task(1, "reader").add(What.TASK_SLEEP, value=7)
    process = process_of(tape, tmp_path)
    rows = [row for row in process.rows if row.kind == "task"]
    assert [row.name for row in rows] == ["reader", "a name that is cut after"]
    assert [spans(row.lanes[0]) for row in rows] == [
        [("task", 1000, 4000, False), ("task", 7000, 7000, True)],
        [("task", 3000, 7000, True)],
    ]
    texts = [span.text for span in rows[0].lanes[0].spans]
    assert texts == ["reader awaits recv() of CQ 3", "reader awaits a completion"]


def test_tasks_without_a_name_share_rows(tmp_path: Path) -> None:
    tape = Tape()
    for what, value in [("SLEEP", 5), ("SLEEP", 6), ("WAKE", 5), ("SLEEP", 7), ("WAKE", 6)]:
        tape.add(What[f"TASK_{what}"], value=value)
    process = process_of(tape, tmp_path)
    assert spans(row_of(process, "task 1").lanes[0]) == [
        ("task", 0, 2000, False),
        ("task", 3000, 4000, True),
    ]
    assert spans(row_of(process, "task 2").lanes[0]) == [("task", 1000, 4000, False)]


def test_of_many_tasks_the_later_ones_share_rows(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(OWN_ROWS + 10):
        tape.task(number + 1, f"Task-{number}").add(What.TASK_SLEEP, value=number)
        tape.add(What.TASK_WAKE, value=number)
    rows = [row for row in process_of(tape, tmp_path).rows if row.kind == "task"]
    assert [row.name for row in rows] == [*(f"Task-{n}" for n in range(OWN_ROWS)), "task 1"]
    texts = [span.text for span in rows[-1].lanes[0].spans]
    assert texts == [f"Task-{OWN_ROWS + n} awaits a completion" for n in range(10)]


def test_the_gap_from_an_event_to_its_task_is_in_the_row_of_the_loop(tmp_path: Path) -> None:
    tape = Tape().sleep().wake().event().add(What.TASK_WAKE, value=3, after=44)
    assert spans(lane_of(tape, tmp_path, THREAD, "event to task")) == [
        ("event to task", 2000, 2044, False)
    ]


# ---- findings and processes -----------------------------------------------------------------


def test_a_finding_is_a_mark_among_the_calls_of_its_cq(tmp_path: Path) -> None:
    process = process_of(race(), tmp_path)
    (found,) = process.findings
    assert process.rows[found.row].name == "CQ 1"
    assert marks(row_of(process, "CQ 1").lanes[1])[-1] == ("error", found.time)


def test_a_finding_of_no_cq_is_a_mark_of_its_thread(tmp_path: Path) -> None:
    process = process_of(Tape().post_recv(1).finding("async-unread", cq=0), tmp_path)
    (found,) = process.findings
    assert process.rows[found.row].name == THREAD


def test_processes_share_one_clock(tmp_path: Path) -> None:
    Tape(20).post_recv(1).post_recv(2).write(tmp_path)
    late = Tape(30)
    late.now = 10_000
    late.post_recv(1).write(tmp_path)
    timeline = build(read(tmp_path))
    first, second = timeline.processes
    assert second.rows[0].lanes[0].marks[0].time == 10_000
    assert first.rows[0].lanes[0].spans[0].start == 0
    assert timeline.duration == 10_000
    assert timeline.started == REALTIME + 1000


def test_a_hundred_thousand_records_are_all_there(tmp_path: Path) -> None:
    process = process_of(many(100_000), tmp_path)
    calls = [lane for row in process.rows for lane in row.lanes if row.kind == "thread"]
    completions = process.summary.counts.completions
    in_calls = sum(len(lane.marks) for lane in calls)
    assert 0 <= 100_000 - completions - in_calls <= 1


# ---- words ----------------------------------------------------------------------------------


def test_time_spans_have_three_digits() -> None:
    texts = {0: "0 ns", 999: "999 ns", 1000: "1.00 us", 1250: "1.25 us", 99_960: "100 us"}
    texts |= {999_499: "999 us", 999_500: "1.00 ms", 12_345_678: "12.3 ms", 61 * 10**9: "61.0 s"}
    texts[1234 * 10**9] = "1234 s"
    assert {ns: duration(ns) for ns in texts} == texts


def words(what: What, object: int = 1, **values: int) -> str:
    fields = {name: values.get(name, 0) for name in Record._fields}
    return describe(Record(**{**fields, "what": what, "object": object}))


def test_each_kind_of_record_has_words() -> None:
    for what in What:
        assert words(what), what
        assert words(what, 0, detail=1 << 20, number=1 << 20, value=1 << 60, other=1 << 20)


def test_names_of_the_verbs_are_used() -> None:
    post = words(What.POST_SEND, 2, value=1 << 40, number=1, detail=SEND, flags=Flag.SOLICITED)
    assert post == "QP 2: posts SEND, wr_id 0x10000000000, 1 byte, unsignaled, solicited"
    made = words(What.QP_CREATED, 2, other=1, value=3, number=17, detail=UD)
    assert made == "QP 2 created: number 17, UD, sends to CQ 1, receives to CQ 3"
    failed = words(What.COMPLETION, other=2, value=9, detail=12 << 16)
    assert failed == "CQ 1: completion of QP 2: fails with RETRY_EXC_ERR, wr_id 9"
    came = words(What.COMPLETION, other=2, value=9, number=64, detail=128, flags=Flag.SEEN)
    seen = "seen by the observer, before the program polled"
    wanted = f"CQ 1: completion of QP 2: RECV, wr_id 9, 64 bytes; {seen}"
    assert came == wanted
    sleep = words(What.SLEEP, 0, detail=Call.EPOLL_WAIT, number=3, value=5 * 10**6)
    assert sleep == "sleeps in epoll_wait(), 3 descriptors, at most 5.00 ms"
    assert words(What.WAKE, 0, detail=4) == "wakes: EINTR"
    assert words(What.WAKE, 0) == "wakes: timed out"
    assert words(What.CM_EVENT, 1, detail=9).startswith("QP 1: rdma_cm event ESTABLISHED")
    assert words(What.ASYNC_EVENT, detail=0) == "asynchronous event CQ_ERR"
    injected = words(What.EVENT, other=1, flags=Flag.INJECTED)
    assert injected == "CQ 1: event read from channel 1; injected by cqnotify chaos"


def test_a_fault_is_named_with_what_it_did() -> None:
    texts = [words(What.FAULT, 0, detail=fault, value=1) for fault in range(len(FAULTS) + 1)]
    assert texts == [
        "fault split: the poll gets 1 completion of more",
        "fault hold: the poll gets none of 1 completion",
        "fault eintr: a signal ends ibv_get_cq_event()",
        "fault late: 1 ms",
        "fault destroy: 1 ms",
        "fault arm: EPERM",
        "fault create: EPERM",
        "fault register: EPERM",
        "fault post: the list is refused after 1 request",
        "fault fail: LOC_LEN_ERR",
        "fault async: QP_FATAL",
        "fault 11: EPERM",
    ]


def test_a_fault_is_a_mark_among_the_calls_of_its_thread(tmp_path: Path) -> None:
    tape = Tape().sleep().add(What.FAULT, detail=FAULTS.index("late"), value=7).wake()
    assert marks(lane_of(tape, tmp_path, THREAD, "calls")) == [
        ("sleep", 0),
        ("fault", 1000),
        ("wake", 2000),
    ]
