# SPDX-License-Identifier: MIT
"""Code that runs where nobody expects it: in conversions, finalizers, forked children."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import (
    DEADLINE,
    Endpoint,
    Overflow,
    Waiter,
    World,
    connect,
    in_child,
    until,
    wait_completions,
    wait_one,
)

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AsyncEventError,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    FailureWatch,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCExFlags,
    WCOpcode,
    WCStatus,
    _core,
)

Pair = tuple[Endpoint, Endpoint]


class Closing:
    """An integer that closes something while it is converted."""

    def __init__(self, victim: Any, value: int) -> None:
        self.victim = victim
        self.value = int(value)

    def __index__(self) -> int:
        with contextlib.suppress(Exception):
            self.victim.close()
        return self.value


class Bare(World):
    """Its QP is of the core: no method of the class that users have comes in between."""

    def make(self) -> None:
        super().make()
        self.qp.close()
        self.qp: Any = _core.QP(self.pd, QPType.RC, send_cq=self.cq)
        self.wr = SendWR(self.mr)


CONVERSIONS: list[Callable[[Bare, Callable[[int], Any]], object]] = [
    lambda w, n: w.ctx.query_port(n(1)),
    lambda w, n: CQ(w.ctx, n(4), channel=w.channel, comp_vector=0),
    lambda w, n: CQ(w.ctx, 4, comp_vector=n(0)),
    lambda w, n: _core.QP(w.pd, n(QPType.RC), send_cq=w.cq),
    lambda w, n: _core.QP(w.pd, QPType.RC, send_cq=w.cq, max_send_wr=n(1)),
    lambda w, n: _core.AH(w.pd, dgid=bytes(16), port_num=n(1)),
    lambda w, n: SRQ(w.pd, n(4), max_sge=n(1), srq_limit=n(2)),
    lambda w, n: _core.QP(w.pd, n(QPType.RC), send_cq=w.cq, srq=w.srq),
    lambda w, n: w.srq.modify(max_wr=n(16)),
    lambda w, n: w.srq.modify(srq_limit=n(4)),
    lambda w, n: w.srq.post_recv(w.mr, wr_id=n(1)),
    lambda w, n: MR(w.pd, 64, access=n(1)),
    lambda w, n: w.mr[n(0) : n(8)],
    lambda w, n: w.mr.read(n(4), n(0)),
    lambda w, n: w.mr.write(b"x", n(0)),
    lambda w, n: w.cq.poll(n(1)),
    lambda w, n: w.cq.ack(n(0)),
    lambda w, n: w.qp.modify(qp_state=n(QPState.INIT), pkey_index=0, port_num=1),
    lambda w, n: w.qp.modify(ah_attr={"sl": n(0)}),
    lambda w, n: w.qp.modify(cap={"max_send_wr": n(4)}),
    lambda w, n: w.qp.post_recv(w.mr, wr_id=n(1)),
    lambda w, n: w.qp.post_send(w.mr, wr_id=n(1)),
    lambda w, n: w.qp.post_send(w.mr, opcode=n(2), send_flags=n(2)),
    lambda w, n: w.qp.post_send(
        w.mr[0:8], opcode=5, remote_addr=n(0), rkey=n(0), compare_add=n(0), swap=n(0)
    ),
    lambda w, n: w.qp.post_recv(RecvWR(w.mr, wr_id=n(1))),
    lambda w, n: w.qp.post_send([SendWR(w.mr, wr_id=n(1), opcode=n(2), send_flags=n(2))]),
    lambda w, n: setattr(w.wr, "wr_id", n(1)),
    lambda w, n: MW(w.pd, n(1)),
    lambda w, n: w.qp.bind_mw(w.mw, w.mr, access=n(2), wr_id=n(1), rkey=n(0)),
    lambda w, n: SendWR(w.mr, opcode=n(8), mw=w.mw, access=n(2)),
    lambda w, n: SendWR(None, opcode=n(7), invalidate_rkey=n(2)),
]


if sys.version_info >= (3, 12):  # from where on a buffer can be made in Python

    def test_a_buffer_finds_no_request_that_is_half_made() -> None:
        class Buffer:
            def __buffer__(self, flags: int) -> memoryview:
                found.append([repr(o) for o in gc.get_objects() if type(o) is SendWR])
                return memoryview(bytearray(8))

        found: list[list[str]] = []
        buffer: Any = Buffer()
        wr = SendWR(buffer, send_flags=SendFlags.INLINE)
        assert found
        assert all(text.startswith("<SendWR wr_id=") for texts in found for text in texts)
        assert wr.wr_id == 0


@pytest.mark.parametrize("victim", ["ctx", "pd", "channel", "cq", "mr", "mw", "qp", "srq"])
def test_an_argument_may_close_anything_while_it_is_converted(ctx: Context, victim: str) -> None:
    for call in CONVERSIONS:
        with Context(ctx.name) as other:
            w = Bare(other)
            # Right or refused, but alive: most of them find something closed.
            with contextlib.suppress(ClosedError, ValueError, OSError):
                call(w, lambda value, w=w: Closing(getattr(w, victim), value))  # type: ignore[misc]


class Emptying:
    """An integer that only a dict holds, and that empties it when it is converted."""

    events: list[str]
    keywords: dict[str, Any]

    def __index__(self) -> int:
        self.events.append("converted")
        self.keywords.clear()
        return 1 << 64  # too much everywhere, so that a message has to show it

    def __repr__(self) -> str:
        Emptying.events.append("shown")
        return "too much"

    def __del__(self) -> None:
        Emptying.events.append("freed")


def call_with(function: Any, keywords: dict[str, Any]) -> object:
    """With the dict itself, as C code may: _thread.start_new_thread() is one that does."""
    call: Any = ctypes.pythonapi.PyObject_Call
    call.restype = ctypes.py_object
    call.argtypes = [ctypes.py_object] * 3
    return call(function, (), keywords)


KEYWORDS: list[Callable[[Bare], tuple[Any, dict[str, Any]]]] = [
    lambda w: (w.qp.modify, {"qkey": None}),
    lambda w: (w.qp.check, {"port_num": None}),
    lambda w: (_core.QP.modify.__get__(w.qp), {"cap": {}, "timeout": None}),
    lambda w: (_core.CQ, {"context": w.ctx, "cqe": None}),
    lambda w: (_core.CQ, {"context": w.ctx, "cqe": 1, "wc_flags": None}),
    lambda w: (_core.SRQ, {"pd": w.pd, "max_wr": None}),
    lambda w: (
        _core.QP,
        {"pd": w.pd, "qp_type": QPType.RC, "send_cq": w.cq, "max_send_wr": None},
    ),
    lambda w: (_core.MR, {"pd": w.pd, "buffer": bytearray(8), "access": None}),
    lambda w: (_core.MR.implicit, {"pd": w.pd, "access": None}),
    lambda w: (_core.MW, {"pd": w.pd, "mw_type": None}),
    lambda w: (_core.SendWR, {"sg": w.mr, "wr_id": None}),
    lambda w: (_core.RecvWR, {"sg": w.mr, "wr_id": None}),
    lambda w: (_core.WCArray, {"capacity": None}),
    lambda w: (_core.AH, {"sl": None}),
]


@pytest.mark.parametrize("make", KEYWORDS)
def test_keywords_may_be_emptied_while_they_are_read(
    ctx: Context, make: Callable[[Bare], tuple[Any, dict[str, Any]]]
) -> None:
    with ctx:
        w = Bare(ctx)
        function, keywords = make(w)
        if function is _core.AH:
            function = functools.partial(_core.AH, w.pd)
        Emptying.events, Emptying.keywords = [], keywords
        (name,) = (name for name, value in keywords.items() if value is None)
        keywords[name] = Emptying()
        with pytest.raises(ValueError, match=f"{name} is too much: it must be"):
            call_with(function, keywords)
        assert not keywords
        until(lambda: Emptying.events[-1] == "freed", "nobody holds it")
        assert Emptying.events == ["converted", "shown", "freed"]


class Bomb:
    """A cycle whose collection runs `action`, whenever the collector comes."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.me = self

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.action()


