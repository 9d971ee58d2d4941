# SPDX-License-Identifier: MIT
"""CQ.poll(spin=...): looking again and again, without the GIL, instead of sleeping."""

from __future__ import annotations

import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import SPIN, Waiter, outstanding, until, wait_completions

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    SendFlags,
    WCArray,
    WCExFlags,
    WROpcode,
)


class Loop:
    """A QP that sends to itself, and receives on a CQ of its own."""

    def __init__(self, ctx: Context, wc_flags: WCExFlags | None) -> None:
        self.pd = PD(ctx)
        self.mr = MR(self.pd, 4096)
        self.channel = CompletionChannel(ctx)
        self.scq = CQ(ctx, 256, channel=self.channel)
        self.cq = CQ(ctx, 2048, channel=CompletionChannel(ctx), wc_flags=wc_flags)
        self.qp = self.new_qp()

    def new_qp(self) -> QP:
        qp = QP(
            self.pd,
            QPType.RC,
            send_cq=self.scq,
            recv_cq=self.cq,
            max_send_wr=64,
            max_recv_wr=64,
        )
        qp.connect(qp.address())
        return qp

    def send(self, ids: range | list[int]) -> None:
        """Messages whose number is their wr_id and immediate data; they need not have arrived."""
        for i in ids:
            self.qp.post_recv(self.mr[0:64], wr_id=i)
        for i in ids:
            flags = SendFlags.SIGNALED if i == ids[-1] else SendFlags(0)
            opcode = WROpcode.SEND_WITH_IMM
            self.qp.post_send(self.mr[64:72], opcode=opcode, imm_data=i, send_flags=flags)

    def deliver(self, ids: range | list[int]) -> None:
        """As send(), and all have arrived."""
        self.send(ids)
        wait_completions(self.scq, 1)


@pytest.fixture(params=[None, WCExFlags(0x7F)], ids=["plain", "extended"])
def loop(ctx: Context, request: pytest.FixtureRequest) -> Loop:
    return Loop(ctx, request.param)


def cpu_ticks(thread: threading.Thread) -> int:
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def spinning(cq: CQ, call: Callable[[], Any]) -> Waiter:
    """It found nothing and spins: between its first look and that it holds the GIL."""
    polls = cq.stats.polls
    waiter = Waiter(call)
    until(lambda: cq.stats.polls > polls, "it looks")
    assert waiter.thread.is_alive()
    return waiter


# ---- one thread ---------------------------------------------------------------------------


def test_a_completion_that_comes_ends_the_spin(loop: Loop) -> None:
    waiter = spinning(loop.cq, lambda: loop.cq.poll(spin=SPIN))
    loop.send([7])
    (wc,) = waiter.join()
    assert (wc.wr_id, wc.imm_data, wc.ok) == (7, 7, True)
    stats = loop.cq.stats
    assert (stats.polls, stats.completions, stats.events) == (1, 1, 0)
    assert loop.qp.outstanding_recvs == 0


def test_other_threads_run_while_one_spins(loop: Loop) -> None:
    waiter = spinning(loop.cq, lambda: loop.cq.poll(spin=SPIN))
    before = cpu_ticks(waiter.thread)
    n = 0
    while cpu_ticks(waiter.thread) < before + 5:  # it computes, and so do we
        n += 1
    assert n > 1
    assert waiter.thread.is_alive()
    loop.send([1])
    assert len(waiter.join()) == 1


def test_what_is_there_is_returned_without_a_spin(loop: Loop) -> None:
    loop.deliver(range(20))
    assert [wc.wr_id for wc in loop.cq.poll(spin=SPIN)] == list(range(16))
    assert [wc.wr_id for wc in loop.cq.poll(2, spin=SPIN)] == [16, 17]
    assert [wc.wr_id for wc in loop.cq.poll(spin=SPIN)] == [18, 19]


def test_a_poll_that_does_not_spin_keeps_nothing_for_it(loop: Loop) -> None:
    loop.deliver([1])
    assert [wc.wr_id for wc in loop.cq.poll()] == [1]
    assert loop.cq.poll() == []
    assert loop.cq._spin is None


