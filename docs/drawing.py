# SPDX-License-Identifier: MIT
"""The size, the colours, the text and the arrows that all pictures of these pages share.

Each picture has a script of its name, which prints it: python docs/states.py >docs/states.svg
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from math import atan2, cos, pi, sin

WIDTH = 420
LEFT, RIGHT = 16, 404  # of what a picture shows
MIDDLE = WIDTH // 2
LINE = 18  # from one line of text to the next

Point = tuple[float, float]

STYLE = """
    .page { fill: #ffffff; stroke: #d0d7de }
    .lane { fill: #f3f5f8 }
    .box { fill: #ffffff; stroke: #57606a; stroke-width: 1.4 }
    .sleeps { fill: #dcecff; stroke: #0a58ad; stroke-width: 1.4 }
    .hot { fill: #fff4d6; stroke: #9a6700; stroke-width: 1.4 }
    .good { fill: #dcf5e3; stroke: #1a7f37; stroke-width: 1.4 }
    .bad { fill: #ffe3e0; stroke: #b3261e; stroke-width: 1.4 }
    .busy { fill: #bc4c00 } .polls { fill: #f2b48a }
    .loose { stroke-dasharray: 5 4 }
    .way, .blue, .amber, .green { stroke: #57606a; stroke-width: 1.6; fill: none }
    .blue { stroke: #0a58ad } .amber { stroke: #9a6700 } .green { stroke: #1a7f37 }
    .way-fill { fill: #57606a } .blue-fill { fill: #0a58ad } .amber-fill { fill: #9a6700 }
    .green-fill { fill: #1a7f37 } .grid { stroke: #d0d7de }
    text { fill: #1f2328; font-size: 14.5px } .head { font-weight: 600 }
    .note { fill: #57606a } .sleep { fill: #0a58ad; font-style: italic }
    .code { font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, monospace; font-size: 13px }
    .middle { text-anchor: middle } .end { text-anchor: end }
    @media (prefers-color-scheme: dark) {
      .page { fill: #14181d; stroke: #3d444d }
      .lane { fill: #1d232b }
      .box { fill: #14181d; stroke: #9aa4af }
      .sleeps { fill: #10294a; stroke: #6cb0ff }
      .hot { fill: #3a2d0b; stroke: #e3b341 }
      .good { fill: #0f3320; stroke: #57c878 }
      .bad { fill: #46181a; stroke: #ff8a80 }
      .busy { fill: #ff9d5c } .polls { fill: #6b3a17 }
      .way { stroke: #9aa4af } .blue { stroke: #6cb0ff } .amber { stroke: #e3b341 }
      .green { stroke: #57c878 }
      .way-fill { fill: #9aa4af } .blue-fill { fill: #6cb0ff } .amber-fill { fill: #e3b341 }
      .green-fill { fill: #57c878 } .grid { stroke: #3d444d }
      text { fill: #e6edf3 } .note { fill: #a5b0bb } .sleep { fill: #6cb0ff }
    }
"""


def text(x: float, y: float, words: str, kind: str = "note") -> str:
    """A line of text; what stands in backticks is code. `kind`: classes of the style."""
    parts = re.split("`([^`]*)`", escape(words, quote=False))
    coded = (
        f'<tspan class="code">{part}</tspan>' if n % 2 else part for n, part in enumerate(parts)
    )
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{"".join(coded)}</text>'


def lines(x: float, y: float, *words: str, kind: str = "note") -> list[str]:
    """Lines of text, one below the other."""
    return [text(x, y + LINE * n, line, kind) for n, line in enumerate(words)]


def bar(x: float, y: float, width: float, kind: str, height: float = 30) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
    )


def box(
    x: float, y: float, width: float, *words: str, kind: str = "box", height: float = 30
) -> list[str]:
    """A bar with centered lines of text."""
    first = y + height / 2 + 5 - LINE / 2 * (len(words) - 1)
    inside = lines(x + width / 2, first, *words, kind="middle")
    return [bar(x, y, width, kind, height), *inside]


def path(kind: str, points: Iterable[Point], *, closed: bool = False) -> str:
    way = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="{kind}" d="M{way}{"z" if closed else ""}"/>'


def tip(at: Point, before: Point, kind: str = "way") -> str:
    """The tip of an arrow that comes from the point before."""
    turn = atan2(at[1] - before[1], at[0] - before[0])
    ends = [(at[0] - 10 * cos(turn + a), at[1] - 10 * sin(turn + a)) for a in (-pi / 7, pi / 7)]
    return path(f"{kind}-fill", ((round(x, 1), round(y, 1)) for x, y in (at, *ends)), closed=True)


def arrow(*points: Point, kind: str = "way", both: bool = False) -> list[str]:
    """An arrow along the points; `both`: with a tip at either end."""
    tips = [tip(points[-1], points[-2], kind), *([tip(points[0], points[1], kind)] if both else [])]
    return [path(kind, points), *tips]


def picture(title: str, says: str, height: int, parts: Iterable[str]) -> str:
    """Return the SVG. `says`: its description, for readers who cannot see it."""
    page = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
    body = "\n".join(f"  {part}" for part in (page, *parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH * 5 // 4}" height="{height * 5 // 4}" role="img"\n'
        '     aria-labelledby="title desc"\n'
        "     font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\">\n"
        f'  <title id="title">{escape(title)}</title>\n'
        f'  <desc id="desc">{escape(says)}</desc>\n'
        f"  <style>{STYLE}  </style>\n{body}\n</svg>\n"
    )
