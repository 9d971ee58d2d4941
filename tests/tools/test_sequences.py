# SPDX-License-Identifier: MIT
"""The sequences of conformance: what must be, what rxe does, that a device which does something
else is found out, and the text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import is_rxe, kernel

from cqnotify import CQ, CompletionChannel, Context, QPType
from cqnotify.cli import main
from cqnotify.conformance import (
    QP_TYPES,
    Action,
    Deviation,
    Queue,
    Report,
    Sequence,
    SequenceRow,
    Step,
    cases,
    expected_in_sequence,
    format_report,
    measure,
    sequences,
)

Capture = pytest.CaptureFixture[str]

RC, UC, UD = QPType.RC, QPType.UC, QPType.UD
SEND, RECV = Queue.SEND, Queue.RECV
NO_EVENT, SURPLUS_EVENT = Deviation.NO_EVENT, Deviation.SURPLUS_EVENT

DOC = Path(__file__).parents[2] / "docs" / "conformance-tables.md"

ARM, SOLICITED, EVENTS = (
    Step(Action.ARM_ANY),
    Step(Action.ARM_SOLICITED),
    Step(Action.EVENTS),
)
ONE, WANTED = Step(Action.COMPLETE), Step(Action.COMPLETE_SOLICITED)
POLL, FILL, OVERFLOW = Step(Action.POLL, 0), Step(Action.FILL), Step(Action.OVERFLOW)

# What each must raise, on a receive CQ; and on a send CQ where no success is solicited.
MUST = {
    "a second completion after the event, not armed again": (1, 0),
    "armed again and again while the CQ is empty": (0, 1, 0),
    "armed after each event, never polled": (1, 0, 1, 1),
    "polled after the event, then armed twice": (1, 0, 1),
    "polled until empty while the event is unread": (1, 0, 1),
    "armed again while the event is unread": (2, 0),
    "armed again while the event is not acknowledged": (1, 1),
    "completed after the last poll and before the arm": (0, 1),
    "armed when some completions are polled and others are not": (0, 1),
    "armed while the CQ is full": (0, 1),
    "resized while armed": (1, 1, 0),
    "armed for any, then for solicited": (1, 1, 0),
    "armed for solicited, then for any": (1, 0),
    "armed for solicited: a plain completion, then a solicited one": (0, 1, 0),
    "armed for solicited while a solicited completion waits": (0, 0, 1),
    "armed for solicited and for any in turn": (1, 1, 0, 1),
    "two CQs of a channel, both armed": (1, 0, 0, 1),
    "two CQs of a channel, one armed": (0, 0, 1, 0),
    "two CQs of a channel, both events unread": (1, 1, 0, 1),
    "overflow": (1, None, None, None),
}
MUST_OF_SENDS = {
    **MUST,
    "armed for solicited: a plain completion, then a solicited one": (0, 0, 0),
    "armed for solicited while a solicited completion waits": (0, 0, 0),
    "armed for solicited and for any in turn": (0, 1, 0, 0),
}


@pytest.fixture(scope="module")
def measured() -> Report:
    """All of them, on the first device."""
    return measure(sequences=sequences())


def one(name: str, qp_type: QPType = RC, queue: Queue = RECV) -> Sequence:
    return next(s for s in sequences([qp_type]) if (s.name, s.queue) == (name, queue))


# ---- what is measured -----------------------------------------------------------------------


def test_each_sequence_is_there_for_each_type_on_both_queues() -> None:
    every = list(sequences())
    assert [s.name for s in every if (s.qp_type, s.queue) == (UC, SEND)] == list(MUST)
    assert len(set(every)) == len(every) == len(MUST) * len(QP_TYPES) * 2
    for qp_type in QP_TYPES:
        assert list(sequences([qp_type])) == [s for s in every if s.qp_type == qp_type]


@pytest.mark.parametrize("name", MUST)
def test_what_a_sequence_must_raise(name: str) -> None:
    for qp_type in QP_TYPES:
        assert expected_in_sequence(one(name, qp_type)) == MUST[name]
        assert expected_in_sequence(one(name, qp_type, SEND)) == MUST_OF_SENDS[name]


def test_each_sequence_ends_with_events() -> None:
    for sequence in sequences([RC]):
        assert sequence.steps[-1].action.takes_events, sequence.name


@pytest.mark.parametrize("name", MUST)
def test_rxe_does_what_is_demanded(ctx: Context, measured: Report, name: str) -> None:
    rows = [row for row in measured.sequences if row.sequence.name == name]
    assert [row.sequence for row in rows] == [s for s in sequences() if s.name == name]
    if not is_rxe(ctx):
        return
    for row in rows:
        assert row.refusal is None
        assert row.deviations == (), row
        if name != "overflow":
            assert row.events == row.expected_events
            assert (row.completed, row.failed, row.overflows) == (row.posted, 0, 0)


def test_after_an_overflow_rxe_raises_events_again(ctx: Context, measured: Report) -> None:
    """What was lost is reported. A receiver's QP is done with, and a new one goes on; but the next
    receive can be flushed, where the sender does not learn of it."""
    rows = [row for row in measured.sequences if row.sequence.name == "overflow"]
    if not is_rxe(ctx):
        assert all(row.events[0] == 1 for row in rows if row.refusal is None)
        return
    for row in rows:
        lost, events = 1, 1
        if row.sequence.queue is RECV:
            lost, events = 2, int(row.sequence.qp_type != RC and kernel() > (6, 1))
        assert row.events == (1, 0, events, 1), row
        assert (row.posted - row.completed, row.failed) == (lost, events * (lost - 1)), row
        assert row.overflows == 1


def test_a_sequence_of_ones_own(ctx: Context) -> None:
    steps = (ARM, ONE, EVENTS, ONE, ARM, EVENTS, Step(Action.COMPLETE, 3), EVENTS)
    (row,) = measure(ctx.name, sequences=[Sequence("mine", RC, SEND, steps)]).sequences
    assert row.sequence.steps == steps
    assert row.events == row.expected_events == (1, 0, 1)
    assert (row.posted, row.completed, row.failed, row.deviations) == (5, 5, 0, ())


def test_what_is_chosen_is_measured_and_nothing_else(ctx: Context) -> None:
    done: list[int] = []
    chosen, steps = list(cases([RC]))[:2], list(sequences([RC]))[:2]
    only_cases = measure(ctx.name, chosen)
    assert (len(only_cases.rows), only_cases.sequences) == (4, ())
    only_sequences = measure(ctx.name, sequences=steps)
    assert only_sequences.rows == ()
    assert [row.sequence for row in only_sequences.sequences] == steps
    both = measure(ctx.name, chosen, sequences=steps, progress=done.append)
    assert (both.rows, both.sequences) == (only_cases.rows, only_sequences.sequences)
    assert done == [0, 2]
    assert measure(ctx.name, [], sequences=[])[2:] == ((), ())


# ---- devices that do something else ---------------------------------------------------------


class ForgetsArms(CQ):
    """Armed again with nothing polled in between, it is not armed."""

    _is_armed = False

    def req_notify(self, solicited_only: bool = False) -> None:
        if not self._is_armed:
            self._is_armed = True
            super().req_notify(solicited_only)

    def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[Any]:
        self._is_armed = False
        return super().poll(max_entries, spin=spin)


class StaysArmed(CQ):
    """Whoever polls it finds it armed from then on."""

    def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[Any]:
        if self.channel is not None:
            super().req_notify()
        return super().poll(max_entries, spin=spin)


class Loses(CQ):
    """Of all that it has at once, it loses the first."""

    def poll(self, max_entries: int = 16, *, spin: float = 0.0) -> list[Any]:
        return super().poll(max_entries, spin=spin)[self.channel is not None :]


class NamesOne(CompletionChannel):
    """All events are said to be of the CQ that had the first."""

    _named: CQ | None = None

    def try_get_event(self) -> CQ | None:
        cq = super().try_get_event()
        self._named = self._named or cq
        return cq and self._named


def with_stand_in(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, stand_in: type, chosen: list[Sequence]
) -> list[SequenceRow]:
    """The rows that deviate, on a device with these CQs or channels."""
    name = stand_in.__mro__[1].__name__
    monkeypatch.setattr(f"cqnotify.conformance._sequence_run.{name}", stand_in)
    return list(measure(ctx.name, sequences=chosen).deviating_sequences)


SOLICITED_ON_RXE = "siw raises no event for a solicited message, but for its send"


@pytest.mark.not_on_iwarp(SOLICITED_ON_RXE)
@pytest.mark.parametrize("queue", Queue, ids=lambda queue: queue.name)
def test_an_arm_that_is_dropped_is_found(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    chosen = [s for s in sequences([RC]) if s.queue is queue and s.name != "overflow"]
    rows = with_stand_in(ctx, monkeypatch, ForgetsArms, chosen)
    upgraded = (0, 1 if queue is RECV else 0)
    assert {row.sequence.name: row.events for row in rows} == {
        "armed after each event, never polled": (1, 0, 0, 0),
        "armed again while the event is unread": (1, 0),
        "resized while armed": (1, 0, 0),
        "armed for any, then for solicited": (1, 0, 0),
        "armed for solicited, then for any": upgraded,
        "two CQs of a channel, both events unread": (1, 1, 0, 0),
    }
    for row in rows:
        assert NO_EVENT in row.deviations
        assert (SURPLUS_EVENT in row.deviations) == (row.events == (0, 1))
        assert row.completed == row.posted


@pytest.mark.not_on_iwarp(SOLICITED_ON_RXE)
def test_an_arm_that_is_left_over_is_found(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [s for s in sequences([UD]) if s.queue is RECV and s.name != "overflow"]
    rows = with_stand_in(ctx, monkeypatch, StaysArmed, chosen)
    assert {row.sequence.name: (row.events, row.deviations) for row in rows} == {
        "completed after the last poll and before the arm": ((1, 1), (SURPLUS_EVENT,)),
        "armed for solicited and for any in turn": ((1, 1, 1, 0), (SURPLUS_EVENT, NO_EVENT)),
    }


def test_an_event_of_the_wrong_cq_is_found(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Step(Action.EVENTS_WITHOUT_ACK)
    both = read, read._replace(cq=1)
    steps = (ARM, ARM._replace(cq=1), ONE, *both, ONE._replace(cq=1), *both)
    chosen = [Sequence("whose event", RC, queue, steps) for queue in Queue]
    assert measure(ctx.name, sequences=chosen).deviating_sequences == ()
    rows = with_stand_in(ctx, monkeypatch, NamesOne, chosen)
    assert [(row.events, row.expected_events) for row in rows] == [((1, 0, 1, 0), (1, 0, 0, 1))] * 2
    assert {row.deviations for row in rows} == {(SURPLUS_EVENT, NO_EVENT)}


def test_a_completion_that_is_lost_is_found(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (Step(Action.COMPLETE, 3), ARM, EVENTS)
    chosen = [Sequence("three", RC, SEND, steps), Sequence("none", RC, SEND, (ARM, EVENTS))]
    (row,) = with_stand_in(ctx, monkeypatch, Loses, chosen)
    assert (row.posted, row.completed, row.deviations) == (3, 2, (Deviation.NO_COMPLETION,))
    assert "complete 3, arm any: -; 2 of 3 completions!" in text_of(row)


def test_events_that_were_left_unacknowledged_do_not_keep_anything_open(ctx: Context) -> None:
    """Or the measurement would never end."""
    steps = (ARM, ONE, Step(Action.EVENTS_WITHOUT_ACK))
    (row,) = measure(ctx.name, sequences=[Sequence("unacked", RC, RECV, steps)]).sequences
    assert row.events == (1,)


# ---- how it is judged -----------------------------------------------------------------------

OVERFLOWING = Sequence("over", RC, RECV, (ARM, FILL, EVENTS, OVERFLOW, EVENTS))


@pytest.mark.parametrize(
    ("events", "posted", "completed", "failed", "deviations"),
    [
        ((0, 1), 2, 2, 0, ()),
        ((0, 0), 2, 2, 0, (NO_EVENT,)),
        ((1, 1), 2, 2, 0, (SURPLUS_EVENT,)),
        ((1, 0), 2, 2, 0, (SURPLUS_EVENT, NO_EVENT)),
        ((0, 2), 2, 2, 0, (SURPLUS_EVENT,)),
        ((0, 1), 2, 1, 0, (Deviation.NO_COMPLETION,)),
        ((0, 1), 2, 3, 0, (Deviation.SURPLUS_COMPLETION,)),
        ((0, 1), 2, 1, 1, (Deviation.OTHER_STATUS,)),
    ],
)
def test_a_row_knows_how_it_departs(
    events: tuple[int, ...],
    posted: int,
    completed: int,
    failed: int,
    deviations: tuple[Deviation, ...],
) -> None:
    sequence = one("armed while the CQ is full")
    row = SequenceRow(sequence, (0, 1), events, posted, completed, failed)
    assert row.deviations == deviations
    assert row._replace(refusal="it can not").deviations == ()


def test_after_an_overflow_nothing_is_a_deviation() -> None:
    assert expected_in_sequence(OVERFLOWING) == (1, None)
    for events in (0, 1, 2):
        assert SequenceRow(OVERFLOWING, (1, None), (1, events), 5, 3, 1, 1).deviations == ()
    assert SequenceRow(OVERFLOWING, (1, None), (0, 0), 5, 5).deviations == (NO_EVENT,)


# ---- how it is told -------------------------------------------------------------------------


def text_of(*rows: SequenceRow, **options: Any) -> str:
    return format_report(Report("dev0", "7.0", (), rows), **options)


def as_demanded(sequence: Sequence) -> SequenceRow:
    expected = expected_in_sequence(sequence)
    return SequenceRow(sequence, expected, tuple(each or 0 for each in expected), 4, 4)


def test_json_has_every_sequence(measured: Report) -> None:
    assert Report.from_dict(json.loads(json.dumps(measured.as_dict()))) == measured
    row = as_demanded(Sequence("mine", UD, SEND, (SOLICITED, WANTED, EVENTS._replace(cq=1))))
    refused = row._replace(refusal="it can not", events=(), failed=1, overflows=2)
    report = Report("dev0", "7.0", (), (row, refused))
    assert Report.from_dict(json.loads(json.dumps(report.as_dict()))) == report
    assert report.as_dict()["sequences"][0] == {
        **{"name": "mine", "qp_type": "UD", "queue": "SEND"},
        "steps": [
            {"action": "ARM_SOLICITED", "n": 1, "cq": 0},
            {"action": "COMPLETE_SOLICITED", "n": 1, "cq": 0},
            {"action": "EVENTS", "n": 1, "cq": 1},
        ],
        **{"expected_events": [0], "events": [0], "posted": 4, "completed": 4, "failed": 0},
        **{"overflows": 0, "refusal": None, "deviations": []},
    }


def test_json_of_before_there_were_sequences_can_be_read() -> None:
    found = Report.from_dict({"device": "dev0", "kernel": "6.1", "rows": []})
    assert found == Report("dev0", "6.1", (), ())


def test_rows_that_are_alike_are_one_line() -> None:
    name = "armed for solicited: a plain completion, then a solicited one"
    rows = [as_demanded(s) for s in sequences() if s.name == name]
    steps = "arm solicited, complete 1: -; complete 1 solicited: {0}; complete 1 solicited: -"
    assert text_of(*rows).splitlines()[2:6] == [
        "  CQ    QP        steps: the events that came",
        name,
        "  send  RC UC UD  " + steps.format("-"),
        "  recv  RC UC UD  " + steps.format("event"),
    ]
    odd = rows[0]._replace(events=(2, 0, 0))
    lines = text_of(odd, *rows[1:], width=120).splitlines()
    assert lines[4:6] == [
        "  send  RC        " + steps.format("-").replace("1: -", "1: 2 events!", 1),
        "  send  UC UD     " + steps.format("-"),
    ]
    alike = [as_demanded(s) for s in sequences() if s.name == "armed for any, then for solicited"]
    assert "  send recv  RC UC UD  arm any, complete 1, arm any: event; arm solicited, " in (
        text_of(*alike)
    )


def test_several_cqs_have_letters_and_what_is_free_has_brackets() -> None:
    both = text_of(as_demanded(one("two CQs of a channel, both armed")))
    assert "arm any A, arm any B, complete 1 A: A event, B -; complete 1 B: A -, B event\n" in both
    over = SequenceRow(OVERFLOWING, (1, None), (1, 0), 5, 3, 1, 1)
    assert "arm any, fill: event; overflow: (-); 3 of 5 completions; 1 failed; 1 CQ_ERR\n" in (
        text_of(over)
    )
    assert "not acked" in text_of(
        as_demanded(one("armed again while the event is not acknowledged"))
    )


@pytest.mark.parametrize("name", [name for name in MUST if 1 in MUST[name]])
def test_each_missing_event_has_its_mark_and_its_advice(name: str) -> None:
    row = as_demanded(one(name))
    row = row._replace(events=(0,) * len(row.events))
    text = " ".join(text_of(row).split())
    assert "none!" in text
    (advice,) = re.findall(
        rf"Sequences that deviate: - receive CQ, {re.escape(name)}: no event \(1\)\. (.*)", text
    )
    assert advice.endswith(".")


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"events": (1, 1)}, "an event too many (1). It wakes more often"),
        ({"completed": 3}, "no completion (1). Wait with a timeout."),
        ({"completed": 5}, "a completion too many (1). Identify"),
        ({"completed": 3, "failed": 1}, "another status (1). Messages fail"),
    ],
)
def test_each_other_deviation_has_its_advice(fields: dict[str, Any], advice: str) -> None:
    row = as_demanded(one("armed while the CQ is full"))._replace(**fields)
    text = " ".join(text_of(row).split())
    assert f"receive CQ, armed while the CQ is full: {advice}" in text
    assert text.count("!") == 2  # the mark, and its explanation


def test_what_is_refused_is_listed_once_and_not_in_the_table() -> None:
    resized = [as_demanded(s) for s in sequences() if s.name == "resized while armed"]
    rows = [row._replace(refusal="ibv_resize_cq: it can not") for row in resized]
    text = text_of(*rows)
    assert text.endswith(
        "\n\nSequences that are not supported:\n"
        "- RC UC UD, resized while armed: ibv_resize_cq: it can not"
    )
    assert "arm any" not in text
    rows = [as_demanded(s)._replace(refusal="no UC") for s in sequences([UC])]
    assert text_of(*rows).endswith(f"\n- UC, {len(MUST)} sequences: no UC")


@pytest.mark.parametrize("width", [80, 90, 100])
def test_the_table_fits_a_terminal_and_marks_what_departs(width: int) -> None:
    rows = [as_demanded(sequence) for sequence in sequences()]
    rows[0] = rows[0]._replace(events=(3, 1), completed=1)
    plain = text_of(*rows, width=width)
    assert max(map(len, plain.splitlines())) <= width
    assert " ".join(plain.split()) == " ".join(text_of(*rows).split())
    painted = text_of(*rows, width=width, paint=lambda text, color: f"<{color}>{text}</>")
    assert re.sub("<.*?>", "", painted) == plain
    assert re.findall("<red>(.*?)</>", painted) == ["3 events!", "event!", "1 of 4 completions!"]
    assert re.findall("<bold>(.*?)</>", painted) == list(MUST)


def test_cases_and_sequences_are_two_tables() -> None:
    row = as_demanded(one("overflow"))
    both = format_report(Report("dev0", "7.0", (), (row,)))
    assert both.startswith("dev0 on Linux 7.0: 1 sequences; not as expected: 0 events, 0 ")
    assert format_report(Report("dev0", "7.0", ())).startswith("dev0 on Linux 7.0: 0 rows; ")


def documented(version: tuple[int, int]) -> str | None:
    """The table that the document has for this kernel."""
    blocks = re.findall(
        r"^Sequences on ([^\n]+):\n\n```\n(.*?)\n```", DOC.read_text(), re.DOTALL | re.M
    )
    here = "{}.{}".format(*version)
    return next((block for where, block in blocks if here in re.findall(r"\d+\.\d+", where)), None)


def test_the_document_has_what_the_command_prints_here(ctx: Context, measured: Report) -> None:
    text = documented(kernel())
    if text is None or not is_rxe(ctx):
        pytest.skip("the document is about rxe on Linux 6.1, 6.12 and 7.2")
    title, _, rest = text.partition("\n")
    printed, _, table = format_report(measured).partition("\n")
    assert table == rest
    assert re.sub(r" on .*: ", ": ", printed) == re.sub(r" on .*: ", ": ", title)


def test_the_document_tells_of_three_kernels() -> None:
    assert all(documented(version) for version in ((6, 1), (6, 12), (7, 2)))
    assert documented((6, 2)) is None


# ---- the command ----------------------------------------------------------------------------


def test_the_command_measures_sequences_alone_or_leaves_them_out(
    ctx: Context, measured: Report, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    known = tuple(row for row in measured.sequences if row.sequence.qp_type == RC)
    command = ["conformance", "--device", ctx.name, "--type", "rc"]
    code = main([*command, "--sequences", "--json", "--strict"])
    out, err = capsys.readouterr()
    found = Report.from_dict(json.loads(out))
    assert (err, found.rows) == ("", ())
    assert found.sequences == known
    assert code == bool(found.deviating_sequences)
    assert main([*command, "--sequences"]) == 0
    assert capsys.readouterr() == (format_report(found) + "\n", "")


def test_a_device_that_supports_no_sequence_is_told(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    row = as_demanded(one("overflow"))._replace(refusal="it can not")
    report = Report(ctx.name, "7.0", (), (row,))
    monkeypatch.setattr("cqnotify.conformance.measure", lambda *_, **__: report)
    assert main(["conformance", "--device", ctx.name, "--sequences"]) == 3
    assert capsys.readouterr().err == f"cqnotify: {ctx.name} supports none of it: it can not\n"


def test_strict_counts_sequences(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    row = as_demanded(one("armed while the CQ is full"))
    for odd, code in ((row, 0), (row._replace(events=(1, 1)), 1)):
        report = Report(ctx.name, "7.0", (), (odd,))
        monkeypatch.setattr("cqnotify.conformance.measure", lambda *_, r=report, **__: r)
        assert main(["conformance", "--device", ctx.name, "--strict"]) == code