@contextlib.contextmanager
def collecting_after(allocations: int) -> Iterator[None]:
    old = gc.get_threshold()
    gc.collect()
    gc.set_threshold(allocations)
    try:
        yield
    finally:
        gc.set_threshold(*old)


@contextlib.contextmanager
def at_next_collection(action: Callable[[], object]) -> Iterator[None]:
    """Something is allocated inside that makes the collector run, and `action` with it."""

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and armed:
            armed.clear()
            action()

    old = gc.get_threshold()
    gc.disable()
    garbage = [[] for _ in range(5000)]  # type: ignore[var-annotated]
    gc.set_threshold(10, 0)  # without the 0, a CPython without a GIL waits for many more objects
    armed = [True]
    gc.callbacks.append(callback)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(callback)
        del garbage


MAKERS: list[Callable[[Bare], object]] = [
    lambda w: PD(w.ctx),
    lambda w: CompletionChannel(w.ctx),
    lambda w: CQ(w.ctx, 4, channel=w.channel),
    lambda w: MR(w.pd, 64),
    lambda w: _core.QP(w.pd, QPType.RC, send_cq=w.cq),
    lambda w: _core.AH(w.pd, dgid=bytes(16)),
    lambda w: SRQ(w.pd, 4, srq_limit=1),
    lambda w: _core.QP(w.pd, QPType.RC, send_cq=w.cq, srq=w.srq),
    lambda w: w.mr[0:8],
    lambda w: w.cq.poll(),
    lambda w: SendWR(w.mr),
    lambda w: SendWR(w.mr, opcode=8, mw=w.mw, access=2),
    lambda w: MW(w.pd),
    lambda w: RecvWR(w.mr),
    lambda w: w.qp.post_send([w.wr] * 3),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_collector_may_close_the_context_while_something_is_made(
    ctx: Context, make: Callable[[Bare], object]
) -> None:
    for allocations in range(1, 8):
        with Context(ctx.name) as other:
            w = Bare(other)
            with collecting_after(allocations):
                Bomb(other.close)
                with contextlib.suppress(ClosedError, OSError):
                    make(w)


def test_the_collector_may_poll_while_poll_makes_its_list(pair: Pair) -> None:
    a, b = pair
    seen: list[int] = []
    for round_ in range(1, 8):
        for i in range(16):
            b.qp.post_recv(b.mr[0:64], wr_id=100 * round_ + i)
            a.qp.post_send(a.mr[0:8])
        assert len(wait_completions(a.scq, 16)) == 16
        with collecting_after(round_):
            Bomb(lambda: seen.extend(wc.wr_id for wc in b.rcq.poll(16)))
            seen.extend(wc.wr_id for wc in b.rcq.poll(16))
        gc.collect()
        until(lambda: seen.extend(wc.wr_id for wc in b.rcq.poll(16)) or True, "the rest")
    assert sorted(seen) == [100 * r + i for r in range(1, 8) for i in range(16)]


@pytest.mark.parametrize("what", ["list", "mr", "qp"])
def test_the_collector_may_empty_or_close_what_is_posted_as_a_list(pair: Pair, what: str) -> None:
    b = pair[1]
    receives = [RecvWR(b.mr[0:8], wr_id=i) for i in range(8)]
    action = {"list": receives.clear, "mr": b.mr.close, "qp": b.qp.close}[what]
    with at_next_collection(action), contextlib.suppress(ClosedError, RuntimeError):
        b.qp.post_recv(receives)
    gc.collect()
    if what == "list":
        assert b.qp.outstanding[1] in (8, 1, 0), "all; the empty one that [] is; or refused"


class Buffer(bytearray):
    """Memory that runs something when it goes."""

    action: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.action is not None:
            self.action()


def in_flight(a: Endpoint, action: Callable[[], object], flags: SendFlags) -> None:
    """A send whose memory only the work request holds."""
    buffer = Buffer(8)
    buffer.action = action
    a.qp.post_send(MR(a.pd, buffer)[:], send_flags=flags)


def test_memory_that_goes_with_a_completion_may_close_everything(ctx: Context) -> None:
    for use in (
        lambda a: a.scq.poll(),
        lambda a: QP(a.pd, QPType.RC, send_cq=a.scq),
        lambda a: a.qp.modify(qp_state=QPState.RESET),
        lambda a: a.qp.close(),
    ):
        with Context(ctx.name) as other:
            a, b = connect(Endpoint(other, QPType.RC), Endpoint(other, QPType.RC))
            for i in range(4):
                b.qp.post_recv(b.mr[0:64])
                in_flight(a, other.close, SendFlags(0) if i < 3 else SendFlags.SIGNALED)
            assert len(wait_completions(b.rcq, 4)) == 4
            with contextlib.suppress(ClosedError):
                use(a)
            if other.closed:
                with pytest.raises(ClosedError):
                    a.scq.poll()


def test_memory_that_goes_with_a_reset_may_post_again(pair: Pair) -> None:
    a = pair[0]
    keep = MR(a.pd, 64)

    def again() -> None:
        a.qp.to_init()
        a.qp.post_recv(keep[:])

    in_flight(a, again, SendFlags.SIGNALED)
    a.qp.modify(qp_state=QPState.RESET)
    assert a.qp.outstanding == (0, 1)
    with pytest.raises(OSError, match="1 work request in flight"):
        keep.close()


def test_a_buffer_that_fails_is_an_error_and_nothing_else(ctx: Context) -> None:
    a, _ = connect(Endpoint(ctx, QPType.RC, max_inline_data=64), Endpoint(ctx, QPType.RC))
    for i in range(200):
        view = memoryview(bytearray(8))
        view.release()
        with pytest.raises(ValueError, match="released"):
            a.qp.post_send(view, send_flags=SendFlags.INLINE, wr_id=i)
        with pytest.raises(ValueError, match="released"):
            MR(a.pd, view)


def test_a_subclass_whose_del_does_not_call_ours_is_closed_all_the_same(ctx: Context) -> None:
    with Context(ctx.name) as other:
        pd, channel = PD(other), CompletionChannel(other)
        cq = mute(CQ)(other, 16, channel=channel)
        peer = CQ(other, 16)
        mr = mute(MR)(pd, 4096)
        a = mute(QP)(pd, QPType.RC, send_cq=peer, recv_cq=cq)
        a.connect(a.address())
        cq.req_notify()
        a.post_recv(mr[0:64])
        a.post_send(mr[64:72])
        until(lambda: len(peer.poll()) == 1, "it is sent")
        del a  # its completion and its event are still there
        assert [wc.ok for wc in cq.poll()] == [True]
        del cq, mr
        gc.collect()
        assert channel.try_get_event() is None
        channel.close()
        peer.close()
        pd.close()


def test_a_failed_receive_and_send_of_one_wr_id_let_go_of_their_memory(ctx: Context) -> None:
    """With one CQ for both nobody can say which is which; but all of them is all of them."""
    a, b = connect(Endpoint(ctx, QPType.RC, one_cq=True), Endpoint(ctx, QPType.RC))
    mr = MR(a.pd, 64)
    for _ in range(3):
        a.qp.post_recv(mr[0:8])
    b.qp.close()
    for _ in range(2):
        a.qp.post_send(mr[8:16])
    a.qp.modify(qp_state=QPState.ERR)
    flushed = wait_completions(a.scq, 5)
    assert {wc.status for wc in flushed} == {WCStatus.WR_FLUSH_ERR}
    assert a.qp.outstanding == (0, 0)
    mr.close()


def test_what_is_closed_says_so_before_it_looks_at_the_arguments(pair: Pair) -> None:
    a = pair[0]
    srq: Any = SRQ(a.pd, 4)
    a.ctx.close()
    for call in (
        lambda: a.mr[0 : 10**9],
        lambda: a.mr[5],
        lambda: a.mr.read("x"),
        lambda: a.rcq.poll(0),
        lambda: a.rcq.ack(-1),
        lambda: a.channel.get_event(-1),
        lambda: a.qp.post_recv(3),
        lambda: a.qp.post_send(),
        lambda: srq.post_recv(),
        lambda: srq.modify(),
        lambda: a.ctx.query_port(99),
    ):
        with pytest.raises(ClosedError):
            call()


def test_what_refuses_to_close_is_never_seen_closed(ctx: Context) -> None:
    """To make the exception can run anything, other threads as well."""
    pd = PD(ctx)
    mr = MR(pd, 64)
    seen: list[bool] = []
    with at_next_collection(lambda: seen.append(pd.closed)):
        try:  # noqa: SIM105  # to make a context manager would set it off
            pd.close()
        except BusyError:
            pass
        _ = [[] for _ in range(1000)]  # without a GIL it runs at each 512th object only
    assert seen == [False]
    assert not pd.closed
    mr.close()


# Forked children ---------------------------------------------------------------


def test_a_child_may_close_and_drop_in_any_order(pair: Pair) -> None:
    a, b = pair
    srq = SRQ(a.pd, 4)
    srq.post_recv(a.mr[0:64], wr_id=1)
    qp = QP(a.pd, QPType.RC, send_cq=a.scq, srq=srq)
    wr = SendWR(a.mr[0:8])
    mw = MW(a.pd)

    def child() -> None:
        for post in (lambda: a.qp.post_send(wr), lambda: SendWR(a.mr), lambda: RecvWR(a.mr[0:8])):
            with pytest.raises(ClosedError, match="fork"):
                post()
        for thing in (a.pd, a.channel, a.scq, mw, a.mr, srq, qp, a.qp, a.ctx):
            thing.close()
            assert thing.closed
            with pytest.raises(ClosedError, match="fork"):
                thing.__enter__()

    assert in_child(child) == 0
    b.qp.post_recv(b.mr[0:64])
    a.qp.post_send(a.mr[0:8])
    wait_one(b.rcq)
    wait_one(a.scq)
    qp.connect(qp.address())
    qp.post_send(a.mr[64:72])
    assert {wc.opcode for wc in wait_completions(qp.recv_cq, 2)} >= {WCOpcode.RECV}
    assert srq.outstanding == 0


def test_a_child_opens_the_device_anew(ctx: Context, pair: Pair) -> None:
    name = ctx.name

    def child() -> None:
        with Context(name) as mine:
            x, y = connect(Endpoint(mine, QPType.RC), Endpoint(mine, QPType.RC))
            y.rcq.req_notify()
            y.qp.post_recv(y.mr[0:64])
            x.qp.post_send(x.mr[0:8])
            assert y.channel.get_event(timeout=DEADLINE) is y.rcq
            assert in_child(lambda: Context(name).close()) == 0
            assert ctx.closed
        assert mine.closed

    assert in_child(child) == 0
    assert not ctx.closed


def test_a_child_that_just_ends_does_so_cleanly(ctx: Context) -> None:
    code = (
        "import os, sys, cqnotify as c\n"
        "with c.Context() as ctx, c.PD(ctx) as pd, c.CompletionChannel(ctx) as ch, \\\n"
        "     c.CQ(ctx, 8, channel=ch) as cq, c.MR(pd, 64) as mr, \\\n"
        "     c.QP(pd, c.QPType.RC, send_cq=cq) as qp:\n"
        "    qp.to_init(); qp.post_recv(mr)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        sys.exit(0)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    out = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_address_handles_die_with_the_rest(ctx: Context) -> None:
    gid = ctx.find_gid()
    ah = AH(PD(ctx), dgid=gid.gid, sgid_index=gid.index)
    assert in_child(ah.close) == 0
    ah.close()


# ---- while somebody waits ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["get_async_event", "try_get_async_event"])
def test_the_collector_may_close_the_context_of_which_a_report_is_asked(
    ctx: Context, method: str
) -> None:
    with Context(ctx.name) as other:
        Bare(other).qp.modify(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        call = getattr(other, method)
        arguments = [0.05] if method == "get_async_event" else []
        with (
            at_next_collection(other.close),
            contextlib.suppress(ClosedError, TimeoutError),
        ):
            call(*arguments)


@pytest.mark.parametrize("allocations", range(1, 13))  # up to more than read() makes
@pytest.mark.parametrize("victim", ["watch", "context", "CQ"])
def test_the_collector_may_close_what_a_watch_is_about_to_tell(
    ctx: Context, victim: str, allocations: int
) -> None:
    with Context(ctx.name) as other, FailureWatch(other) as watch:
        worlds = failed_worlds(other)
        closed: list[bool] = []

        def close() -> None:
            closed.append(True)
            if victim == "CQ":
                worlds[0].a.qp.close()
                worlds[0].a.scq.close()
            else:
                {"watch": watch, "context": other}[victim].close()

        spare: Any = [[] for _ in range(8)]  # lists that are made anew without being counted
        with collecting_after(allocations), contextlib.suppress(ClosedError):
            del spare
            Bomb(close)
            told = watch.read()
            before = bool(closed) and victim == "CQ"
            if sys.version_info < (3, 12):  # later ones collect after the call
                assert [cqs for _, cqs in told] == [[w.a.scq] for w in worlds[before:]]


@pytest.mark.parametrize("allocations", range(1, 13))
def test_a_watch_that_the_collector_reads_while_it_is_read_tells_each_failure_once(
    ctx: Context, allocations: int
) -> None:
    with Context(ctx.name) as other, FailureWatch(other) as watch:
        worlds = failed_worlds(other)
        told: list[Any] = []
        spare: Any = [[] for _ in range(8)]
        with collecting_after(allocations):
            del spare
            Bomb(lambda: told.extend(watch.read()))
            told.extend(watch.read())
        assert [event.cq for event, _ in told] == [world.a.scq for world in worlds]


def failed_worlds(ctx: Context) -> list[Overflow]:
    """Two, of whose failures nobody has read yet."""
    worlds = [Overflow(ctx) for _ in range(2)]
    for world in worlds:
        world.fill()
    for world in worlds:
        world.send(1)
    return worlds


def test_the_collector_may_free_the_context_of_a_channel_that_waits(ctx: Context) -> None:
    other = Context(ctx.name)
    channel = CompletionChannel(other)
    qp = _core.QP(PD(other), QPType.RC, send_cq=CQ(other, 4, channel=channel))
    del other, qp
    with (
        at_next_collection(lambda: channel.context.close()),
        contextlib.suppress(ClosedError, TimeoutError),
    ):
        channel.get_event(0.05)
    with contextlib.suppress(ClosedError):
        channel.context.close()


def overflow(ctx: Context, kind: Callable[..., CQ], channel: CompletionChannel) -> list[Any]:
    """A CQ of one entry that has lost completions."""
    pd = PD(ctx)
    small, big, mr = kind(ctx, 1, channel=channel), CQ(ctx, 64), MR(pd, 4096)
    qp = QP(pd, QPType.RC, send_cq=small, recv_cq=big)
    qp.connect(qp.address())
    for _ in range(8):
        qp.post_recv(mr[0:64])
        qp.post_send(mr[64:72])
    got: list[Any] = []
    until(lambda: got.extend(big.poll()) or len(got) == 8, "all have arrived")  # type: ignore[func-returns-value]
    return [small, big, mr, qp]


def test_a_report_whose_object_has_a_hostile_repr_is_told_all_the_same(ctx: Context) -> None:
    class Taking(CQ):
        def __repr__(self) -> str:
            ctx.try_get_async_event()
            raise KeyError("mine")

    channel = CompletionChannel(ctx)
    kept = overflow(ctx, Taking, channel)
    with pytest.raises(AsyncEventError) as e:
        channel.get_event(timeout=DEADLINE)
    assert e.value.event.cq is kept[0]
    with pytest.raises(KeyError, match="mine"):
        repr(e.value.event)


def mute(base: Any) -> Any:
    """A subclass whose __del__ does not call ours."""
    return type(f"Mute{base.__name__}", (base,), {"__del__": lambda self: None})


class Late:
    """Runs code while the attributes of its owner are dropped: in the midst of deallocation."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def __del__(self) -> None:
        self.action()


def test_an_object_in_the_midst_of_deallocation_is_not_handed_out(ctx: Context) -> None:
    with Context(ctx.name) as other:
        channel, pd, seen = CompletionChannel(other), PD(other), []
        cq, mr = mute(CQ)(other, 16, channel=channel), MR(pd, 4096)
        qp = QP(pd, QPType.RC, send_cq=CQ(other, 16), recv_cq=cq)
        qp.connect(qp.address())
        cq.req_notify()
        qp.post_recv(mr[0:64])
        qp.post_send(mr[64:72])
        until(cq.poll, "it arrives")
        until(lambda: bool(select.select([channel], [], [], 0)[0]), "the event")
        qp.close()
        del qp
        cq.late = Late(lambda: seen.append(channel.try_get_event()))
        del cq
        assert seen == [None]
        mr.close()


def test_a_context_may_close_what_is_in_the_midst_of_deallocation(ctx: Context) -> None:
    for base in (CQ, CompletionChannel, PD):
        other = Context(ctx.name)
        thing = mute(base)(*([other, 16] if base is CQ else [other]))
        thing.late = Late(other.close)
        del thing
        assert other.closed


def test_a_loop_does_not_swallow_the_closed_error_of_something_else(ctx: Context) -> None:
    channel, closed = CompletionChannel(ctx), PD(ctx)
    closed.close()
    old = signal.signal(signal.SIGALRM, lambda *_: closed.context)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(ClosedError, match="this PD is closed"):
            next(channel)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_the_collector_may_close_what_a_callback_is_added_to(ctx: Context) -> None:
    pd = PD(ctx)
    called: list[int] = []
    added = False
    with at_next_collection(pd.close), contextlib.suppress(ClosedError):
        pd.add_close_callback(lambda: called.append(1))
        added = True
    pd.close()
    assert bool(called) == added


@pytest.mark.usefixtures("conversation")
def test_threads_may_do_everything_at_once_until_the_context_is_closed(ctx: Context) -> None:
    """Each gets ClosedError in the end, or what its own call may raise; nobody hangs or crashes."""
    may_raise = (
        AsyncEventError,
        CompletionError,
        InterruptedError,
        TimeoutError,
        ValueError,
        VerbsError,
    )

    def torture() -> None:
        other = Context(ctx.name)
        pd, channel = PD(other), CompletionChannel(other)
        small = CQ(other, 3, channel=channel)
        large = CQ(other, 64, channel=channel, wc_flags=WCExFlags(0x7F))
        mr = MR(pd, 4096)
        qp = QP(pd, QPType.RC, send_cq=small, recv_cq=large, max_send_wr=64, max_recv_wr=64)
        qp.connect(qp.address())
        calls: list[Callable[[], object]] = [
            lambda: (qp.post_recv(mr[0:64]), qp.post_send(mr[64:72])),
            lambda: channel.get_event(timeout=0.2).ack(),
            lambda: channel.get_event(timeout=0.2).ack(),
            lambda: [(cq.safe_to_sleep(), cq.poll_ids(3), cq.poll(2)) for cq in (small, large)],
            lambda: small.resize(7 if small.cqe == 3 else 3),
            channel.interrupt,
            lambda: other.get_async_event(timeout=0.1),
            lambda: QP(pd, QPType.RC, send_cq=large).close(),
        ]
        rounds = [0] * len(calls)

        def work(i: int) -> None:
            while True:
                try:
                    calls[i]()
                except ClosedError:
                    return
                except may_raise:
                    pass
                rounds[i] += 1

        workers = [Waiter(functools.partial(work, i)) for i in range(len(calls))]
        until(lambda: all(n >= 3 for n in rounds), "each has done it a few times")
        other.close()
        for worker in workers:
            worker.join()

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            torture()
    finally:
        sys.setswitchinterval(old)
