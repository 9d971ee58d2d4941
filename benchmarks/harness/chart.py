# SPDX-License-Identifier: MIT
"""Draws docs/performance.svg from the table of docs/performance.md that a reader sees first.

Where that table has changed, run python3 -m benchmarks.harness.chart in the project's folder. Bars
begin at C, which is 1, on an axis of powers of ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from math import log10
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "performance.md"
CHART: Final = DOCS / "performance.svg"

WIDTH: Final = 760
LEFT, RIGHT = 266, 690  # of the axis
TOP, ROW, BAR = 84, 74, 18  # a row has a bar for each subject
MOST: Final = 1000  # where the axis ends

STYLE: Final = """
    .page { fill: #ffffff; stroke: #d0d7de }
    .grid { stroke: #d0d7de } .c { stroke: #57606a; stroke-width: 1.6 }
    .cqnotify { fill: #0a58ad } .ibverbs { fill: #9a6700 } .pyverbs { fill: #8c959f }
    text { fill: #1f2328 }
    .note { font-size: 13px; fill: #57606a } .own { font-weight: 600 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #14181d; stroke: #3d444d }
      .grid { stroke: #3d444d } .c { stroke: #9aa4af }
      .cqnotify { fill: #6cb0ff } .ibverbs { fill: #e3b341 } .pyverbs { fill: #6e7681 }
      text { fill: #e6edf3 } .note { fill: #a5b0bb }
    }
"""


class Row(NamedTuple):
    """One line of the table: what was measured, and its cost by subject, where C is 1."""

    what: str
    costs: dict[str, float]


def rows(page: str) -> Iterator[Row]:
    """Yield the lines in which C and cqnotify have one cost each."""
    lines = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    head = [cell.strip() for cell in lines[0]]
    before = ""
    for cells in lines[2:]:
        if len(cells) != len(head):
            break
        what = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cells[0]).strip()
        before = what = what.replace("...", before.partition(",")[0] + ",")
        named = zip(head[1:], cells[1:], strict=True)
        costs = {name: float(c) for name, c in named if re.fullmatch(r"\s*[\d.]+\s*", c)}
        if costs.get("C") == 1 and "cqnotify" in costs:
            yield Row(what, costs)


def at(cost: float) -> float:
    """Return where on the axis that is."""
    return LEFT + log10(cost) / log10(MOST) * (RIGHT - LEFT)


def lines_of(text: str, width: int = 30) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def drawn(row: Row, y: float) -> Iterator[str]:
    words = lines_of(row.what)
    for i, line in enumerate(words):
        x, line_y = LEFT - 14, y + ROW / 2 + 18 * (i - len(words) / 2) + 6
        yield f'<text x="{x}" y="{line_y:.0f}" text-anchor="end">{escape(line)}</text>'
    for i, (name, cost) in enumerate(reversed([*row.costs.items()][1:])):
        bar_y = y + 6 + i * (BAR + 3)
        own = ' class="own"' if name == "cqnotify" else ""
        yield (
            f'<rect class="{name}" x="{LEFT}" y="{bar_y:.0f}" width="{at(cost) - LEFT:.1f}"'
            f' height="{BAR}"/>'
        )
        yield f'<text{own} x="{at(cost) + 6:.1f}" y="{bar_y + 14:.0f}">{cost:g}</text>'


def key(x: float, name: str) -> str:
    return (
        f'<rect class="{name}" x="{x}" y="44" width="14" height="14"/>'
        f'<text x="{x + 20}" y="56">{name}</text>'
    )


def chart(page: str) -> str:
    found = [*rows(page)]
    bottom = TOP + ROW * len(found)
    height = bottom + 34
    body = [
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        f'<text class="own" x="{LEFT}" y="30">Instructions, as multiples of C</text>',
        *(key(LEFT + 110 * i, name) for i, name in enumerate(("cqnotify", "ibverbs", "pyverbs"))),
    ]
    for cost in (1, 10, 100, 1000):
        x = f"{at(cost):.1f}"
        body += [
            f'<path class="{"c" if cost == 1 else "grid"}" d="M{x} {TOP - 6}V{bottom}"/>',
            f'<text class="note" x="{x}" y="{bottom + 20}" text-anchor="middle">{cost}</text>',
        ]
    for i, row in enumerate(found):
        body += drawn(row, TOP + ROW * i)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img"\n'
        "     font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\""
        ' font-size="15">\n'
        f"  <title>What cqnotify, ibverbs and pyverbs cost</title>\n  <style>{STYLE}  </style>\n  "
        + "\n  ".join(body)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    CHART.write_text(chart(PAGE.read_text()))
