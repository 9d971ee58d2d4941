# SPDX-License-Identifier: MIT
"""What nobody closes: the collector does, a forked child leaves it alone, or the loop has gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cm_support import SOON, Side, address_of, asleep, connected, serve_once
from raw_peer import RawPeer
from support import Waiter, eventually, in_child, is_iwarp, start, tick, until

from cqnotify import BusyError, ClosedError, Context, cm
from cqnotify._core import CMID, CMChannel
from cqnotify.cm import CMEventType, blocking
from cqnotify.cm._errors import Event
from cqnotify.cm._event_reader import LoopReader


def ids() -> int:
    """Identifiers that are open."""
    gc.collect()
    return sum(type(thing) is CMID and not thing.closed for thing in gc.get_objects())


def event_channels() -> int:
    return sum(type(thing) is CMChannel for thing in gc.get_objects())


def channels() -> int:
    """Open descriptors of rdma_cm."""
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(fd) and os.readlink(fd).endswith("/rdma_cm") for fd in fds)


@pytest.fixture
def listener(ctx: Context) -> Iterator[blocking.Listener]:
    with blocking.listen(address_of(ctx), 0) as listener:
        yield listener


@pytest.fixture
def asking(ctx: Context, listener: blocking.Listener) -> Iterator[RawPeer]:
    """A peer whose request is on its way."""
    peer = RawPeer(ctx)
    peer.ask(*listener.local)
    yield peer
    peer.drop()


# ---- the collector --------------------------------------------------------------------------


def in_a_cycle(thing: Any) -> None:
    thing.me = [thing]


@pytest.mark.parametrize("how", ["dropped", "in a cycle"])
def test_a_connection_that_is_collected_is_closed(
    ctx: Context, listener: blocking.Listener, asking: RawPeer, how: str
) -> None:
    side = Side(ctx)
    waiter = Waiter(lambda: listener.get_request(SOON).accept(side.qp, on_init=side.post_recv))
    asking.finish()
    conn = waiter.join()
    if how == "in a cycle":
        in_a_cycle(conn)
    del conn, waiter
    gc.collect()
    asking.await_event("DISCONNECTED")
    side.check_flushed()


@pytest.mark.parametrize("what", ["request", "request in a cycle", "listener", "loop's listener"])
def test_what_is_collected_rejects_the_requests_that_wait(
    ctx: Context, listener: blocking.Listener, asking: RawPeer, what: str
) -> None:
    if what.startswith("request"):
        request = listener.get_request(SOON)
        if "cycle" in what:
            in_a_cycle(request)
        del request
    else:
        listener = blocking.listen(address_of(ctx), 0)
        asking.drop()
        asking.__init__(ctx)  # type: ignore[misc]
        asking.ask(*listener.local)
        until(lambda: bool(listener._link.events), "the request has been read")
        in_a_cycle(listener)
        del listener
    gc.collect()
    asking.await_event("REJECTED")


async def test_a_loops_connection_in_a_cycle_is_closed_and_the_hub_with_the_last(
    ctx: Context,
) -> None:
    async with connected(ctx) as (client, conn, _, accepted):
        waiting = await start(accepted.wait_closed(SOON))
        client.post_recv()
        link = conn._link
        conn._link = accepted._link
        link.address = [link]  # a cycle
        del link
        gc.collect()
        await waiting
        assert isinstance(accepted.error, cm.DisconnectedError)
    await tick()
    assert LoopReader._readers == {}


def test_a_waiter_keeps_what_it_waits_for(ctx: Context, listener: blocking.Listener) -> None:
    lonely = blocking.listen(address_of(ctx), 0)
    where = lonely.local
    waiter = Waiter(lonely.get_request)
    until(lambda: asleep() == 1, "it waits")
    waiter.call = print
    del lonely
    gc.collect()
    asking = Waiter(lambda: blocking.connect(Side(ctx).qp, *where))
    waiter.join().reject()
    with pytest.raises(cm.RejectedError):
        asking.join()


# ---- an event loop that has gone ------------------------------------------------------------


@pytest.mark.parametrize("how", ["dropped", "closed", "another loop begins"])
def test_what_a_closed_loop_leaves_is_rejected(
    ctx: Context, new_loop: Callable[[], asyncio.AbstractEventLoop], how: str
) -> None:
    """One request was read, and one not; the listener's block was never left."""
    peers = [RawPeer(ctx), RawPeer(ctx)]
    gc.collect()
    before = ids(), channels()
    listener: Any = cm.listen(address_of(ctx), 0)

    async def listen() -> None:
        await listener.__aenter__()
        peers[0].ask(*listener.local)
        await eventually(lambda: len(listener._link.events) == 1)

    async def other() -> None:
        async with cm.listen(address_of(ctx), 0):
            pass

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(listen())
    peers[1].ask(*listener.local)
    if how == "closed":
        listener.close()
    elif how == "another loop begins":
        with contextlib.closing(new_loop()) as loop:
            loop.run_until_complete(other())
        assert isinstance(listener._link.error, ClosedError)
    listener = loop = None
    gc.collect()
    for peer in peers:
        peer.await_event("REJECTED")
    assert LoopReader._readers == {}
    assert (ids(), channels()) == before
    for peer in peers:
        peer.drop()


