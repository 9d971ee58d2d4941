# SPDX-License-Identifier: MIT
"""Draws lifetimes.svg, what keeps what open, for threads.md:
python docs/lifetimes.py >docs/lifetimes.svg"""

from __future__ import annotations

from drawing import LEFT, RIGHT, box, lines, path, picture, text

HIGH, GAP = 44, 4
UPPER, LOWER, PD, CONTEXT = (44 + (HIGH + GAP) * n for n in range(4))  # the rows


def two_floors(kind: str, upper: tuple[int, int], lower: tuple[int, int]) -> str:
    """An object that stands on others of two rows: from where to where it is in each."""
    left, right, middle, bottom = *upper, UPPER + HIGH, LOWER + HIGH
    points = [(left, UPPER), (right, UPPER), (right, middle), (lower[1], middle)]
    points += [(lower[1], bottom), (lower[0], bottom), (lower[0], middle), (left, middle)]
    return path(kind, points, closed=True)


PARTS = [
    text(LEFT, 26, "What keeps what open", "head"),
    two_floors("box", (LEFT, 78), (LEFT, 50)),
    text(47, UPPER + 27, "MW", "middle"),
    *box(82, UPPER, 70, "requests", "in flight", kind="hot loose", height=HIGH),
    two_floors("good", (156, RIGHT), (208, 246)),
    text(280, UPPER + 27, "QP", "middle"),
    *box(54, LOWER, 48, "MR", height=HIGH),
    *box(106, LOWER, 46, "AH", height=HIGH),
    *box(156, LOWER, 48, "SRQ", height=HIGH),
    *box(250, LOWER, 154, "CQ", height=HIGH),
    *box(LEFT, PD, 230, "PD", height=HIGH),
    *box(250, PD, 154, "CompletionChannel", height=HIGH),
    *box(LEFT, CONTEXT, RIGHT - LEFT, "Context", kind="sleeps", height=HIGH),
    *lines(
        LEFT,
        CONTEXT + HIGH + 26,
        "An object stands on those that it needs. These",
        "cannot close first: `close()` raises `BusyError`.",
        "A request ends when its completion is polled, or",
        "with its QP or SRQ.",
        "`ctx.close()` closes everything, from the top.",
    ),
]
SAYS = (
    "Objects as blocks that stand on each other. PD and CompletionChannel stand on the Context; "
    "MW, MR, AH, SRQ and QP on the PD; a CQ on its channel; a QP on its CQs and SRQ, too; a bound "
    "MW on its MR; work requests in flight on their MRs and AHs. A block that carries another one "
    "cannot be closed, except for the Context, which closes everything."
)

if __name__ == "__main__":
    print(picture("What keeps what open", SAYS, 354, PARTS), end="")
