# SPDX-License-Identifier: MIT
"""Bugs that are planted on request, to see that they are found (--plant NAME)."""

from __future__ import annotations

import time
from typing import Any

from cqnotify import messages

NAMES = {
    "": "none",
    "early-ack": "the bank acknowledges a transfer before it is on the disk",
    "no-keepalive": "messages forgets the keepalive of a connection",
    "lost-message": "messages loses a message that arrives after four seconds of silence",
}


def put_in(name: str) -> None:
    """Into the library; a bug of a workload is the workload's to look up."""
    if name == "no-keepalive":
        options: Any = messages.ConnectionOptions
        options.__post_init__ = lambda self: object.__setattr__(self, "keepalive", None)
    if name == "lost-message":
        connection: Any = messages.Connection
        recv = connection.recv

        async def forgetful(self: Any, **options: Any) -> Any:
            begun = time.monotonic()
            frames = await recv(self, **options)
            if time.monotonic() - begun > 4:
                frames = await recv(self, **options)
            return frames

        connection.recv = forgetful