def test_auto_returns_what_is_there_and_soon_nothing(loop: Loop) -> None:
    for i in range(200):
        assert loop.cq.poll(spin="auto") == []
        loop.deliver([i])
        assert [wc.wr_id for wc in loop.cq.poll(spin="auto")] == [i]


def test_auto_does_not_spin_on_one_cpu(loop: Loop) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        for _ in range(100):
            assert loop.cq.poll(spin="auto") == []
    finally:
        os.sched_setaffinity(0, before)
    assert loop.cq._spin == (0, 0, 0)  # it has never polled without the GIL


@pytest.mark.parametrize("spin", [0, 0.0, -0.0, 1e-9, 0.05, False])
def test_when_nothing_came_in_time_the_list_is_empty(loop: Loop, spin: float) -> None:
    start = time.monotonic()
    assert loop.cq.poll(spin=spin) == []
    assert time.monotonic() - start >= spin
    assert loop.cq.stats.polls == 1


def test_more_came_while_it_spun_than_one_poll_of_the_device_takes(loop: Loop) -> None:
    waiter = spinning(loop.cq, lambda: loop.cq.poll(3, spin=SPIN))
    loop.deliver(range(60))
    got = [wc.wr_id for wc in waiter.join()]
    while len(got) < 60:
        more = [wc.wr_id for wc in loop.cq.poll(7, spin=SPIN)]
        assert more
        got += more
    assert got == list(range(60))


def test_a_number_that_closes_the_cq_while_it_is_converted(cq: CQ) -> None:
    class Hostile:
        def __float__(self) -> float:
            cq.close()
            return SPIN

    with pytest.raises(ClosedError):
        cq.poll(spin=Hostile())  # type: ignore[arg-type]


def test_a_cq_that_has_spun_leaves_no_memory(ctx: Context) -> None:
    def spin_once() -> None:
        with CQ(ctx, 4) as cq:
            assert cq.poll(spin=1e-9) == []

    spin_once()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(32):
            spin_once()
        assert tracemalloc.get_traced_memory()[0] < before + 32 * 256
    finally:
        tracemalloc.stop()


# ---- closing ------------------------------------------------------------------------------


def test_closing_the_cq_ends_the_spin(ctx: Context) -> None:
    cq = CQ(ctx, 4)
    waiter = spinning(cq, lambda: cq.poll(spin=SPIN))
    cq.close()
    with pytest.raises(ClosedError):
        waiter.join()


def test_closing_the_context_ends_every_spin(loop: Loop, ctx: Context) -> None:
    waiters = [spinning(loop.cq, lambda: loop.cq.poll(spin=SPIN)) for _ in range(2)]
    ctx.close()
    for waiter in waiters:
        with pytest.raises(ClosedError):
            waiter.join()


def test_a_close_that_is_refused_does_not_end_the_spin(loop: Loop) -> None:
    waiter = spinning(loop.cq, lambda: loop.cq.poll(spin=SPIN))
    with pytest.raises(BusyError):
        loop.cq.close()
    loop.send([3])
    assert len(waiter.join()) == 1


# ---- signals ------------------------------------------------------------------------------


class Stop(Exception):
    pass


@contextmanager
def signal_when_spinning(cq: CQ, handler: Callable[[], object]) -> Iterator[None]:
    """The handler runs in this thread, which spins on `cq` then."""
    old = signal.signal(signal.SIGUSR1, lambda *_: handler())
    polls, main = cq.stats.polls, threading.get_ident()

    def send() -> None:
        until(lambda: cq.stats.polls > polls, "it looks")
        signal.pthread_kill(main, signal.SIGUSR1)

    sender = Waiter(send)
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, old)


def test_a_handler_that_raises_ends_the_spin_and_nothing_is_lost(loop: Loop) -> None:
    def handler() -> None:
        loop.deliver([5])
        raise Stop

    with signal_when_spinning(loop.cq, handler), pytest.raises(Stop):
        loop.cq.poll(spin=SPIN)
    assert [wc.wr_id for wc in loop.cq.poll()] == [5]


