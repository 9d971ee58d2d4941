# SPDX-License-Identifier: MIT
"""The options of the two ends of a connection, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

LEAST_EAGER: Final = 256
# The frames that can be in flight to one end besides messages: see _flow.py.
SPARE: Final = 7

LIMITS: Final = {
    "credits": (2, 4096),
    "eager": (LEAST_EAGER, 1 << 20),
    "max_message": (0, 1 << 48),
    "max_frames": (1, 1 << 24),
    "offers": (1, 1024),
    "cache": (0, 1 << 48),
}


@dataclass(frozen=True)
class ConnectionOptions:
    """What an end of a connection chooses for itself.

    credits: how many of the peer's messages may wait for the program to receive them; 2 to 4096.
    eager: the bytes of memory for each of these, 256 to 1 MiB, and the largest message that this
        end copies when it sends. A message that does not fit into the smaller `eager` of both ends
        is read by the receiver from the sender's memory.
    max_message, max_frames: the largest message that this end receives, in bytes and frames. The
        peer's send() refuses larger ones.
    offers: how many messages from this end can wait to be read by the receiver; 1 to 1024.
    cache: how many bytes of memory stay registered while no message uses them, for all connections
        of the process with the same `cache` together; 0: none. A peer that was allowed to read
        this memory still can.
    isolated: whether the connection shares registrations with no other one. Otherwise a peer that
        knows, or guesses, what was offered to another peer can read that, too. On iWARP all are.
    name: of the CQs in `cqnotify.metrics`, as "messages: sends" and "messages: receives". The
        counters of a name are kept for ever: do not use a name for each peer, unless there are few.
    keepalive: in seconds: the connection is lost when the peer's device has given no sign of life
        for so long. None: only a send finds out that the peer's host is dead. Refused on iWARP.
    """

    credits: int = 16
    eager: int = 32768
    max_message: int = 1 << 30
    max_frames: int = 65536
    offers: int = 8
    cache: int = 64 << 20
    isolated: bool = False
    keepalive: float | None = None
    name: str = "messages"

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in LIMITS:
                _check(field.name, getattr(self, field.name))
        if not isinstance(self.isolated, bool):
            raise TypeError(f"isolated must be a bool, not {type(self.isolated).__name__}")
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a str, not {type(self.name).__name__}")

    @property
    def receives(self) -> int:
        """How many receives are posted: enough for each frame of the peer."""
        return self.credits + self.offers + SPARE


def _check(name: str, value: object) -> None:
    least, most = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: it must be {least} to {most}")
