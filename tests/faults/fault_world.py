# SPDX-License-Identifier: MIT
"""What the tests of failing calls share: a world of everything, and what happens in it."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EAGAIN
from functools import partial
from ipaddress import IPv6Address
from typing import Any

import world
from support import DEADLINE, Waiter, take_all, until

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    QP,
    SRQ,
    AccessFlags,
    AsyncEventType,
    CompletionError,
    FailureWatch,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    VerbsError,
    WCArray,
    WCExFlags,
    WorkCompletion,
    _core,
)

GROUP = "ff15::c0:1"
PACKED_GROUP = IPv6Address(GROUP).packed
core: Any = _core  # the stub does not have what only the debug build has


class World(world.World):
    """More of everything: two CQs, one of them extended, and two QPs, one with an SRQ."""

    def make(self) -> None:
        self.made: list[Any] = []
        super().make()
        self.watch = FailureWatch(self.ctx)
        self.mw1 = MW(self.pd)
        self.recv_wr = RecvWR(self.mr[0:64])
        self.foreign = MR(self.pd, bytearray(64))
        self.srq.modify(srq_limit=2)
        self.sqp = QP(self.pd, QPType.RC, send_cq=self.cq, recv_cq=self.ex, srq=self.srq)
        self.sqp.connect(self.sqp.address())

    def new_qp(self) -> QP:
        if not hasattr(self, "ex"):
            self.ex = CQ(self.ctx, 16, channel=self.channel, wc_flags=WCExFlags(0x7F))
        return QP(self.pd, QPType.RC, send_cq=self.cq, recv_cq=self.ex)

    def close(self) -> None:
        """Even where a call of the closing is the one that fails: the second try must do."""
        core.fail_call(0)
        super().close()


def receive(w: World) -> None:
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.ex.req_notify()
    w.qp.post_send(w.mr[64:72], wr_id=2, send_flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
    assert w.channel.get_event(timeout=DEADLINE) is w.ex
    w.ex.ack()
    until(lambda: bool(w.ex.poll()), "received")
    until(lambda: bool(w.cq.poll_ids()), "sent")


def answer(w: World) -> None:
    ud = QP(w.pd, QPType.UD, send_cq=w.cq, recv_cq=w.ex)
    ud.connect()
    ud.post_recv(w.mr[0:64])
    ud.post_send(w.mr[64:72], ah=w.ah, remote_qpn=ud.qp_num, remote_qkey=0x11111111)
    wcs: list[WorkCompletion] = []
    until(lambda: bool(wcs.extend(w.ex.poll()) or wcs), "received")
    AH.from_wc(w.pd, wcs[0], w.mr.read(40)).close()
    until(lambda: bool(w.cq.poll_ids()), "sent")
    ud.close()


def receive_shared(w: World) -> None:
    w.srq.modify(max_wr=16, srq_limit=1)
    w.srq.post_recv(w.mr[0:64], wr_id=1)
    w.sqp.post_send(w.mr[64:72], wr_id=2)
    until(lambda: bool(w.cq.poll_ids()), "sent")
    assert w.ex.poll_ids() == [1]
    assert w.srq.outstanding == 0
    assert w.srq.query().srq_limit == 0


def bind(w: World) -> None:
    for mw in (w.mw1, w.mw):
        w.qp.bind_mw(mw, w.mr[0:64], access=AccessFlags.REMOTE_READ)
        until(lambda: bool(w.cq.poll_ids()), "bound")


def script(w: World) -> None:
    """A bit of everything."""
    w.ctx.query_device()
    w.ctx.query_device_ex()
    with suppress(VerbsError):
        w.ctx.query_rt_values()
    w.ctx.query_port()
    assert w.ctx.get_pkey_index(w.ctx.query_pkey(0)) == 0
    assert w.ctx.query_gid(w.gid.index) == w.gid
    w.ctx.query_gid_table()
    w.ctx.try_get_async_event()
    with suppress(TimeoutError):
        w.ctx.get_async_event(timeout=0)
    assert w.watch.read() == []
    receive(w)
    answer(w)
    receive_shared(w)
    bind(w)
    until(lambda: any(event.srq is w.srq for event in take_all(w.ctx)), "the limit is reported")
    assert w.cq.arm_if_empty()
    assert w.channel.try_get_event() is None
    before = core.failed()
    with suppress(TimeoutError):
        w.channel.get_event(timeout=0)
    failed = core.failed()
    if before is None and failed in SOUGHT_FOR_A_CAUSE:
        raise CauseUnknownError(failed)
    assert w.cq.poll_into(WCArray(4)) == 0
    w.cq.resize(64)
    with suppress(VerbsError):
        w.cq.modify(1, 1)
    with QP(w.pd, QPType.UD, send_cq=w.cq) as ud:
        ud.attach_mcast(PACKED_GROUP)
        ud.detach_mcast(PACKED_GROUP)
    w.qp.query()
    w.qp.modify(qp_state=QPState.ERR)
    w.qp.modify(qp_state=QPState.RESET)
    for thing in (w.sqp, w.srq, w.mw1, w.mw, w.qp, w.ah, w.foreign, w.mr):
        thing.close()
    for thing in (w.ex, w.cq, w.channel, w.pd, w.watch, w.ctx):
        thing.close()


def calls() -> list[tuple[str, int, bytes]]:
    """What the fake device was asked for since the last time: the verb, what it returned or was
    about, and the struct, or the arguments as text."""
    return core.fake_calls()  # type: ignore[no-any-return]


def asked() -> str:
    """Of the latest call, the arguments."""
    return calls()[-1][2].decode()


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def held_objects() -> dict[str, int]:
    """How many of each of the core's types there are, as far as the garbage collector knows."""
    gc.collect()
    names = (type(thing).__name__ for thing in gc.get_objects() if type(thing) in CORE_TYPES)
    return dict(Counter(names))