def test_after_a_handler_that_returns_the_spin_goes_on(loop: Loop) -> None:
    ran = []
    with signal_when_spinning(loop.cq, lambda: ran.append(loop.send([6]))):
        assert [wc.wr_id for wc in loop.cq.poll(spin=SPIN)] == [6]
    assert ran


def test_a_handler_may_close_the_cq(ctx: Context) -> None:
    cq = CQ(ctx, 4)
    with signal_when_spinning(cq, cq.close), pytest.raises(ClosedError):
        cq.poll(spin=SPIN)


def test_a_handler_may_spin_itself(loop: Loop) -> None:
    inner = []

    def handler() -> None:
        loop.send([8])
        inner.extend(loop.cq.poll(spin=SPIN))
        loop.send([9])

    with signal_when_spinning(loop.cq, handler):
        assert [wc.wr_id for wc in loop.cq.poll(spin=SPIN)] == [9]
    assert [wc.wr_id for wc in inner] == [8]


# ---- several threads ----------------------------------------------------------------------


def spin(cq: CQ) -> list[int]:
    return [wc.wr_id for wc in cq.poll(5, spin=0.05)]


def into(cq: CQ) -> list[int]:
    wcs = WCArray(3)
    cq.poll_into(wcs)
    return [wc.wr_id for wc in wcs]


@pytest.mark.parametrize(
    "second", [spin, lambda cq: cq.poll_ids(4), into], ids=["spins", "poll_ids", "poll_into"]
)
def test_a_spinning_thread_and_another_share_each_completion_once(
    loop: Loop, second: Callable[[CQ], list[int]]
) -> None:
    taken: list[list[int]] = [[], []]

    def collect(mine: list[int], poll: Callable[[CQ], list[int]]) -> None:
        while sum(map(len, taken)) < 1000:
            mine += poll(loop.cq)

    collectors = [
        spinning(loop.cq, lambda: collect(taken[0], spin)),
        spinning(loop.cq, lambda: collect(taken[1], second)),
    ]
    for start in range(0, 1000, 20):
        loop.deliver(range(start, start + 20))
        until(lambda n=start - 40: sum(map(len, taken)) > n, "they follow")  # type: ignore[misc]
    for collector in collectors:
        collector.join()
    assert sorted(taken[0] + taken[1]) == list(range(1000))
    for mine in taken:
        assert mine == sorted(mine)  # each gets them in order
    assert loop.qp.outstanding_recvs == 0


def test_what_another_thread_takes_from_the_device_and_leaves_ends_the_spin(loop: Loop) -> None:
    waiter = spinning(loop.cq, lambda: loop.cq.poll(spin=SPIN))
    loop.deliver([1])
    loop.cq.arm_if_empty()  # it looks, and hands nothing out
    assert [wc.wr_id for wc in waiter.join()] == [1]


@pytest.mark.parametrize("renew", ["reset", "close"])
def test_queue_pairs_are_made_and_reset_while_one_spins(loop: Loop, renew: str) -> None:
    """The numbers are the same again and again: an old completion would be taken for a new one."""
    rounds, n = 60, 20
    got: list[int] = []

    def collect() -> None:
        while len(got) < rounds * n:
            more = loop.cq.poll(3, spin=SPIN)
            assert more
            got.extend(wc.wr_id for wc in more)

    collector = spinning(loop.cq, collect)
    for _ in range(rounds):
        loop.deliver(range(n))
        if renew == "reset":
            loop.qp.modify(qp_state=QPState.RESET)
            loop.qp.connect(loop.qp.address())
        else:
            loop.qp.close()
            loop.qp = loop.new_qp()
        for i in range(n):  # as many, never to be completed
            loop.qp.post_recv(loop.mr[0:64], wr_id=i)
        assert outstanding(loop.qp) == (0, n)
        loop.qp.modify(qp_state=QPState.RESET)
        loop.qp.connect(loop.qp.address())
    collector.join()
    assert got == list(range(n)) * rounds
