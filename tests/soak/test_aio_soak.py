# SPDX-License-Identifier: MIT
"""AsyncCQ for long: no wake-up is lost, and no completion, whatever is cancelled or closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any

import pytest
from soak_support import Progress
from support import ALL_REMOTE, DEADLINE, SITS_IN, Endpoint, outstanding, peer

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    ClosedError,
    CompletionChannel,
    Context,
    QPType,
    VerbsError,
    WCOpcode,
    WorkCompletion,
    WROpcode,
)
from cqnotify.aio import AsyncCQ

MANY = int(os.environ.get("CQNOTIFY_SOAK_COMPLETIONS", "1000000"))  # also sizes the lock-step
SEED = int(os.environ.get("CQNOTIFY_SOAK_SEED", "20240229"))

NewLoop = Callable[[], asyncio.AbstractEventLoop]


def run_clean(
    new_loop: NewLoop,
    monkeypatch: pytest.MonkeyPatch,
    progress: Progress,
    scenario: Coroutine[Any, Any, None],
) -> None:
    """Runs it; nothing may be complained of, and no task be left."""
    complaints: list[object] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: complaints.append(context)
        )
        main, watch = (asyncio.ensure_future(c) for c in (scenario, progress.watch()))
        try:
            await asyncio.wait([main, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                main.cancel()
                await watch
            await main
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with monkeypatch.context() as patch, contextlib.closing(new_loop()) as loop:
        patch.setattr(sys, "unraisablehook", complaints.append)
        loop.run_until_complete(watched())
        gc.collect()
    assert complaints == []


# ---- no wake-up is lost ---------------------------------------------------------------------

# Sends a message, and the next one when it has the answer. Before each it waits until the other
# process sleeps, or a random time, in which that one falls asleep.
PEER = (
    SITS_IN
    + """
import random, sys, time, cqnotify as c

pid, messages, seed = map(int, sys.argv[1:])
rng = random.Random(seed)
EPOLL = ("232", "281")

def until_it_sleeps():
    end = time.monotonic() + 60
    while True:
        if sits_in(f"/proc/{pid}", *EPOLL):
            return
        assert time.monotonic() < end, "it never sleeps"

def for_some_microseconds():
    end = time.perf_counter() + 1e-6 * 10 ** rng.uniform(0, 2.9)
    while time.perf_counter() < end:
        pass

with c.Context() as ctx:
    pd, cq = c.PD(ctx), c.CQ(ctx, 64)
    qp = c.QP(pd, c.QPType.RC, send_cq=cq)
    sys.stdout.buffer.write(qp.address().to_wire())
    sys.stdout.flush()
    qp.connect(c.QPAddress.from_wire(sys.stdin.buffer.read(52)))
    for i in range(messages):
        qp.post_recv(None)
        until_it_sleeps() if rng.random() < 0.6 else for_some_microseconds()
        qp.post_send([], opcode=c.WROpcode.SEND_WITH_IMM, imm_data=i)
        got = []
        while len(got) < 2:
            got += cq.poll(spin=0.1)
        assert all(wc.ok for wc in got), got
        assert [wc.imm_data for wc in got if wc.opcode == c.WCOpcode.RECV] == [i], got
    sys.stdin.read()