def test_a_connection_of_a_closed_loop_is_closed_by_any_thread(
    ctx: Context, new_loop: Callable[[], asyncio.AbstractEventLoop], listener: blocking.Listener
) -> None:
    async def connect() -> cm.Connection:
        return await cm.connect(Side(ctx).qp, *listener.local)

    accepted: list[Any] = []
    waiter = Waiter(lambda: serve_once(listener, Side(ctx), accepted))
    with contextlib.closing(new_loop()) as loop:
        conn = loop.run_until_complete(connect())
    waiter.join()
    Waiter(conn.close).join()
    accepted[0].wait_closed(SOON)
    assert isinstance(conn.error, ClosedError)


# ---- a device that goes ---------------------------------------------------------------------


async def test_a_device_that_is_removed_ends_what_waits(ctx: Context) -> None:
    """rxe goes only when all processes have left it, and the kernel says so after that: so the
    event is one that the test has made."""
    async with connected(ctx) as (_, conn, _, _), cm.listen(address_of(ctx), 0) as listener:
        for end, call in ((conn, conn.wait_closed()), (listener, listener.get_request())):
            waiting = await start(call)
            link = end._link
            event = Event(link.id, CMEventType.DEVICE_REMOVAL, 0, b"", {}, None)
            asyncio.get_running_loop().call_soon(link.deliver, event)
            if end is listener:
                with pytest.raises(cm.CMError, match="listening on .*: DEVICE_REMOVAL"):
                    await waiting
            else:
                await waiting
                assert isinstance(conn.error, cm.CMError)
                assert conn.error.event == CMEventType.DEVICE_REMOVAL


# ---- forked children ------------------------------------------------------------------------


async def test_a_forked_child_does_not_touch_the_loops_connections(ctx: Context) -> None:
    """It closes and drops all; the parent's loop hears the peer afterwards as before."""
    async with connected(ctx) as (client, conn, _, accepted):
        peer = RawPeer(ctx)
        listener = cm.listen(address_of(ctx), 0)
        async with listener:
            peer.ask(*listener.local)
            request = await listener.get_request(SOON)
            waiting = await start(accepted.wait_closed(SOON))

            def child() -> None:
                for end in (conn, accepted, listener, request):
                    end.close()
                with pytest.raises(ClosedError):
                    client.qp.query()
                gc.collect()

            assert in_child(child) == 0
            accepting = asyncio.ensure_future(request.accept(Side(ctx).qp))
            await eventually(peer.is_answered)
            assert is_iwarp(ctx) or not accepting.done()
            peer.finish()
            await accepting
            assert not waiting.done()
            assert conn.error is accepted.error is None
            await conn.disconnect()
            await waiting
        peer.drop()


