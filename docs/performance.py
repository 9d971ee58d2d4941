# SPDX-License-Identifier: MIT
"""Draws performance.svg from the first table of performance.md, which it shows as bars:
python docs/performance.py >docs/performance.svg

Bars begin at C, which is 1, on an axis of powers of ten.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from math import log10
from pathlib import Path
from typing import NamedTuple

from drawing import LEFT, LINE, RIGHT, bar, lines, path, picture, text

PAGE = Path(__file__).with_name("performance.md")
FILLS = {"cqnotify": "blue-fill", "ibverbs": "amber-fill", "pyverbs": "way-fill"}
TOP, HIGH = 66, 16  # where the rows begin; a row has a bar for each subject
END, MOST = RIGHT - 20, 1000  # of the axis
LETTERS = 50  # in a line of text


class Row(NamedTuple):
    """One line of the table: what was measured, and its cost by subject, where C is 1."""

    what: str
    costs: dict[str, float]


def rows(page: str) -> Iterator[Row]:
    """Yield the lines in which C and cqnotify have one cost each."""
    table = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    head = [cell.strip() for cell in table[0]]
    before = ""
    for cells in table[2:]:
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
    return round(LEFT + log10(cost) / log10(MOST) * (END - LEFT), 1)


def drawn(row: Row, y: float) -> Iterator[str]:
    for name, kind in FILLS.items():
        if name in row.costs:
            x = at(row.costs[name])
            yield bar(LEFT, y, round(x - LEFT, 1), kind, HIGH)
            own = "head" if name == "cqnotify" else ""
            yield text(x + 6, y + 13, f"{row.costs[name]:g}", own)
            y += HIGH + 3


def chart(page: str) -> str:
    y = TOP
    parts = [text(LEFT, 26, "Instructions, as multiples of C", "head")]
    for n, (name, kind) in enumerate(FILLS.items()):
        parts += [bar(LEFT + 110 * n, 40, 14, kind, 14), text(LEFT + 110 * n + 20, 52, name, "")]
    body: list[str] = []
    for row in rows(page):
        words = textwrap.wrap(row.what, LETTERS)
        body += lines(LEFT + 6, y + 18, *words)
        y += 6 + LINE * len(words)
        body += drawn(row, y + 2)
        y += (HIGH + 3) * sum(name in FILLS for name in row.costs) + 6
    for cost in (1, 10, 100, 1000):
        x = at(cost)
        parts.append(path("way" if cost == 1 else "grid", [(x, TOP), (x, y)]))
        parts.append(text(x, y + 18, str(cost), "note" if cost == 1 else "note middle"))
    says = "; ".join(
        f"{row.what}: " + ", ".join(f"{name} {cost:g}" for name, cost in row.costs.items())
        for row in rows(page)
    )
    return picture("What cqnotify, ibverbs and pyverbs cost", f"{says}.", y + 30, parts + body)


if __name__ == "__main__":
    print(chart(PAGE.read_text()), end="")
