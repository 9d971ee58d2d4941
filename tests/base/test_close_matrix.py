# SPDX-License-Identifier: MIT
"""Closing in every order, in every phase of an event's life, in every way to close.

A World has one object of each type that a device in software has; the others are in
tests/faults/test_fake_device_closing.py. The model of what must happen is USERS, what needs what,
and Phase.pins, which objects work requests in flight need. Everything else follows from that."""

from __future__ import annotations

import gc
import itertools
import re
import select
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import world
from support import DEADLINE, QKEY, Endpoint, Waiter, until, wait_one

from cqnotify import (
    MR,
    MW,
    QP,
    AccessFlags,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    MWType,
    QPState,
    QPType,
)

NAMES = ("pd", "channel", "cq", "mr", "ah", "qp")  # in the order in which they are made
EVERYTHING = (*NAMES, "ctx")
AROUND_AN_SRQ = ("pd", "srq", "cq", "mr", "qp")
SHARED = (*NAMES[:-1], "srq", "qp")  # with a shared receive queue
TYPE = {"pd": "PD", "channel": "CompletionChannel", "cq": "CQ", "mr": "MR", "qp": "QP", "ah": "AH"}
TYPE["srq"] = "SRQ"
USERS = {"pd": {"srq", "mr", "qp", "ah"}, "channel": {"cq"}, "cq": {"qp"}, "srq": {"qp"}}


