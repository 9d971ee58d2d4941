# SPDX-License-Identifier: MIT
"""Very many events on one channel, while queues come and go: nothing lost, nothing twice, no leak.

Two threads share the channel. Each event goes to whichever of them was there, for a *lane*: a CQ
with a queue pair that is connected to itself, and the work requests that are out. What must hold
is in Lane and Soak.check(); the rest is the usual way to use a channel.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from soak_support import Progress
from support import ALL_REMOTE, DEADLINE, Waiter

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPState, QPType, WCStatus, WROpcode

LANES = 100
MANY = int(os.environ.get("CQNOTIFY_SOAK_EVENTS", "1000000"))
SEED = int(os.environ.get("CQNOTIFY_SOAK_SEED", "20240229"))
HEAP_GROWTH = 64 << 10  # bytes: less than 0.1 for each of a million events
RSS_GROWTH = 8 << 20  # what many tests left in pieces is filled and emptied, by some MiB


class Lane:
    """A CQ with a QP. Whoever holds the lock works on it; events are read without."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.lock = threading.Lock()
        self.out: dict[int, None] = {}  # by wr_id: work requests without a completion so far
        self.make_cq()
        self.make_qp()

    def make_cq(self) -> None:
        self.cq = CQ(self.soak.ctx, 16, channel=self.soak.channel, user_data=self)

    def make_qp(self) -> None:
        self.qp = QP(self.soak.pd, QPType.UC, send_cq=self.cq)
        self.qp.connect(self.qp.address())

    def arm_and_post(self, n: int) -> None:
        """With an empty CQ: the first of these completions raises an event."""
        self.cq.req_notify()
        for _ in range(n):
            wr_id = next(self.soak.wr_ids)
            self.out[wr_id] = None
            self.qp.post_send([], wr_id=wr_id, opcode=WROpcode.RDMA_WRITE, **self.soak.target)

    def take(self, statuses: tuple[WCStatus, ...] = (WCStatus.SUCCESS,)) -> int:
        """Polls until nothing is left; each completion is of a request that had none yet."""
        n = 0
        while got := self.cq.poll():
            for wc in got:
                assert wc.status in statuses, wc
                assert self.out.pop(wc.wr_id, wc) is None, f"{wc} came twice, or was never posted"
            n += len(got)
        return n

    def on_event(self, n: int) -> None:
        """Takes what there is; if that was all, the next n are posted."""
        self.cq.ack()
        self.take()
        if self.out:
            # Completions to come must raise an event: arm, and look again.
            self.cq.req_notify()
            self.take()
        if not self.out and n:
            self.arm_and_post(n)

    def renew(self, cq_too: bool, n: int) -> None:
        """A new QP, maybe with a new CQ, whatever is under way.

        An error state completes all that is out. Events may be unread then, or in the hands of
        the other thread, which has yet to ack them.
        """
        self.qp.modify(qp_state=QPState.ERR)
        end = time.monotonic() + DEADLINE
        while self.out:
            assert time.monotonic() < end, f"no completions of {list(self.out)}"
            self.take((WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR))
        self.qp.close()
        assert self.cq.poll() == [], "more completions than work requests"
        if cq_too:
            self.close_cq()
            self.make_cq()
        self.make_qp()
        if n:
            self.arm_and_post(n)

    def close_cq(self) -> None:
        self.cq.close()
        self.cq.user_data = None
        stats = self.cq.stats
        assert stats.events == stats.acked, stats
        self.soak.account(stats.events, stats.completions)

    def close(self) -> None:
        assert not self.out
        self.qp.close()
        assert self.cq.poll() == []
        self.close_cq()


@dataclass
class Usage:
    """What the process holds."""

    heap: int
    rss: int
    fds: int

    @classmethod
    def now(cls) -> Usage:
        gc.collect()
        return cls(
            tracemalloc.get_traced_memory()[0],
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
            len(os.listdir("/proc/self/fd")),
        )


