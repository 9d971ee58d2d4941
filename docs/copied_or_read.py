# SPDX-License-Identifier: MIT
"""Draws copied_or_read.svg, the two ways of a message, for messages.md:
python docs/copied_or_read.py >docs/copied_or_read.svg"""

from __future__ import annotations

from drawing import LEFT, MIDDLE, RIGHT, arrow, path, picture, text

SENDER, RECEIVER = LEFT + 8, RIGHT - 8  # the lines of the two ends


def ends(y: float, bottom: float) -> list[str]:
    return [
        text(LEFT, y, "the sender", "sleep"),
        text(RIGHT, y, "the receiver", "sleep end"),
        *(path("way", [(x, y + 8), (x, bottom)]) for x in (SENDER, RECEIVER)),
    ]


def across(y: float, words: str, *, back: bool = False, kind: str = "blue") -> list[str]:
    """What goes from the sender to the receiver, or back."""
    way = [(SENDER + 4, y), (RECEIVER - 4, y)]
    return [
        *arrow(*(reversed(way) if back else way), kind=kind),
        text(MIDDLE, y - 7, words, "middle"),
    ]


def sender(y: float, words: str) -> str:
    return text(SENDER + 12, y, words)


def receiver(y: float, words: str) -> str:
    return text(RECEIVER - 12, y, words, "note end")


PARTS = [
    text(LEFT, 26, "It fits into 32 KiB (`eager`): copied", "head"),
    *ends(50, 146),
    sender(76, "`send()` copies it, and returns"),
    *across(108, "one SEND"),
    receiver(132, "`recv()` returns it"),
    text(LEFT, 184, "It is larger: read by the receiver", "head"),
    *ends(208, 434),
    sender(234, "`send()` registers its buffers"),
    *across(266, "SEND: where they are"),
    receiver(290, "`recv()` provides memory"),
    *across(322, "RDMA READ", back=True, kind="green"),
    *across(350, "the data, without a copy", kind="green"),
    receiver(374, "`recv()` returns it"),
    *across(404, "SEND: it was read", back=True),
    sender(428, "`send()` returns"),
]
SAYS = (
    "A message that fits into 32 KiB is copied and sent at once; send() returns before it arrives. "
    "If it is larger, the sender registers its buffers and sends where they are; the receiver's "
    "device reads them by RDMA READ into memory of the receiver, without a copy; send() returns "
    "when the receiver has reported that."
)

if __name__ == "__main__":
    print(picture("Small messages are copied, large ones are read", SAYS, 450, PARTS), end="")