class World(world.World):
    """One of everything but a window, by name, and a peer on a Context of its own that outlives it.

    If it is shared, its QP receives from an SRQ; else there is none.
    """

    CQE = 64
    SRQ_WR = 32
    waiter: Waiter | None = None
    heard = 0  # events that the waiter got
    resting = 0  # receives that are posted and stay so

    def __init__(self, peer_ctx: Context, qp_type: QPType, shared: bool) -> None:
        self.qp_type = qp_type
        self.NAMES = SHARED if shared else NAMES
        self.wr_ids = count(1)
        self.peer = Endpoint(peer_ctx, qp_type, size=4096)
        super().__init__(peer_ctx.name)

    def new_qp(self) -> QP:
        shared = "srq" in self.NAMES
        receives: dict[str, Any] = {"srq": self.srq} if shared else {"max_recv_wr": 32}
        return QP(self.pd, self.qp_type, send_cq=self.cq, max_send_wr=32, **receives)

    def connect(self) -> None:
        if self.qp_type == QPType.RC:
            self.qp.connect(self.peer.qp.address())
        else:
            self.qp.connect()
            self.qp.attach_mcast("ff15::c0:1")  # and in a group, which it leaves by closing
        self.peer.connect(self.qp.address())

    def open(self, name: str) -> bool:
        return not getattr(self, name).closed

    # Traffic -------------------------------------------------------------------

    def post_recv(self, mr: MR) -> None:
        (self.qp.srq or self.qp).post_recv(mr[0:64], wr_id=next(self.wr_ids))

    def receives(self) -> int:
        return self.qp.outstanding_recvs if self.qp.srq is None else self.qp.srq.outstanding

    def receive(self, mr: MR) -> None:
        """A message comes in from the peer, or is under way."""
        self.post_recv(mr)
        self.peer.qp.post_send(self.peer.mr[0:8], **self.peer.to_peer)
        wait_one(self.peer.scq)

    def send(self, mr: MR) -> None:
        """A message for the peer, which has no receive posted."""
        path: dict[str, Any] = {}
        if self.qp_type == QPType.UD:
            path = {"ah": self.ah, "remote_qpn": self.peer.qp.qp_num, "remote_qkey": QKEY}
        self.qp.post_send(mr[64:72], wr_id=next(self.wr_ids), **path)

    def hold_sends(self) -> None:
        """An RC send waits until the peer posts a receive; a UD send only in state SQD."""
        if self.qp_type == QPType.UD and self.qp.state == QPState.RTS:
            self.qp.modify(qp_state=QPState.SQD)

    def exchange(self, mr: MR) -> None:
        """A message comes in; sleeps until it is there, through whatever events there are."""
        heard = self.heard
        self.receive(mr)
        if self.waiter is not None:
            until(lambda: self.heard > heard, "the waiter gets the event")
        self.settle(lambda: self.receives() == self.resting)

    def settle(self, done: Callable[[], bool]) -> None:
        while True:
            self.cq.req_notify()
            for wc in self.cq.poll(64):
                wc.raise_for_status()
            if done():
                return
            if self.waiter is not None:
                continue
            assert self.channel.get_event(timeout=DEADLINE) is self.cq
            self.cq.ack()

    # Phases --------------------------------------------------------------------

    def idle(self) -> None:
        """Nothing is under way."""

    def armed(self) -> None:
        self.cq.req_notify()

    def event_unread(self) -> None:
        self.armed()
        self.receive(self.mr)
        assert select.select([self.channel], [], [], DEADLINE)[0]

    def event_unacked(self) -> None:
        self.event_unread()
        assert self.channel.get_event(timeout=DEADLINE) is self.cq
        assert self.cq.unacked > 0

    def in_flight(self) -> None:
        self.armed()
        self.hold_sends()
        for _ in range(2):
            self.post_recv(self.mr)
            self.resting += 1
        if self.open("ah"):
            self.send(self.mr)

    def waiting(self) -> None:
        self.armed()
        if self.waiter is None:
            self.waiter = Waiter(partial(self.hear, weakref.ref(self), self.channel))
        self.waiter.asleep()

    @staticmethod
    def hear(ref: weakref.ref[World], channel: CompletionChannel) -> None:
        """What the waiter does, until the channel is closed; it holds nothing else."""
        while True:
            channel.get_event().ack()
            w = ref()
            if w is not None:
                w.heard += 1
            del w

    # The model -----------------------------------------------------------------

    def why_busy(self, name: str, phase: str) -> str:
        """What BusyError must say when it is closed now; empty: it closes."""
        if not self.open(name):
            return ""
        users = [n for n in self.NAMES if n in USERS.get(name, ()) and self.open(n)]
        if users:
            return f"this {TYPE[name]} is still used by " + ", ".join(f"1 {TYPE[n]}" for n in users)
        pinned = PINS[phase] if self.open("qp") else ()
        if name in pinned and (name == "mr" or self.qp_type == QPType.UD):
            return f"this {TYPE[name]} is still needed by "
        if name == "mr" and phase == "in_flight" and self.NAMES is SHARED and self.open("srq"):
            return "this MR is still needed by 2 work requests "
        return ""

    def prove(self, name: str, phase: str) -> None:
        """It is BusyError's promise that all stays usable: use it, and what uses it."""
        assert self.open(name)
        if self.open("qp"):
            # From one end to the other through pd, channel, cq, qp, and mr if it is open.
            mr = self.mr if self.open("mr") else MR(self.pd, 4096)
            self.exchange(mr)
            if self.qp_type == QPType.UD and phase != "in_flight" and self.open("ah"):
                self.send(mr)
                self.settle(lambda: self.qp.outstanding_sends == 0)
            if mr is not self.mr:
                mr.close()
            else:
                getattr(self, phase)()
        elif name == "pd":
            MR(self.pd, 64).close()
        elif name == "mr":
            assert self.mr.read(8) == bytes(8)
        else:
            assert name == "channel"
            self.cq.req_notify()
            assert self.channel.try_get_event() in (None, self.cq)

    def step(self, name: str, phase: str, close: Callable[[Any], None]) -> None:
        """One step of an order."""
        if close_unless(self.why_busy(name, phase), getattr(self, name), close):
            self.prove(name, phase)
        elif name == "ctx":
            assert not any(self.open(n) for n in self.NAMES)

    def finish(self) -> None:
        """Closes the rest, in an order that nothing hinders, and looks at what is left."""
        for name in ("qp", "srq", "ah", "mr", "cq", "channel", "pd", "ctx"):
            if name in (*self.NAMES, "ctx"):
                getattr(self, name).close()
        assert not any(self.open(name) for name in (*self.NAMES, "ctx"))
        stats = self.cq.stats
        assert stats.events == stats.acked
        if self.waiter is not None:
            with pytest.raises(ClosedError):
                self.waiter.join()
        self.peer.close()  # its context is the test's, which would else collect them all


PHASES = ("idle", "armed", "event_unread", "event_unacked", "in_flight", "waiting")
PINS: dict[str, tuple[str, ...]] = {
    "idle": (),
    "armed": (),
    "event_unread": ("mr",),  # the completion was not polled
    "event_unacked": ("mr",),
    "in_flight": ("mr", "ah"),
    "waiting": (),
}
Make = Callable[..., World]


