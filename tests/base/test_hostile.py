# SPDX-License-Identifier: MIT
"""Code that runs where nobody expects it: in conversions, finalizers, buffers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hostile_support import Bare, Bomb, at_next_collection, collecting_after, mute
from support import Endpoint, Pair, connect, deliver, outstanding, until, wait_completions

from cqnotify import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    WCStatus,
    _core,
)


class Closing:
    """An integer that closes something while it is converted."""

    def __init__(self, victim: Any, value: int) -> None:
        self.victim = victim
        self.value = int(value)

    def __index__(self) -> int:
        with contextlib.suppress(Exception):
            self.victim.close()
        return self.value


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
    lambda w, n: MR(w.pd, 4096, iova=n(0)),
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
    lambda w: (w.qp.check_modify, {"port_num": None}),
    lambda w: (_core.QP.modify.__get__(w.qp), {"cap": {}, "timeout": None}),
    lambda w: (_core.CQ, {"context": w.ctx, "cqe": None}),
    lambda w: (_core.CQ, {"context": w.ctx, "cqe": 1, "wc_flags": None}),
    lambda w: (_core.SRQ, {"pd": w.pd, "max_wr": None}),
    lambda w: (_core.QP, {"pd": w.pd, "qp_type": 2, "send_cq": w.cq, "max_send_wr": None}),
    lambda w: (_core.MR, {"pd": w.pd, "buffer": bytearray(8), "access": None}),
    lambda w: (_core.MR, {"pd": w.pd, "buffer": bytearray(8), "iova": None}),
    lambda w: (_core.MR.implicit, {"pd": w.pd, "access": None}),
    lambda w: (_core.MR.from_handle, {"pd": w.pd, "handle": None}),
    lambda w: (_core.MR.from_dmabuf, {"pd": w.pd, "fd": 0, "length": None}),
    lambda w: (_core.PD.from_handle, {"context": w.ctx, "handle": None}),
    lambda w: (_core.DM.from_handle, {"context": w.ctx, "handle": 1, "length": None}),
    lambda w: (_core.DM, {"context": w.ctx, "length": None}),
    lambda w: (_core.MW, {"pd": w.pd, "mw_type": None}),
    lambda w: (_core.SendWR, {"sg": w.mr, "wr_id": None}),
    lambda w: (_core.RecvWR, {"sg": w.mr, "wr_id": None}),
    lambda w: (_core.WCArray, {"capacity": None}),
    lambda w: (functools.partial(_core.AH, w.pd), {"sl": None}),
]


@pytest.mark.parametrize("make", KEYWORDS)
def test_keywords_may_be_emptied_while_they_are_read(
    ctx: Context, make: Callable[[Bare], tuple[Any, dict[str, Any]]]
) -> None:
    with ctx:
        w = Bare(ctx)
        function, keywords = make(w)
        Emptying.events, Emptying.keywords = [], keywords
        (name,) = (name for name, value in keywords.items() if value is None)
        keywords[name] = Emptying()
        with pytest.raises(ValueError, match=f"{name} is too much: it must be"):
            call_with(function, keywords)
        assert not keywords
        until(lambda: Emptying.events[-1] == "freed", "nobody holds it")
        assert Emptying.events == ["converted", "shown", "freed"]


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


@pytest.mark.parametrize("make", MAKERS + [functools.partial(call, n=int) for call in CONVERSIONS])
def test_the_collector_may_close_the_context_while_something_is_made(
    ctx: Context, make: Callable[[Bare], object]
) -> None:
    for allocations in range(1, 8):
        with Context(ctx.name) as other:
            w = Bare(other)
            with collecting_after(allocations):
                Bomb(other.close)
                with contextlib.suppress(ClosedError, OSError, ValueError):
                    make(w)


def test_the_collector_may_poll_while_poll_makes_its_list(pair: Pair) -> None:
    b = pair[1]
    seen: list[int] = []
    for round_ in range(1, 8):
        deliver(pair, range(100 * round_, 100 * round_ + 16))
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
        assert b.qp.outstanding_recvs in (8, 1, 0), "all; the empty one that [] is; or refused"


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
    assert outstanding(a.qp) == (0, 1)
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


@pytest.mark.not_on_iwarp("siw does not flush what is posted on a QP in ERR")
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
    assert outstanding(a.qp) == (0, 0)
    mr.close()


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
