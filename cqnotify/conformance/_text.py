# SPDX-License-Identifier: MIT
"""A report as text: the table, and what each kind of deviation means for a program."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ..enums import QPType, SendFlags, WCStatus
from ._cases import Arm, Outcome, Queue
from ._deviation import Deviation
from ._report import Report, Row
from ._sequence_report import SequenceRow
from ._sequence_text import SEQUENCES_LEGEND, of_sequences, refused_sequences, sequence_table

_HEAD: Final = ("CQ", "QP", "completion", "not", "any", "solicited", "operations, send flags")
_WIDTH: Final = 100
_LEAST: Final = 16  # the minimum width of the last column

_LEGEND: Final = """\
not, any, solicited: whether it raised an event, by what the CQ was armed for
!: not as ibv_req_notify_cq(3) says, or not the completion (in brackets) that InfiniBand requires
all: every operation that can end so; signaled: SIGNALED, or sq_sig_all of the QP"""

Paint = Callable[[str, str], str]


def _plain(text: str, _color: str) -> str:
    return text


def format_report(report: Report, paint: Paint = _plain, width: int = _WIDTH) -> str:
    """Return the tables of a report, and what the deviations mean for a program.

    report: what `measure` returned.
    paint: a function that returns a text in a colour; it is called with the text and "red" or
        "bold".
    width: the columns of the terminal. The table needs 80, or more if a line has many completions.
    """
    with_cases = report.rows or not report.sequences
    parts = _of_cases(report, paint, width) if with_cases else []
    if report.sequences:
        parts += _of_sequences(report, paint, width)
    return "\n\n".join(filter(None, parts))


def _of_cases(report: Report, paint: Paint, width: int) -> list[str]:
    rows = report.rows
    return [
        _fill(_title(report, f"{len(rows)} rows", rows), width),
        _table(rows, paint, width),
        _legend(_LEGEND, width),
        _section("Deviations from ibv_req_notify_cq(3):", of_events(rows), width),
        _section(
            "Completions that differ from what InfiniBand requires:", of_completions(rows), width
        ),
        _section("Not supported:", _refusals(rows), width),
    ]


def _of_sequences(report: Report, paint: Paint, width: int) -> list[str]:
    rows = report.sequences
    return [
        _fill(_title(report, f"{len(rows)} sequences", rows), width),
        sequence_table(rows, paint, width),
        _legend(SEQUENCES_LEGEND, width),
        _section("Sequences that deviate:", of_sequences(rows), width),
        _section("Sequences that are not supported:", refused_sequences(rows), width),
    ]


def _legend(text: str, width: int) -> str:
    return "\n".join(_fill(line, width) for line in text.splitlines())


def _title(report: Report, what: str, rows: Iterable[Row] | Iterable[SequenceRow]) -> str:
    found = [deviation for row in rows for deviation in row.deviations]
    events = sum(deviation.of_events for deviation in found)
    return (
        f"{report.device} on Linux {report.kernel}: {what}; not as expected: "
        f"{events} events, {len(found) - events} completions"
    )


def _table(rows: Iterable[Row], paint: Paint, width: int) -> str:
    found = list(lines(rows))
    table = [_HEAD, *map(_cells, found)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    text = [_layout(_HEAD, widths, _plain, width)]
    outcome = None
    for line in found:
        if line.outcome is not outcome:
            outcome = line.outcome
            text.append(paint(outcome.value, "bold"))
        text.append(_layout(_cells(line), widths, paint, width))
    return "\n".join(text)


def _cells(line: Line) -> tuple[str, ...]:
    qp_types = " ".join(qp_type.name for qp_type in line.qp_types)
    which = f"{line.which} ({line.expected})" if line.expected else line.which
    return line.queue.name.lower(), qp_types, line.completion, *line.events, which


def _layout(cells: Sequence[str], widths: Sequence[int], paint: Paint, width: int) -> str:
    """Return a row with its cells aligned, and the last one wrapped."""
    columns = [cell.ljust(room) for cell, room in zip(cells[:-1], widths, strict=False)]
    start = "".join(f"  {paint(cell, 'red') if '!' in cell else cell}" for cell in columns)
    indent = sum(len(cell) + 2 for cell in columns) + 2
    room = max(width - indent, _LEAST)
    wrapped = textwrap.wrap(cells[-1], room, break_long_words=False)
    return f"{start}  " + f"\n{' ' * indent}".join(wrapped)


def _fill(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False)


def _section(title: str, found: Iterable[str], width: int) -> str:
    listed = [_fill(f"- {line}", width) for line in found]
    return "\n".join([title, *listed]) if listed else ""


def _refusals(rows: Iterable[Row]) -> list[str]:
    refused = {(row.case.qp_type, row.case.operation): row.refusal for row in rows if row.refusal}
    return [f"{qp_type.name} {name}: {why}" for (qp_type, name), why in refused.items()]


# ---- rows that behave alike, as one line ----------------------------------------------------


class Line(NamedTuple):
    """What completes, and whether that raises an event, for each way to arm.

    `which` describes the operations and send flags. "!" marks a deviation; `expected` is the
    completion that was expected instead.
    """

    outcome: Outcome
    queue: Queue
    qp_types: tuple[QPType, ...]
    completion: str
    expected: str
    events: tuple[str, ...]
    which: str


def lines(rows: Iterable[Row]) -> Iterator[Line]:
    """Yield the lines, by outcome and CQ."""
    groups: dict[tuple[Outcome, Queue], list[Row]] = defaultdict(list)
    for row in rows:
        if row.refusal is None:
            groups[row.case.outcome, row.queue].append(row)
    for outcome in Outcome:
        for queue in Queue:
            yield from _lines(outcome, queue, groups[outcome, queue])


# What a line is about: operations of a QP type, with these values of sq_sig_all and send_flags.
_Operation = tuple[QPType, str]
_Variant = tuple[bool, SendFlags]
_Variants = Mapping[_Operation, set[_Variant]]


def _lines(outcome: Outcome, queue: Queue, rows: Iterable[Row]) -> Iterator[Line]:
    by_arm: dict[tuple[_Operation, _Variant], dict[Arm, Row]] = defaultdict(dict)
    known: dict[_Operation, set[_Variant]] = defaultdict(set)
    for row in rows:
        case = row.case
        operation, variant = (case.qp_type, case.operation), (case.sq_sig_all, case.send_flags)
        by_arm[operation, variant][case.armed] = row
        known[operation].add(variant)
    alike: dict[tuple[str, str, tuple[str, ...]], dict[_Operation, set[_Variant]]] = {}
    for (operation, variant), of_arms in by_arm.items():
        completion = " / ".join(dict.fromkeys(map(_completion, of_arms.values())))
        expected = next(filter(None, map(_expected, of_arms.values())), "")
        events = tuple(_event(of_arms[arm]) if arm in of_arms else "" for arm in Arm)
        key = completion, expected, events
        alike.setdefault(key, defaultdict(set))[operation].add(variant)
    for (completion, expected, events), members in alike.items():
        for qp_types, which in _in_words(members, known):
            yield Line(outcome, queue, qp_types, completion, expected, events, which)


def _completion(row: Row) -> str:
    seen = " + ".join(str(getattr(status, "name", status)) for status in row.statuses) or "none"
    return f"{seen}!" if _expected(row) else seen


def _expected(row: Row) -> str:
    """Return the status that was expected, if another one came."""
    if all(deviation.of_events for deviation in row.deviations):
        return ""
    status = row.expected_statuses[0]
    return "none" if status is None else status.name


def _event(row: Row) -> str:
    seen = ("-", "event")[row.events] if row.events < 2 else f"{row.events} events"
    if row.events == row.expected_events:
        return seen
    return f"{seen}!" if row.events else "none!"


def _in_words(members: _Variants, known: _Variants) -> Iterator[tuple[tuple[QPType, ...], str]]:
    by_flags: dict[str, dict[QPType, list[str]]] = {}
    for (qp_type, name), variants in members.items():
        flags = _flags(variants, known[qp_type, name])
        by_flags.setdefault(flags, defaultdict(list))[qp_type].append(name)
    for flags, names in by_flags.items():
        for qp_types in _united(names, known):
            yield qp_types, ", ".join([*_names(qp_types, names, known), *filter(None, [flags])])


def _united(names: Mapping[QPType, list[str]], known: _Variants) -> list[tuple[QPType, ...]]:
    """Group the types that one line can name.

    All of them, if each has every operation of the union that its type knows; else those that have
    all their operations as one group, and each other type by itself.
    """
    union = {name for of in names.values() for name in of}
    if all(of == [n for n in _all_of(known, t) if n in union] for t, of in names.items()):
        return [tuple(names)]
    full = tuple(qp_type for qp_type, of in names.items() if of == _all_of(known, qp_type))
    return [*filter(None, [full]), *((qp_type,) for qp_type in names if qp_type not in full)]


def _names(
    qp_types: Iterable[QPType], names: Mapping[QPType, list[str]], known: _Variants
) -> list[str]:
    union = {name for qp_type in qp_types for name in names[qp_type]}
    if len(union) > 1 and all(names[qp_type] == _all_of(known, qp_type) for qp_type in qp_types):
        return ["all"]
    ordered = dict.fromkeys(name for _, name in known if name in union)
    return [_short(name) for name in ordered]


def _short(operation: str) -> str:
    return operation.removeprefix("RDMA_").removeprefix("ATOMIC_").replace("_WITH_", "_")


def _all_of(known: _Variants, qp_type: QPType) -> list[str]:
    return [name for of_type, name in known if of_type == qp_type]


_CONDITIONS: Final[dict[str, Callable[[bool, SendFlags], bool]]] = {
    "": lambda sq_sig_all, flags: True,
    "signaled": lambda sq_sig_all, flags: sq_sig_all or SendFlags.SIGNALED in flags,
    "not signaled": lambda sq_sig_all, flags: not (sq_sig_all or SendFlags.SIGNALED in flags),
    "SOLICITED": lambda sq_sig_all, flags: SendFlags.SOLICITED in flags,
    "not SOLICITED": lambda sq_sig_all, flags: SendFlags.SOLICITED not in flags,
}


def _flags(variants: set[_Variant], known: set[_Variant]) -> str:
    for words, holds in _CONDITIONS.items():
        if variants == {variant for variant in known if holds(*variant)}:
            return words
    return " or ".join(f"sq_sig_all={s:d} with {_flag_names(f)}" for s, f in sorted(variants))


def _flag_names(flags: SendFlags) -> str:
    return "|".join(str(flag.name) for flag in SendFlags if flag in flags) or "no flag"


# ---- what each kind of deviation means for a program, in a line -----------------------------


def of_events(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line for each kind of deviation from ibv_req_notify_cq(3)."""
    endings: dict[tuple[Queue, Arm, Deviation, str], Counter[str]] = {}
    for row in rows:
        for deviation in row.deviations:
            if deviation.of_events:
                advice = _event_advice(row, deviation)
                key = row.queue, row.case.armed, deviation, advice
                endings.setdefault(key, Counter())[_ending(row)] += 1
    for (queue, armed, deviation, advice), counts in endings.items():
        case = f"{queue.value}, {' or '.join(sorted(counts))}, armed for {armed.value}"
        yield f"{case}: {deviation.value} ({_rows(counts.total())}). {advice}"


