# SPDX-License-Identifier: MIT
"""Several threads that use the same objects at once, which without a GIL they really do.

Each test counts: nothing is lost, nothing comes twice; what one thread closes is closed for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from support import (
    DEADLINE,
    FREE_THREADED,
    Waiter,
    in_child,
    need_room_for_queues,
    outstanding,
    python,
    until,
)
from world import World

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    AsyncEventError,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    QPType,
    RecvWR,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
)
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint, connect

WORKERS = 4


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    """With a GIL, threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*calls: Callable[[], Any], meanwhile: Sequence[Callable[[], Any]] = ()) -> list[Any]:
    """Runs each in a thread of its own, all from the same moment on; returns what they returned.
    What is to be done meanwhile is done again and again, in threads of its own, until they end."""
    start = threading.Barrier(len(calls) + len(meanwhile), timeout=DEADLINE)
    over = threading.Event()

    def begin(call: Callable[[], Any]) -> Any:
        start.wait()
        return call()

    def repeat(call: Callable[[], Any]) -> None:
        start.wait()
        while not over.is_set():
            call()

    beside = [Waiter(partial(repeat, call)) for call in meanwhile]
    waiters = [Waiter(partial(begin, call)) for call in calls]
    try:
        return [waiter.join() for waiter in waiters]
    finally:
        over.set()
        for waiter in beside:
            waiter.join()