@dataclass
class Soak:
    ctx: Context
    progress: Progress  # in events
    got: list[int] = field(default_factory=lambda: [0, 0])  # events that get_event() returned
    renewed: list[int] = field(default_factory=lambda: [0, 0])
    events: int = 0  # as closed CQs counted them
    completions: int = 0
    warm: Usage | None = None
    done: bool = False

    def __post_init__(self) -> None:
        self.pd = PD(self.ctx)
        self.channel = CompletionChannel(self.ctx)
        self.mr = MR(self.pd, 64, access=ALL_REMOTE)
        self.target = {"remote_addr": self.mr.addr, "rkey": self.mr.rkey}
        self.wr_ids = count(1)  # next() is atomic
        self.account_lock = threading.Lock()
        self.lanes = [Lane(self) for _ in range(LANES)]

    def account(self, events: int, completions: int) -> None:
        with self.account_lock:
            self.events += events
            self.completions += completions

    def work(self, me: int) -> None:
        """One of the threads: an event, what it is about, and now and then some upheaval."""
        rng = random.Random(SEED + me)
        while not self.done:
            try:
                cq = self.channel.get_event(timeout=DEADLINE)
            except InterruptedError:
                continue
            self.got[me] += 1
            posts = 0 if sum(self.got) >= self.progress.wanted else rng.choice((1, 1, 1, 2, 3))
            lane = cq.user_data
            if lane is not None:  # else its CQ was closed since, and the event acked
                with lane.lock:
                    if not cq.closed:
                        lane.on_event(0 if self.done else posts)
            if posts == 0:
                self.end_if_all_is_in()
                continue
            if rng.random() < 0.01:
                other = rng.choice(self.lanes)
                with other.lock:
                    other.renew(rng.random() < 0.7, 0 if self.done else posts)
                self.renewed[me] += 1
            if me == 0:
                self.progress.add(sum(self.got) - self.progress.done)
                if self.warm is None and sum(self.got) >= self.progress.wanted // 10:
                    self.warm = Usage.now()

    def end_if_all_is_in(self) -> None:
        """With all locks: who is about to post does so before, or sees that it is over."""
        with ExitStack() as locks:
            for lane in self.lanes:
                locks.enter_context(lane.lock)
            if not self.done and not any(lane.out for lane in self.lanes):
                self.done = True
                self.channel.interrupt()

    def run(self) -> Usage:
        for lane in self.lanes:
            lane.arm_and_post(1)
        threads = [Waiter(lambda me=me: self.work(me)) for me in (0, 1)]  # type: ignore[misc]
        for waiter in threads:
            while waiter.thread.is_alive():
                waiter.thread.join(1)
                if any(w.error for w in threads):
                    self.done = True
        for waiter in threads:
            waiter.join()
        usage = Usage.now()  # with all lanes still there, as when it was warm
        for lane in self.lanes:
            lane.close()
        self.channel.close()
        return usage

    def check(self, usage: Usage) -> None:
        assert sum(self.got) >= self.progress.wanted
        assert min(self.got) > 0, "both threads took part"
        assert self.events == sum(self.got), "what the CQs counted is what get_event() returned"
        assert self.completions == next(self.wr_ids) - 1, "each work request completed once"
        assert sum(self.renewed) > 0
        assert self.warm is not None
        assert usage.fds == self.warm.fds
        assert usage.heap - self.warm.heap < HEAP_GROWTH, (self.warm, usage)
        if "ASAN_OPTIONS" not in os.environ:  # which keeps what is freed for a while
            assert usage.rss - self.warm.rss < RSS_GROWTH, (self.warm, usage)


def soak(ctx: Context, progress: Progress) -> str:
    """Runs it and checks everything; returns the figures."""
    tracemalloc.start()
    try:
        it = Soak(ctx, progress)
        usage = it.run()
        report = progress.report()
        it.check(usage)
    finally:
        tracemalloc.stop()
    assert it.warm is not None
    return (
        f"{report}: {it.got[0]} + {it.got[1]} events by thread, {it.completions} completions, "
        f"{sum(it.renewed)} renewals; since the first tenth: "
        f"heap {usage.heap - it.warm.heap:+d} bytes, RSS {usage.rss - it.warm.rss:+d} bytes, "
        f"{usage.fds - it.warm.fds:+d} file descriptors"
    )


def test_no_event_or_completion_is_lost_or_doubled_while_queues_come_and_go(
    ctx: Context, capfd: pytest.CaptureFixture[str], is_long: bool
) -> None:
    progress = Progress(MANY if is_long else 5000, is_long)
    with progress.shown(capfd):  # where stderr is the terminal's
        print(f"\r{soak(ctx, progress)}")
