# SPDX-License-Identifier: MIT
"""Draws states.svg, the states of a QP, for concepts.md: python docs/states.py >docs/states.svg"""

from __future__ import annotations

from drawing import LEFT, arrow, box, lines, picture, text

TOP, STEP, WIDE, HIGH = 44, 62, 72, 30
SPINE = LEFT + WIDE / 2
BRACKET = 302

# The states on the way to RTS: what holds in each, and the call that leads to it.
WAY = [
    ("RESET", "takes no work requests", ""),
    ("INIT", "takes receives", "to_init()"),
    ("RTR", "messages arrive", "to_rtr(remote)"),
    ("RTS", "sends are carried out", "to_rts()"),
]
# The others: how a QP gets there from RTS, what holds there, and whether it can go back.
OTHERS = [
    ("SQD", "hot", "`modify(qp_state=QPState.SQD)`", "sends wait, receives go on", True),
    ("SQE", "hot", "a send has failed (UC, UD)", "sends flushed, receives go on", True),
    ("ERR", "bad", "a request has failed (RC)", "all are flushed: WR_FLUSH_ERR", False),
]


def way() -> list[str]:
    parts: list[str] = []
    for number, (name, holds, call) in enumerate(WAY):
        y = TOP + STEP * number
        kind = "good" if name == "RTS" else "box"
        parts += box(LEFT, y, WIDE, name, kind=kind, height=HIGH)
        parts.append(text(LEFT + WIDE + 12, y + 20, holds))
        if call:
            parts += arrow((SPINE, y - STEP + HIGH), (SPINE, y - 2), kind="blue")
            parts.append(text(SPINE + 12, y - 11, f"`{call}`", ""))
    return parts


def bracket() -> list[str]:
    """The call that makes all three steps."""
    top, bottom = TOP + HIGH / 2, TOP + 3 * STEP + HIGH / 2
    points = [(BRACKET - 12, top), (BRACKET, top), (BRACKET, bottom), (BRACKET - 18, bottom)]
    return [*arrow(*points, kind="blue"), text(BRACKET + 8, (top + bottom) / 2, "`connect()`", "")]


def others(y: float) -> list[str]:
    parts: list[str] = []
    top, left = TOP + 3 * STEP + HIGH + 2, LEFT + WIDE
    for name, kind, how, holds, back in OTHERS:
        x = SPINE + 12 if back else SPINE - 16
        parts += arrow((x, top), (x, y + HIGH / 2), (left - 2, y + HIGH / 2), both=back)
        parts += box(left, y, WIDE - 12, name, kind=kind, height=HIGH)
        parts += lines(left + WIDE, y + 9, how, holds)
        y += 52
    return parts


PARTS = [
    text(LEFT, 26, "The states of a queue pair", "head"),
    *way(),
    *bracket(),
    *others(284),
    *lines(
        LEFT,
        452,
        "Back to RTS: `modify(qp_state=QPState.RTS)`.",
        "From every state: `modify()` to ERR, and to RESET,",
        "which drops all work requests.",
    ),
]
SAYS = (
    "to_init() moves a QP from RESET to INIT, to_rtr(remote) to RTR, and to_rts() to RTS; "
    "connect(remote) makes all three steps. From RTS modify() leads to SQD, where sends wait; a "
    "send that fails leads to SQE on UC and UD, and to ERR on RC, where all requests are flushed. "
    "modify() leads from SQD and SQE back to RTS, and from every state to ERR and RESET."
)

if __name__ == "__main__":
    print(picture("The states of a queue pair", SAYS, 504, PARTS), end="")
