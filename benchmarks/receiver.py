# SPDX-License-Identifier: MIT
"""The CPU that a receiver takes while messages come 1 ms apart, by its way of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import process_time_ns
from typing import Any

from cqnotify import WorkCompletion
from cqnotify.aio import new_event_loop

from .end import ACK_BATCH, CqnotifyEnd, IbverbsEnd, Meter, Peer, PyverbsEnd, check
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

SIZE = 64
MESSAGES = 2000
BUSY_MESSAGES = 50  # each takes a million instructions of polling
INTERVAL = 1_000_000  # ns
SOLICITED = 16  # one message of so many is solicited
SPIN = 50_000  # ns
BATCH = 64
BUSY, ANY, SOME, SPINNING = CASES = "busy", "any", "1 in 16", "spin 50 us"


# ---- cqnotify -------------------------------------------------------------------------------


def take(end: CqnotifyEnd, wcs: list[WorkCompletion]) -> int:
    post_recv, receives = end.qp.post_recv, end.receives
    for wc in wcs:
        wc.raise_for_status()
        post_recv(receives[wc.wr_id])
    return len(wcs)


def busy(end: CqnotifyEnd, left: int) -> None:
    poll = end.cq.poll
    while left:
        left -= take(end, poll(BATCH))


def asleep(end: CqnotifyEnd, left: int) -> None:
    cq, get_event, req_notify, poll = end.cq, end.channel.get_event, end.cq.req_notify, end.cq.poll
    post_recv, receives = end.qp.post_recv, end.receives
    events = 0
    while left:
        get_event()
        events += 1
        req_notify()
        for wc in poll(BATCH):
            wc.raise_for_status()
            post_recv(receives[wc.wr_id])
            left -= 1
        if events == ACK_BATCH:
            cq.ack(events)
            events = 0


def asleep_solicited(end: CqnotifyEnd, left: int) -> None:
    """Take many messages with one event, as lists of ids."""
    cq, qp, get_event, receives = end.cq, end.qp, end.channel.get_event, end.receives
    while left:
        get_event()
        if cq.unacked == ACK_BATCH:
            cq.ack(ACK_BATCH)
        cq.req_notify(solicited_only=True)
        if wr_ids := cq.poll_ids(BATCH):
            qp.post_recv([receives[wr_id] for wr_id in wr_ids])
        left -= len(wr_ids)


def spinning(end: CqnotifyEnd, left: int) -> None:
    cq, get_event = end.cq, end.channel.get_event
    while left:
        wcs = cq.poll(BATCH, spin=SPIN / 1e9)
        if not wcs and cq.arm_if_empty():
            get_event()
            if cq.unacked == ACK_BATCH:
                cq.ack(ACK_BATCH)
        left -= take(end, wcs or cq.poll(BATCH))


async def awaiting(end: CqnotifyEnd, left: int) -> None:
    wait = end.acq.wait
    while left:
        left -= take(end, await wait(BATCH))


async def awaiting_solicited(end: CqnotifyEnd, left: int) -> None:
    wait = end.acq.wait
    while left:
        left -= take(end, await wait(BATCH, solicited_only=True))


async def awaiting_spinning(end: CqnotifyEnd, left: int) -> None:
    wait = end.acq.wait
    while left:
        left -= take(end, await wait(BATCH, spin=SPIN / 1e9))


# ---- pyverbs --------------------------------------------------------------------------------


def pyverbs_take(end: PyverbsEnd, wcs: list[Any]) -> int:
    post_recv, receives = end.qp.post_recv, end.receives
    for wc in wcs:
        check(wc)
        post_recv(receives[wc.wr_id])
    return len(wcs)


def pyverbs_busy(end: PyverbsEnd, left: int) -> None:
    poll = end.cq.poll
    while left:
        left -= pyverbs_take(end, poll(BATCH)[1])


def pyverbs_get_event(end: PyverbsEnd) -> None:
    end.channel.get_cq_event(end.cq)
    end.events += 1
    if end.events % ACK_BATCH == 0:
        end.cq.ack_events(ACK_BATCH)


def pyverbs_asleep(end: PyverbsEnd, left: int, solicited_only: bool = False) -> None:
    cq = end.cq
    while left:
        pyverbs_get_event(end)
        cq.req_notify(solicited_only)
        end.arms += 1
        n, wcs = cq.poll(BATCH)
        end.spurious += n == 0
        left -= pyverbs_take(end, wcs)


def pyverbs_asleep_solicited(end: PyverbsEnd, left: int) -> None:
    pyverbs_asleep(end, left, solicited_only=True)


def pyverbs_spin(end: PyverbsEnd) -> list[Any]:
    poll, deadline = end.cq.poll, clock() + SPIN
    wcs: list[Any] = poll(BATCH)[1]
    while not wcs and clock() < deadline:
        wcs = poll(BATCH)[1]
    return wcs


def pyverbs_spinning(end: PyverbsEnd, left: int) -> None:
    cq = end.cq
    while left:
        wcs = pyverbs_spin(end)
        if not wcs:
            cq.req_notify()
            end.arms += 1
            wcs = cq.poll(BATCH)[1]
        if not wcs:
            pyverbs_get_event(end)
            n, wcs = cq.poll(BATCH)
            end.spurious += n == 0
        left -= pyverbs_take(end, wcs)


async def pyverbs_reading(end: PyverbsEnd, left: int, solicited_only: bool = False) -> None:
    """One reader of the descriptor, and a future for each wait: pyverbs has nothing to await."""
    cq = end.cq
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def on_event() -> None:
        pyverbs_get_event(end)
        cq.req_notify(solicited_only)
        end.arms += 1
        n, wcs = cq.poll(BATCH)
        end.spurious += n == 0
        if n:
            future.set_result(wcs)

    loop.add_reader(end.fd, on_event)
    while left:
        wcs = await future
        future = loop.create_future()
        left -= pyverbs_take(end, wcs)
    loop.remove_reader(end.fd)


async def pyverbs_reading_solicited(end: PyverbsEnd, left: int) -> None:
    await pyverbs_reading(end, left, solicited_only=True)


# ---- ibverbs --------------------------------------------------------------------------------


def ibverbs_take(end: IbverbsEnd, wcs: list[Any]) -> int:
    post_recv, receives = end.qp.post_recv, end.receives
    for wc in wcs:
        wc.raise_for_status()
        post_recv(receives[wc.wr_id])
    return len(wcs)


def ibverbs_busy(end: IbverbsEnd, left: int) -> None:
    poll = end.cq.poll
    while left:
        left -= ibverbs_take(end, poll(BATCH))


def ibverbs_get_event(end: IbverbsEnd) -> None:
    end.channel.get_cq_event()
    end.events += 1
    if end.events % ACK_BATCH == 0:
        end.cq.ack_events(ACK_BATCH)


def ibverbs_asleep(end: IbverbsEnd, left: int) -> None:
    cq = end.cq
    while left:
        ibverbs_get_event(end)
        cq.req_notify()
        end.arms += 1
        wcs = cq.poll(BATCH)
        end.spurious += not wcs
        left -= ibverbs_take(end, wcs)


def ibverbs_asleep_solicited(end: IbverbsEnd, left: int) -> None:
    """Post the receives of many messages with one call."""
    cq, qp, receives = end.cq, end.qp, end.receives
    while left:
        ibverbs_get_event(end)
        cq.req_notify(True)
        end.arms += 1
        again = []
        for wc in cq.poll(BATCH):
            wc.raise_for_status()
            again.append(receives[wc.wr_id])
        end.spurious += not again
        qp.post_recv(again)
        left -= len(again)


def ibverbs_spin(end: IbverbsEnd) -> list[Any]:
    poll, deadline = end.cq.poll, clock() + SPIN
    wcs: list[Any] = poll(BATCH)
    while not wcs and clock() < deadline:
        wcs = poll(BATCH)
    return wcs


def ibverbs_spinning(end: IbverbsEnd, left: int) -> None:
    cq = end.cq
    while left:
        wcs = ibverbs_spin(end)
        if not wcs:
            cq.req_notify()
            end.arms += 1
            wcs = cq.poll(BATCH)
        if not wcs:
            ibverbs_get_event(end)
            wcs = cq.poll(BATCH)
            end.spurious += not wcs
        left -= ibverbs_take(end, wcs)


async def ibverbs_reading(end: IbverbsEnd, left: int, solicited_only: bool = False) -> None:
    """One reader of the descriptor, and a future for each wait: ibverbs has nothing to await."""
    cq = end.cq
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def on_event() -> None:
        ibverbs_get_event(end)
        cq.req_notify(solicited_only)
        end.arms += 1
        wcs = cq.poll(BATCH)
        end.spurious += not wcs
        if wcs:
            future.set_result(wcs)

    loop.add_reader(end.fd, on_event)
    while left:
        wcs = await future
        future = loop.create_future()
        left -= ibverbs_take(end, wcs)
    loop.remove_reader(end.fd)


async def ibverbs_reading_solicited(end: IbverbsEnd, left: int) -> None:
    await ibverbs_reading(end, left, solicited_only=True)


# ---- rounds ---------------------------------------------------------------------------------


def order(peer: Peer, end: Any, case: str) -> int:
    """Order the messages, and return how many will come."""
    if case in (ANY, SOME):
        end.cq.req_notify(case == SOME)
    messages = BUSY_MESSAGES if case == BUSY else MESSAGES
    peer.order(f"pace {messages} {INTERVAL} {SOLICITED}")
    return messages


def blocks(
    make: Callable[[Peer, int], Any], receivers: Mapping[str, Callable[[Any, int], None]]
) -> Round:
    peer = Peer()

    def measure(case: str) -> Figures:
        end = make(peer, SIZE)
        messages = order(peer, end, case)
        meter = Meter(process_time_ns, end)
        receivers[case](end, messages)
        figures = meter.figures(messages)
        end.close()
        return figures

    return lambda: {case: measure(case) for case in receivers}


def awaits(
    make: Callable[[Peer, int], Any],
    receivers: Mapping[str, Callable[[Any, int], Awaitable[None]]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Round:
    peer = Peer()
    loop = new_loop()

    async def measure(case: str) -> Figures:
        end = make(peer, SIZE)
        messages = order(peer, end, case)
        meter = Meter(process_time_ns, end)
        await receivers[case](end, messages)
        figures = meter.figures(messages)
        end.close()
        return figures

    return lambda: {case: loop.run_until_complete(measure(case)) for case in receivers}


def exactly(subject: str, case: str, wakeups: int) -> Limit:
    each = wakeups / MESSAGES
    return Limit(subject, case=case, figure="wakeups", at_least=each, at_most=each)


BENCHMARK = Benchmark(
    title="CPU of a receiver per message, with messages 1 ms apart",
    op="message",
    subjects={
        "C": InC("receiver"),
        "pyverbs": lambda: blocks(
            PyverbsEnd,
            {
                BUSY: pyverbs_busy,
                ANY: pyverbs_asleep,
                SOME: pyverbs_asleep_solicited,
                SPINNING: pyverbs_spinning,
            },
        ),
        "pyverbs asyncio": lambda: awaits(
            PyverbsEnd, {ANY: pyverbs_reading, SOME: pyverbs_reading_solicited}
        ),
        "ibverbs": lambda: blocks(
            IbverbsEnd,
            {
                BUSY: ibverbs_busy,
                ANY: ibverbs_asleep,
                SOME: ibverbs_asleep_solicited,
                SPINNING: ibverbs_spinning,
            },
        ),
        "ibverbs asyncio": lambda: awaits(
            IbverbsEnd, {ANY: ibverbs_reading, SOME: ibverbs_reading_solicited}
        ),
        "cqnotify": lambda: blocks(
            CqnotifyEnd, {BUSY: busy, ANY: asleep, SOME: asleep_solicited, SPINNING: spinning}
        ),
        "cqnotify asyncio": lambda: awaits(
            CqnotifyEnd, {ANY: awaiting, SOME: awaiting_solicited, SPINNING: awaiting_spinning}
        ),
        "cqnotify new_event_loop": lambda: awaits(
            CqnotifyEnd, {ANY: awaiting, SOME: awaiting_solicited}, new_event_loop
        ),
    },
    limits=(
        Limit("cqnotify", case=ANY, over="C", at_most=1.91),
        Limit("cqnotify", case=SOME, over="C", at_most=3),
        Limit("cqnotify", case=ANY, over="ibverbs", at_most=0.67),
        Limit("cqnotify", case=SOME, over="ibverbs", at_most=0.65),
        Limit("cqnotify", case=SPINNING, over="ibverbs", at_most=0.96),
        Limit("cqnotify asyncio", case=ANY, over="ibverbs asyncio", at_most=0.65),
        Limit("cqnotify asyncio", case=SOME, over="ibverbs asyncio", at_most=0.5),
        Limit("cqnotify new_event_loop", case=ANY, over="C", at_most=3.05),
        exactly("cqnotify", ANY, MESSAGES),
        exactly("cqnotify", SOME, MESSAGES // SOLICITED),
        exactly("cqnotify asyncio", ANY, MESSAGES),
        exactly("cqnotify asyncio", SOME, MESSAGES // SOLICITED),
        exactly("cqnotify new_event_loop", ANY, MESSAGES),
        exactly("cqnotify new_event_loop", SOME, MESSAGES // SOLICITED),
    ),
    peer=InC("peer"),
    seconds=145,
)
