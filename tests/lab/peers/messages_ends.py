# SPDX-License-Identifier: MIT
"""An end of messages that takes the steps of the command line, and tells what it sees.

    messages_ends.py HOST:PORT STEP...

Steps are words, or WORD=ARGUMENT. OPTIONS are those of messages.ConnectionOptions, NAME:NUMBER,...

    at=SECOND                   sleep until that second of virtual time
    listen[=OPTIONS]            on the port, on any address
    accept=TIMEOUT              the next connection
    connect=TIMEOUT[,OPTIONS]   to the host's port
    send=COUNT,SIZE,EVERY       messages of that size, each EVERY seconds, until one fails
    mixed=COUNT                 messages of all sizes, one after the other
    recv=COUNT[,TIMEOUT]        messages, each within the timeout, until one fails or is not as sent
    state                       of the connection
    drain                       receive until the connection is over
    aclose=TIMEOUT, abort       the connection
    free                        everything

The messages of a connection are numbered, and their bytes are known. An end says what became of
each step, after how many seconds, and when. It leaves out a step for which it has no connection.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any

from lane import say

from cqnotify import ClosedError, messages

EPOCH = 1_800_000_000  # when virtual time begins
SIZES = (0, 1, 100, 4000, 32000, 33000, 65536, 300_000, 2_000_000)
SOME = 5  # messages, of which an end tells
NEEDS = ("send", "mixed", "recv", "state", "drain", "aclose", "abort")


def bytes_of(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def options(text: str) -> messages.ConnectionOptions:
    given: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition(":")
        given[name] = float(value) if "." in value else int(value)
    return messages.ConnectionOptions(**given)


def seconds(text: str) -> float | None:
    return None if text in ("", "None") else float(text)


class MessagesEnd:
    def __init__(self, address: str) -> None:
        self.host, _, port = address.partition(":")
        self.port = int(port)
        self.listener: Any = None
        self.conn: Any = None
        self.sent = self.got = 0

    async def run(self, steps: list[str]) -> None:
        for step in steps:
            word, _, argument = step.partition("=")
            if word in NEEDS and self.conn is None:
                continue
            start = time.monotonic()
            try:
                outcome = await getattr(self, word)(argument) or "ok"
            except (OSError, TimeoutError, ClosedError) as error:
                outcome = f"{type(error).__name__} sent {self.sent} got {self.got}"
            if word != "at":
                took, now = time.monotonic() - start, time.time() - EPOCH
                say("tasks", self.port, word, outcome, f"after {took:.3f} at {now:.3f}")

    async def at(self, second: str) -> None:
        await asyncio.sleep(max(0.0, float(second) - (time.time() - EPOCH)))

    async def listen(self, argument: str) -> None:
        self.listener = messages.listen("0.0.0.0", self.port, options=options(argument))
        await self.listener.__aenter__()

    async def accept(self, argument: str) -> None:
        self.conn = await self.listener.accept(seconds(argument))
        self.sent = self.got = 0

    async def connect(self, argument: str) -> None:
        timeout, _, rest = argument.partition(",")
        self.conn = await messages.connect(
            self.host, self.port, timeout=seconds(timeout), options=options(rest)
        )
        self.sent = self.got = 0

    async def send_one(self, size: int) -> None:
        await self.conn.send(str(self.sent).encode(), bytes_of(self.sent, size))
        self.sent += 1
        if self.sent == SOME:
            say("tasks", self.port, "has sent some")

    async def send(self, argument: str) -> str:
        count, size, every = argument.split(",")
        slowest = 0.0
        for _ in range(int(count)):
            start = time.monotonic()
            await self.send_one(int(size))
            slowest = max(slowest, time.monotonic() - start)
            await asyncio.sleep(float(every))
        return f"ok sent {self.sent} slowest {slowest:.3f}"

    async def mixed(self, argument: str) -> str:
        for number in range(int(argument)):
            await self.send_one(SIZES[number % len(SIZES)])
        return f"ok sent {self.sent}"

    async def recv_one(self, timeout: float | None) -> None:
        number, data = await self.conn.recv(timeout=timeout)
        if int(bytes(number)) != self.got or bytes(data) != bytes_of(self.got, len(data)):
            raise AssertionError(f"message {bytes(number)!r} of {len(data)} bytes, not {self.got}")
        self.got += 1
        if self.got == SOME:
            say("tasks", self.port, "has got some")

    async def recv(self, argument: str) -> str:
        count, _, timeout = argument.partition(",")
        for _ in range(int(count)):
            await self.recv_one(seconds(timeout))
        return f"ok got {self.got}"

    async def drain(self, _: str) -> None:
        while True:
            await self.recv_one(None)

    async def state(self, _: str) -> str:
        return f"{type(self.conn.error).__name__} sent {self.sent} got {self.got}"

    async def aclose(self, argument: str) -> None:
        conn, self.conn = self.conn, None
        await conn.aclose(seconds(argument))

    async def abort(self, _: str) -> None:
        conn, self.conn = self.conn, None
        conn.abort()
        await conn.aclose()

    async def free(self, _: str) -> None:
        if self.conn is not None:
            await self.abort("")
        if self.listener is not None:
            await self.listener.aclose()


if __name__ == "__main__":
    asyncio.run(MessagesEnd(sys.argv[1]).run([*sys.argv[2:], "free"]))
