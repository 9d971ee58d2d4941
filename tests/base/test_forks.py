# SPDX-License-Identifier: MIT
"""Forked children, and what is hostile while somebody waits."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hostile_support import Bare, Bomb, alarm, at_next_collection, collecting_after, mute
from support import (
    DEADLINE,
    Endpoint,
    Overflow,
    Pair,
    address_of,
    connect,
    in_child,
    python,
    send,
    until,
    wait_completions,
)
from world import World

from cqnotify import (
    CQ,
    PD,
    QP,
    AsyncEventError,
    ClosedError,
    CompletionChannel,
    Context,
    FailureWatch,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCOpcode,
    _core,
)

# Forked children ---------------------------------------------------------------


def test_a_child_may_close_and_drop_in_any_order(ctx: Context) -> None:
    w = World(ctx)
    w.srq.post_recv(w.mr[0:64], wr_id=1)
    qp = QP(w.pd, QPType.RC, send_cq=w.cq, srq=w.srq)
    wr = SendWR(w.mr[0:8])

    def child() -> None:
        for post in (lambda: w.qp.post_send(wr), lambda: SendWR(w.mr), lambda: RecvWR(w.mr[0:8])):
            with pytest.raises(ClosedError, match="fork"):
                post()
        for thing in (w.pd, w.channel, w.cq, w.mw, w.mr, w.srq, w.ah, qp, w.qp, w.ctx):
            thing.close()
            assert thing.closed
            with pytest.raises(ClosedError, match="fork"):
                thing.__enter__()

    assert in_child(child) == 0
    w.qp.post_recv(w.mr[0:64])
    qp.connect(qp.address())
    for sender in (w.qp, qp):
        sender.post_send(w.mr[64:72])
        assert {wc.opcode for wc in wait_completions(w.cq, 2)} == {WCOpcode.SEND, WCOpcode.RECV}
    assert w.srq.outstanding == 0
    w.ah.close()


def test_a_child_does_not_call_what_its_parent_wants_called_at_the_close(ctx: Context) -> None:
    called: list[str] = []
    cq = CQ(ctx, 4)
    cq.add_close_callback(lambda: called.append("cq"))
    ctx.add_close_callback(lambda: called.append("ctx"))

    def child() -> None:
        cq.close()
        ctx.close()
        assert called == []

    assert in_child(child) == 0
    ctx.close()
    assert called == ["cq", "ctx"]


def test_a_child_opens_the_device_anew(ctx: Context, pair: Pair) -> None:
    name = ctx.name

    def child() -> None:
        with Context(name) as mine:
            x, y = connect(Endpoint(mine, QPType.RC), Endpoint(mine, QPType.RC))
            y.rcq.req_notify()
            send((x, y))
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
    out = python("-X", "dev", "-c", code)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


# ---- while somebody waits ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["get_async_event", "try_get_async_event"])
def test_the_collector_may_close_the_context_of_which_a_report_is_asked(
    ctx: Context, method: str
) -> None:
    with Context(ctx.name) as other:
        Bare(other).qp.modify(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=0)
        call = getattr(other, method)
        arguments = [0.05] if method == "get_async_event" else []
        with at_next_collection(other.close), contextlib.suppress(ClosedError, TimeoutError):
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
            told_of = [cq for _, cqs in watch.read() for cq in cqs]

            def wanted() -> list[CQ]:
                """But that which was closed before."""
                first, second = (world.a.scq for world in worlds)
                is_untold = bool(closed) and victim == "CQ" and first not in told_of
                return [second] if is_untold else [first, second]

            if sys.version_info < (3, 12):  # later ones collect after the call
                until_all_are_told(watch, told_of, wanted)
                assert in_any_order(told_of) == in_any_order(wanted())


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
        told_of = [event.cq for event, _ in told]
        until_all_are_told(watch, told_of, lambda: worlds)
        assert in_any_order(told_of) == in_any_order(world.a.scq for world in worlds)


def in_any_order(things: Iterable[Any]) -> list[Any]:
    return sorted(things, key=id)


def until_all_are_told(
    watch: FailureWatch, told_of: list[CQ], wanted: Callable[[], list[Any]]
) -> None:
    """The device reports one failure after the other, in its own time."""

    def all_told() -> bool:
        told_of.extend(cq for _, cqs in watch.read() for cq in cqs)
        return len(told_of) >= len(wanted())

    if len(told_of) < len(wanted()):
        until(all_told, "the device reports them all")


def failed_worlds(ctx: Context) -> list[Overflow]:
    """Two, of whose failures nobody has read yet. The device may report the second one first."""
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


def test_a_report_whose_object_has_a_hostile_repr_is_told_all_the_same(ctx: Context) -> None:
    class Taking(CQ):
        def __repr__(self) -> str:
            ctx.try_get_async_event()
            raise KeyError("mine")

    channel = CompletionChannel(ctx)
    world = Overflow(ctx, send_cq=Taking(ctx, 1, channel=channel))
    world.fill()
    world.send(1)
    with pytest.raises(AsyncEventError) as e:
        channel.get_event(timeout=DEADLINE)
    assert e.value.event.cq is world.a.scq
    with pytest.raises(KeyError, match="mine"):
        repr(e.value.event)


class Late:
    """Runs code while the attributes of its owner are dropped: in the midst of deallocation."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def __del__(self) -> None:
        self.action()


