# SPDX-License-Identifier: MIT
"""The throughput that a computing thread keeps while another thread receives.

One thread computes in pure Python; the other receives a message each millisecond, and sleeps in
between. The base is the throughput while the messages come but are not received, since the sender
takes a share of the CPU, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .end import ACK_BATCH, CqnotifyEnd, IbverbsEnd, Peer, PyverbsEnd, check
from .harness.plan import Benchmark, InC, Limit, Round
from .harness.subject import clock

SIZE = 64
MESSAGES = 400
INTERVAL = 1_000_000  # ns
DURATION = 300 * INTERVAL  # messages come during all of it
SLOTS = BATCH = 512  # room for all messages, which one poll can take


def compute() -> int:
    """Return how many rounds were computed.

    All numbers are small ones, which Python caches: the time of allocating others depends on the
    state of the heap.
    """
    end = clock() + DURATION
    done = number = 0
    while clock() < end:
        for i in range(100):
            number = (number + i) & 127
        done += 1
    return done


def receive(end: CqnotifyEnd) -> None:
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


def ibverbs_receive(end: IbverbsEnd) -> None:
    cq, get_event, post_recv = end.cq, end.channel.get_cq_event, end.qp.post_recv
    left = MESSAGES
    while left:
        get_event()
        end.events += 1
        if end.events % ACK_BATCH == 0:
            cq.ack_events(ACK_BATCH)
        cq.req_notify()
        wcs = cq.poll(BATCH)
        for wc in wcs:
            wc.raise_for_status()
            post_recv(end.receives[wc.wr_id])
        left -= len(wcs)


def rounds(make: Callable[..., Any], receive: Callable[[Any], None]) -> Round:
    peer = Peer()
    end = make(peer, SIZE, slots=SLOTS)
    end.cq.req_notify()

    def alone() -> int:
        peer.order(f"pace {MESSAGES} {INTERVAL} {MESSAGES}")
        done = compute()
        peer.order("meet")
        peer.meet()  # all messages have been sent
        receive(end)
        return done

    def beside_receiver() -> int:
        receiver = threading.Thread(target=receive, args=(end,))
        peer.order(f"pace {MESSAGES} {INTERVAL} {MESSAGES}")
        receiver.start()  # after the order: pyverbs holds the GIL until an event comes
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
        "ibverbs": lambda: rounds(IbverbsEnd, ibverbs_receive),
        "cqnotify": lambda: rounds(CqnotifyEnd, receive),
    },
    limits=(
        Limit("cqnotify", at_least=95),
        Limit("cqnotify", over="ibverbs", at_least=0.99),
    ),
    peer=InC("peer"),
    seconds=40,
)
