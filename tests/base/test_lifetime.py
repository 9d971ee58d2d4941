# SPDX-License-Identifier: MIT
"""Closing in every order, from threads, by the garbage collector, and at the end of a program."""

import gc
import os
import re
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from socket import AF_INET6, inet_ntop

import pytest
from support import (
    DEADLINE,
    Pair,
    Waiter,
    in_child,
    need_room_for_queues,
    python,
    unraisables,
    wait_one,
)
from world import World

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    BusyError,
    ClosedError,
    CompletionChannel,
    Context,
    QPType,
)


def test_a_resource_warning_that_is_an_error_still_closes(ctx: Context) -> None:
    other = Context(ctx.name)
    pd = PD(other)
    seen: list[bool] = []
    other.add_close_callback(lambda: seen.append(True))
    unraisable: list[object] = []
    with unraisables(unraisable.append), warnings.catch_warnings():
        warnings.simplefilter("error")
        del other, pd
    assert unraisable == [ResourceWarning]
    assert seen == [True]


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


@pytest.mark.usefixtures("conversation")
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
    out = python("-X", "dev", "-W", "ignore::ResourceWarning", "-c", END + end)
    assert (out.returncode, out.stdout) == (0, ""), out
    assert "Fatal" not in out.stderr


@pytest.mark.not_on_iwarp("a message without a receive ends the connection")
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
    wait_one(a.scq)
    gc.collect()
    assert gone() is None


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
    with unraisables(seen.append), PD(ctx) as pd:
        pd.add_close_callback(lambda: 1 / 0)
        pd.add_close_callback(lambda: seen.append("second"))
    assert seen == [ZeroDivisionError, "second"]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("within", [False, True])
def test_an_interrupt_in_a_close_callback_is_raised_when_all_is_closed(
    ctx: Context, within: bool
) -> None:
    seen: list[str] = []
    with Context(ctx.name) as other:
        pd, cq = PD(other), CQ(other, 4)
        for thing in (cq, pd, other):
            thing.add_close_callback(lambda: seen.append("before"))
            thing.add_close_callback(interrupt)
            thing.add_close_callback(lambda: seen.append("after"))
        told = unraisables(lambda kind: seen.append(kind.__name__))
        with told, pytest.raises(KeyboardInterrupt):
            (other if within else cq).close()
        again = ["before", "KeyboardInterrupt", "after"]  # the first is raised
        assert seen == ["before", "after", *(again + again if within else [])]
        assert cq.closed
        assert pd.closed is other.closed is within
        pd.remove_close_callback(interrupt)
        other.remove_close_callback(interrupt)


def test_an_interrupt_in_a_close_callback_wins_over_what_leaves_the_block(ctx: Context) -> None:
    with pytest.raises(KeyboardInterrupt) as raised, PD(ctx) as pd:
        pd.add_close_callback(interrupt)
        raise KeyError("mine")
    assert isinstance(raised.value.__context__, KeyError)
    assert pd.closed
    with pytest.raises(SystemExit), PD(ctx) as pd:
        pd.add_close_callback(sys.exit)
    assert pd.closed


def test_an_interrupt_in_a_finalizer_is_reported(ctx: Context) -> None:
    seen: list[object] = []
    with unraisables(seen.append):
        PD(ctx).add_close_callback(interrupt)
        gc.collect()
    assert seen == [KeyboardInterrupt]


def test_a_context_that_closes_warns_of_nothing(ctx: Context) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Context(ctx.name) as other:
            cq = CQ(other, 4, channel=CompletionChannel(other))
            qp = QP(PD(other), QPType.RC, send_cq=cq)
            del cq  # only the QP knows it, as an inner expression would be
        assert qp.closed


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def seconds_in_child(call: Callable[[], object]) -> float:
    """In a forked child no verb is called: what is left is our own work."""
    r, w = os.pipe()
    assert in_child(lambda: os.write(w, repr(seconds_of(call)).encode())) == 0
    seconds = float(os.read(r, 64))
    os.close(r)
    os.close(w)
    return seconds


def close_each(things: Sequence[PD | MR]) -> None:
    for thing in reversed(things):  # the latest first, as their parent does
        thing.close()


def context_with_pds(ctx: Context) -> tuple[Context, list[PD], None]:
    return ctx, [PD(ctx) for _ in range(8000)], None


def pd_with_mrs(ctx: Context) -> tuple[PD, list[MR], list[MR]]:
    """Beside as many of another, which a search would have to pass."""
    pds, memory = (PD(ctx), PD(ctx)), bytearray(64)
    mrs = [MR(pd, memory) for _ in range(8000) for pd in pds]
    return pds[0], mrs[::2], mrs


@pytest.mark.clock
@pytest.mark.parametrize("make", [context_with_pds, pd_with_mrs])
def test_the_time_to_close_is_linear(
    ctx: Context, make: Callable[[Context], tuple[Context | PD, Sequence[PD | MR], object]]
) -> None:
    """A parent takes no longer for its thousands than closing them one by one does."""
    with Context(ctx.name) as own:
        parent, children, _others = make(own)
        at_once = min(seconds_in_child(parent.close) for _ in range(3))
        each = min(seconds_in_child(lambda: close_each(children)) for _ in range(3))
        assert not any(child.closed for child in children)
    assert at_once < 5 * each, (at_once, each)


