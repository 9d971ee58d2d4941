# SPDX-License-Identifier: MIT
"""Bugs that are planted on request, to see that they are found (--plant NAME)."""

from __future__ import annotations

from typing import Any

NAMES = {
    "": "none",
    "early-ack": "the bank acknowledges a transfer before it is on the disk",
    "no-keepalive": "messages forgets the keepalive of a connection",
    "lost-message": "messages loses a message that arrives after a second of silence",
}


def put_in(name: str) -> None:
    """Into the library; a bug of a workload is the workload's to look up."""
    from cqnotify import messages

    connection: Any = messages.Connection
    if name == "no-keepalive":
        messages.ConnectionOptions.keepalive = property(  # type: ignore[assignment, method-assign]
            lambda self: None, lambda self, value: None
        )
    if name == "lost-message":
        recv = connection.recv

        async def forgetful(self: Any, **options: Any) -> Any:
            import time

            begun = time.monotonic()
            frames = await recv(self, **options)
            if time.monotonic() - begun > 1:
                frames = await recv(self, **options)
            return frames

        connection.recv = forgetful