CORE_TYPES = {thing for thing in vars(_core).values() if isinstance(thing, type)}


SOUGHT_FOR_A_CAUSE = {"ibv_poll_cq", "ibv_query_qp"}


class CauseUnknownError(Exception):
    """The cause of a timeout could not be looked for: it is raised without one, or with another."""


TOLERATED = {
    "ibv_start_poll": "the completions that came before it are handed out",
    "ibv_query_port": "the limit of a message is not learned, then",
    "ibv_modify_cq": "the script expects that it fails",
    "ibv_query_rt_values_ex": "the script expects that it fails",
    "ibv_get_async_event": "that the device has gone is for the waits of a new channel to say",
}


def arrived(w: World, wr_id: int = 1) -> None:
    """A message is in both CQs, its events are read; nothing was polled since."""
    drain(w)
    message(w, wr_id)
    assert w.channel.get_event(timeout=DEADLINE) is w.ex
    w.ex.ack(w.ex.unacked)


def fail_each(fail_nth: Callable[..., str | None], calls: set[str], step: int = 1) -> None:
    """Make the first call fail, then the one `step` behind it, until there is none; then those of
    `calls` that this has missed. How often a look finds nothing differs from run to run, and so
    does which call is the n-th. `fail_nth(n, only="")` returns the call that failed."""
    seen: set[str] = set()
    n = 1
    while (call := fail_nth(n)) is not None:
        seen.add(call)
        n += step
    for call in calls - seen:
        assert fail_nth(1, call) == call


def message(w: World, wr_id: int) -> None:
    """It has raised an event; only the sender's completion was polled."""
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=wr_id)
    w.qp.post_send(w.mr[64:72], wr_id=2)
    wcs = WCArray(1)
    until(lambda: w.cq.poll_into(wcs) == 1, "sent")


def arrived_with_a_large_wr_id(w: World) -> None:
    """Of which Python has to make an int."""
    arrived(w, 2**40)


def drain(w: World) -> None:
    for cq in (w.cq, w.ex):
        while True:
            with suppress(CompletionError):
                if not cq.poll(64):
                    break
    while (cq := w.channel.try_get_event()) is not None:  # type: ignore[assignment]
        cq.ack(cq.unacked)