# ---- attempts that were given up, whose closing takes long on iWARP -------------------------

GIVEN_UP = """
import os, sys
from cqnotify import *
from cqnotify.cm import blocking

ctx = Context(sys.argv[1])
qp = QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4))
listener = blocking.listen(sys.argv[2], 0)
try:
    blocking.connect(qp, *listener.local, timeout=0.1)
except TimeoutError:
    print("given up", flush=True)
"""
FORK = """
if (child := os.fork()) == 0:
    qp.close()
    ctx.close()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("then", ["", FORK, "listener.close()"], ids=["end", "fork", "reject"])
def test_a_program_may_end_or_fork_when_an_attempt_was_given_up(ctx: Context, then: str) -> None:
    code = GIVEN_UP + then
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", code, ctx.name, address_of(ctx)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


# ---- threads --------------------------------------------------------------------------------


class Crowd:
    """Threads that connect, close and drop, all at once, to listeners that come and go."""

    def __init__(self, ctx: Context, rounds: int) -> None:
        self.ctx, self.rounds = ctx, rounds
        self.made = self.late = 0
        self.over = threading.Event()
        self.listener = blocking.listen(address_of(ctx), 0)

    def connect(self, dice: random.Random) -> None:
        side, timeout = Side(self.ctx), dice.choice([0.01, SOON])
        try:
            conn = blocking.connect(side.qp, *self.listener.local, timeout=timeout)
        except TimeoutError as e:
            self.late += timeout == SOON
            raise e from None
        self.made += 1
        end = [conn.close, conn.disconnect, side.qp.close, lambda: None]
        others = [Waiter(call) for call in dice.sample(end, 2)]
        dice.choice(end)()
        if dice.random() < 0.5:
            del conn
        for waiter in others:
            waiter.join()

    def client(self, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(self.rounds):
            with contextlib.suppress(OSError, ClosedError, BusyError):
                self.connect(dice)

    def answer(self, dice: random.Random, kept: list[Any]) -> None:
        request = self.listener.get_request(0.05)
        answer = dice.randrange(4)
        if answer == 0:
            request.reject()
        elif answer > 1:
            kept.append(request.accept(Side(self.ctx).qp, timeout=1))

    def serve(self, seed: int) -> None:
        dice = random.Random(seed)
        kept: list[Any] = []
        while not self.over.is_set():
            with contextlib.suppress(OSError, ClosedError):
                self.answer(dice, kept)
            del kept[:-3]

    def replace(self) -> None:
        while not self.over.wait(0.02):
            old, self.listener = self.listener, blocking.listen(address_of(self.ctx), 0)
            old.close()
            gc.collect()

    def run(self) -> None:
        servers = [Waiter(lambda i=i: self.serve(i)) for i in range(2)]  # type: ignore[misc]
        replacer = Waiter(self.replace)
        clients = [Waiter(lambda i=i: self.client(i)) for i in range(3)]  # type: ignore[misc]
        try:
            for waiter in clients:
                waiter.join()
        finally:
            self.over.set()
            self.listener.close()
        for waiter in (*servers, replacer):
            waiter.join()


def test_threads_connect_close_and_drop_at_once(ctx: Context) -> None:
    blocking.listen(address_of(ctx), 0).close()  # the threads' channel stays
    gc.collect()
    before = event_channels()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Context(ctx.name) as own:
            crowd = Crowd(own, rounds=25)
            crowd.run()
            assert crowd.made > 10, "mostly it is possible"
            assert not crowd.late, "a client whose deadline has not come gets an answer"
    finally:
        sys.setswitchinterval(interval)
    del crowd, own
    assert ids() == 0
    assert event_channels() == before
