# SPDX-License-Identifier: MIT
"""Draws wake.svg, how an event wakes, for tutorial.md: python docs/wake.py >docs/wake.svg"""

from __future__ import annotations

from drawing import LEFT, RIGHT, arrow, bar, box, lines, picture, text

WIDE = 144
DEVICE, PROGRAM = 40, RIGHT - 8 - WIDE  # where the boxes of each begin
FROM_DEVICE = DEVICE + WIDE
GAP = (FROM_DEVICE + PROGRAM) / 2
DOWN = PROGRAM + WIDE / 2

PARTS = [
    bar(LEFT - 4, 14, FROM_DEVICE - LEFT + 14, "lane", 70),
    bar(LEFT - 4, 92, FROM_DEVICE - LEFT + 14, "lane", 316),
    bar(PROGRAM - 10, 14, RIGHT - PROGRAM + 14, "lane", 394),
    text(DEVICE + WIDE / 2, 34, "the peer", "head middle"),
    text(DEVICE + 13, 114, "device, kernel", "head"),
    text(DOWN, 34, "the program", "head middle"),
    *box(DEVICE, 44, WIDE, "`post_send()`"),
    *arrow((DEVICE + 8, 74), (DEVICE + 8, 144)),
    *box(PROGRAM, 88, WIDE, "`req_notify()`"),
    *arrow((PROGRAM, 103), (FROM_DEVICE - 6, 103), (FROM_DEVICE - 6, 144)),
    text(GAP, 97, "arms", "note middle"),
    *box(DEVICE, 146, WIDE, "CQ:", "a completion", height=48),
    *arrow((DEVICE + 40, 194), (DEVICE + 40, 240)),
    text(DEVICE + 50, 222, "if armed"),
    *box(DEVICE, 242, WIDE, "channel:", "an event", kind="hot", height=48),
    *box(PROGRAM, 236, WIDE, "asleep in", "`get_event()`", kind="sleeps", height=60),
    *arrow((DOWN, 118), (DOWN, 234)),
    *arrow((FROM_DEVICE, 266), (PROGRAM - 2, 266), kind="blue"),
    text(GAP, 258, "wakes", "middle"),
    *arrow((DOWN, 296), (DOWN, 312)),
    *box(PROGRAM, 314, WIDE, "`cq.ack()`"),
    *arrow((PROGRAM, 329), (DEVICE + WIDE / 2, 329), (DEVICE + WIDE / 2, 292)),
    *arrow((DOWN, 344), (DOWN, 360)),
    *box(PROGRAM, 362, WIDE, "`cq.poll()`"),
    *arrow((DEVICE, 170), (DEVICE - 14, 170), (DEVICE - 14, 377), (PROGRAM - 2, 377), kind="blue"),
    text(DEVICE, 369, "the completions"),
    *lines(LEFT, 432, "With an `AsyncCQ` you write `await`: it arms,", "acknowledges and polls."),
]
SAYS = (
    "The sender posts a message; the receiver's device adds a completion to the CQ; because the CQ "
    "was armed by req_notify(), an event goes to the channel and wakes the thread that sleeps in "
    "get_event(); the program acknowledges the event and polls the completions."
)

if __name__ == "__main__":
    print(picture("How an event wakes a program", SAYS, 464, PARTS), end="")
