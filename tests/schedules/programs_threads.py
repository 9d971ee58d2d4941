# SPDX-License-Identifier: MIT
"""Programs whose threads sleep in get_event(): each completion is delivered once, and nobody sleeps
while something for it is there."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scheduler import (
    MAIN,
    Flag,
    await_asleep,
    join,
    refuse_to_destroy,
    send_signal,
    spawn,
    steal_event,
)

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
)


class World:
    """A channel with some CQs, each of which receives from its own pair."""

    def __init__(self, cqs: int = 1, messages: int = 3) -> None:
        self.ctx = Context()
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, 4096)
        self.channel = CompletionChannel(self.ctx)
        self.cqs = [CQ(self.ctx, 64, channel=self.channel) for _ in range(cqs)]
        self.sent = CompletionChannel(self.ctx)
        self.send_cq = CQ(self.ctx, 64, channel=self.sent)
        self.pairs = [self.pair(cq) for cq in self.cqs]
        self.messages = messages
        self.wanted = cqs * messages
        self.delivered: list[tuple[int, int]] = []
        self.all_delivered = Flag()
        self.interrupted = Flag()

    def pair(self, cq: CQ) -> tuple[QP, QP]:
        a = QP(self.pd, QPType.RC, send_cq=self.send_cq, recv_cq=self.send_cq)
        b = QP(self.pd, QPType.RC, send_cq=self.send_cq, recv_cq=cq)
        a.connect(b.address())
        b.connect(a.address())
        for i in range(16):
            b.post_recv(self.mr[2048 : 2048 + 64], wr_id=i)
        return a, b

    def send(self) -> None:
        """Send all messages, one to each CQ in turn."""
        for i in range(self.messages):
            for a, _ in self.pairs:
                a.post_send(self.mr[:8], wr_id=i)

    def await_sent(self) -> None:
        """Until the device has completed all sends."""
        n = 0
        while n < self.wanted:
            while not self.send_cq.arm_if_empty():
                n += len(self.send_cq.poll())
            if n < self.wanted:
                self.sent.get_event().ack()

    def take(self, cq: CQ) -> None:
        for wc in cq.poll():
            wc.raise_for_status()
            self.delivered.append((self.cqs.index(cq), wc.wr_id))
        if len(self.delivered) >= self.wanted:
            self.all_delivered.set()

    def serve(self, cq: CQ) -> None:
        while not cq.arm_if_empty():
            self.take(cq)

    def serve_all(self, timeout: float | None = None, tries: int = 1) -> None:
        """Until the channel is closed, or so many waits have timed out."""
        for cq in self.cqs:
            with suppress(ClosedError):
                self.serve(cq)
        while True:
            try:
                cq = self.channel.get_event(timeout)
            except ClosedError:
                return
            except TimeoutError:
                tries -= 1
                if tries == 0:
                    return
                for cq in self.cqs:
                    self.serve(cq)
                continue
            except InterruptedError:
                self.interrupted.set()
                continue
            with suppress(ClosedError):
                if cq.unacked:  # else close() has done it
                    cq.ack(cq.unacked)
                self.serve(cq)

    def close(self) -> None:
        self.ctx.close()
        expected = [(c, i) for c in range(len(self.cqs)) for i in range(self.messages)]
        assert sorted(self.delivered) == expected, self.delivered


def finish(w: World, *threads: int) -> None:
    """Close when everything has been delivered; then nobody sleeps any more."""
    w.all_delivered.wait()
    w.ctx.close()
    for thread in threads:
        join(thread)
    w.close()


def two_threads_and_two_cqs(chance: random.Random) -> None:
    w = World(cqs=2)
    servers = [spawn(w.serve_all) for _ in range(2)]
    w.send()
    finish(w, *servers)


def a_thread_leaves_by_timeout(chance: random.Random) -> None:
    w = World(cqs=2, messages=2)
    threads = [spawn(w.serve_all, 0.001), spawn(w.serve_all), spawn(w.serve_all, 0.001)]
    w.send()
    finish(w, *threads)


def threads_are_interrupted(chance: random.Random) -> None:
    w = World(cqs=2, messages=2)
    server = spawn(w.serve_all)
    others = [spawn(w.serve_all, 1e-3) for _ in range(2)]
    others += [spawn(w.channel.interrupt), spawn(w.send)]
    w.all_delivered.wait()
    for thread in others:
        join(thread)
    if not w.interrupted.is_set:  # whoever was interrupted has left for another reason
        try:
            w.channel.get_event(0)
        except InterruptedError:
            pass
        except TimeoutError:  # or is about to notice
            w.interrupted.wait()
    finish(w, server)


def with_handler(handler: Callable[..., Any], body: Callable[[], None]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        body()
    finally:
        signal.signal(signal.SIGUSR1, before)


def a_handler_waits_for_what_another_thread_does(chance: random.Random) -> None:
    """The main thread sleeps first, so it polls for all; its handler ends when all is delivered."""
    w = World(cqs=1, messages=2)
    begun = Flag()

    def handler(*_: object) -> None:
        begun.set()
        w.all_delivered.wait()

    def interrupt() -> None:
        await_asleep(MAIN)
        server = spawn(w.serve_all)
        await_asleep(server)
        send_signal(signal.SIGUSR1)
        begun.wait()
        w.send()
        finish(w, server)

    ender = spawn(interrupt)
    with_handler(handler, w.serve_all)
    join(ender)


def a_handler_waits_on_the_same_channel(chance: random.Random) -> None:
    """So in the handler the thread sleeps again, within its own sleep."""
    w = World(cqs=1, messages=2)

    def interrupt() -> None:
        await_asleep(MAIN)
        for _ in range(2):
            send_signal(signal.SIGUSR1)
            await_asleep(MAIN)
        w.send()
        finish(w)

    ender = spawn(interrupt)
    with_handler(lambda *_: w.serve_all(), w.serve_all)
    join(ender)


def signals_beside_a_second_server(chance: random.Random) -> None:
    w = World(cqs=2, messages=2)

    def handler(*_: object) -> None:
        with suppress(ClosedError):
            while (cq := w.channel.try_get_event()) is not None:
                cq.ack()
                w.serve(cq)

    def interrupt() -> None:
        for _ in range(3):
            send_signal(signal.SIGUSR1)

    threads = [spawn(w.serve_all), spawn(interrupt), spawn(w.send)]
    ender = spawn(finish, w, *threads)
    with_handler(handler, w.serve_all)
    join(ender)


def a_cq_is_resized(chance: random.Random) -> None:
    w = World(cqs=2, messages=2)

    def resize() -> None:
        for size in (32, 64):
            for cq in w.cqs:
                with suppress(ClosedError):
                    cq.resize(size)

    threads = [spawn(w.serve_all), spawn(resize), spawn(w.send)]
    finish(w, *threads)


def a_cq_is_closed_beside_another(chance: random.Random) -> None:
    """What is delivered of the other is all; and no event of the closed one is left."""
    w = World(cqs=2, messages=2)
    w.wanted = 10  # not known
    doomed, _ = w.cqs
    servers = [spawn(w.serve_all) for _ in range(2)]
    ended = Flag()

    def close() -> None:
        for qp in w.pairs[0]:
            qp.close()
        doomed.close()

    def take(cq: CQ) -> None:
        for wc in cq.poll():
            if wc.ok:
                w.delivered.append((w.cqs.index(cq), wc.wr_id))
        if len([1 for c, _ in w.delivered if c == 1]) == w.messages:
            ended.set()

    def send() -> None:
        for i in range(w.messages):
            with suppress(ClosedError):
                w.pairs[0][0].post_send(w.mr[:8], wr_id=i)
            w.pairs[1][0].post_send(w.mr[:8], wr_id=i)

    w.take = take  # type: ignore[method-assign]
    closer, sender = spawn(close), spawn(send)
    ended.wait()
    join(closer)
    w.ctx.close()
    for thread in (*servers, sender):
        join(thread)
    mine = sorted(i for c, i in w.delivered if c == 1)
    others = [i for c, i in w.delivered if c == 0]
    assert mine == list(range(w.messages)), w.delivered
    assert len(others) == len(set(others)), w.delivered


def a_cq_cannot_be_closed(chance: random.Random) -> None:
    """The device refuses; the events that were read meanwhile are not lost. A thread that has read
    one before cannot use the CQ, so the one that tried looks after it."""
    w = World(cqs=1, messages=3)
    tried = Flag()

    def close() -> None:
        w.await_sent()
        for qp in w.pairs[0]:
            qp.close()
        refuse_to_destroy(1)
        with suppress(VerbsError):
            w.cqs[0].close()
        tried.set()
        with suppress(ClosedError):
            w.serve(w.cqs[0])

    threads = [spawn(call) for call in (w.serve_all, w.serve_all, close, w.send)]
    tried.wait()
    finish(w, *threads)


def an_event_is_stolen(chance: random.Random) -> None:
    """A wait that timed out arms again."""
    w = World(cqs=1, messages=3)

    def steal() -> None:
        with suppress(ClosedError):
            for _ in range(2):
                steal_event(w.channel)

    def serve() -> None:
        with suppress(ClosedError):
            w.serve_all(1e-3, tries=100)

    threads = [spawn(call) for call in (serve, serve, steal, w.send)]
    finish(w, *threads)


def the_context_is_closed_in_any_phase(chance: random.Random) -> None:
    w = World(cqs=2, messages=2)

    def closes(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with suppress(ClosedError):
                call()

        return run

    def resize() -> None:
        for cq in w.cqs:
            cq.resize(32)
            cq.req_notify()

    threads = [spawn(closes(call)) for call in (w.serve_all, w.serve_all, w.send, resize)]
    w.ctx.close()
    for thread in threads:
        join(thread)
    assert len(w.delivered) == len(set(w.delivered))


def threads_spin(chance: random.Random) -> None:
    w = World(cqs=1, messages=4)
    cq = w.cqs[0]

    def poll() -> None:
        with suppress(ClosedError):
            while len(w.delivered) < w.wanted:
                for wc in cq.poll(2, spin=20e-6):
                    w.delivered.append((0, wc.wr_id))
        w.all_delivered.set()

    threads = [spawn(poll), spawn(poll), spawn(w.send)]
    finish(w, *threads)


PROGRAMS = (
    two_threads_and_two_cqs,
    a_thread_leaves_by_timeout,
    threads_are_interrupted,
    a_handler_waits_for_what_another_thread_does,
    a_handler_waits_on_the_same_channel,
    signals_beside_a_second_server,
    a_cq_is_resized,
    a_cq_is_closed_beside_another,
    a_cq_cannot_be_closed,
    an_event_is_stolen,
    the_context_is_closed_in_any_phase,
    threads_spin,
)