@pytest.fixture
def make(ctx: Context, conversation: None) -> Iterator[Make]:
    """Makes a World; one that a failing test leaves open does not disturb the next."""
    contexts: list[weakref.ref[Context]] = []

    def make_world(qp_type: QPType, shared: bool = False) -> World:
        made = World(ctx, qp_type, shared)
        contexts.append(weakref.ref(made.ctx))
        return made

    yield make_world
    for ref in contexts:
        if (context := ref()) is not None:
            context.close()


def directly(thing: Any) -> None:
    thing.close()


def close_unless(why: str, thing: Any, close: Callable[[Any], None] = directly) -> bool:
    """Closes it, if there is no reason why that is refused; says whether it was."""
    if why:
        with pytest.raises(BusyError, match=re.escape(why)):
            close(thing)
    else:
        close(thing)
    assert thing.closed == (not why)
    return bool(why)


def in_another_thread(thing: Any) -> None:
    Waiter(thing.close).join()


def by_a_with_block(thing: Any) -> None:
    if thing.closed:  # no block can be entered any more
        thing.close()
    else:
        with thing:
            pass


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("close", "qp_type"),
    [
        (directly, QPType.RC),
        (directly, QPType.UD),
        (in_another_thread, QPType.RC),
        (by_a_with_block, QPType.UD),
    ],
    ids=["rc", "ud", "thread-rc", "with-ud"],
)
@pytest.mark.parametrize("first", EVERYTHING)
def test_what_is_needed_is_busy_and_stays_usable_and_the_rest_closes(
    make: Make, first: str, close: Callable[[Any], None], phase: str, qp_type: QPType
) -> None:
    """Every ordered pair: `first`, then each of the others, then the rest."""
    for second in EVERYTHING:
        if second != first:
            w = make(qp_type)
            getattr(w, phase)()
            w.step(first, phase, close)
            w.step(second, phase, close)
            w.finish()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UD])
def test_the_same_holds_with_a_shared_receive_queue(
    make: Make, phase: str, qp_type: QPType
) -> None:
    """The pairs of those that have to do with it."""
    for first, second in itertools.permutations(AROUND_AN_SRQ, 2):
        w = make(qp_type, shared=True)
        getattr(w, phase)()
        w.step(first, phase, directly)
        w.step(second, phase, directly)
        w.finish()


@pytest.mark.parametrize("names", [NAMES, AROUND_AN_SRQ], ids=["six", "srq"])
@pytest.mark.parametrize("part", range(len(PHASES)), ids=PHASES)
def test_all_orders_of_some_objects_close_at_last(
    make: Make, part: int, names: tuple[str, ...]
) -> None:
    """Each order once, shared out to the phases. What was busy is tried again at the end."""
    phase = PHASES[part]
    for order in list(itertools.permutations(names))[part :: len(PHASES)]:
        w = make(QPType.RC, shared="srq" in names)
        getattr(w, phase)()
        for name in order:
            close_unless(w.why_busy(name, phase), getattr(w, name))
        w.finish()


class Window:
    """An MR, a QP that is its own peer, and a window; the names of what is made."""

    NAMES = ("pd", "mr", "qp", "mw")

    def __init__(self, ctx: Context, mw_type: MWType, phase: str) -> None:
        self.mw_type = mw_type
        self.bound, self.in_flight = phase == "bound", phase == "in_flight"
        access = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
        end = Endpoint(ctx, QPType.RC, one_cq=True, size=64, access=access)
        end.connect(end.qp.address())
        self.pd, self.mr, self.cq, self.qp = end.pd, end.mr, end.scq, end.qp
        self.mw = MW(self.pd, mw_type)
        if phase != "unbound":
            self.qp.bind_mw(self.mw, self.mr, access=AccessFlags.REMOTE_READ)
        if self.bound:
            wait_one(self.cq)

    def why_busy(self, name: str) -> str:
        there = {n for n in self.NAMES if not getattr(self, n).closed}
        users = {
            "pd": ["mr", "qp", "mw"],
            "mr": ["mw"] if self.bound else [],
            "qp": ["mw"] if self.mw_type == MWType.TYPE_2 and self.needed else [],
        }.get(name, [])
        if there.intersection(users):
            return f"this {name.upper()} is still used by "
        in_flight = self.in_flight and name in ("mr", "mw")
        return f"this {name.upper()} is still needed by 1 work" if in_flight else ""

    @property
    def needed(self) -> bool:
        return self.bound or self.in_flight

    def close(self, name: str) -> None:
        busy = close_unless(self.why_busy(name), getattr(self, name))
        if not busy and name == "qp" and self.in_flight:
            self.bound, self.in_flight = True, False  # as is assumed


