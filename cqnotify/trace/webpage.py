# SPDX-License-Identifier: MIT
"""The page: one HTML file without network, in which web/*.js draws the timeline.

The tables, the legend and the findings are HTML. The rows are data, which the scripts inflate: in
columns, since neighbours in a column are alike, and times as differences.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final

from .. import __version__
from ..check.rules import ERROR, INFORMATION
from .summary import Summary, count_rows, gap_rows, scope_of
from .timeline import COUNTS, MARKS, SPANS, Found, Lane, Process, Row, Style, Timeline
from .words import duration, many

SCRIPTS: Final = ("data.js", "view.js", "draw.js", "pointer.js", "main.js")
SHOWN_FINDINGS: Final = 50
MARK_KINDS: Final = tuple(MARKS)
SPAN_KINDS: Final = tuple(SPANS)


def page(timeline: Timeline) -> str:
    """Return the page of a timeline."""
    titles = [process.name for process in timeline.processes]
    return Template(_file("page.html")).substitute(
        title=escape(f"cqnotify trace: {titles[0]}" + (" ..." if len(titles) > 1 else "")),
        subtitle=escape(_subtitle(timeline)),
        style=_file("page.css"),
        findings=_findings(timeline),
        legend=_legend(timeline),
        summary="\n".join(_summary(number, each) for number, each in enumerate(timeline.processes)),
        version=escape(__version__),
        data=base64.b64encode(zlib.compress(_json(_data(timeline)), 9)).decode(),
        script="\n".join(_file(name) for name in SCRIPTS),
    )


def _file(name: str) -> str:
    return (files("cqnotify.trace") / "web" / name).read_text(encoding="utf-8")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# ---- the data -------------------------------------------------------------------------------


class _Texts:
    """The texts of marks and spans, each of them once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


def _data(timeline: Timeline) -> dict[str, Any]:
    texts = _Texts()
    processes = [
        {
            "name": process.name,
            "rows": [_row(row, texts) for row in process.rows],
            "findings": [list(found) for found in process.findings],
        }
        for process in timeline.processes
    ]
    return {
        "duration": timeline.duration,
        "marks": [[kind, *style] for kind, style in MARKS.items()],
        "spans": [[kind, *style] for kind, style in SPANS.items()],
        "counts": {kind: list(style) for kind, style in COUNTS.items()},
        "processes": processes,
        "texts": texts.all(),
    }


def _row(row: Row, texts: _Texts) -> dict[str, Any]:
    lanes = [_lane(lane, texts) for lane in row.lanes]
    return {"kind": row.kind, "name": row.name, "note": row.note, "lanes": lanes}


def _lane(lane: Lane, texts: _Texts) -> dict[str, Any]:
    data: dict[str, Any] = {"label": lane.label}
    if spans := lane.spans:
        data["spans"] = [
            _differences(span.start for span in spans),
            [span.end - span.start for span in spans],
            [SPAN_KINDS.index(span.kind) for span in spans],
            [texts.number(span.text) for span in spans],
        ]
        data["open"] = [index for index, span in enumerate(spans) if span.open]
    if marks := lane.marks:
        data["marks"] = [
            _differences(mark.time for mark in marks),
            [MARK_KINDS.index(mark.kind) for mark in marks],
            [texts.number(mark.text) for mark in marks],
            [mark.number for mark in marks],
        ]
    if steps := lane.steps:
        data["steps"] = [
            _differences(step.time for step in steps),
            [step.value for step in steps],
        ]
    return data


def _differences(times: Iterable[int]) -> list[int]:
    differences, last = [], 0
    for time in times:
        differences.append(time - last)
        last = time
    return differences


# ---- the parts that are HTML ----------------------------------------------------------------


def _subtitle(timeline: Timeline) -> str:
    processes = len(timeline.processes)
    records = sum(process.summary.records for process in timeline.processes)
    many = f"{processes} processes, " if processes > 1 else ""
    return f"{many}{records:,} records over {duration(timeline.duration)}"


