# SPDX-License-Identifier: MIT
"""Messages of a connection, which are numbered: none is lost, comes twice, or in another order."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from typing import Any

from node import Node, say

from cqnotify import messages

SIZES = {0: 4, 100: 4, 3000: 3, 40_000: 1}  # of data; more than 32 KiB is read by the receiver
REPLY = 25.0  # seconds: pauses and cuts that the connection survives


def data_of(name: str) -> bytes:
    """It decides about its data."""
    chance = random.Random(name)
    return chance.randbytes(chance.choices(list(SIZES), list(SIZES.values()))[0])


def digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


class Numbered:
    def __init__(self, node: Node, conn: messages.Connection, peer: object) -> None:
        self.node, self.conn, self.peer = node, conn, peer
        self.sent = self.received = 0

    async def send(self, facts: dict[str, Any], data: bytes = b"") -> None:
        head = json.dumps({"n": self.sent, "digest": digest(data), **facts}).encode()
        self.sent += 1
        timeout = self.node.chance.choice((None, 8))
        async with self.node.operation(f"send to {self.peer}", 9 if timeout else REPLY):
            await self.conn.send(head, data, timeout=timeout)

    async def recv(
        self, bound: float = REPLY, timeouts: tuple[float | None, ...] = (None, 8)
    ) -> tuple[dict[str, Any], Any]:
        """The peer has something to say within the bound, or is known to be gone."""
        timeout = self.node.chance.choice(timeouts)
        async with self.node.operation(f"recv from {self.peer}", 9 if timeout else bound):
            head, data = await self.conn.recv(timeout=timeout)
        facts = json.loads(bytes(head))
        if facts["n"] != self.received:
            say("violation", text=f"message {facts['n']} from {self.peer}, not {self.received}")
        if facts["digest"] != digest(data):
            say("violation", text=f"message {facts['n']} from {self.peer} is not as it was sent")
        self.received += 1
        return facts, data

    async def close(self) -> None:
        async with self.node.operation(f"close {self.peer}", 4):
            with contextlib.suppress(OSError):  # it is lost, or its peer does not read: over it is
                await self.conn.aclose(3)

    def abort(self) -> None:
        self.conn.abort()