"""
)


async def answer(end: Endpoint, progress: Progress) -> None:
    """Half of the messages are awaited as the next completion, half by their wr_id."""
    async with AsyncCQ(end.rcq) as received, AsyncCQ(end.scq) as sent:
        for i in range(progress.wanted):
            if i % 2:
                wc = await received.completion(i % 8)
            else:
                (wc,) = await received.wait()
            assert wc.ok
            assert (wc.imm_data, wc.wr_id) == (i, i % 8)
            end.qp.post_recv(None, wr_id=i % 8)
            await sent.send(end.qp, [], imm_data=i)
            progress.add(1)
        stats = received.stats
        assert stats.events > 0.5 * progress.wanted, "it slept"
        assert stats.wakeups > 0.5 * progress.wanted
    for cq in (end.rcq, end.scq):
        assert cq.stats.events == cq.stats.acked


@pytest.mark.usefixtures("conversation")
def test_every_message_of_another_process_wakes_though_none_follows_it(
    ctx: Context,
    new_loop: NewLoop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_long: bool,
) -> None:
    progress = Progress(MANY // 10 if is_long else 1000, is_long)
    end = Endpoint(ctx, QPType.RC)
    end.qp.to_init()
    for i in range(8):
        end.qp.post_recv(None, wr_id=i)
    with progress.shown(capfd):
        with peer(end, PEER, os.getpid(), progress.wanted, SEED) as child:
            run_clean(new_loop, monkeypatch, progress, answer(end, progress))
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(DEADLINE) == 0
        events = end.rcq.stats.events / progress.wanted
        print(f"\r{events:.2f} events per message; {progress.report()}")


# ---- no completion is lost, nor comes twice -------------------------------------------------

LANES = 16
CHANNELS = 4
RECEIVES = 4  # posted by hand, besides those of tasks
OWN = 1 << 63  # the wr_ids that a program gives are below


class Ledger:
    """What must come yet, and what may come.

    Of a send that was cancelled nobody knows whether it was posted. But a message that has come was
    posted, so then its send must complete; and one whose send has completed must come.
    """

    def __init__(self) -> None:
        self.writes: set[int] = set()  # by wr_id: posted by hand, and not handed out so far
        self.calls: dict[int, int] = {}  # sends with a wr_id of ours: their imm_data
        self.messages: set[int] = set()  # by imm_data: these may come
        self.heard: set[int] = set()  # of these, the sends have completed
        self.owed: set[int] = set()  # by wr_id: sends whose messages have come
        self._chosen: set[int] = set()

    def begins(self, imm_data: int, wr_id: int | None) -> None:
        self.messages.add(imm_data)
        if wr_id is not None:
            self.calls[wr_id] = imm_data

    def completes(self, imm_data: int, wr_id: int) -> None:
        """A send; with a wr_id of ours it may have been found by others than its task."""
        if wr_id < OWN:
            assert self.calls.pop(wr_id) == imm_data
            self.owed.discard(wr_id)
        else:
            self.completes_without(wr_id)
        if imm_data in self.messages:
            self.heard.add(imm_data)

    def completes_without(self, wr_id: int) -> None:
        """A send whose AsyncCQ was closed meanwhile: the next one knows nothing of it."""
        assert wr_id not in self._chosen
        self._chosen.add(wr_id)

    def comes(self, imm_data: int) -> None:
        self.messages.remove(imm_data)
        self.heard.discard(imm_data)
        self.owed.update(wr_id for wr_id, imm in self.calls.items() if imm == imm_data)

    def enter(self, wc: WorkCompletion) -> None:
        """Each is of something that had none yet: remove() would raise."""
        assert wc.ok, wc
        if wc.opcode is WCOpcode.RECV:
            assert wc.imm_data is not None
            self.comes(wc.imm_data)
        elif wc.opcode is WCOpcode.SEND and wc.wr_id >= OWN:
            self.completes_without(wc.wr_id)
        elif wc.opcode is WCOpcode.SEND:
            self.completes(self.calls[wc.wr_id], wc.wr_id)
        else:
            self.writes.remove(wc.wr_id)

    def is_settled(self) -> bool:
        return not (self.writes or self.heard or self.owed)

    def __repr__(self) -> str:
        return f"writes {self.writes} messages {self.heard} sends {self.owed}"


class Lane:
    """A CQ with a QP that is connected to itself, and those who use it."""

    def __init__(self, stress: Stress, channel: CompletionChannel) -> None:
        self.stress = stress
        self.rng = random.Random(stress.rng.random())
        self.cq = CQ(stress.ctx, 1023, channel=channel)
        self.qp = QP(stress.pd, QPType.RC, send_cq=self.cq, max_send_wr=255, max_recv_wr=255)
        self.qp.connect(self.qp.address(), access=ALL_REMOTE)
        self.ledger = Ledger()
        self.acq = AsyncCQ(self.cq)
        self.former: deque[AsyncCQ] = deque(maxlen=8)
        self.moved = asyncio.Event()
        self.supply()

    def supply(self) -> None:
        """For each message there is a receive, whether a task awaits it or not."""
        while self.qp.outstanding_recvs < RECEIVES:
            self.qp.post_recv(None, wr_id=next(self.stress.wr_ids))

    # Each of these may be cancelled, end by a timeout, or find everything closed.

    async def attempt(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Its result, or None."""
        luck = self.rng.random()
        try:
            if luck < 0.1:
                return await asyncio.wait_for(call, self.rng.random() * 0.005)
            if luck > 0.2:
                return await call
            task = asyncio.ensure_future(call)
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()
        except TimeoutError:
            return None
        except ClosedError:
            assert self.stress.done or self.former, "closed by nobody"
            return None

    async def take(self) -> None:
        while not self.acq.closed:
            wcs = await self.attempt(self.acq.wait(self.rng.choice((1, 16, 64, 256))))
            self.account(wcs or ())

    async def receive(self) -> None:
        while not self.acq.closed:
            wc = await self.attempt(self.acq.recv(self.qp, None))
            self.account([wc] if wc is not None else [])

    async def send(self) -> None:
        while not self.stress.done:
            own = next(self.stress.wr_ids) if self.rng.random() < 0.5 else None
            imm_data = next(self.stress.numbers)
            self.ledger.begins(imm_data, own)
            wc = await self.attempt(self.acq.send(self.qp, [], imm_data=imm_data, wr_id=own))
            if wc is not None:
                assert wc.ok
                assert wc.wr_id >= OWN if own is None else wc.wr_id == own
                self.ledger.completes(imm_data, wc.wr_id)
            self.account([])
            self.stress.account(wc is not None)

    async def claim(self) -> None:
        while not self.stress.done:
            wr_id = next(self.stress.wr_ids)
            if self.write(wr_id):
                wc = await self.attempt(self.acq.completion(wr_id, qp=self.qp))
                self.account([wc] if wc is not None else [])
            await self.room()

    async def feed(self) -> None:
        while not self.stress.done:
            for _ in range(self.rng.randrange(256)):
                self.write(next(self.stress.wr_ids))
            await self.room()

    def write(self, wr_id: int) -> bool:
        """Directly, unless the queue is full."""
        if self.qp.outstanding_sends >= self.qp.max_send_wr:
            return False
        try:
            self.qp.post_send([], wr_id=wr_id, opcode=WROpcode.RDMA_WRITE, **self.stress.target)
        except VerbsError as e:
            # It may be full a little longer than its completions tell.
            if e.errno != errno.ENOMEM:
                raise
            return False
        self.ledger.writes.add(wr_id)
        return True

    async def room(self) -> None:
        while not self.stress.done and self.qp.outstanding_sends >= 128:
            self.moved.clear()
            await self.moved.wait()
        await asyncio.sleep(0)

    def account(self, wcs: Iterable[WorkCompletion]) -> None:
        n = 0
        for wc in wcs:
            self.ledger.enter(wc)
            n += 1
        self.supply()
        self.moved.set()
        self.stress.account(n)

    # What the stress as a whole does with it.

    def close_acq(self) -> None:
        self.acq.close()
        self.former.append(self.acq)
        self.account_former()

    def account_former(self) -> None:
        """What was taken from the CQ for them, and not handed out.

        Later than close(), too: a task that is cancelled then gives back what it was given.
        """
        for acq in self.former:
            with contextlib.suppress(ClosedError):
                while True:
                    self.account(acq.poll(64))

    def reopen(self) -> None:
        self.close_acq()
        self.acq = AsyncCQ(self.cq)

    def is_done(self) -> bool:
        self.account_former()
        return self.ledger.is_settled() and self.qp.outstanding_sends == 0

    def __repr__(self) -> str:
        return f"{self.ledger} outstanding {outstanding(self.qp)} {self.acq!r} {self.acq.stats}"

    def check(self) -> None:
        self.account_former()
        assert self.is_done()
        assert self.cq.poll() == []
        stats = self.cq.stats
        assert stats.events == stats.acked
        assert self.cq.unacked == 0
        self.qp.close()
        self.cq.close()