def event_pending(w: World) -> None:
    arrived(w)
    w.ex.poll(16)
    message(w, 1)


def report_pending(w: World) -> None:
    w.qp.modify(qp_state=QPState.ERR)  # rxe refuses the way from SQD to RESET while that drains
    w.qp.modify(qp_state=QPState.RESET)
    w.qp.connect(w.qp.address())
    w.qp.modify(qp_state=QPState.SQD)


def failures_pending(w: World) -> None:
    """One was taken by get_async_event(), and one is unread."""
    take_all(w.ctx)
    inject(w, AsyncEventType.QP_FATAL, w.qp)
    core.inject_event(AsyncEventType.PORT_ERR, 1)


def nothing(_: World) -> None:
    pass


def one(got: list[Any]) -> list[Any]:
    """It is there, since the sender was told so. Allocates nothing that could fail."""
    if len(got) != 1:
        raise AssertionError(f"not one completion: {got}")
    return got


def told(w: World, got: list[Any]) -> None:
    """Both failures, with their CQs. Allocates nothing that could fail, as a loop would."""
    if len(got) != 2 or not both(w, got[0][1]) or not both(w, got[1][1]):
        raise AssertionError(f"not two failures of both CQs: {got}")


def both(w: World, cqs: list[CQ]) -> bool:
    return len(cqs) == 2 and cqs[0] is w.cq and cqs[1] is w.ex


def emptied(w: World) -> None:
    """The queues of the QP, which has nothing in flight any more."""
    w.qp.modify(qp_state=QPState.RESET)
    drain(w)
    w.qp.connect(w.qp.address(), rnr_retry=7)


def inject(w: World, event_type: int, element: Any) -> None:
    """Comes in as if the device had reported it, and is read by this thread."""
    core.inject_event(event_type, element)
    event = w.ctx.try_get_async_event()
    assert event is not None
    assert event.event_type == event_type
    assert event.cq is (element if isinstance(element, CQ) else None)
    assert event.qp is (element if isinstance(element, QP) else None)
    assert event.srq is (element if isinstance(element, SRQ) else None)
    assert event.port_num == (element if isinstance(element, int) else None)
    assert repr(event)


def starves(
    call: Callable[[], object], n: int, errors: tuple[type[Exception], ...] = (MemoryError,)
) -> bool:
    """Whether it ends for lack of memory, if it comes to an n-th allocation, which fails."""
    try:
        core.fail_alloc(n)
        call()
    except errors:
        return True
    finally:
        core.fail_alloc(0)
    return False


@contextmanager
def inside(verb: str, call: Callable[[], Any], n: int = 1, error: int = 0) -> Iterator[Waiter]:
    """A thread that is in the call while the block runs, which it can be without the GIL only."""
    core.fail_call(n, error, True)
    waiter = Waiter(call)
    try:
        until(lambda: core.held() == verb, f"{verb} was entered, without the GIL")
        yield waiter
    finally:
        core.fail_call(0)


def each_that_failed(what: str, run: Callable[[Callable[[], None]], None]) -> set[str]:
    """Let each call, or each allocation, that comes after the run has called what it is given fail
    once. Its error is that of the call, and nothing is left of the run."""

    def arm(n: int) -> None:
        core.fail_call(n, EAGAIN) if what == "call" else core.fail_alloc(n)

    run(lambda: None)
    gc.collect()
    before = open_files(), core.live_handles(), held_objects()
    seen: set[str] = set()
    for n in range(1, 1500):
        verb, error = "", None
        try:
            run(partial(arm, n))
        except (OSError, MemoryError) as e:
            if isinstance(e, VerbsError):
                verb, error = e.verb, e.errno
            e.__traceback__ = e.__context__ = None  # one MemoryError is kept by Python
        core.fail_call(0)
        core.fail_alloc(0)
        call = core.failed()
        if call is None:
            return seen
        assert call.startswith(verb), (n, call, verb)
        assert error in (None, EAGAIN), (n, call)
        seen.add(call)
        gc.collect()
        assert (open_files(), core.live_handles(), held_objects()) == before, (n, call)
    raise AssertionError("it never came to an end")