def test_a_gil_is_neither_needed_nor_turned_on() -> None:
    program = """if True:
        import sys, cqnotify, cqnotify.aio, cqnotify.testing
        print(getattr(sys, "_is_gil_enabled", lambda: True)())
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    out = python("-W", "error", "-c", program, env=env)
    assert (out.returncode, out.stdout.strip()) == (0, str(not FREE_THREADED)), out
    assert getattr(sys, "_is_gil_enabled", lambda: True)() is not FREE_THREADED, "nor in here"


class Traffic:
    """A QP that is connected to itself; all threads post to it, and take what comes."""

    def __init__(self, ctx: Context, rounds: int) -> None:
        self.end = Endpoint(ctx, one_cq=True, cqe=1024, max_send_wr=128, max_recv_wr=128)
        self.end.qp.connect(self.end.qp.address())
        self.cq = self.end.recv_cq
        self.rounds = rounds

    def take(self, how: int = 0) -> list[int]:
        repr(self.cq), self.cq.stats, outstanding(self.end.qp)
        if how % 3 == 0:
            return [wc.wr_id for wc in self.cq.poll(16)]
        if how % 3 == 1:
            return self.cq.poll_ids(16)
        return [wc.wr_id for wc in self.cq.poll(4, spin=0.0005)]

    def post(self, call: Callable[[], None], got: list[int], how: int) -> None:
        while True:
            try:
                return call()
            except VerbsError:  # it is full
                got += self.take(how)

    def work(self, me: int) -> list[int]:
        got: list[int] = []
        for i in range(me * self.rounds, (me + 1) * self.rounds):
            memory = self.end.mr[i % 512 : i % 512 + 16]
            self.post(partial(self.end.qp.post_recv, memory, wr_id=2 * i), got, i)
            send = SendWR(memory, wr_id=2 * i + 1)
            self.post(partial(self.end.qp.post_send, [send]), got, i)
            self.cq.req_notify(i % 2 == 0)
            got += self.take(i)
        while outstanding(self.end.qp) != (0, 0):
            got += self.take()
        return got

    def read_event(self) -> None:
        cq = self.end.channel.try_get_event()
        if cq is not None:
            cq.ack()


def test_each_completion_goes_to_one_of_those_that_post_and_poll(ctx: Context) -> None:
    rounds = 200
    it = Traffic(ctx, rounds)
    lists = at_once(*(partial(it.work, me) for me in range(WORKERS)), meanwhile=[it.read_event])
    count = Counter(n for got in lists for n in got)
    assert count == Counter(range(WORKERS * rounds * 2))
    assert it.cq.stats.completions == WORKERS * rounds * 2
    it.end.close()


def test_threads_with_a_context_each_do_not_disturb_each_other(ctx: Context) -> None:
    """Without a GIL, two of them post and poll at the same time; others make and close queues."""
    rounds = 100
    its = [Traffic(Context(ctx.name), rounds) for _ in range(WORKERS)]

    def make() -> None:
        other = Context(ctx.name)
        with Endpoint(other, size=64, cqe=16) as end:
            repr(end.qp)
        other.close()
        gc.collect()

    lists = at_once(
        *(partial(it.work, 0) for it in its), meanwhile=[make, *(it.read_event for it in its)]
    )
    for it, got in zip(its, lists, strict=True):
        assert Counter(got) == Counter(range(2 * rounds))
        assert it.cq.stats.completions == 2 * rounds
        it.end.close()
        it.end.ctx.close()


def test_requests_and_arrays_are_shared_by_threads_with_a_context_each(ctx: Context) -> None:
    rounds = 200
    send, recv, array = SendWR(wr_id=1), RecvWR(wr_id=2), WCArray(4)
    contexts = [Context(ctx.name) for _ in range(WORKERS)]

    def work(own: Context, how: int) -> list[int]:
        ids: list[int] = []
        with Endpoint(own, one_cq=True) as end:
            end.qp.connect(end.qp.address())
            for i in range(rounds):
                end.qp.post_recv([recv] if i % 2 else recv)
                end.qp.post_send([send] if i % 3 else send)
                left = 2
                while left:
                    if how % 2:
                        left -= end.recv_cq.poll_into(array)
                    else:
                        got = end.recv_cq.poll_ids(2)
                        ids += got
                        left -= len(got)
            assert end.recv_cq.stats.completions == 2 * rounds
        return ids

    def change() -> None:
        send.wr_id, recv.wr_id = 1, 2  # which they are
        with contextlib.suppress(IndexError):
            assert array[0].wr_id in (1, 2)

    lists = at_once(
        *(partial(work, own, how) for how, own in enumerate(contexts)), meanwhile=[change]
    )
    assert [Counter(ids) for ids in lists] == [{1: rounds, 2: rounds}, {}] * (WORKERS // 2)
    for own in contexts:
        own.close()


def test_a_list_that_others_change_is_posted_as_it_was_at_one_moment(ctx: Context) -> None:
    rounds = 500
    end = Endpoint(ctx, max_recv_wr=rounds, max_recv_sge=4)
    shared: list[Any] = []

    def change() -> None:
        for n in (1, 3, 2, 0):
            elements = [end.mr[0:8], end.mr[64:80]]
            shared[:] = [RecvWR(elements, wr_id=i) for i in range(n)]
        for element in (end.mr[0:8], end.mr[8:16], end.mr[16:24]):
            shared.append(element)
            shared.reverse()
        shared.clear()

    def post() -> int:
        posted = 0
        for _ in range(rounds):
            # Refused: what has both kinds in it, was changed meanwhile, or is too much.
            with contextlib.suppress(TypeError, RuntimeError, VerbsError):
                end.qp.post_recv(shared)
                posted += 1
            with contextlib.suppress(TypeError):
                RecvWR(shared), SendWR(shared)
        return posted

    end.qp.connect(end.qp.address())
    (posted,) = at_once(post, meanwhile=[change])
    assert posted > 0
    assert end.qp.outstanding_recvs > 0
    end.close()


def test_queues_come_and_go_while_others_read_their_events(ctx: Context) -> None:
    """They are left to the garbage, with events unread, by threads that did not make them."""
    rounds = 40
    other = Context(ctx.name)
    shared = Endpoint(other)
    channel, mr = shared.channel, shared.mr
    events: list[bool] = []
    passed: list[Any] = [None] * WORKERS  # each drops what another one made

    def make(me: int) -> None:
        for i in range(rounds):
            end = Endpoint(other, pd=shared.pd, channel=channel, mr=mr, cqe=16, one_cq=True)
            end.connect(end.qp.address())
            end.recv_cq.req_notify()
            end.qp.post_recv(mr[0:64])
            end.qp.post_send(mr[64:72])
            passed[(me + i) % WORKERS] = end if i % 2 else end.qp
            del end

    def read() -> None:
        cq = channel.try_get_event()
        if cq is not None:
            events.append(True)
            cq.poll(4)
            cq.ack()

    at_once(*(partial(make, me) for me in range(WORKERS)), meanwhile=[read, read])
    assert 0 < len(events) <= WORKERS * rounds
    passed.clear()
    gc.collect()
    shared.close()  # nothing in flight needs it: all QPs are gone
    other.close()


def test_a_context_is_closed_by_all_while_all_make_what_it_closes(ctx: Context) -> None:
    need_room_for_queues(ctx)

    def use(other: Context, made: list[Any]) -> None:
        with contextlib.suppress(ClosedError):
            for _ in range(20):
                end = Endpoint(other, size=64, cqe=16, one_cq=True)
                cq, qp = end.recv_cq, end.qp
                made += [end.channel, end.pd, cq, qp, end.mr]
                cq.req_notify()
                repr(qp), qp.qp_num, cq.cqe, cq.stats

    def close(other: Context, made: list[Any]) -> None:
        until(lambda: len(made) >= 10, "there are some")
        other.close()

    for _ in range(10):
        other, made = Context(ctx.name), list[Any]()
        at_once(*[partial(use, other, made)] * WORKERS, *[partial(close, other, made)] * 2)
        assert other.closed
        assert all(thing.closed for thing in made)


@pytest.mark.usefixtures("conversation")
def test_things_that_all_threads_close_are_closed_once() -> None:
    def close(w: World) -> None:
        for _ in range(20):
            for name in reversed(World.NAMES):
                with contextlib.suppress(BusyError):
                    getattr(w, name).close()
        w.ctx.close()

    for _ in range(10):
        w = World()
        at_once(*[partial(close, w)] * WORKERS)
        assert all(getattr(w, name).closed for name in (*World.NAMES, "ctx"))


def test_all_that_sleep_are_woken_by_a_close_from_any_thread(ctx: Context) -> None:
    def sleep(channel: CompletionChannel) -> None:
        with pytest.raises(ClosedError):
            channel.get_event(timeout=DEADLINE)

    for n in range(20):
        channel = CompletionChannel(ctx)
        waiters = [Waiter(partial(sleep, channel)) for _ in range(WORKERS)]
        for waiter in waiters[: n % 2 * WORKERS]:  # else some are only about to
            waiter.asleep()
        at_once(channel.close, channel.close)
        for waiter in waiters:
            waiter.join()


def test_memory_is_there_for_those_who_look_at_it_while_others_close_it(pd: PD) -> None:
    def look(mr: MR) -> None:
        with contextlib.suppress(ClosedError, BufferError):
            while True:
                with memoryview(mr) as view:
                    assert bytes(view[4000:]) == b"x" * 96
                assert mr.read(16) == b"x" * 16

    for _ in range(30):
        mr = MR(pd, 4096)
        mr.write(b"x" * 4096)
        at_once(*[partial(look, mr)] * 3, mr.close)
        assert mr.closed


def test_rows_of_an_array_that_others_fill_are_whole(ctx: Context) -> None:
    rounds = 100
    a, b = connect(Endpoint(ctx), Endpoint(ctx))
    array = WCArray(8)
    was_read: list[bool] = []

    def fill() -> None:
        done = 0
        while done < rounds or not was_read:  # it may be over before the others begin
            b.qp.post_recv(b.mr[0:64], wr_id=done % rounds)
            a.qp.post_send(a.mr[0:8])
            until(lambda: b.recv_cq.poll_into(array) == 1, "it arrives")
            until(lambda: bool(a.send_cq.poll()), "it is sent")
            done += 1

    def read() -> None:
        with contextlib.suppress(IndexError):  # for a moment there is none
            wc = array[0]
            assert (wc.ok, wc.byte_len, wc.qp_num) == (True, 8, b.qp.qp_num)
            assert wc.wr_id < rounds
            was_read.append(True)

    at_once(fill, meanwhile=[read, read])
    a.close()
    b.close()


def test_event_loops_in_several_threads_share_a_device(ctx: Context) -> None:
    rounds = 60

    async def converse() -> int:
        a, b = connect(Endpoint(ctx), Endpoint(ctx))
        heard = 0
        async with AsyncCQ(b.recv_cq) as acq:
            for i in range(rounds):
                b.qp.post_recv(b.mr[0:64], wr_id=i)
                waiting = asyncio.ensure_future(acq.wait())
                await asyncio.sleep(0)  # now it sleeps
                a.qp.post_send(a.mr[0:8])
                (wc,) = await asyncio.wait_for(waiting, DEADLINE)
                heard += wc.wr_id == i
                a.send_cq.poll()
            assert acq.stats.wakeups == rounds
        a.close()
        b.close()
        return heard

    assert at_once(*[lambda: asyncio.run(converse())] * 3) == [rounds] * 3


def test_a_process_ends_while_its_daemon_threads_are_at_work(ctx: Context) -> None:
    program = """if True:
        import sys, threading, cqnotify
        ctx = cqnotify.Context(sys.argv[1])
        cq, mr = cqnotify.CQ(ctx, 16), cqnotify.MR(cqnotify.PD(ctx), 1 << 22)
        started = threading.Barrier(4)
        def work():
            started.wait()
            while True:
                mr.write(bytes(1 << 22)), cq.poll(), repr(mr)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        mr.write(b"x")
    """
    for _ in range(4):
        out = python("-W", "ignore", "-c", program, ctx.name, timeout=DEADLINE)
        assert out.returncode == 0, out


class Crowd:
    """Some of everything, on a context of its own."""

    def __init__(self, name: str) -> None:
        self.ctx = Context(name)
        self.channel, self.pd = CompletionChannel(self.ctx), PD(self.ctx)
        self.cqs = [
            CQ(self.ctx, 1024, channel=self.channel),
            CQ(self.ctx, 1024, channel=self.channel, wc_flags=WCExFlags(0x7F)),
            CQ(self.ctx, 3, channel=self.channel),  # which loses completions, and reports that
        ]
        self.mrs = [MR(self.pd, 64) for _ in range(4)]
        self.qps = [self.new_qp(n) for n in range(3)]

    def new_qp(self, n: int) -> QP:
        qp = QP(self.pd, QPType.RC, send_cq=self.cqs[n], recv_cq=self.cqs[1], max_recv_sge=2)
        qp.connect(qp.address())
        return qp


class Chaos:
    """Threads that do anything to the objects of one world, which is replaced now and then."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        self.rounds = rounds
        self.world = Crowd(name)
        self.array = WCArray(16)
        self.worlds = 1

    def post(self, w: Crowd, dice: random.Random) -> None:
        qp, mr = dice.choice(w.qps), dice.choice(w.mrs)
        sends = SendWR(MR(w.pd, 8)), SendWR(mr[0:8])
        dice.choice([
            lambda: qp.post_recv([mr[0:8], mr]),
            lambda: qp.post_recv([RecvWR(mr), RecvWR(MR(w.pd, 16))]),
            lambda: qp.post_send(mr[0:4], wr_id=3),
            lambda: qp.post_send([*sends, *sends]),
        ])()  # fmt: skip

    def poll(self, w: Crowd, dice: random.Random) -> None:
        cq = dice.choice(w.cqs)
        dice.choice([
            lambda: cq.poll(64),
            lambda: cq.poll_ids(64),
            lambda: cq.poll_into(self.array),
            lambda: cq.poll(8, spin=0.0005),
            cq.arm_if_empty,
            lambda: list(self.array),
        ])()  # fmt: skip

    def listen(self, w: Crowd, dice: random.Random) -> None:
        dice.choice(w.cqs).req_notify()
        got = dice.choice([
            lambda: w.channel.get_event(timeout=0.002),
            w.channel.try_get_event,
            lambda: w.ctx.get_async_event(timeout=0.002),
        ])()  # fmt: skip
        if isinstance(got, CQ):
            got.ack()

    def change(self, w: Crowd, dice: random.Random) -> None:
        n, mr = dice.randrange(3), dice.choice(w.mrs)
        qp, small = w.qps[n], w.cqs[2]
        dice.choice([
            lambda: qp.modify(qp_state=0),
            lambda: qp.connect(qp.address()),
            lambda: w.qps.__setitem__(n, w.new_qp(n)),
            lambda: small.resize(7 if small.cqe == 3 else 3),
            lambda: w.mrs.__setitem__(dice.randrange(4), MR(w.pd, 64)),
            lambda: memoryview(mr)[0:4].tobytes(),
            lambda: setattr(qp, "user_data", [qp.user_data]) or setattr(qp, "user_data", None),
            qp.close,
            w.channel.interrupt,
            gc.collect,
        ])()  # fmt: skip
        repr(qp), repr(mr), repr(w.cqs), w.cqs[0].stats, outstanding(qp), qp.closed

    def work(self, me: int) -> int:
        dice = random.Random(me)
        done = 0
        for _ in range(self.rounds):
            # Refused is what others made impossible: closed it, filled it, interrupted it. A
            # request fails when its QP, which is its own peer, was reset beneath it.
            with contextlib.suppress(
                ClosedError, BusyError, VerbsError, ValueError, InterruptedError, TimeoutError,
                IndexError, CompletionError, AsyncEventError,
            ):  # fmt: skip
                call = dice.choice([self.post, self.poll, self.poll, self.listen, self.change])
                call(self.world, dice)
                done += 1
        return done

    def replace(self) -> None:
        old, self.world = self.world, Crowd(self.name)
        old.ctx.close()
        self.worlds += 1

    def run(self) -> None:
        workers = [partial(self.work, me) for me in range(WORKERS)]
        done = at_once(*workers, meanwhile=[self.replace])
        self.world.ctx.close()
        assert min(done) > self.rounds // 10, "mostly it is possible"
        assert self.worlds > 1


