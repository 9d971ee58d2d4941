# SPDX-License-Identifier: MIT
"""Programs whose tasks await completions, while other threads use the same CQ: each completion is
delivered once, and in order; each task ends; a task that is cancelled loses nothing."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from scheduler import (
    Flag,
    core,
    give_way,
    join,
    refuse_to_destroy,
    run_loop,
    spawn,
    steal_event,
)

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    QPState,
    QPType,
    SendFlags,
    VerbsError,
)
from cqnotify.aio import AsyncCQ

UNSIGNALED = SendFlags(0)
ENDS = (ClosedError, CompletionError, asyncio.CancelledError)


class World:
    """CQs on one channel, each with an AsyncCQ, and two queue pairs: receives of b complete on the
    first CQ, sends of a on the last."""

    def __init__(self, cqs: int = 1, **caps: Any) -> None:
        self.ctx = Context()
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, 8192)
        self.channel = CompletionChannel(self.ctx)
        self.cqs = [CQ(self.ctx, 200, channel=self.channel) for _ in range(cqs)]
        self.acqs = [AsyncCQ(cq) for cq in self.cqs]
        self.send_cq = CQ(self.ctx, 200)
        self.a = QP(self.pd, QPType.RC, send_cq=self.cqs[-1], recv_cq=self.send_cq, **caps)
        self.b = QP(self.pd, QPType.RC, send_cq=self.send_cq, recv_cq=self.cqs[0], **caps)
        self.a.connect(self.b.address())
        self.b.connect(self.a.address())
        self.cq, self.acq = self.cqs[0], self.acqs[0]
        self.wanted = 0  # receives
        self.got: list[int] = []  # the wr_ids of those that have completed

    def receive(self, n: int) -> None:
        self.wanted = n
        for i in range(n):
            self.b.post_recv(self.mr[64 * i : 64 * i + 64], wr_id=i)

    def send(self, n: int, flags: SendFlags = UNSIGNALED) -> None:
        for i in range(n):
            self.a.post_send(self.mr[4096:4104], wr_id=i, send_flags=flags)

    def send_all(self) -> None:
        self.send(self.wanted)

    async def take(self, most: int = 16, solicited: bool = False) -> None:
        """What comes next."""
        wcs = await self.acq.wait(most, solicited_only=solicited)
        self.got.extend(wc.wr_id for wc in wcs)

    async def claim(self, i: int) -> None:
        self.got.append((await self.acq.completion(i)).wr_id)

    async def take_all(self) -> None:
        while len(self.got) < self.wanted:
            await self.take()

    def check(self) -> None:
        """Each has completed, and was delivered once."""
        assert sorted(self.got) == [*range(self.wanted)], self.got

    def close(self) -> None:
        self.ctx.close()


def run_beside(
    w: World, chance: random.Random, main: Coroutine[Any, Any, None], *calls: Callable[[], None]
) -> None:
    """Run the loop in the main thread, and each call in a thread."""
    threads = [spawn(call) for call in calls]
    run_loop(main, own=chance.random() < 0.5)
    for thread in threads:
        join(thread)
    w.close()


def unless_closed(call: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with suppress(ClosedError):
            call()

    return run


# ---- each gets its own -----------------------------------------------------------------------


def operations(chance: random.Random) -> None:
    w = World(cqs=chance.choice([1, 2]), max_send_wr=2, max_recv_wr=2)

    async def send(i: int) -> None:
        w.mr.write(bytes([i]) * 8, 4096 + 64 * i)
        await w.acqs[-1].send(w.a, w.mr[4096 + 64 * i : 4104 + 64 * i])

    async def receive(i: int) -> None:
        await w.acq.recv(w.b, w.mr[64 * i : 64 * i + 64])
        assert w.mr.read(8, 64 * i) == bytes([i]) * 8

    async def main() -> None:
        await asyncio.gather(*map(receive, range(4)), *map(send, range(4)))

    def look() -> None:
        for _ in range(4):
            if chance.random() < 0.3:
                w.cq.arm_if_empty()
                assert w.cq.poll() == []
            w.cq.req_notify()

    run_beside(w, chance, main(), unless_closed(look))


def claims_in_order(chance: random.Random) -> None:
    """No task overtakes one that was woken earlier, although another thread polls as well."""
    w = World()
    order: list[int] = []
    n = 4
    w.receive(n)
    waiting = Flag()

    async def claim(i: int) -> None:
        assert (await w.acq.completion(i)).wr_id == i
        order.append(i)

    async def main() -> None:
        tasks = asyncio.gather(*map(claim, range(n)))
        await asyncio.sleep(0)
        waiting.set()
        await tasks

    def send_and_poll() -> None:
        waiting.wait()
        for i in range(n):
            w.a.post_send(w.mr[4096:4104], wr_id=i, send_flags=SendFlags(0))
            if chance.random() < 0.5:
                assert w.cq.poll() == []

    run_beside(w, chance, main(), unless_closed(send_and_poll))
    assert order == [*range(n)], order


def claims_and_waits(chance: random.Random) -> None:
    w = World()
    w.receive(6)

    async def main() -> None:
        claimed = {1, 4}
        tasks = [asyncio.ensure_future(w.claim(i)) for i in sorted(claimed)]
        await asyncio.sleep(0)
        while len(set(w.got) - claimed) < w.wanted - len(claimed):
            await w.take(chance.choice([1, 2, 16]))
        await asyncio.gather(*tasks)

    run_beside(w, chance, main(), w.send_all)
    w.check()


def waits_of_several_tasks(chance: random.Random) -> None:
    """Each takes one, and what is left wakes the next."""
    w = World()
    w.receive(5)
    waiting = Flag()

    async def main() -> None:
        tasks = asyncio.gather(*(w.take(1) for _ in range(w.wanted)))
        await asyncio.sleep(0)
        waiting.set()
        await tasks

    def look() -> None:
        waiting.wait()
        for _ in range(2):
            assert w.cq.poll() == []
            w.cq.req_notify(chance.random() < 0.5)

    run_beside(w, chance, main(), unless_closed(look), w.send_all)
    w.check()


def solicited_waits(chance: random.Random) -> None:
    """A task that waits for solicited events, beside one that waits for any."""
    w = World()
    w.receive(4)

    async def main() -> None:
        await asyncio.gather(*(w.take(1, i % 2 == 0) for i in range(w.wanted)))

    def send() -> None:
        w.send(w.wanted - 1)
        w.send(1, SendFlags.SOLICITED)

    def arm() -> None:
        for solicited in (True, False, True):
            w.cq.req_notify(solicited)

    run_beside(w, chance, main(), unless_closed(arm), send)
    w.check()


# ---- another thread --------------------------------------------------------------------------


def a_thread_arms(chance: random.Random) -> None:
    """Between the poll of an operation and its sleep: that poll is no proof that nothing came."""
    w = World()

    async def main() -> None:
        for _ in range(3):
            w.a.post_send(w.mr[4096:4104], send_flags=UNSIGNALED)
            await w.acq.recv(w.b, w.mr[:64])

    def arm() -> None:
        for _ in range(3):
            w.cq.req_notify()

    run_beside(w, chance, main(), unless_closed(arm))


def a_thread_arms_a_full_cq(chance: random.Random) -> None:
    """A task polls for its completion, and the CQ has more than it gets."""
    w = World(max_send_wr=32, max_recv_wr=32)
    n = 20
    w.receive(n)
    w.send(n)

    async def main() -> None:
        assert (await w.acq.completion(n - 1)).wr_id == n - 1

    run_beside(w, chance, main(), unless_closed(w.cq.req_notify))


def the_cq_is_resized(chance: random.Random) -> None:
    w = World()
    w.receive(4)

    def resize() -> None:
        for cqe in (100, 150, 200):
            w.cq.resize(cqe)

    run_beside(w, chance, w.take_all(), unless_closed(resize), w.send_all)
    w.check()


def events_are_acknowledged_by_two(chance: random.Random) -> None:
    """The engine acknowledges in batches of 32; the program may do it as well."""
    w = World()
    n = 70
    begun = Flag()

    async def main() -> None:
        for i in range(n):
            if i == 10:
                begun.set()
            w.b.post_recv(w.mr[:64], wr_id=i)
            w.a.post_send(w.mr[4096:4104], wr_id=i, send_flags=SendFlags(0))
            assert (await w.acq.completion(i)).wr_id == i

    def ack() -> None:
        begun.wait()
        for _ in range(3):
            with suppress(ValueError):
                w.cq.ack(1)

    run_beside(w, chance, main(), unless_closed(ack))


def a_thread_takes_events(chance: random.Random) -> None:
    """It reads them from the channel, beside the loop, and looks after the CQ: nobody loses any."""
    w = World()
    w.receive(4)

    def take() -> None:
        for _ in range(4):
            cq = w.channel.try_get_event()
            if cq is not None:
                with suppress(ValueError):
                    cq.ack()
                cq.poll()
                cq.arm_if_empty()

    run_beside(w, chance, w.take_all(), unless_closed(take), w.send_all)
    w.check()


def an_event_is_stolen_from_tasks(chance: random.Random) -> None:
    """By another program; a task that gave up, and waits again, has the CQ armed again."""
    w = World()
    w.receive(4)

    async def wait() -> None:
        while len(w.got) < w.wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(1e-3):
                    await w.take(1)

    async def main() -> None:
        await asyncio.gather(wait(), wait())

    def steal() -> None:
        for _ in range(3):
            steal_event(w.channel)

    run_beside(w, chance, main(), unless_closed(steal), w.send_all)
    w.check()


def the_cq_cannot_be_closed(chance: random.Random) -> None:
    """The device refuses; the event that was read meanwhile wakes its task nevertheless."""
    w = World(cqs=2)
    w.receive(3)

    async def main() -> None:
        while len(w.got) < w.wanted:
            try:
                await w.take(1)
            except ClosedError:  # while the other thread tries
                await asyncio.sleep(1e-6)

    def close() -> None:
        w.send(w.wanted - 1)
        w.a.post_send(w.mr[4096:4104], wr_id=w.wanted)
        while not w.cqs[1].poll():
            give_way()
        w.a.close()
        w.b.close()
        refuse_to_destroy(1)
        with suppress(VerbsError, ClosedError):
            w.cq.close()

    run_beside(w, chance, main(), close)
    w.check()


# ---- tasks that give up ----------------------------------------------------------------------


def tasks_are_cancelled(chance: random.Random) -> None:
    """What the cancelled ones do not take, the others get."""
    w = World()
    w.receive(5)
    tasks: list[asyncio.Task[None]] = []
    ready = Flag()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        main.loop = loop  # type: ignore[attr-defined]
        tasks.extend(loop.create_task(w.claim(i)) for i in (0, 2, 2))
        tasks.extend(loop.create_task(w.take(most)) for most in (1, 2))
        ready.set()
        await asyncio.wait(tasks, timeout=1e-3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await w.take_all()

    def cancel() -> None:
        ready.wait()
        for task in chance.sample(tasks, 3):
            with suppress(RuntimeError):
                main.loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]

    run_beside(w, chance, main(), cancel, w.send_all)
    w.check()


def waits_time_out(chance: random.Random) -> None:
    w = World()
    w.receive(4)

    async def wait() -> None:
        while len(w.got) < w.wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(1e-3):
                    await w.take(1)

    async def claim() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1e-3):
                await w.claim(2)

    async def main() -> None:
        await asyncio.gather(wait(), wait(), claim())

    run_beside(w, chance, main(), w.send_all)
    w.check()


def operations_are_cancelled(chance: random.Random) -> None:
    """A receive that is cancelled takes its message nevertheless, or the next one of its memory."""
    w = World()
    n = 4
    done: list[int] = []
    tasks: list[asyncio.Task[None]] = []
    ready = Flag()

    async def receive(i: int) -> None:
        await w.acq.recv(w.b, w.mr[64 * i : 64 * i + 64])
        done.append(i)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        main.loop = loop  # type: ignore[attr-defined]
        tasks.extend(loop.create_task(receive(i)) for i in range(n))
        ready.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        for i, task in enumerate(tasks):
            if task.cancelled():
                await w.acq.recv(w.b, w.mr[64 * i : 64 * i + 64])

    def cancel() -> None:
        ready.wait()
        for task in chance.sample(tasks, 2):
            with suppress(RuntimeError):
                main.loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]

    def send() -> None:
        w.send(n + 2)

    run_beside(w, chance, main(), cancel, send)


# ---- what is closed --------------------------------------------------------------------------


def another_one_takes_over(chance: random.Random) -> None:
    """After a close the CQ has another AsyncCQ, whose tasks get what the cancelled tasks of the
    first did not take."""
    w = World()
    w.receive(4)

    async def main() -> None:
        first = w.acq
        tasks = [asyncio.create_task(w.claim(i)) for i in (0, 1)]
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        w.got.extend(wc.wr_id for wc in first.poll())
        first.close()
        for task in tasks:
            task.cancel()
        w.acq = AsyncCQ(w.cq)
        await w.take_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_beside(w, chance, main(), w.send_all)
    w.check()


async def ended(
    tasks: list[Coroutine[Any, Any, Any]], ends: tuple[type[BaseException], ...]
) -> None:
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, ends):
            raise result


def waits_of_all_kinds(w: World) -> list[Coroutine[Any, Any, Any]]:
    return [
        w.acq.wait(1),
        w.acq.completion(7),
        w.acq.completion(1, qp=w.b),
        w.acq.recv(w.b, w.mr[:64]),
        w.acqs[-1].send(w.a, w.mr[4096:4104]),
        w.acqs[-1].send(w.a, w.mr[4096:4104]),
    ]


def everything_is_closed(chance: random.Random) -> None:
    """By another thread, in any phase: every task ends."""
    w = World(cqs=chance.choice([1, 2]), max_send_wr=1)
    what = chance.choice(["acq", "qps", "ctx", "cq", "channel", "error"])
    # a queue pair in ERR refuses its first operation
    ends = (*ENDS, VerbsError) if what == "error" else ENDS

    async def main() -> None:
        with suppress(ClosedError):
            tasks = waits_of_all_kinds(w)
            try:
                await ended(tasks, ends)
            finally:
                for task in tasks:
                    task.close()

    def close() -> None:
        if what == "error":
            w.b.modify(qp_state=QPState.ERR)
        elif what == "acq":
            w.acq.close()
        elif what == "ctx":
            w.ctx.close()
        else:
            w.b.close()
            w.a.close()
            with suppress(BusyError):
                {"qps": w.send_cq, "cq": w.cq, "channel": w.channel}[what].close()
        if what in ("qps", "error"):
            w.acq.close()
        for acq in w.acqs:
            acq.close()

    run_beside(w, chance, main(), unless_closed(close))


def a_queue_is_left(chance: random.Random) -> None:
    """A QP is closed while its CQ cannot be polled: what it has completed keeps its wr_id."""
    w = World()
    n = 6
    ids: list[int] = []
    for i in range(n):
        w.b.post_recv(w.mr[64 * i : 64 * i + 64], wr_id=1000 + i)
    w.acq.close()

    def poll() -> None:
        for _ in range(n + 2):
            with suppress(VerbsError):
                ids.extend(wc.wr_id for wc in w.cq.poll(1))

    def close() -> None:
        core.fail_call(chance.randrange(1, 6))
        for _ in range(2):
            with suppress(VerbsError):
                w.b.close()
        core.fail_call(0)

    def send() -> None:
        with suppress(VerbsError):
            w.send(n)

    threads = [spawn(poll), spawn(close), spawn(send)]
    for thread in threads:
        join(thread)
    while wcs := w.cq.poll(1):
        ids.extend(wc.wr_id for wc in wcs)
    assert ids == sorted(set(ids)), ids
    assert set(ids) <= {*range(1000, 1000 + n)}, ids
    w.close()


# ---- loops and the collector -----------------------------------------------------------------


def two_loops(chance: random.Random) -> None:
    """In two threads, on one device: each answers the other."""
    w = World()
    other = CompletionChannel(w.ctx)
    cq = CQ(w.ctx, 64, channel=other)
    p = QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=w.cq)
    q = QP(w.pd, QPType.RC, send_cq=cq, recv_cq=cq)
    p.connect(q.address())
    q.connect(p.address())
    rounds = 4

    async def play(acq: AsyncCQ, qp: QP, at: int, first: bool) -> None:
        receive = asyncio.ensure_future(acq.recv(qp, w.mr[at : at + 64]))
        await asyncio.sleep(0)
        for i in range(rounds):
            if first:
                await acq.send(qp, w.mr[at + 64 : at + 72])
            await receive
            if i + 1 < rounds:
                receive = asyncio.ensure_future(acq.recv(qp, w.mr[at : at + 64]))
                await asyncio.sleep(0)
            if not first:
                await acq.send(qp, w.mr[at + 64 : at + 72])

    own = chance.random() < 0.5
    thread = spawn(lambda: run_loop(play(AsyncCQ(cq), q, 1024, False), own))
    run_loop(play(w.acq, p, 0, True), not own)
    join(thread)
    w.close()


def the_collector_runs(chance: random.Random) -> None:
    """Tasks that wait are kept; one that nobody holds with its channel is not waited for."""
    w = World()
    w.receive(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(w.wanted):
            loop.create_task(w.take(1))  # noqa: RUF006
        while len(w.got) < w.wanted:
            await asyncio.sleep(1e-4)

    def collect() -> None:
        for _ in range(3):
            gc.collect()

    run_beside(w, chance, main(), collect, w.send_all)
    w.check()


PROGRAMS = (
    operations,
    claims_in_order,
    claims_and_waits,
    waits_of_several_tasks,
    solicited_waits,
    a_thread_arms,
    a_thread_arms_a_full_cq,
    the_cq_is_resized,
    events_are_acknowledged_by_two,
    a_thread_takes_events,
    an_event_is_stolen_from_tasks,
    the_cq_cannot_be_closed,
    tasks_are_cancelled,
    waits_time_out,
    operations_are_cancelled,
    another_one_takes_over,
    everything_is_closed,
    a_queue_is_left,
    two_loops,
    the_collector_runs,
)
