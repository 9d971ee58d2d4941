# SPDX-License-Identifier: MIT
"""Closing in every order, from threads, by the garbage collector, and at the end of a program."""

import contextlib
import gc
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable

import pytest
from support import DEADLINE, Endpoint, Waiter, connect, wait_one

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    MWType,
    QPType,
    WCStatus,
)

Pair = tuple[Endpoint, Endpoint]


class World:
    """One of everything, by name."""

    def __init__(self) -> None:
        self.ctx = Context()
        self.pd = PD(self.ctx)
        self.channel = CompletionChannel(self.ctx)
        self.cq = CQ(self.ctx, 16, channel=self.channel)
        self.mr = MR(self.pd, 4096, access=AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND)
        self.qp = QP(self.pd, QPType.RC, send_cq=self.cq)
        self.srq = SRQ(self.pd, 4)
        self.srq.post_recv(self.mr[0:64])
        self.ah = AH(self.pd, dgid=self.ctx.find_gid().gid, sgid_index=self.ctx.find_gid().index)
        self.qp.connect(self.qp.address())
        self.mw = MW(self.pd, MWType.TYPE_2)


NAMES = ("pd", "channel", "cq", "mr", "srq", "qp", "ah", "mw")


def test_work_in_flight_is_dropped_with_the_context() -> None:
    w = World()
    w.qp.post_recv(w.mr[0:64])
    w.qp.bind_mw(w.mw, w.mr, access=AccessFlags.REMOTE_READ)
    with pytest.raises(BusyError, match="3 work requests in flight"):
        w.mr.close()
    w.ctx.close()
    assert w.mr.closed


@pytest.mark.parametrize("waiting", [False, True])
def test_a_forgotten_world_is_collected(waiting: bool) -> None:
    w = World()
    w.cq.user_data = w  # a cycle through everything
    w.qp.user_data = w.srq.user_data = w
    w.qp.post_recv(w.mr[0:64])
    w.qp.bind_mw(w.mw, w.mr, access=AccessFlags.REMOTE_READ)
    gone = weakref.ref(w.ctx)
    waiter = Waiter(w.channel.get_event).asleep() if waiting else None
    with pytest.warns(ResourceWarning, match="unclosed"):
        del w
        gc.collect()
        if waiter is not None:
            # The waiter's frame holds the channel, so this much is still open.
            context = gone()
            assert context is not None
            context.close()
            del context
            with pytest.raises(ClosedError):
                waiter.join()
            del waiter
    gc.collect()  # the recorded warnings held what they warned of
    assert gone() is None


def test_a_resource_warning_that_is_an_error_still_closes(pd: PD) -> None:
    mr = MR(pd, 64)
    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda u: unraisable.append(u.exc_type)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del mr
    finally:
        sys.unraisablehook = hook
    assert unraisable == [ResourceWarning]
    pd.close()


def test_constructors_that_fail_leave_nothing(pd: PD, cq: CQ) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="qp_type"):
            QP(pd, 99, send_cq=cq)
        with pytest.raises(ValueError, match="cqe"):
            CQ(pd.context, 0)
        with pytest.raises(ValueError, match="max_wr is 0"):
            SRQ(pd, 0)
        with pytest.raises(ValueError, match="length is 0: it must be 1"):
            MR(pd, 0)
    pd.close()
    cq.close()