def test_an_object_in_the_midst_of_deallocation_is_not_handed_out(ctx: Context) -> None:
    with Context(ctx.name) as other:
        channel, seen = CompletionChannel(other), []
        cq = mute(CQ)(other, 16, channel=channel)
        end = Endpoint(other, QPType.RC, recv_cq=cq)
        end.connect(end.qp.address())
        cq.req_notify()
        send((end, end))
        until(cq.poll, "it arrives")
        until(lambda: bool(select.select([channel], [], [], 0)[0]), "the event")
        end.close()
        del end
        cq.late = Late(lambda: seen.append(channel.try_get_event()))
        del cq
        assert seen == [None]


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
    told = pytest.raises(ClosedError, match="this PD is closed")
    with alarm(lambda *_: closed.context), told:
        next(channel)


def test_the_collector_may_close_what_a_callback_is_added_to(ctx: Context) -> None:
    pd = PD(ctx)
    called: list[int] = []
    added = False
    with at_next_collection(pd.close), contextlib.suppress(ClosedError):
        pd.add_close_callback(lambda: called.append(1))
        added = True
    pd.close()
    assert bool(called) == added


# ---- forks at any moment --------------------------------------------------------------------

# In each of them another thread is in a library all the time, and the libraries have locks.
MEANWHILE = {
    "devices": "devices()",
    "Context": "Context().close()",
    "resolve": "blocking.resolve(HOST, timeout=30)",
}
FORKS = """
import os, sys, threading, warnings
from cqnotify import Context, cm, devices
from cqnotify.cm import blocking

warnings.simplefilter("ignore", DeprecationWarning)
with Context() as ctx:
    HOST = cm.local_addresses(ctx)[0]
over = threading.Event()
turns = 0

def work():
    global turns
    while not over.is_set():
        {meanwhile}
        turns += 1

thread = threading.Thread(target=work)
thread.start()
for i in range(25):
    before = turns
    while turns == before:
        pass
    pid = os.fork()
    if pid == 0:
        Context().close()
        devices()
        blocking.resolve(HOST, timeout=30)
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
over.set()
thread.join()
print("all", i + 1)
"""


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_child_can_use_the_libraries_whatever_another_thread_did_at_the_fork(
    meanwhile: str,
) -> None:
    ended = python("-c", FORKS.format(meanwhile=MEANWHILE[meanwhile]))
    assert ended.stdout == "all 25\n", ended


FIRST_USES = {
    "listen": "async with cm.listen(HOST, 0) as one: print(one.local[1] > 0)",
    "listen, then a Context": "async with cm.listen(HOST, 0) as one:\n"
    "  with Context(): pass\n"
    "  print(one.local[1] > 0)",
    "resolve": "print(bool(await cm.resolve(HOST)))",
    "messages": "async with messages.listen(HOST, 0) as one:\n"
    "  a, b = await asyncio.gather(messages.connect(*one.local), one.accept())\n"
    "  await a.send(b'')\n"
    "  print(len(await b.recv()) == 1)\n"
    "  a.abort(); b.abort()\n"
    "  await asyncio.gather(a.aclose(), b.aclose())",
    "blocking": "with blocking.listen(HOST, 0) as one:\n"
    "  with Context(): pass\n"
    "  print(one.local[1] > 0)",
}
IN_A_CHILD = """
import asyncio, os, sys
from cqnotify import Context, cm, messages
from cqnotify.cm import blocking

HOST = {host!r}

async def first():
    {use}

if {by_fork}:
    pid = os.fork()
    if pid == 0:
        asyncio.run(first())
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
else:
    os.urandom = bytes  # for which Linux 6.1 as a process waits, and nothing here needs it
    import multiprocessing

    one = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(first()))
    one.start()
    one.join()
    assert one.exitcode == 0
"""


@pytest.mark.parametrize("by_fork", [True, False], ids=["os.fork", "multiprocessing"])
@pytest.mark.parametrize("use", FIRST_USES)
def test_what_a_child_makes_is_its_own_whatever_it_makes_first(
    ctx: Context, use: str, by_fork: bool
) -> None:
    """Before it has opened a device."""
    body = FIRST_USES[use].replace("\n", "\n    ")
    ended = python("-c", IN_A_CHILD.format(host=address_of(ctx), use=body, by_fork=by_fork))
    assert ended.stdout == "True\n", ended
