# SPDX-License-Identifier: MIT
"""The measurement of conformance: its rows, its judgement, its text; what rxe does is in
test_solicited.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import is_rxe, kernel, take_all

from cqnotify import Context, QPType, SendFlags, WCStatus
from cqnotify.cli import main
from cqnotify.conformance import (
    QP_TYPES,
    Arm,
    Case,
    Deviation,
    Outcome,
    Queue,
    Report,
    Row,
    cases,
    expected_events,
    expected_statuses,
    format_report,
    is_solicited,
    measure,
)

RowsOf = Callable[[Outcome], tuple[Row, ...]]
Capture = pytest.CaptureFixture[str]

RC, UC, UD = QPType.RC, QPType.UC, QPType.UD
SEND, RECV = Queue.SEND, Queue.RECV
NONE, SIGNALED, SOLICITED = SendFlags(0), SendFlags.SIGNALED, SendFlags.SOLICITED
SUCCESS, FLUSHED, FAILED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.REM_OP_ERR
NO_EVENT, NO_COMPLETION = Deviation.NO_EVENT, Deviation.NO_COMPLETION
SURPLUS_EVENT, SURPLUS_COMPLETION = Deviation.SURPLUS_EVENT, Deviation.SURPLUS_COMPLETION
OTHER_STATUS = Deviation.OTHER_STATUS

DOC = Path(__file__).parents[2] / "docs" / "conformance-tables.md"


# ---- what is measured -----------------------------------------------------------------------


@pytest.mark.not_on_iwarp("nothing stays in flight", only=r"NO_PEER|FLUSH")
@pytest.mark.parametrize("outcome", Outcome, ids=lambda outcome: outcome.name)
def test_each_row_is_measured_once(rows_of: RowsOf, outcome: Outcome) -> None:
    rows = rows_of(outcome)
    wanted = [(case, queue) for case in cases() if case.outcome is outcome for queue in case.queues]
    assert [(row.case, row.queue) for row in rows] == wanted
    assert len(rows) == len(set(wanted))


@pytest.fixture
def report(ctx: Context, rows_of: RowsOf) -> Report:
    """All that there is."""
    rows = tuple(row for outcome in Outcome for row in rows_of(outcome))
    return Report("rxe0", "6.1", rows)


def test_the_cases_are_all_combinations_that_mean_something() -> None:
    every = list(cases())
    assert len(set(every)) == len(every)
    assert {case.armed for case in every} == set(Arm)
    for case in every:
        if SOLICITED in case.send_flags:
            assert case.operation.startswith("SEND") or case.operation == "RDMA_WRITE_WITH_IMM"
    variants = {(c.sq_sig_all, c.send_flags) for c in every if c.operation == "SEND"}
    flags = (NONE, SIGNALED, SOLICITED, SIGNALED | SOLICITED)
    assert variants == {(all_, flag) for all_ in (False, True) for flag in flags}
    for qp_type in QP_TYPES:
        assert list(cases([qp_type])) == [case for case in every if case.qp_type == qp_type]


@pytest.mark.not_on_iwarp("neither the port nor its GID matters to rdma_cm")
def test_a_part_can_be_measured_on_any_port_and_gid(ctx: Context) -> None:
    chosen = [case for case in cases([UD]) if case.outcome is Outcome.SUCCESS]
    done: list[int] = []
    gid = ctx.find_gid()
    found = measure(
        ctx.name, chosen, port_num=gid.port_num, gid_index=gid.index, progress=done.append
    )
    assert found.device == ctx.name
    assert [row.case for row in found.rows if row.queue is SEND] == chosen
    assert found.deviating == ()
    assert done == [0]


def test_nothing_chosen_is_nothing_measured(ctx: Context) -> None:
    assert measure(ctx.name, []).rows == ()


@pytest.mark.not_on_iwarp("neither the port nor its GID matters to rdma_cm")
@pytest.mark.usefixtures("ctx")
def test_a_gid_that_is_not_there_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="no GID at index 200"):
        measure(chosen=list(cases([UD]))[:1], gid_index=200)


def test_who_uses_the_device_is_not_told_of_the_failures(ctx: Context) -> None:
    take_all(ctx)
    chosen = [case for case in cases([RC]) if case.outcome is Outcome.TOO_SMALL][:6]
    assert measure(ctx.name, chosen).deviating
    assert ctx.try_get_async_event() is None


# ---- how it is judged -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "status", "flags", "solicited"),
    [
        (RECV, SUCCESS, SOLICITED, True),
        (RECV, SUCCESS, SOLICITED | SIGNALED, True),
        (RECV, SUCCESS, NONE, False),
        (RECV, SUCCESS, SIGNALED, False),
        (SEND, SUCCESS, SOLICITED, False),
        (SEND, SUCCESS, SIGNALED, False),
        (SEND, FLUSHED, NONE, True),
        (SEND, FAILED, SOLICITED, True),
        (RECV, FLUSHED, NONE, True),
        (RECV, FAILED, NONE, True),
        (RECV, 99, NONE, True),
    ],
)
def test_a_completion_is_solicited_as_the_manual_says(
    queue: Queue, status: WCStatus | int, flags: SendFlags, solicited: bool
) -> None:
    assert is_solicited(queue, status, flags) == solicited
    assert expected_events(queue, Arm.SOLICITED, [status], flags) == solicited


@pytest.mark.parametrize(
    ("armed", "statuses", "flags", "events"),
    [
        (Arm.NOT, [SUCCESS], SOLICITED, 0),
        (Arm.NOT, [FAILED], NONE, 0),
        (Arm.ANY, [], SOLICITED, 0),
        (Arm.ANY, [SUCCESS], NONE, 1),
        (Arm.ANY, [FLUSHED], NONE, 1),
        (Arm.ANY, [SUCCESS, SUCCESS], NONE, 1),
        (Arm.SOLICITED, [], SOLICITED, 0),
        (Arm.SOLICITED, [SUCCESS, FLUSHED], NONE, 1),
        (Arm.SOLICITED, [FLUSHED, FLUSHED], NONE, 1),
    ],
)
def test_an_arm_is_good_for_one_event_as_the_manual_says(
    armed: Arm, statuses: list[WCStatus | int], flags: SendFlags, events: int
) -> None:
    assert expected_events(RECV, armed, statuses, flags) == events


@pytest.mark.parametrize(
    ("case", "sender", "receiver"),
    [
        (Case(RC, Outcome.SUCCESS, "SEND", False, SIGNALED, Arm.ANY), SUCCESS, SUCCESS),
        (Case(RC, Outcome.SUCCESS, "SEND", False, SOLICITED, Arm.ANY), None, SUCCESS),
        (Case(UD, Outcome.SUCCESS, "SEND", True, NONE, Arm.ANY), SUCCESS, SUCCESS),
        (Case(RC, Outcome.SUCCESS, "RDMA_READ", True, NONE, Arm.ANY), SUCCESS, None),
        (Case(RC, Outcome.BAD_LKEY, "SEND", False, NONE, Arm.ANY), WCStatus.LOC_PROT_ERR, None),
        (
            Case(RC, Outcome.TOO_SMALL, "SEND", False, NONE, Arm.ANY),
            WCStatus.REM_INV_REQ_ERR,
            WCStatus.LOC_LEN_ERR,
        ),
        (Case(UC, Outcome.BAD_RKEY, "RDMA_WRITE", False, NONE, Arm.ANY), None, None),
        (Case(UC, Outcome.BAD_RKEY, "RDMA_WRITE", True, NONE, Arm.ANY), SUCCESS, None),
        (Case(RC, Outcome.FLUSH, "SEND", False, NONE, Arm.ANY), FLUSHED, FLUSHED),
    ],
)
def test_what_fails_completes_and_what_succeeds_does_if_asked_to(
    case: Case, sender: WCStatus | None, receiver: WCStatus | None
) -> None:
    assert expected_statuses(case, SEND) == (sender,)
    assert expected_statuses(case, RECV) == (receiver,)


def test_where_infiniband_leaves_a_choice_each_is_right() -> None:
    small = Case(UD, Outcome.TOO_SMALL, "SEND", False, NONE, Arm.ANY)
    assert set(expected_statuses(small, RECV)) == {WCStatus.LOC_LEN_ERR, None}
    wrong = Case(RC, Outcome.BAD_RKEY, "RDMA_WRITE_WITH_IMM", False, NONE, Arm.ANY)
    assert set(expected_statuses(wrong, RECV)) == {WCStatus.LOC_ACCESS_ERR, FLUSHED}


ANY_CASE = Case(RC, Outcome.SUCCESS, "SEND", False, SIGNALED, Arm.ANY)


@pytest.mark.parametrize(
    ("expected", "statuses", "expected_events", "events", "deviations"),
    [
        ((SUCCESS,), (SUCCESS,), 1, 1, ()),
        ((None,), (), 0, 0, ()),
        ((FAILED, None), (), 0, 0, ()),
        ((FAILED, None), (FAILED,), 1, 1, ()),
        ((SUCCESS,), (SUCCESS,), 1, 0, (NO_EVENT,)),
        ((SUCCESS,), (SUCCESS,), 0, 1, (SURPLUS_EVENT,)),
        ((SUCCESS,), (SUCCESS,), 1, 2, (SURPLUS_EVENT,)),
        ((FAILED,), (FLUSHED,), 1, 0, (NO_EVENT, OTHER_STATUS)),
        ((FAILED, None), (FLUSHED,), 1, 1, (OTHER_STATUS,)),
        ((FLUSHED,), (), 0, 0, (NO_COMPLETION,)),
        ((None,), (FLUSHED,), 1, 1, (SURPLUS_COMPLETION,)),
        ((SUCCESS,), (SUCCESS, SUCCESS), 1, 1, (SURPLUS_COMPLETION,)),
    ],
)
def test_a_row_knows_how_it_departs(
    expected: tuple[WCStatus | None, ...],
    statuses: tuple[WCStatus, ...],
    expected_events: int,
    events: int,
    deviations: tuple[Deviation, ...],
) -> None:
    row = Row(ANY_CASE, SEND, expected, statuses, expected_events, events)
    assert row.deviations == deviations
    assert row._replace(refusal="it can not").deviations == ()


# ---- how it is told -------------------------------------------------------------------------


def test_json_has_every_row(report: Report) -> None:
    assert Report.from_dict(json.loads(json.dumps(report.as_dict()))) == report
    rows = report.as_dict()["rows"]
    assert len(rows) == len(report.rows)
    assert rows[0] == {
        **{"qp_type": "RC", "outcome": "SUCCESS", "operation": "SEND", "sq_sig_all": False},
        **{"send_flags": [], "armed": "NOT", "queue": "SEND", "expected_statuses": [None]},
        **{"statuses": [], "expected_events": 0, "events": 0, "refusal": None, "deviations": []},
    }


def test_json_keeps_a_status_without_a_name_and_a_refusal() -> None:
    odd = Row(ANY_CASE, RECV, (FAILED, None), (99,), 1, 0)
    refused = Row(ANY_CASE, SEND, (SUCCESS,), (), 0, 0, "it can not")
    report = Report("rxe0", "6.1", (odd, refused))
    assert Report.from_dict(json.loads(json.dumps(report.as_dict()))) == report
    assert report.deviating == (odd,)


def documented(version: tuple[int, int]) -> str | None:
    """What the document says that the command prints on this kernel."""
    blocks = re.findall(r"^On ([^\n]+):\n\n```\n(.*?)\n```", DOC.read_text(), re.DOTALL | re.M)
    here = "{}.{}".format(*version)
    return next((block for where, block in blocks if here in re.findall(r"\d+\.\d+", where)), None)


def test_the_document_has_what_the_command_prints_here(ctx: Context, report: Report) -> None:
    text = documented(kernel())
    if text is None or not is_rxe(ctx):
        pytest.skip("the document is about rxe on Linux 6.1, 6.12 and 7.2")
    title, _, rest = text.partition("\n")
    printed, _, table = format_report(report).partition("\n")
    assert table == rest
    assert re.sub(r" on .*: ", ": ", printed) == re.sub(r" on .*: ", ": ", title)


def test_the_document_tells_of_three_kernels() -> None:
    tables = [documented(version) for version in ((6, 1), (6, 12), (7, 2), (6, 2))]
    measured = [table and table.split()[3].rpartition(".")[0] for table in tables]
    assert measured == ["6.1", "6.12", "6.12", None]


@pytest.mark.not_on_iwarp("nothing stays in flight")
def test_the_table_fits_a_terminal_and_marks_what_departs(report: Report) -> None:
    plain = format_report(report)
    assert max(map(len, plain.splitlines())) <= 100
    narrow = format_report(report, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert " ".join(narrow.split()) == " ".join(plain.split())
    painted = format_report(report, lambda text, color: f"<{color}>{text}</>")
    assert re.sub("<.*?>", "", painted) == plain
    assert set(re.findall("<red>(.*?)</>", painted)) == {
        text for text in re.findall("<red>(.*?)</>", painted) if "!" in text
    }
    assert re.findall("<bold>(.*?)</>", painted) == [outcome.value for outcome in Outcome]
    assert len(re.findall("<red>", painted)) == plain.partition("\n\nnot, any")[0].count("!") > 0


def rows_by_hand(*events: int, case: Case = ANY_CASE, **fields: Any) -> list[Row]:
    """A send that succeeds, for each way to arm, with so many events."""
    made = []
    for armed, n in zip(Arm, events, strict=True):
        statuses = fields.get("statuses", (SUCCESS,))
        due = expected_events(SEND, armed, statuses, SIGNALED)
        row = Row(case._replace(armed=armed), SEND, (SUCCESS,), statuses, due, n)
        made.append(row._replace(**fields))
    return made


def text_of(*rows: list[Row]) -> str:
    return format_report(Report("dev0", "7.0", tuple(row for part in rows for row in part)))


@pytest.mark.parametrize(
    ("events", "cells", "advice"),
    [
        ((0, 1, 0), "- event -", None),
        ((1, 1, 0), "event! event -", "armed for nothing: an event too many (1 row). Expect"),
        ((0, 2, 0), "- 2 events! -", "armed for any completion: an event too many (1 row). Expect"),
        ((0, 0, 0), "- none! -", "armed for any completion: no event (1 row). Do not sleep"),
        ((0, 1, 1), "- event event!", "solicited only: an event too many (1 row). It wakes more"),
    ],
)
def test_each_way_to_depart_has_its_mark_and_its_advice(
    events: tuple[int, ...], cells: str, advice: str | None
) -> None:
    text = " ".join(text_of(rows_by_hand(*events)).split())
    assert f"send RC SUCCESS {cells} SEND" in text
    assert ("Deviations from ibv_req_notify_cq(3): - send CQ, success" in text) == bool(advice)
    assert advice is None or advice in text


@pytest.mark.parametrize(
    ("statuses", "cells", "advice"),
    [
        ((), "none! -", "send CQ, success: no completion (3 rows). Wait with a timeout."),
        ((SUCCESS, SUCCESS), "SUCCESS + SUCCESS! -", "one too many (3 rows). Identify"),
        ((FAILED,), "REM_OP_ERR! -", "send CQ, success: failed (3 rows). Do not rely on it."),
        ((99,), "99! -", "send CQ, success: failed (3 rows). Do not rely on it."),
    ],
)
def test_each_wrong_completion_has_its_mark_and_its_advice(
    statuses: tuple[WCStatus | int, ...], cells: str, advice: str
) -> None:
    events = (0, int(bool(statuses)), int(bool(statuses) and statuses[0] != SUCCESS))
    text = " ".join(text_of(rows_by_hand(*events, statuses=statuses)).split())
    assert f"send RC {cells}" in text
    assert "SEND (SUCCESS)" in text
    assert "Completions that differ from what InfiniBand requires:" in text
    assert advice in text


def test_only_rows_that_behave_alike_are_one_line() -> None:
    write = ANY_CASE._replace(operation="RDMA_WRITE")
    datagram = ANY_CASE._replace(qp_type=UD)
    alike = text_of(rows_by_hand(0, 1, 0), rows_by_hand(0, 1, 0, case=write))
    assert alike.count("send  RC  SUCCESS") == 1
    assert " all\n" in alike
    types = text_of(rows_by_hand(0, 1, 0), rows_by_hand(0, 1, 0, case=datagram))
    assert types.count("send  RC UD  SUCCESS") == 1
    other = text_of(rows_by_hand(0, 1, 0), rows_by_hand(0, 0, 0, case=write))
    assert other.count("send  RC  SUCCESS") == 2


@pytest.mark.parametrize(
    ("odd_flags", "named"),
    [(NONE, "no flag"), (SIGNALED, "SIGNALED"), (SIGNALED | SOLICITED, "SIGNALED|SOLICITED")],
    ids=str,
)
def test_send_flags_that_no_word_describes_are_listed(odd_flags: SendFlags, named: str) -> None:
    flags = (NONE, SIGNALED, SOLICITED, SIGNALED | SOLICITED)
    variants = [ANY_CASE._replace(sq_sig_all=all_, send_flags=f) for all_ in (0, 1) for f in flags]
    odd = ANY_CASE._replace(sq_sig_all=True, send_flags=odd_flags)
    parts = [rows_by_hand(0, 1 - (case == odd), 0, case=case) for case in variants]
    assert f"SEND, sq_sig_all=1 with {named}\n" in text_of(*parts)


def test_completions_that_differ_by_the_arm_leave_room_for_the_operation() -> None:
    (a, b, c) = rows_by_hand(0, 1, 0)
    odd = (WCStatus.RNR_RETRY_EXC_ERR, WCStatus.REM_INV_REQ_ERR), (WCStatus.RETRY_EXC_ERR,)
    text = text_of([a, b._replace(statuses=odd[0]), c._replace(statuses=odd[1])])
    assert "SUCCESS / RNR_RETRY_EXC_ERR + REM_INV_REQ_ERR! / RETRY_EXC_ERR!" in text
    assert "  SEND (SUCCESS)\n" in text


@pytest.mark.parametrize("width", [80, 90, 100])
def test_the_table_of_all_cases_fits_a_terminal(width: int) -> None:
    """Of a device that does as it should, but for one event."""
    rows = []
    for case in cases():
        for queue in case.queues:
            expected = expected_statuses(case, queue)
            statuses = tuple(status for status in expected[:1] if status is not None)
            due = expected_events(queue, case.armed, statuses, case.send_flags)
            rows.append(Row(case, queue, expected, statuses, due, due))
    rows[0] = rows[0]._replace(events=1)
    found = Report("dev0", "7.0", tuple(rows))
    lines = format_report(found, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(format_report(found).split())


def test_what_was_not_measured_is_left_blank() -> None:
    (row,) = [row for row in rows_by_hand(0, 1, 0) if row.case.armed is Arm.ANY]
    assert "  send  RC  SUCCESS          event             SEND\n" in text_of([row])


def test_what_the_device_refuses_is_listed_and_not_in_the_table() -> None:
    text = text_of(rows_by_hand(0, 0, 0, statuses=(), refusal="ibv_post_send: it can not"))
    assert text.endswith("\n\nNot supported:\n- RC SEND: ibv_post_send: it can not")
    assert "  send" not in text


# ---- the command ----------------------------------------------------------------------------


def test_the_command_prints_the_table_or_every_row(
    ctx: Context, rows_of: RowsOf, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    known = tuple(row for o in Outcome for row in rows_of(o) if row.case.qp_type == UD)
    command = ["conformance", "--device", ctx.name, "--type", "ud", "--cases"]
    code = main([*command, "--json", "--strict"])
    out, err = capsys.readouterr()
    assert err == ""
    found = Report.from_dict(json.loads(out))
    assert (found.device, found.sequences) == (ctx.name, ())
    assert found.rows == known
    assert code == bool(found.deviating)
    assert main(command) == 0
    assert capsys.readouterr() == (format_report(found) + "\n", "")
