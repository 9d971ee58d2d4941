# SPDX-License-Identifier: MIT
"""From an event of the completion channel to the task that awaits the completion.

The task sleeps first: a work request is posted in the next iteration of the loop, and the event of
its completion resumes the task. The bare reader is the cost of the loop itself, without a task or a
device.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial

from cqnotify import QPType, SendFlags, SendWR
from cqnotify.aio import AsyncCQ, new_event_loop
from cqnotify.testing import Endpoint

from .endpoints import DEPTH, SIZE, Loopback, connect_to_itself
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

OPS = 500
SIGNAL_EVERY = 32  # one message of so many is signaled, and its completion polled

NewLoop = Callable[[], asyncio.AbstractEventLoop]
Wait = Callable[[Loopback, AsyncCQ], Awaitable[None]]


class Messages:
    """An end beside the loopback, for messages to itself; receives raise events."""

    def __init__(self, end: Loopback) -> None:
        own = Endpoint(
            end.ctx,
            QPType.UC,
            cqe=DEPTH,
            pd=end.pd,
            channel=end.channel,
            recv_cq=end.cq,
            mr=end.mr,
            max_send_wr=DEPTH,
            max_recv_wr=DEPTH,
        )
        connect_to_itself(own)
        self.cq, self.qp = own.send_cq, own.qp
        message = end.mr[SIZE : 2 * SIZE]
        self._unsignaled = SendWR(message, send_flags=SendFlags(0))
        self._signaled = SendWR(message)
        self._sent = 0

    def send(self) -> None:
        self._sent += 1
        if self._sent % SIGNAL_EVERY:
            self.qp.post_send(self._unsignaled)
            return
        for wc in self.cq.poll():
            wc.raise_for_status()
        self.qp.post_send(self._signaled)


async def by_wait(end: Loopback, acq: AsyncCQ) -> None:
    call_soon, post, wr = asyncio.get_running_loop().call_soon, end.qp.post_send, end.wrs[0]
    for _ in range(OPS):
        call_soon(post, wr)
        for wc in await acq.wait():
            wc.raise_for_status()


async def by_wait_after_a_write(end: Loopback, acq: AsyncCQ) -> None:
    await acq.write(end.qp, end.mr[:SIZE], end.mr.addr, end.mr.rkey)
    await by_wait(end, acq)


async def by_recv(messages: Messages, end: Loopback, acq: AsyncCQ) -> None:
    call_soon, send, qp, sge = (
        asyncio.get_running_loop().call_soon,
        messages.send,
        messages.qp,
        end.mr[:SIZE],
    )
    for _ in range(OPS):
        call_soon(send)
        await acq.recv(qp, sge)


def rounds(run: Callable[[], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> Round:
    async def measure() -> dict[str, Figures]:
        start = clock()
        await run()
        return {"8 B": {"ops": OPS, "total": clock() - start}}

    return lambda: loop.run_until_complete(measure())


def bare_reader(new_loop: NewLoop) -> Round:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    loop = new_loop()

    async def run() -> None:
        done = loop.create_future()
        left = OPS

        def on_event() -> None:
            nonlocal left
            os.eventfd_read(fd)
            left -= 1
            if left:
                loop.call_soon(os.eventfd_write, fd, 1)
            else:
                done.set_result(None)

        loop.add_reader(fd, on_event)
        loop.call_soon(os.eventfd_write, fd, 1)
        await done
        loop.remove_reader(fd)

    return rounds(run, loop)


def awaits(wait: Wait, new_loop: NewLoop) -> Round:
    end = Loopback()
    acq = AsyncCQ(end.cq)
    return rounds(lambda: wait(end, acq), new_loop())


def receives(new_loop: NewLoop) -> Round:
    end = Loopback()
    acq = AsyncCQ(end.cq)
    return rounds(partial(by_recv, Messages(end), end, acq), new_loop())


def uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


BENCHMARK = Benchmark(
    title="From an event to the task that awaits its completion",
    op="event",
    subjects={
        "C": InC("completion", "event"),
        "bare reader": lambda: bare_reader(asyncio.new_event_loop),
        "bare reader new_event_loop": lambda: bare_reader(new_event_loop),
        "bare reader uvloop": lambda: bare_reader(uvloop),
        "cqnotify wait": lambda: awaits(by_wait, asyncio.new_event_loop),
        "cqnotify wait new_event_loop": lambda: awaits(by_wait, new_event_loop),
        "cqnotify wait uvloop": lambda: awaits(by_wait, uvloop),
        "cqnotify wait, after a write": lambda: awaits(
            by_wait_after_a_write, asyncio.new_event_loop
        ),
        "cqnotify wait, after a write, uvloop": lambda: awaits(by_wait_after_a_write, uvloop),
        "cqnotify recv": lambda: receives(asyncio.new_event_loop),
        "cqnotify recv new_event_loop": lambda: receives(new_event_loop),
        "cqnotify recv uvloop": lambda: receives(uvloop),
    },
    limits=(
        Limit("cqnotify wait", at_most=59_600),
        Limit("cqnotify wait new_event_loop", at_most=43_200),
        Limit("cqnotify wait uvloop", at_most=33_300),
        Limit("cqnotify wait, after a write", at_most=59_900),
        Limit("cqnotify wait, after a write, uvloop", at_most=33_600),
        Limit("cqnotify recv", at_most=60_400),
        Limit("cqnotify recv new_event_loop", at_most=44_000),
        Limit("cqnotify recv uvloop", at_most=34_300),
        Limit("cqnotify wait", above=("bare reader", "C"), at_most=6_000),
        Limit("cqnotify recv", above=("bare reader", "C"), at_most=6_500),
    ),
    seconds=50,
)