def test_many_threads_close_the_same_things(ctx: Context) -> None:
    for _ in range(10):
        w = World()
        barrier = threading.Barrier(4)

        def work(w: World = w, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(20):
                for name in ("qp", "srq", "ah", "mw", "mr", "cq", "channel", "pd"):
                    with contextlib.suppress(BusyError):
                        getattr(w, name).close()
            w.ctx.close()

        waiters = [Waiter(work) for _ in range(4)]
        for waiter in waiters:
            waiter.join()
        assert all(getattr(w, name).closed for name in (*NAMES, "ctx"))


def test_closing_while_others_register_and_close(ctx: Context) -> None:
    """A close waits for the calls that are inside, and those after it get ClosedError."""
    with Context(ctx.name) as other:
        pd = PD(other)
        seen: list[str] = []

        def work() -> None:
            while True:
                try:
                    MR(pd, 1 << 16).close()
                except ClosedError:
                    seen.append("closed")
                    return

        waiters = [Waiter(work) for _ in range(3)]
        for _ in range(200):
            try:
                pd.close()
                break
            except BusyError:
                pass
        other.close()
        for waiter in waiters:
            waiter.join()
        assert seen == ["closed"] * 3


END = """
import contextlib, threading, cqnotify as c
def wait(channel):
    with contextlib.suppress(c.ClosedError):
        channel.get_event()
ctx = c.Context()
pd = c.PD(ctx)
channel = c.CompletionChannel(ctx)
cq = c.CQ(ctx, 16, channel=channel)
mr = c.MR(pd, 4096, access=0x11)
qp = c.QP(pd, c.QPType.RC, send_cq=cq)
qp.connect(qp.address())
qp.post_recv(mr[0:64])
srq = c.SRQ(pd, 4)
srq.post_recv(mr[0:64])
other = c.QP(pd, c.QPType.UC, send_cq=cq, srq=srq)
windows = [c.MW(pd, 1), c.MW(pd, 2)]
for mw in windows:
    qp.bind_mw(mw, mr[0:64], access=c.AccessFlags.REMOTE_READ, send_flags=0)
wrs = [c.SendWR(mr[0:64]), c.RecvWR(mr[0:64])]
cq.req_notify()
qp.post_send(mr[64:72])
assert channel.get_event(timeout=30) is cq
cq.user_data = qp.user_data = [ctx, pd, channel, cq, mr, srq, other, qp, windows, wrs]
for _ in range(3):
    threading.Thread(target=wait, args=[channel], daemon=True).start()
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "ctx.close()",
        "del ctx, pd, cq, mr, srq, other, qp, windows, wrs, mw",
        "import sys; sys.exit(0)",
    ],
)
def test_a_program_ends_whatever_is_left_open(ctx: Context, end: str) -> None:
    out = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", END + end],
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
    )
    assert (out.returncode, out.stdout) == (0, ""), out
    assert "Fatal" not in out.stderr


def test_everything_can_be_referenced_weakly(pair: Pair) -> None:
    a = pair[0]
    for thing in (a.ctx, a.pd, a.channel, a.scq, a.mr, a.qp, SRQ(a.pd, 4), MW(a.pd)):
        assert weakref.ref(thing)() is thing


def test_a_posted_buffer_lives_until_its_completion(pair: Pair) -> None:
    class Buffer(bytearray):
        pass

    a, b = pair
    buffer = Buffer(b"kept alive")
    gone = weakref.ref(buffer)
    a.qp.post_send(MR(a.pd, buffer)[:])  # no receive yet: it stays in flight
    del buffer
    gc.collect()
    assert gone() is not None
    b.qp.post_recv(b.mr[0:64])
    wait_one(b.rcq)
    assert b.mr.read(10) == b"kept alive"
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        wait_one(a.scq)
        gc.collect()
    assert gone() is None


def test_a_failed_request_lets_go_of_its_buffer_too(ctx: Context) -> None:
    a, _ = connect(Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC), rnr_retry=0, min_rnr_timer=1)
    mr = MR(a.pd, bytearray(8))
    a.qp.post_send(mr[:])
    wait_one(a.scq, WCStatus.RNR_RETRY_EXC_ERR)
    mr.close()


def test_subclasses_work_as_their_bases(ctx: Context) -> None:
    class MyCQ(CQ):
        def drain(self) -> int:
            return len(self.poll(256))

    class MyContext(Context):
        extra = 1

    with MyContext(ctx.name) as mine:
        channel = CompletionChannel(mine)
        with MyCQ(mine, 8, channel=channel) as cq:
            cq.note = "attributes, too"  # type: ignore[attr-defined]
            assert cq.drain() == 0


@pytest.mark.parametrize("make", [PD, CompletionChannel, lambda ctx: CQ(ctx, 4)])
def test_close_callbacks_run_once_when_it_is_closed(
    ctx: Context, make: Callable[[Context], PD]
) -> None:
    thing = make(ctx)
    seen: list[str] = []

    def first() -> None:
        seen.append(f"closed: {thing.closed}")

    def taken_back() -> None:
        seen.append("taken back")

    thing.add_close_callback(first)
    thing.add_close_callback(taken_back)
    assert thing.remove_close_callback(taken_back) == 1
    assert thing.remove_close_callback(taken_back) == 0
    thing.close()
    thing.close()
    assert seen == ["closed: True"]
    with pytest.raises(ClosedError):
        thing.add_close_callback(first)
    with pytest.raises(TypeError, match="must be callable"):
        ctx.add_close_callback(3)  # type: ignore[arg-type]


def test_a_close_callback_that_raises_is_reported_and_the_rest_run(ctx: Context) -> None:
    seen: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda u: seen.append(u.exc_type)
    try:
        with PD(ctx) as pd:
            pd.add_close_callback(lambda: 1 / 0)
            pd.add_close_callback(lambda: seen.append("second"))
    finally:
        sys.unraisablehook = hook
    assert seen == [ZeroDivisionError, "second"]


def test_a_context_that_closes_warns_of_nothing_and_hides_no_exception(ctx: Context) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Context(ctx.name) as other:
            cq = CQ(other, 4, channel=CompletionChannel(other))
            qp = QP(PD(other), QPType.RC, send_cq=cq)
            del cq  # only the QP knows it, as an inner expression would be
        assert qp.closed
    with pytest.raises(KeyError, match="mine"), PD(ctx) as pd:
        mr = MR(pd, 64)
        raise KeyError("mine")
    assert not pd.closed
    mr.close()
    with pytest.raises(BusyError), pd:
        mr = MR(pd, 64)


def test_everything_says_what_it_is(pair: Pair) -> None:
    a = pair[0]
    name = a.ctx.name
    assert repr(a.ctx) == f"<Context {name}>"
    assert repr(a.pd) == f"<PD on {name}>"
    assert repr(a.channel) == f"<CompletionChannel on {name}>"
    assert repr(a.qp) == f"<QP {a.qp.qp_num} on {name}, RC>"
    assert repr(a.scq) == f"<CQ on {name}, {a.scq.cqe} entries, 0 unacked>"
    assert repr(a.mr).startswith(f"<MR on {name}, 65536 bytes at 0x")
    assert "length=4" in repr(a.mr[0:4])
    a.ctx.close()
    assert [repr(x) for x in (a.ctx, a.pd, a.qp, a.scq, a.mr)] == [
        "<Context closed>",
        "<PD closed>",
        "<QP closed>",
        "<CQ closed>",
        "<MR closed>",
    ]