@pytest.mark.usefixtures("conversation")
def test_anything_may_be_done_by_any_thread(ctx: Context) -> None:
    Chaos(ctx.name, rounds=50).run()


@pytest.mark.usefixtures("conversation")
@pytest.mark.soak
def test_anything_may_be_done_by_any_thread_for_long(ctx: Context) -> None:
    for _ in range(300):  # each with the deadline of the suite
        faulthandler.dump_traceback_later(4 * DEADLINE, exit=True)
        Chaos(ctx.name, rounds=50).run()
    faulthandler.cancel_dump_traceback_later()


def test_a_child_that_is_forked_while_others_work_has_a_device_of_its_own(ctx: Context) -> None:
    cq, name = CQ(ctx, 16), ctx.name

    def child() -> None:
        signal.alarm(int(DEADLINE))
        with pytest.raises(ClosedError):
            cq.poll()
        with Context(name) as own:
            assert CQ(own, 16).poll() == []

    def fork() -> None:
        for _ in range(3):  # to end takes a while, where coverage is counted
            assert in_child(child) == 0

    at_once(fork, meanwhile=[lambda: (cq.poll(), cq.stats)] * WORKERS)


def test_of_many_asynccqs_one_gets_the_cq(ctx: Context, channel: CompletionChannel) -> None:
    def claim(cq: CQ) -> AsyncCQ | None:
        try:
            return AsyncCQ(cq)
        except ValueError:
            return None

    for _ in range(30):
        cq = CQ(ctx, 16, channel=channel)
        made = at_once(*[partial(claim, cq)] * WORKERS)
        (acq,) = [acq for acq in made if acq is not None]
        acq.close()
        cq.close()


def test_what_is_dropped_while_all_collect_is_dropped_once(
    ctx: Context, channel: CompletionChannel
) -> None:
    """Without a GIL the collector runs while others are on their way to the core's lock."""
    acq = AsyncCQ(CQ(ctx, 8, channel=channel))

    def drop() -> None:
        for _ in range(20_000):
            acq.wait().close()
            acq.scope()

    def drop_engines() -> None:
        for _ in range(100):
            with CQ(ctx, 8, channel=channel) as cq:
                AsyncCQ(cq).wait().close()

    gc.collect()
    gc.freeze()  # a collector that looks at all that other tests have left keeps the GIL for long
    try:
        at_once(drop, drop, drop_engines, meanwhile=[gc.collect])
    finally:
        gc.unfreeze()
    assert acq._awaited == 0