def turns_while_a_context_closes(ctx: Context) -> int:
    """Of another thread."""
    turns = 0
    begun, ended = threading.Event(), threading.Event()
    other = Context(ctx.name)
    pds = [PD(other) for _ in range(4000)]
    pds[-1].add_close_callback(begun.set)  # the latest goes first
    pds[0].add_close_callback(ended.set)

    def count() -> None:
        nonlocal turns
        begun.wait(DEADLINE)
        while not ended.is_set():
            turns += 1

    counter = Waiter(count)
    other.close()
    counter.join()
    return turns


def test_a_closing_context_lets_other_threads_run(ctx: Context) -> None:
    """On a busy machine the other thread may have no processor meanwhile, though not each time."""
    assert any(turns_while_a_context_closes(ctx) for _ in range(20))


def test_many_users_of_several_places_are_counted_once(ctx: Context) -> None:
    cq, other = CQ(ctx, 16), CQ(ctx, 16)
    pd = PD(ctx)
    first = QP(pd, QPType.RC, send_cq=cq)  # for both its sides
    second = QP(pd, QPType.RC, send_cq=cq, recv_cq=other)
    with pytest.raises(BusyError, match="this CQ is still used by 2 QPs: close that first"):
        cq.close()
    first.close()
    with pytest.raises(BusyError, match="this CQ is still used by 1 QP: close that first"):
        cq.close()
    second.close()
    cq.close()
    other.close()
    pd.close()


# On 3.13 the interpreter lets deallocations nest until it takes megabytes.
DEEP, STACK = (60_000, 8 << 20) if sys.version_info[:2] == (3, 13) else (6000, 256 << 10)
CHAIN = f"""
import sys, threading, cqnotify as c
from cqnotify import _core
ctx = c.Context()
pd, cq = c.PD(ctx), c.CQ(ctx, 1)
memory = bytearray(8)

def wakeups():
    chain = None
    for _ in range(100_000):
        chain = _core.Wakeup(loop=chain)

def closed(make, **more):
    chain = None
    for _ in range({DEEP}):
        chain = make(user_data=chain, **more)
        chain.close()

def forgotten():
    chain = None
    for _ in range(2000):  # more would take a gigabyte of the kernel's memory
        chain = _core.QP(pd, c.QPType.RC, send_cq=_core.CQ(ctx, 1, user_data=chain))

def regions():
    chain = memory
    for _ in range(2000):
        chain = c.MR(pd, memoryview(chain))

kinds = {{
    "Wakeup": wakeups,
    "CQ": lambda: closed(lambda **a: _core.CQ(ctx, 1, **a)),
    "SRQ": lambda: closed(lambda **a: _core.SRQ(pd, 1, **a)),
    "QP": lambda: closed(lambda **a: _core.QP(pd, c.QPType.RC, send_cq=cq, **a)),
    "open": forgotten,
    "MR": regions,
}}
threading.stack_size({STACK})
thread = threading.Thread(target=kinds[sys.argv[1]])
thread.start()
thread.join()
ctx.close()
print("went")
"""


@pytest.mark.parametrize("kind", ["Wakeup", "CQ", "SRQ", "QP", "open", "MR"])
def test_a_long_chain_goes_without_much_stack(ctx: Context, kind: str) -> None:
    if kind == "open":
        need_room_for_queues(ctx)
    out = python("-W", "error", "-c", CHAIN, kind)
    assert (out.returncode, out.stdout, out.stderr) == (0, "went\n", "")


def test_everything_says_what_it_is(ctx: Context) -> None:
    w, name = World(ctx), ctx.name
    assert repr(ctx) == f"<Context {name}>"
    assert re.fullmatch(rf"<PD on {name}, handle \d+>", repr(w.pd))
    assert repr(PD(ctx)) != repr(w.pd)
    assert repr(w.channel) == f"<CompletionChannel on {name}>"
    assert repr(w.qp) == f"<QP {w.qp.qp_num} on {name}, RC, RTS>"
    assert repr(QP(w.pd, QPType.UD, send_cq=w.cq)).endswith(f" on {name}, UD, RESET>")
    rest = rf"{w.cq.cqe} entries, 0 unacked"
    assert re.fullmatch(rf"<CQ on {name}, handle \d+, {rest}>", repr(w.cq))
    assert repr(CQ(ctx, w.cq.cqe)) != repr(w.cq)
    with CQ(ctx, 1, name="in") as named, QP(w.pd, QPType.RC, send_cq=named) as qp:
        number = qp.qp_num
        assert repr(named).startswith(f"<CQ 'in' on {name}, handle ")
    assert (repr(named), repr(qp)) == ("<CQ 'in' closed>", f"<QP {number} closed>")
    assert repr(w.mr).startswith(f"<MR on {name}, 4096 bytes at 0x")
    assert "length=4" in repr(w.mr[0:4])
    w.srq.post_recv(w.mr[0:64])
    rest = rf"{w.srq.max_wr} receives, 1 outstanding"
    assert re.fullmatch(rf"<SRQ on {name}, handle \d+, {rest}>", repr(w.srq))
    assert repr(w.mw) == f"<MW on {name}, TYPE_2, rkey=0x{w.mw.rkey:x}>"
    assert repr(w.ah) == f"<AH on {name}, port 1 to {inet_ntop(AF_INET6, w.gid.gid.packed)}>"