def _findings(timeline: Timeline) -> str:
    """Return the list of findings: each a button that shows its place."""
    found = [
        (number, index, finding)
        for number, process in enumerate(timeline.processes)
        for index, finding in enumerate(process.findings)
    ]
    if not found:
        return ""
    matter = [each for each in found if each[2].severity != INFORMATION]
    others = [each for each in found if each[2].severity == INFORMATION]
    is_bad = any(finding.severity == ERROR for _, _, finding in matter)
    name = "findings bad" if is_bad else "findings"
    heading = f"<h2>{many(len(matter), 'finding')}</h2>" if matter else ""
    details = f"<summary>{len(others):,} for information</summary>{_finding_list(others)}"
    return (
        f'<section class="{name}" aria-label="Findings">{heading}{_finding_list(matter)}'
        f"{f'<details>{details}</details>' if others else ''}</section>"
    )


def _finding_list(found: Sequence[tuple[int, int, Found]]) -> str:
    items = [_finding(*each) for each in found[:SHOWN_FINDINGS]]
    if more := len(found) - len(items):
        items.append(f"<li>and {more:,} more: the key n goes to the next one</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _finding(process: int, index: int, finding: Found) -> str:
    return (
        f'<li><button type="button" class="jump" data-finding="{process},{index}">'
        f'<b style="color:var(--{MARKS[finding.severity].color})">{escape(finding.rule)}</b> '
        f'{escape(finding.what)} <span class="at">at {duration(finding.time)}</span></button></li>'
    )


def _legend(timeline: Timeline) -> str:
    """Return the legend of the kinds that this timeline has."""
    lanes = [lane for process in timeline.processes for row in process.rows for lane in row.lanes]
    spans = {span.kind for lane in lanes for span in lane.spans}
    marks = {mark.kind for lane in lanes for mark in lane.marks}
    counts = {lane.label for lane in lanes if lane.steps}
    styles = [
        *(SPANS[kind] for kind in SPANS if kind in spans),
        *(COUNTS[kind] for kind in COUNTS if kind in counts),
        *(MARKS[kind] for kind in MARKS if kind in marks),
    ]
    return "".join(_legend_item(style) for style in styles)


SHAPES: Final = {
    "bar": '<rect x="0" y="3" width="18" height="8" rx="2"/>',
    "gap": '<path d="M1 3v8M17 3v8M1 7h16" class="line"/>',
    "area": '<path d="M0 12V7h6V3h6v5h6v4z"/>',
    "up": '<path d="M9 2l5 10H4z"/>',
    "down": '<path d="M9 12L4 2h10z"/>',
    "diamond": '<path d="M9 1l6 6-6 6-6-6z"/>',
    "dot": '<circle cx="9" cy="7" r="5"/>',
    "ring": '<circle cx="9" cy="7" r="4" class="line"/>',
    "tick": '<path d="M9 1v12" class="line"/>',
    "cross": '<path d="M5 3l8 8M13 3l-8 8" class="line"/>',
    "flag": '<path d="M5 1v12" class="line"/><path d="M5 1h9l-3 3 3 3H5z"/>',
}


def _legend_item(style: Style) -> str:
    return (
        f'<li><svg viewBox="0 0 18 14" width="18" height="14" aria-hidden="true" '
        f'style="--c:var(--{style.color})">{SHAPES[style.shape]}</svg>{escape(style.label)}</li>'
    )


def _summary(number: int, process: Process) -> str:
    """Return the tables of a process."""
    summary = process.summary
    return (
        f'<section class="process"><h3>{escape(process.name)}</h3>'
        f'<p class="muted">{escape(scope_of(summary))}</p><div class="tables">'
        f"{_gap_table(number, summary)}{_count_table(summary)}</div></section>"
    )


def _gap_table(number: int, summary: Summary) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("count", "p50", "p90", "p99", "max"))
    body = ""
    for kind, *cells in gap_rows(summary):
        *others, longest = cells
        if longest != "-":
            longest = (
                f'<button type="button" class="jump" data-gap="{number},{kind}" '
                f'title="show the longest">{longest}</button>'
            )
        body += f'<tr><th scope="row">{kind}</th>{_cells((*others, longest))}</tr>'
    head = f'<thead><tr><th scope="col">gap</th>{head}</tr></thead>'
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _count_table(summary: Summary) -> str:
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{value}</td><td class="note">{note}</td></tr>'
        for name, value, note in count_rows(summary)
    )
    return f"<table><tbody>{body}</tbody></table>"


def _cells(cells: Sequence[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)
