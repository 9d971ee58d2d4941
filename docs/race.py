# SPDX-License-Identifier: MIT
"""Draws race.svg, the race between poll and arm, for concepts.md:
python docs/race.py >docs/race.svg"""

from __future__ import annotations

from drawing import LEFT, RIGHT, arrow, bar, box, path, picture, text

HIGH, STEP = 122, 132  # of a lane


def lane(number: int, head: str, when: str, end: float = RIGHT - 4) -> list[str]:
    y = 14 + STEP * number
    return [
        bar(LEFT - 4, y, RIGHT - LEFT + 8, "lane", HIGH),
        text(LEFT + 6, y + 22, head, "head"),
        text(RIGHT - 6, y + 22, when, "sleep end"),
        path("way", [(LEFT + 4, y + 94), (end, y + 94)]),
    ]


def call(number: int, x: float, width: float, words: str, kind: str = "box") -> list[str]:
    return box(x, 93 + STEP * number, width, words, kind=kind)


def completion(number: int, x: float, says: str, *, leads_to: float = 0) -> list[str]:
    """A completion that is added at x, and a later call at `leads_to` that gets it, if any."""
    y, end = 66 + STEP * number, 91 + STEP * number
    green = arrow((x + 6, y), (leads_to, y), (leads_to, end), kind="green") if leads_to else []
    dot = f'<circle class="amber-fill" cx="{x:g}" cy="{y:g}" r="5"/>'
    return [*arrow((x, y), (x, end), kind="amber"), *green, dot, text(x - 12, y - 10, says)]


PARTS = [
    *lane(0, "Wrong: poll, arm, sleep", "added between", end=252),
    *call(0, 28, 64, "`poll()`"),
    *call(0, 142, 102, "`req_notify()`"),
    *call(0, 256, 136, "asleep, for ever", "bad"),
    *completion(0, 117, "a completion: no event"),
    *lane(1, "Right: arm, poll, sleep", "added before the arm", end=300),
    *call(1, 84, 102, "`req_notify()`"),
    *call(1, 226, 64, "`poll()`", "good"),
    *completion(1, 54, "a completion: the poll finds it", leads_to=258),
    text(308, 113 + STEP, "not asleep"),
    *lane(2, "Right: arm, poll, sleep", "added after the arm"),
    *call(2, 24, 102, "`req_notify()`"),
    *call(2, 132, 58, "`poll()`"),
    *call(2, 196, 84, "asleep", "sleeps"),
    *call(2, 286, 112, "`ack(), poll()`", "good"),
    *completion(2, 216, "a completion: an event", leads_to=342),
]
SAYS = (
    "Three timelines. Poll, arm, sleep: a completion is added between poll and arm, no event is "
    "raised, and the sleep does not end. Arm, poll: a completion added before the arm is found by "
    "the poll, and the program does not sleep. Arm, poll, sleep: a completion added after the arm "
    "raises an event, which wakes the program."
)

if __name__ == "__main__":
    print(picture("The race between poll and arm", SAYS, 414, PARTS), end="")
