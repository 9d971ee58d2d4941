# SPDX-License-Identifier: MIT
"""Draws receivers.svg, the picture of index.md: python docs/receivers.py >docs/receivers.svg"""

from __future__ import annotations

LEFT, RIGHT = 16, 404
MESSAGES = (52, 150, 176, 262, 366)  # when they arrive
WORK = 9  # how long each keeps the receiver busy

STYLE = """
    .page { fill: #ffffff; stroke: #d0d7de }
    .busy { fill: #bc4c00 } .polls { fill: #f2b48a } .sleeps { fill: #dcecff; stroke: #0a58ad }
    .tip { fill: #57606a }
    text { fill: #1f2328; font-size: 14.5px } .head { font-weight: 600 }
    .note { fill: #57606a } .sleep { fill: #0a58ad; font-style: italic }
    @media (prefers-color-scheme: dark) {
      .page { fill: #14181d; stroke: #3d444d }
      .busy { fill: #ff9d5c } .polls { fill: #6b3a17 } .sleeps { fill: #10294a; stroke: #6cb0ff }
      .tip { fill: #9aa4af }
      text { fill: #e6edf3 } .note { fill: #a5b0bb } .sleep { fill: #6cb0ff }
    }
"""


def text(x: int, y: int, words: str, kind: str = "note") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{words}</text>'


def bar(x: int, y: int, width: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="30" rx="3"/>'


def tip(x: int, y: int) -> str:
    return f'<path class="tip" d="M{x - 5} {y}h10l-5 10z"/>'


def lane(y: int, kind: str) -> list[str]:
    """A receiver through time, with the messages and the work for each."""
    tips = [tip(x + WORK // 2, y - 14) for x in MESSAGES]
    work = [bar(x, y, WORK, "busy") for x in MESSAGES]
    return [*tips, bar(LEFT, y, RIGHT - LEFT, kind), *work]


def picture() -> str:
    parts = [
        '<rect class="page" x="0.5" y="0.5" width="419" height="245" rx="10"/>',
        text(LEFT, 26, "A receiver that polls", "head"),
        tip(285, 16),
        text(297, 26, "a message"),
        *lane(52, "polls"),
        text(LEFT, 102, "A CPU is busy all the time."),
        text(LEFT, 140, "A receiver that sleeps", "head"),
        *lane(166, "sleeps"),
        *(text(x, 186, "asleep", "sleep") for x in (84, 200, 296)),
        text(LEFT, 216, "Each message wakes it once; the CPU is free"),
        text(LEFT, 234, "in between."),
    ]
    body = "\n".join(f"  {part}" for part in parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 420 246" width="525" height="308" '
        'role="img"\n'
        "     font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif\">\n"
        "  <title>A receiver that polls, and one that sleeps</title>\n"
        f"  <style>{STYLE}  </style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    print(picture(), end="")
