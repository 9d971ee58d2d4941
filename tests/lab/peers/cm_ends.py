# SPDX-License-Identifier: MIT
"""Ends of connections by rdma_cm that take the steps of the command line, and tell what they see.

    cm_ends.py MODE:HOST:PORT... STEP...        MODE: tasks or threads

Each end has its own connection, and all take the same steps: words, or WORD=ARGUMENT. TIMEOUT may
be None; OPTIONS of connect() and accept() are NAME:NUMBER,...

    at=SECOND                           sleep until that second of virtual time
    listen                              on the port, on any address
    request=TIMEOUT                     wait for a client's request
    accept=TIMEOUT[,OPTIONS]            accept it
    connect=TIMEOUT[,OPTIONS]           to the host's port, with a new QP
    send=COUNT,EVERY                    messages, each awaited, until one fails
    flood=COUNT,EVERY                   messages, none awaited, until the connection is over
    wait_closed=TIMEOUT                 wait until the connection is over
    state                               of the connection
    disconnect, close                   the connection
    free                                everything

An end says what became of each step, after how many seconds, and when. It leaves out a step for
which it has no connection, or no request.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from typing import Any

from lane import say

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    QPType,
    cm,
)
from cqnotify.aio import AsyncCQ
from cqnotify.cm import blocking
from cqnotify.testing import wait_completions

EPOCH = 1_800_000_000  # when virtual time begins
SENDS = 64
RECEIVES = 512
SIZE = 64
SOME = 5  # messages, of which a sender tells
NEEDS = {
    "accept": "asked",
    "send": "conn",
    "flood": "conn",
    "wait_closed": "conn",
    "disconnect": "conn",
}
NEEDS |= {"state": "conn", "close": "conn"}


async def result(value: Any) -> Any:
    """Of what a call returned, in an event loop or in a thread. In a thread nothing suspends."""
    return await value if inspect.isawaitable(value) else value


def options(text: str) -> dict[str, Any]:
    timeout, *others = text.split(",")
    given: dict[str, Any] = {"timeout": None if timeout == "None" else float(timeout)}
    for other in others:
        name, _, value = other.partition(":")
        given[name] = float(value) if "." in value else int(value)
    return given


def told(error: BaseException) -> str:
    """Its name, and what is known besides."""
    for name in ("reason", "event", "status"):
        if known := getattr(getattr(error, name, None), "name", ""):
            return f"{type(error).__name__}:{known}"
    return type(error).__name__


class Side:
    """What a connection needs."""

    def __init__(self, ctx: Context) -> None:
        self.pd = PD(ctx)
        self.cq = CQ(ctx, SENDS, channel=CompletionChannel(ctx))
        self.recv_cq = CQ(ctx, RECEIVES)
        self.qp = QP(
            self.pd,
            QPType.RC,
            send_cq=self.cq,
            recv_cq=self.recv_cq,
            max_send_wr=SENDS,
            max_recv_wr=RECEIVES,
        )
        self.mr = MR(self.pd, 2 * SIZE)

    def post_recvs(self, _: QP | None = None) -> None:
        for number in range(RECEIVES):
            self.qp.post_recv(self.mr[SIZE:], wr_id=number)


class CMEnd:
    def __init__(self, address: str) -> None:
        self.mode, self.host, port = address.split(":")
        self.port = int(port)
        self.cm: Any = cm if self.mode == "tasks" else blocking
        self.ctx = Context()
        self.listener: Any = None
        self.asked: Any = None  # the request
        self.conn: Any = None
        self.got = 0

    async def run(self, steps: list[str]) -> None:
        for step in steps:
            word, _, argument = step.partition("=")
            if word in NEEDS and getattr(self, NEEDS[word]) is None:
                continue
            start = time.monotonic()
            try:
                outcome = await getattr(self, word)(argument) or "ok"
            except (OSError, ClosedError, CompletionError) as error:
                outcome = told(error)
            if word != "at":
                took, now = time.monotonic() - start, time.time() - EPOCH
                say(self.mode, self.port, word, outcome, f"after {took:.3f} at {now:.3f}")

    async def at(self, second: str) -> None:
        left = float(second) - (time.time() - EPOCH)
        await result((asyncio if self.mode == "tasks" else time).sleep(max(0.0, left)))

    async def listen(self, _: str) -> None:
        self.listener = self.cm.listen("0.0.0.0", self.port)
        if self.mode == "tasks":
            await self.listener.__aenter__()

    async def request(self, argument: str) -> None:
        self.asked = await result(self.listener.get_request(**options(argument)))

    async def accept(self, argument: str) -> None:
        self.side = Side(self.ctx)
        request, self.asked = self.asked, None
        answer = request.accept(self.side.qp, on_init=self.side.post_recvs, **options(argument))
        self.conn = await result(answer)

    async def connect(self, argument: str) -> None:
        self.side = Side(self.ctx)
        self.conn = await result(
            self.cm.connect(self.side.qp, self.host, self.port, **options(argument))
        )
        self.side.post_recvs()

    async def send(self, argument: str) -> str:
        """The time is that of the slowest, or of the one that failed."""
        count, every = argument.split(",")
        if self.mode == "tasks":
            async with AsyncCQ(self.side.cq) as acq:
                return await self.send_all(int(count), float(every), acq)
        return await self.send_all(int(count), float(every), None)

    async def send_all(self, count: int, every: float, acq: AsyncCQ | None) -> str:
        slowest = 0.0
        for number in range(count):
            start = time.monotonic()
            try:
                await self.send_one(acq)
            except CompletionError as error:
                return f"{told(error)} sent {number} slowest {time.monotonic() - start:.3f}"
            slowest = max(slowest, time.monotonic() - start)
            if number == SOME:
                say(self.mode, self.port, "has sent some")
            await result((asyncio if acq else time).sleep(every))
        return f"ok sent {count} slowest {slowest:.3f}"

    async def send_one(self, acq: AsyncCQ | None) -> None:
        if acq:
            await acq.send(self.side.qp, self.side.mr[:SIZE])
            return
        self.side.qp.post_send(self.side.mr[:SIZE])
        (wc,) = wait_completions(self.side.cq, timeout=3600)
        wc.raise_for_status()

    async def flood(self, argument: str) -> str:
        count, every = argument.split(",")
        for number in range(int(count)):
            if self.conn.error is not None:
                return f"{told(self.conn.error)} posted {number}"
            self.side.cq.poll(SENDS)
            self.side.qp.post_send(self.side.mr[:SIZE])
            await result((asyncio if self.mode == "tasks" else time).sleep(float(every)))
        return f"ok posted {count}"

    async def wait_closed(self, argument: str) -> str:
        await result(self.conn.wait_closed(**options(argument)))
        return told(self.conn.error)

    async def state(self, _: str) -> str:
        """What the program can see without asking anybody."""
        self.got += sum(wc.ok for wc in self.side.recv_cq.poll(RECEIVES))
        error = "None" if self.conn.error is None else told(self.conn.error)
        path_errors = min(1, self.conn.path_errors)
        return f"{self.side.qp.state.name} {error} path_errors {path_errors} got {self.got}"

    async def disconnect(self, _: str) -> None:
        await result(self.conn.disconnect())

    async def close(self, _: str) -> None:
        conn, self.conn = self.conn, None
        conn.close()

    async def free(self, _: str) -> None:
        if self.listener is not None:
            self.listener.close()
        self.ctx.close()


def in_thread(end: CMEnd, steps: list[str]) -> None:
    try:
        end.run(steps).send(None)
    except StopIteration:
        return
    raise AssertionError("something of a thread wanted an event loop")


async def in_tasks(ends: list[CMEnd], steps: list[str]) -> None:
    await asyncio.gather(*(end.run(steps) for end in ends))


def main(words: list[str]) -> None:
    ends = [CMEnd(word) for word in words if word.count(":") == 2 and "=" not in word]
    steps = [*words[len(ends) :], "free"]
    threads = [
        threading.Thread(target=in_thread, args=(end, steps))
        for end in ends
        if end.mode == "threads"
    ]
    for thread in threads:
        thread.start()
    asyncio.run(in_tasks([end for end in ends if end.mode == "tasks"], steps))
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
