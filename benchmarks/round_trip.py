# SPDX-License-Identifier: MIT
"""A ping-pong: send a message, and sleep until the answer comes. The other end is in C.

Both ends are real-time processes of the same priority on one CPU. So an answer cannot come before
the receiver sleeps: each wait is a sleep, as the wake-ups show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cqnotify.aio import new_event_loop

from .end import ACK_BATCH, SIGNAL_EVERY, CqnotifyEnd, IbverbsEnd, Meter, Peer, PyverbsEnd, check
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

SIZE = 64
CASE = "64 B"
OPS = 320  # round trips in one round
BATCH = 16


def blocking(end: CqnotifyEnd) -> None:
    cq, get_event, req_notify, poll = end.cq, end.channel.get_event, end.cq.req_notify, end.cq.poll
    post_send, post_recv = end.qp.post_send, end.qp.post_recv
    message, receives = end.unsignaled, end.receives
    events = 0
    for i in range(OPS):
        if i % SIGNAL_EVERY:
            post_send(message)
        else:
            end.send_signaled()
        wcs = None
        while not wcs:
            get_event()
            events += 1
            req_notify()
            wcs = poll(BATCH)
        for wc in wcs:
            wc.raise_for_status()
            post_recv(receives[wc.wr_id])
        if events == ACK_BATCH:
            cq.ack(events)
            events = 0


def pyverbs_blocking(end: PyverbsEnd) -> None:
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    post_send, message, receives = end.qp.post_send, end.unsignaled, end.receives
    for i in range(OPS):
        if i % SIGNAL_EVERY:
            post_send(message)
        else:
            end.send_signaled()
        n = 0
        while not n:
            get_event(cq)
            end.events += 1
            cq.req_notify()
            end.arms += 1
            n, wcs = cq.poll(BATCH)
            end.spurious += n == 0
        for wc in wcs:
            check(wc)
            post_recv(receives[wc.wr_id])
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)


def ibverbs_blocking(end: IbverbsEnd) -> None:
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    post_send, message, receives = end.qp.post_send, end.unsignaled, end.receives
    for i in range(OPS):
        if i % SIGNAL_EVERY:
            post_send(message)
        else:
            end.send_signaled()
        wcs = None
        while not wcs:
            get_event()
            end.events += 1
            cq.req_notify()
            end.arms += 1
            wcs = cq.poll(BATCH)
            end.spurious += not wcs
        for wc in wcs:
            wc.raise_for_status()
            post_recv(receives[wc.wr_id])
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)


async def awaiting(end: CqnotifyEnd) -> None:
    wait, post_send, post_recv = end.acq.wait, end.qp.post_send, end.qp.post_recv
    message, receives = end.unsignaled, end.receives
    for i in range(OPS):
        if i % SIGNAL_EVERY:
            post_send(message)
        else:
            end.send_signaled()
        for wc in await wait():
            wc.raise_for_status()
            post_recv(receives[wc.wr_id])


async def reader(end: CqnotifyEnd) -> None:
    """Without AsyncCQ: one reader of the descriptor, and a future for each wait."""
    cq, try_get_event, post_recv = end.cq, end.channel.try_get_event, end.qp.post_recv
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def on_event() -> None:
        try_get_event()
        if cq.unacked == ACK_BATCH:
            cq.ack(ACK_BATCH)
        cq.req_notify()
        if wcs := cq.poll(BATCH):
            future.set_result(wcs)

    loop.add_reader(end.channel.fileno(), on_event)
    for _ in range(OPS):
        end.send()
        wcs = await future
        future = loop.create_future()
        for wc in wcs:
            wc.raise_for_status()
            post_recv(end.receives[wc.wr_id])
    loop.remove_reader(end.channel.fileno())


async def pyverbs_reader(end: PyverbsEnd) -> None:
    """The same with pyverbs, which has nothing to await."""
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def on_event() -> None:
        get_event(cq)
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        end.arms += 1
        n, wcs = cq.poll(BATCH)
        end.spurious += n == 0
        if n:
            future.set_result(wcs)

    loop.add_reader(end.fd, on_event)
    for _ in range(OPS):
        end.send()
        wcs = await future
        future = loop.create_future()
        for wc in wcs:
            check(wc)
            post_recv(end.receives[wc.wr_id])
    loop.remove_reader(end.fd)


async def ibverbs_reader(end: IbverbsEnd) -> None:
    """The same with ibverbs, which has nothing to await, either."""
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def on_event() -> None:
        get_event()
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        end.arms += 1
        wcs = cq.poll(BATCH)
        end.spurious += not wcs
        if wcs:
            future.set_result(wcs)

    loop.add_reader(end.fd, on_event)
    for _ in range(OPS):
        end.send()
        wcs = await future
        future = loop.create_future()
        for wc in wcs:
            wc.raise_for_status()
            post_recv(end.receives[wc.wr_id])
    loop.remove_reader(end.fd)


def blocks(make: Callable[[Peer, int], Any], ping_pong: Callable[[Any], None]) -> Round:
    peer = Peer()
    end = make(peer, SIZE)
    end.cq.req_notify()

    def run() -> dict[str, Figures]:
        peer.order(f"echo {OPS}")
        meter = Meter(clock, end)
        ping_pong(end)
        return {CASE: meter.figures(OPS)}

    return run


def awaits(
    make: Callable[[Peer, int], Any],
    ping_pong: Callable[[Any], Awaitable[None]],
    loop: asyncio.AbstractEventLoop,
) -> Round:
    peer = Peer()
    end = make(peer, SIZE)
    end.cq.req_notify()

    async def run() -> dict[str, Figures]:
        peer.order(f"echo {OPS}")
        meter = Meter(clock, end)
        await ping_pong(end)
        return {CASE: meter.figures(OPS)}

    return lambda: loop.run_until_complete(run())


def uvloop_awaits() -> Round:
    import uvloop

    return awaits(CqnotifyEnd, awaiting, uvloop.new_event_loop())


BENCHMARK = Benchmark(
    title="Round trip of a message, asleep until the answer arrives",
    op="round trip",
    subjects={
        "C": InC("round_trip"),
        "C epoll": InC("round_trip", "epoll"),
        "pyverbs": lambda: blocks(PyverbsEnd, pyverbs_blocking),
        "pyverbs asyncio": lambda: awaits(PyverbsEnd, pyverbs_reader, asyncio.new_event_loop()),
        "ibverbs": lambda: blocks(IbverbsEnd, ibverbs_blocking),
        "ibverbs asyncio": lambda: awaits(IbverbsEnd, ibverbs_reader, asyncio.new_event_loop()),
        "cqnotify": lambda: blocks(CqnotifyEnd, blocking),
        "cqnotify add_reader": lambda: awaits(CqnotifyEnd, reader, asyncio.new_event_loop()),
        "cqnotify asyncio": lambda: awaits(CqnotifyEnd, awaiting, asyncio.new_event_loop()),
        "cqnotify new_event_loop": lambda: awaits(CqnotifyEnd, awaiting, new_event_loop()),
        "cqnotify uvloop": uvloop_awaits,
    },
    limits=(
        Limit("cqnotify", over="C", at_most=1.17),
        Limit("cqnotify", over="pyverbs", at_most=0.815),
        Limit("cqnotify", over="ibverbs", at_most=0.95),
        Limit("cqnotify asyncio", over="C epoll", at_most=1.57),
        Limit("cqnotify asyncio", over="ibverbs asyncio", at_most=0.8),
        Limit("cqnotify new_event_loop", over="C epoll", at_most=1.27),
        Limit("cqnotify uvloop", over="C epoll", at_most=1.27),
        Limit("cqnotify asyncio", figure="wakeups", at_least=1, at_most=1),
        Limit("cqnotify new_event_loop", figure="wakeups", at_least=1, at_most=1),
    ),
    peer=InC("peer"),
    realtime=True,
    seconds=60,
)
