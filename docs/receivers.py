# SPDX-License-Identifier: MIT
"""Draws receivers.svg, the picture of index.md: python docs/receivers.py >docs/receivers.svg"""

from __future__ import annotations

from drawing import LEFT, RIGHT, bar, lines, picture, text, tip

MESSAGES = (52, 150, 176, 262, 366)  # when they arrive
WORK = 9  # how long each keeps the receiver busy


def message(x: float, y: float) -> str:
    return tip((x, y + 10), (x, y))


def lane(y: int, kind: str) -> list[str]:
    """A receiver through time, with the messages and the work for each."""
    tips = [message(x + WORK / 2, y - 14) for x in MESSAGES]
    work = [bar(x, y, WORK, "busy") for x in MESSAGES]
    return [*tips, bar(LEFT, y, RIGHT - LEFT, kind), *work]


PARTS = [
    text(LEFT, 26, "A receiver that polls", "head"),
    message(285, 16),
    text(297, 26, "a message"),
    *lane(52, "polls"),
    text(LEFT, 102, "A CPU is busy all the time."),
    text(LEFT, 140, "A receiver that sleeps", "head"),
    *lane(166, "sleeps"),
    *(text(x, 186, "asleep", "sleep") for x in (84, 200, 296)),
    *lines(LEFT, 216, "Each message wakes it once; the CPU is free", "in between."),
]
SAYS = (
    "Two receivers of the same five messages. The one that polls is busy all the time. The one "
    "that sleeps is busy for a moment after each message, and asleep in between."
)

if __name__ == "__main__":
    print(picture("A receiver that polls, and one that sleeps", SAYS, 246, PARTS), end="")