@pytest.mark.parametrize("phase", ["unbound", "bound", "in_flight"])
@pytest.mark.parametrize("mw_type", MWType)
def test_a_window_and_what_it_is_bound_to_close_in_every_order(
    ctx: Context, mw_type: MWType, phase: str
) -> None:
    for order in itertools.permutations(Window.NAMES):
        with Context(ctx.name) as mine:
            w = Window(mine, mw_type, phase)
            for name in order:
                w.close(name)
            if w.in_flight:  # each of both needs the other until the completion was polled
                wait_one(w.cq)
            for name in ("mw", "mr", "qp", "pd"):
                getattr(w, name).close()


class Unwind(Exception):
    pass


@pytest.mark.parametrize("phase", PHASES)
def test_with_blocks_close_from_the_inside_out_and_hide_no_exception(
    make: Make, phase: str
) -> None:
    """Every pair as two blocks. That what is busy is told, else, is seen by_a_with_block()."""
    for outer, inner in itertools.permutations(NAMES, 2):
        w = make(QPType.RC)
        getattr(w, phase)()
        inner_busy = w.why_busy(inner, phase)
        with pytest.raises(Unwind), getattr(w, outer), getattr(w, inner):
            raise Unwind
        assert w.open(inner) == bool(inner_busy)
        # The outer one is closed second, with the inner one closed if that could be.
        assert w.open(outer) == bool(w.why_busy(outer, phase))
        w.finish()


def forget(w: World, names: Iterable[str]) -> None:
    for name in names:
        delattr(w, name)
    gc.collect()


def left_of(gone: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, ref in gone.items() if ref() is not None]


def end_the_wait(waiter: Waiter | None, gone: dict[str, weakref.ref[Any]]) -> None:
    """The waiter's frame holds the channel, and that its context: only they are left."""
    if waiter is not None:
        assert {*left_of(gone)} == {"channel", "ctx"}
        gone["ctx"]().close()
        with pytest.raises(ClosedError):
            waiter.join()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("first", [*EVERYTHING, "srq"])
def test_references_that_go_in_any_order_close_everything_with_a_warning(
    make: Make, first: str, phase: str
) -> None:
    everything = (*SHARED, "ctx") if first == "srq" else EVERYTHING
    for second in everything:
        if second == first:
            continue
        w = make(QPType.RC, shared=first == "srq")
        getattr(w, phase)()
        gone = {name: weakref.ref(getattr(w, name)) for name in everything}
        waiter, w.waiter = w.waiter, None
        warned: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("always", ResourceWarning)
            # The usual record would hold what is warned of.
            warnings.showwarning = lambda message, *_, seen=warned, **__: seen.append(str(message))  # type: ignore[misc]
            forget(w, (first, second))
            forget(w, [n for n in everything if n not in (first, second)])
            end_the_wait(waiter, gone)
            del waiter
            gc.collect()
        assert left_of(gone) == []
        kinds = [re.match(r"unclosed (\w+) ", text)[1] for text in warned]  # type: ignore[index]
        assert kinds == ([] if phase == "waiting" else ["Context"])  # it was closed in time
        w.peer.close()


@pytest.mark.parametrize("phase", PHASES)
def test_a_world_in_a_cycle_is_collected_in_one_go(make: Make, phase: str) -> None:
    """The collector finalizes in an order of its own."""
    for name in ("cq", "qp", "srq"):
        w = make(QPType.RC, shared=name == "srq")
        everything = (*w.NAMES, "ctx")
        getattr(w, phase)()
        peer = w.peer
        waiter, w.waiter = w.waiter, None
        getattr(w, name).user_data = w
        gone = {n: weakref.ref(getattr(w, n)) for n in everything}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del w
            gc.collect()
            end_the_wait(waiter, gone)
            del waiter
            gc.collect()
        assert left_of(gone) == []
        peer.close()
