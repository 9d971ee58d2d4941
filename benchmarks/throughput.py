# SPDX-License-Identifier: MIT
"""Receiving at full speed: the receiver's CPU for small messages, the time for large ones.

At most 64 messages are in flight; the receiver asks for 32 at a time by a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

from .end import ACK_BATCH, SLOTS, AnyEnd, CqnotifyEnd, IbverbsEnd, Meter, Peer, PyverbsEnd, check
from .harness.plan import Benchmark, Figures, InC, Limit, Round

CREDIT = 8  # bytes of the message that asks for more


class Case(NamedTuple):
    size: int
    messages: int
    clock: Callable[[], int]


SMALL, LARGE = "64 B, CPU", "64 KiB, time"
CASES = {SMALL: Case(64, 6400, process_time_ns), LARGE: Case(65536, 128, perf_counter_ns)}


def ask(end: AnyEnd, asked: int, got: int, messages: int) -> int:
    """Ask for half a window of messages as soon as there is room for it."""
    while asked < messages and asked - got <= SLOTS // 2:
        end.send()
        asked += SLOTS // 2
    return asked


def receive(end: CqnotifyEnd, messages: int) -> None:
    cq, qp, get_event, receives = end.cq, end.qp, end.channel.get_event, end.receives
    asked = got = 0
    while got < messages:
        asked = ask(end, asked, got, messages)
        get_event()
        if cq.unacked == ACK_BATCH:
            cq.ack(ACK_BATCH)
        cq.req_notify()
        again = []
        for wc in cq.poll(SLOTS):
            wc.raise_for_status()
            again.append(receives[wc.wr_id])
        if again:
            qp.post_recv(again)
        got += len(again)


def receive_ids(end: CqnotifyEnd, messages: int) -> None:
    """The same by ids; poll_ids() raises for a completion that failed."""
    cq, qp, get_event, receives = end.cq, end.qp, end.channel.get_event, end.receives
    asked = got = 0
    while got < messages:
        asked = ask(end, asked, got, messages)
        get_event()
        if cq.unacked == ACK_BATCH:
            cq.ack(ACK_BATCH)
        cq.req_notify()
        if wr_ids := cq.poll_ids(SLOTS):
            qp.post_recv([receives[wr_id] for wr_id in wr_ids])
        got += len(wr_ids)


def pyverbs_receive(end: PyverbsEnd, messages: int) -> None:
    """Post each receive by itself: pyverbs links a list when its work requests are created."""
    cq, qp, get_event = end.cq, end.qp, end.channel.get_cq_event
    asked = got = 0
    while got < messages:
        asked = ask(end, asked, got, messages)
        get_event(cq)
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        end.arms += 1
        n, wcs = cq.poll(SLOTS)
        end.spurious += n == 0
        for wc in wcs:
            check(wc)
            qp.post_recv(end.receives[wc.wr_id])
        got += n


def ibverbs_receive(end: IbverbsEnd, messages: int) -> None:
    cq, qp, get_event, receives = end.cq, end.qp, end.channel.get_cq_event, end.receives
    asked = got = 0
    while got < messages:
        asked = ask(end, asked, got, messages)
        get_event()
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        end.arms += 1
        again = []
        for wc in cq.poll(SLOTS):
            wc.raise_for_status()
            again.append(receives[wc.wr_id])
        end.spurious += not again
        qp.post_recv(again)
        got += len(again)


def rounds(make: Callable[..., Any], receive: Callable[[Any, int], None]) -> Round:
    peer = Peer()

    def measure(case: Case) -> Figures:
        end = make(peer, case.size, send_size=CREDIT)
        end.cq.req_notify()
        peer.order(f"stream {case.messages}")
        meter = Meter(case.clock, end)
        receive(end, case.messages)
        figures = meter.figures(case.messages)
        end.close()
        return figures

    return lambda: {name: measure(case) for name, case in CASES.items()}


BENCHMARK = Benchmark(
    title="Receiving with a window of 64 messages",
    op="message",
    subjects={
        "C": InC("throughput"),
        "pyverbs": lambda: rounds(PyverbsEnd, pyverbs_receive),
        "ibverbs": lambda: rounds(IbverbsEnd, ibverbs_receive),
        "cqnotify": lambda: rounds(CqnotifyEnd, receive),
        "cqnotify poll_ids": lambda: rounds(CqnotifyEnd, receive_ids),
    },
    limits=(
        Limit("cqnotify", case=SMALL, over="C", at_most=2.5),
        Limit("cqnotify", case=SMALL, over="ibverbs", at_most=0.68),
        Limit("cqnotify", case=LARGE, over="C", at_most=1 / 0.99),
        Limit("cqnotify", case=LARGE, over="ibverbs", at_most=1 / 0.99),
    ),
    peer=InC("peer"),
    realtime=True,
    seconds=45,
)
