# SPDX-License-Identifier: MIT
"""The tables of the report, as text and as Markdown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from .plan import COUNTERS, Limit, Place
from .results import FLOOR, PEERS, Row, Run, Table, Verdict

HEADINGS: dict[str, str] = {**{name: name for name in COUNTERS}, "wakeups": "wake-ups"}


def number(value: float | None) -> str:
    """Format a number with three significant digits, or all digits before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:#.3g}"


def bound(limit: Limit) -> str:
    if limit.at_most == limit.at_least:
        return f"= {number(limit.at_most)}"
    if limit.at_most == float("inf"):
        return f">= {number(limit.at_least)}"
    return f"<= {number(limit.at_most)}"


def of_what(limit: Limit) -> str:
    if limit.over:
        return f" x {limit.over}" + (f" at {limit.over_case}" if limit.over_case else "")
    if limit.above:
        return f" above {' and '.join(limit.above)}"
    return "" if limit.figure == "cost" else f" {HEADINGS[limit.figure]}"


def judgement(verdict: Verdict) -> str:
    what = f"{number(verdict.value)}{of_what(verdict.limit)}"
    return f"{what} {bound(verdict.limit)}: {'holds' if verdict.holds else 'BROKEN'}"


def agreement(row: Row) -> str:
    if row.apart is None:
        return ""
    return f"{'agree' if row.agrees else 'DIFFER'} ({row.apart:.1%})"


def cells(table: Table, brief: bool) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows, without empty columns.

    brief: omit what belongs to one machine or run: nanoseconds, and how far the boots are apart.
    """
    headings = [
        *["case", "subject", f"{table.unit} / {table.benchmark.op}"],
        *[f"x {name}" for name in (FLOOR, *PEERS)],
        *[f"{HEADINGS[name]} / op" for name in COUNTERS],
        *["boots", "limits"],
    ]
    rows = [
        [
            *[row.case, row.subject, "" if brief and table.unit == "ns" else number(row.cost)],
            number(row.over_floor),
            *[number(row.over_peers[peer]) for peer in PEERS],
            *[number(row.counters.get(name)) for name in COUNTERS],
            "" if brief else agreement(row),
            "; ".join(map(judgement, row.verdicts)),
        ]
        for row in table.rows
    ]
    filled = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    return [headings[i] for i in filled], [[row[i] for i in filled] for row in rows]


def where(table: Table) -> str:
    about = table.about
    if about["place"] == "native":
        return "natively, on a fake libibverbs"
    clock = {"insn": ", instructions are counted", "ns": ", in real time"}.get(table.unit, "")
    unjudged = "" if table.judged else "; the limits are not judged here"
    device = "a fake libibverbs" if table.benchmark.fake_verbs else about["device"]
    return f"on {device}, Linux {about['kernel']}{clock}{unjudged}"


def is_text(headings: Sequence[str]) -> list[bool]:
    return [heading in ("case", "subject", "boots", "limits") for heading in headings]


def text(table: Table) -> str:
    headings, rows = cells(table, brief=False)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    texts = is_text(headings)

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, texts, strict=True)
        )
        return ("  " + "  ".join(padded)).rstrip()

    lines = [f"{table.name}: {table.benchmark.title}", f"  {where(table)}", line(headings)]
    previous = ""
    for row in rows:
        lines.append(line([row[0] if row[0] != previous else "", *row[1:]]))
        previous = row[0]
    return "\n".join(lines)


def markdown(table: Table) -> str:
    headings, rows = cells(table, brief=True)
    rule = ["---" if left else "--:" for left in is_text(headings)]
    lines = ["| " + " | ".join(row) + " |" for row in [headings, rule, *rows]]
    boots = [row.apart for row in table.rows if row.apart is not None]
    apart = f"; the boots are at most {max(boots):.1%} apart" if boots else ""
    return "\n".join([f"{table.benchmark.title}, {where(table)}{apart}:", "", *lines])


def raw(tables: Sequence[Table], runs: Mapping[Place, Sequence[Run]]) -> dict[str, object]:
    """Return everything: the figures of each round, and the rows of the tables."""
    rows = [
        {
            "benchmark": table.name,
            "place": table.about["place"],
            "unit": table.unit,
            "judged": table.judged,
            **dataclasses.asdict(row),
            "verdicts": [
                {
                    "limit": f"{of_what(v.limit)} {bound(v.limit)}",
                    "value": v.value,
                    "holds": v.holds,
                }
                for v in row.verdicts
            ],
        }
        for table in tables
        for row in table.rows
    ]
    return {"runs": {place: [run._asdict() for run in runs[place]] for place in runs}, "rows": rows}


def renew(page: str, tables: Sequence[Table]) -> str:
    """Return the page with these tables between the comments that mark their places."""
    for name in dict.fromkeys(table.name for table in tables):
        pattern = re.compile(rf"(<!-- bench {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = "\n\n".join(markdown(table) for table in tables if table.name == name)
        page, places = pattern.subn(rf"\1\n{made}\n\n\2", page)
        if places != 1:
            raise ValueError(f"the page has {places} places for {name}: it must have one")
    return page


def summary(tables: Sequence[Table]) -> str:
    rows = [(table, row) for table in tables if table.judged for row in table.rows]
    every = [(table, row, verdict) for table, row in rows for verdict in row.verdicts]
    lines = [
        f"{table.name}, {row.case}, {row.subject}: {judgement(verdict)}"
        for table, row, verdict in every
        if not verdict.holds
    ]
    lines += [
        f"{table.name}, {row.case}, {row.subject}: the boots {agreement(row)}"
        for table, row in rows
        if not row.agrees
    ]
    end = f"{len(every)} limits were judged"
    return "\n".join([*lines, f"{end}; {len(lines)} faults" if lines else f"{end}, and all hold"])