class Stress:
    def __init__(self, ctx: Context, progress: Progress) -> None:
        self.ctx = ctx
        self.progress = progress
        self.done = False
        self.rng = random.Random(SEED)
        self.pd = PD(ctx)
        mr = MR(self.pd, 64, access=ALL_REMOTE)
        self.target = {"remote_addr": mr.addr, "rkey": mr.rkey}
        self.wr_ids = count(1)
        self.numbers = count(1)
        self.reopened = 0
        self._next_reopening = 100
        self._reopens = False

    def account(self, n: int) -> None:
        self.progress.add(n)
        self.done = self.done or self.progress.done >= self.progress.wanted
        if self.progress.done >= self._next_reopening and not self.done and not self._reopens:
            self._reopens = True
            asyncio.get_running_loop().call_soon(self.reopen)

    def reopen(self) -> None:
        """At most one in a turn of the loop: those who were cancelled get to run in between."""
        self._reopens = False
        self._next_reopening = self.progress.done + self.rng.randrange(500)
        self.reopened += 1
        self.rng.choice(self.lanes).reopen()

    def state(self) -> object:
        pending = [str(task.get_coro()) for task in self.tasks if not task.done()]
        return pending, [lane for lane in self.lanes if not lane.is_done()]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)
            for task in self.tasks:
                if task.done():
                    task.result()  # it may have failed

    async def run(self) -> None:
        channels = [CompletionChannel(self.ctx) for _ in range(CHANNELS)]
        self.lanes = [Lane(self, channels[i % CHANNELS]) for i in range(LANES)]
        posting = [work for lane in self.lanes for work in (lane.send, lane.claim, lane.feed)]
        posters = [asyncio.ensure_future(work()) for work in posting]
        waiting = [work for lane in self.lanes for work in (lane.take, lane.take, lane.receive)]
        self.tasks = posters + [asyncio.ensure_future(work()) for work in waiting]
        try:
            await self.until(lambda: all(task.done() for task in posters))
            await self.until(lambda: all(lane.is_done() for lane in self.lanes))
        finally:
            self.done = True
            for lane in self.lanes:
                lane.close_acq()
                lane.moved.set()
            await asyncio.gather(*self.tasks, return_exceptions=True)
        for lane in self.lanes:
            lane.check()
        assert sum(lane.cq.stats.events for lane in self.lanes) > LANES, "they slept"
        for channel in channels:
            channel.close()
        assert self.reopened > 0


def test_each_completion_comes_once_whatever_is_cancelled_or_closed(
    ctx: Context,
    new_loop: NewLoop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_long: bool,
) -> None:
    progress = Progress(MANY if is_long else 10000, is_long)
    stress = Stress(ctx, progress)
    progress.state = stress.state
    with progress.shown(capfd):
        run_clean(new_loop, monkeypatch, progress, stress.run())
        print(f"\r{progress.report()}; {stress.reopened} reopenings")