def of_completions(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line for each kind of deviation from the completions that InfiniBand requires."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for deviation in row.deviations:
            if not deviation.of_events:
                counts[_completion_advice(row, deviation)] += 1
    for (what, advice), n in counts.items():
        yield f"{what} ({_rows(n)}). {advice}"


def _ending(row: Row) -> str:
    if not row.statuses:
        return "nothing completed"
    status = row.statuses[0]
    if status == WCStatus.SUCCESS:
        return "success"
    return "flushed" if status == WCStatus.WR_FLUSH_ERR else "failed"


def _event_advice(row: Row, deviation: Deviation) -> str:
    armed = row.case.armed
    if deviation is Deviation.SURPLUS_EVENT:
        if armed is Arm.SOLICITED:
            return "It wakes more often than it should: poll, and sleep again."
        return "Expect events without a new completion."
    if armed is Arm.ANY:
        return "Do not sleep until a completion comes: poll."
    if row.queue is Queue.SEND:
        return "Arm send CQs for any completion."
    if row.statuses[0] == WCStatus.SUCCESS:
        return "The sender cannot wake the receiver: arm for any completion."
    return "A receiver armed for solicited completions only sleeps on: check QP.state, too."


def _completion_advice(row: Row, deviation: Deviation) -> tuple[str, str]:
    if deviation is Deviation.NO_COMPLETION:
        what = f"{row.queue.value}, {row.case.outcome.value}: no completion"
        if row.case.outcome is Outcome.POSTED_IN_ERR:
            return what, "Do not wait for a last marker to be flushed: close the QP."
        return what, "Wait with a timeout."
    if deviation is Deviation.SURPLUS_COMPLETION:
        return f"{row.queue.value}: one too many", "Identify completions by their wr_id."
    if (row.statuses[0] == WCStatus.SUCCESS) or WCStatus.SUCCESS in row.expected_statuses:
        return f"{row.queue.value}, {row.case.outcome.value}: {_ending(row)}", "Do not rely on it."
    return "another status", "Check whether it succeeded; the status is only a hint at the cause."


def _rows(n: int) -> str:
    return f"{n} row{'s' if n != 1 else ''}"
