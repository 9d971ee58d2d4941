# SPDX-License-Identifier: MIT
"""A report as text: the table, and a line of what each kind of deviation means for a program."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ._lines import Line, lines
from ._meaning import of_completions, of_events
from ._report import Report, Row

_HEAD: Final = ("CQ", "QP", "completion", "not", "any", "solicited", "operations, send flags")
_WIDTH: Final = 100
_LEAST: Final = 16  # columns for the last cell, however wide the others are

_LEGEND: Final = """\
not, any, solicited: whether it raised an event, by what the CQ was armed for
!: not as ibv_req_notify_cq(3) says, or not the completion (in brackets) that InfiniBand asks for
all: every operation that can end so; signaled: SIGNALED, or sq_sig_all of the QP"""

Paint = Callable[[str, str], str]


def _plain(text: str, _color: str) -> str:
    return text


def format_report(report: Report, paint: Paint = _plain, width: int = _WIDTH) -> str:
    """Return the table of a report and what it means, for a terminal of so many columns.

    `paint(text, color)` returns a text in "red" or "bold". The table needs 80 columns, or more
    where the completions of a line are many.
    """
    rows = report.rows
    parts = [
        _fill(_title(report), width),
        _table(rows, paint, width),
        "\n".join(_fill(line, width) for line in _LEGEND.splitlines()),
        _section("What departs from ibv_req_notify_cq(3):", of_events(rows), width),
        _section("Completions that are not as InfiniBand asks for:", of_completions(rows), width),
        _section("Not supported:", _refusals(rows), width),
    ]
    return "\n\n".join(filter(None, parts))


def _title(report: Report) -> str:
    found = [deviation for row in report.rows for deviation in row.deviations]
    events = sum(deviation.of_events for deviation in found)
    return (
        f"{report.device} on Linux {report.kernel}: {len(report.rows)} rows; not as expected: "
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
    """The cells under each other's, the last one wrapped."""
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
