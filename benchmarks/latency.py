# SPDX-License-Identifier: MIT
"""From the post of a message to the thread that wakes up for it, while another thread computes.

Python lets a thread compute for the switch interval, 5 ms unless sys.setswitchinterval() says
otherwise, before another one that has woken up gets the GIL. The sender writes into each message
when it posts it, and is not in step with that interval.
"""

from __future__ import annotations

import sys
import threading

from .end import ACK_BATCH, CqnotifyEnd, Peer
from .harness.plan import Benchmark, Figures, InC, Limit, Round
from .harness.subject import clock

SIZE = 64
MESSAGES = 100
INTERVAL = 7_300_000  # ns


def receive(end: CqnotifyEnd) -> list[int]:
    """Return how long each message took, in ns."""
    cq, qp, get_event = end.cq, end.qp, end.channel.get_event
    memory = memoryview(end.mr)
    took: list[int] = []
    while len(took) < MESSAGES:
        get_event()
        now = clock()
        if cq.unacked >= ACK_BATCH:
            cq.ack(cq.unacked)
        cq.req_notify()
        for wc in cq.poll():
            wc.raise_for_status()
            posted_at = int.from_bytes(memory[wc.wr_id * SIZE :][:8], sys.byteorder)
            took.append(now - posted_at)
            qp.post_recv(end.receives[wc.wr_id])
    return took


def compute(stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        for i in range(100):
            number = (number + i) & 127  # numbers that Python caches


def rounds(*, beside: bool, interval: float | None = None) -> Round:
    peer = Peer()
    end = CqnotifyEnd(peer, SIZE)
    end.cq.req_notify()
    if interval is not None:
        sys.setswitchinterval(interval)

    def run() -> dict[str, Figures]:
        stop = threading.Event()
        other = threading.Thread(target=compute, args=(stop,))
        if beside:
            other.start()
        peer.order(f"pace {MESSAGES} {INTERVAL} {MESSAGES}")
        took = sorted(receive(end))
        stop.set()
        if beside:
            other.join()
        return {
            "p50": {"ops": 1, "total": took[MESSAGES // 2]},
            "p99": {"ops": 1, "total": took[MESSAGES * 99 // 100]},
        }

    return run


BENCHMARK = Benchmark(
    title="From the post of a message to the thread that sleeps until it comes",
    op="message",
    subjects={
        "cqnotify, nothing beside it": lambda: rounds(beside=False),
        "cqnotify, a thread computes": lambda: rounds(beside=True),
        "... with a switch interval of 0.5 ms": lambda: rounds(beside=True, interval=0.0005),
    },
    limits=(
        Limit(
            "... with a switch interval of 0.5 ms",
            case="p99",
            over="cqnotify, a thread computes",
            at_most=0.3,
        ),
    ),
    peer=InC("peer"),
    seconds=25,
)
