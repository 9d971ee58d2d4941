# SPDX-License-Identifier: MIT
"""A thread computes in pure Python. What of its speed is left when another one receives a message
each millisecond, and sleeps in between?

The messages come without a receiver, too: their sender's share of the CPU is no fault of his.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .end import ACK_BATCH, End, Peer, PyverbsEnd, check
from .harness.plan import Benchmark, InC, Limit, Round
from .harness.subject import clock

SIZE = 64
MESSAGES = 400
INTERVAL = 1_000_000  # ns
DURATION = 300 * INTERVAL  # messages come from before until after it
SLOTS = BATCH = 512  # there is room for all messages, and they can be taken at once


def compute() -> int:
    """Returns how much it got done.

    All numbers are small, which Python keeps: allocating others takes as long as the state of the
    heap makes it.
    """
    end = clock() + DURATION
    done = number = 0
    while clock() < end:
        for i in range(100):
            number = (number + i) & 127
        done += 1
    return done


def receive(end: End) -> None:
    cq, get_event, post_recv = end.cq, end.channel.get_event, end.qp.post_recv
    left = MESSAGES
    while left:
        get_event()
        if cq.unacked >= ACK_BATCH:
            cq.ack(cq.unacked)
        cq.req_notify()
        wcs = cq.poll(BATCH)
        for wc in wcs:
            wc.raise_for_status()
            post_recv(end.receives[wc.wr_id])
        left -= len(wcs)


def pyverbs_receive(end: PyverbsEnd) -> None:
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    left = MESSAGES
    while left:
        get_event(cq)
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        n, wcs = cq.poll(BATCH)
        for wc in wcs:
            check(wc)
            post_recv(end.receives[wc.wr_id])
        left -= n


def rounds(make: Callable[..., Any], receive: Callable[[Any], None]) -> Round:
    peer = Peer()
    end = make(peer, SIZE, slots=SLOTS)
    end.cq.req_notify()

    def alone() -> int:
        peer.order(f"pace {MESSAGES} {INTERVAL} {MESSAGES}")
        done = compute()
        peer.order("meet")
        peer.meet()  # all of them have been sent
        receive(end)
        return done

    def beside_receiver() -> int:
        receiver = threading.Thread(target=receive, args=(end,))
        peer.order(f"pace {MESSAGES} {INTERVAL} {MESSAGES}")
        receiver.start()  # now, since pyverbs lets nobody else run until something comes
        done = compute()
        receiver.join()
        return done

    def share() -> float:
        before = alone()
        return 100 * beside_receiver() / before

    return lambda: {"1 per ms": {"ops": 1, "total": share()}}


BENCHMARK = Benchmark(
    title="Throughput that a CPU-bound thread keeps while another thread receives",
    op="message",
    unit="%",
    subjects={
        "pyverbs": lambda: rounds(PyverbsEnd, pyverbs_receive),
        "cqnotify": lambda: rounds(End, receive),
    },
    limits=(Limit("cqnotify", at_least=95),),
    peer=InC("peer"),
)
