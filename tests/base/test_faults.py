# SPDX-License-Identifier: MIT
"""Every call into libibverbs and the system, and every allocation, fails once.

After each failure: the exception is the documented one, no handle of the device and no file is
leaked, nothing that was there is lost, and everything still works and closes. Needs the debug build
(CQNOTIFY_DEBUG=faults), which ./lab test --asan and ./lab test --coverage make.
"""

from __future__ import annotations

import contextvars
import errno
import gc
import os
import select
import socket
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address
from typing import Any

import pytest
import support
from support import (
    DEADLINE,
    Waiter,
    device_fd,
    device_gone,
    take_all,
    until,
    wait_completions,
    waiting,
)

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    AsyncEventError,
    AsyncEventType,
    AtomicCap,
    BusyError,
    ClosedError,
    CompletionChannel,
    CompletionError,
    Context,
    DeviceRemovedError,
    FailureWatch,
    ForkStatus,
    QPState,
    QPType,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCArray,
    WCExFlags,
    WorkCompletion,
    WROpcode,
    _core,
    conformance,
    devices,
    fork_status,
)

GROUP = "ff15::c0:1"
PACKED_GROUP = IPv6Address(GROUP).packed
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

core: Any = _core  # the stub does not have what only the debug build has


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    core.fail_call(0)
    core.fail_alloc(0)
    core.hide_features()
    core.boast(False)
    core.pretend_fork(-2)


@pytest.fixture
def w(ctx: Context) -> Iterator[World]:
    world = World(ctx.name)
    yield world
    world.close()


class World(support.World):
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
    w.ctx.gid_table()
    w.ctx.try_get_async_event()
    with suppress(TimeoutError):
        w.ctx.get_async_event(timeout=0)
    assert w.watch.read() == []
    receive(w)
    answer(w)
    receive_shared(w)
    bind(w)
    until(lambda: any(event.srq is w.srq for event in take_all(w.ctx)), "the limit is reported")
    assert w.cq.safe_to_sleep()
    assert w.channel.try_get_event() is None
    with suppress(TimeoutError):
        w.channel.get_event(timeout=0)
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


def run(armed: Callable[[], None]) -> BaseException | None:
    """The script with a fault somewhere; what came of it. Everything is closed afterwards."""
    w = None
    try:
        armed()
        devices()
        w = World()
        script(w)
    except Exception as e:
        return e
    finally:
        core.fail_call(0)
        core.fail_alloc(0)
        if w is not None:
            w.close()
    return None


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


TOLERATED = {
    "ibv_start_poll": "the completions that came before it are handed out",
    "ibv_query_port": "the limit of a message is not learned, then",
    "ibv_modify_cq": "the script expects that it fails",
    "ibv_query_rt_values_ex": "the script expects that it fails",
}


EACH_CALL = {
    *("ibv_get_device_list", "ibv_open_device", "ibv_query_device", "ibv_query_port"),
    *("ibv_query_device_ex", "ibv_query_rt_values_ex", "ibv_query_pkey"),
    *("ibv_attach_mcast", "ibv_detach_mcast"),
    *("ibv_query_gid_ex", "ibv_query_gid_table"),
    *("ibv_alloc_pd", "ibv_create_comp_channel", "ibv_create_cq"),
    *("ibv_create_cq_ex", "ibv_reg_mr", "ibv_create_ah", "ibv_create_qp", "ibv_modify_qp"),
    "ibv_init_ah_from_wc",
    *("ibv_query_qp", "ibv_post_recv", "ibv_post_send", "ibv_req_notify_cq", "ibv_poll_cq"),
    *("ibv_post_recv when made", "ibv_post_send when made", "ibv_post_srq_recv when made"),
    *("ibv_alloc_mw", "ibv_bind_mw", "ibv_dealloc_mw"),
    *("ibv_start_poll", "ibv_get_cq_event", "ibv_get_async_event", "ibv_resize_cq"),
    *("ibv_modify_cq", "ibv_destroy_qp", "ibv_destroy_ah", "ibv_dereg_mr", "ibv_destroy_cq"),
    *("ibv_destroy_comp_channel", "ibv_dealloc_pd", "ibv_close_device"),
    *("ibv_create_srq", "ibv_modify_srq", "ibv_query_srq", "ibv_post_srq_recv"),
    *("ibv_destroy_srq",),
    *("eventfd", "epoll_create1", "epoll_ctl", "fcntl", "mmap", "ppoll"),
}


def fail_each_call(error: int, handles: int, files: object) -> set[str]:
    """The first call, then the second one, and so on; those that failed."""
    seen: set[str] = set()
    for n in range(1, 1000):
        exception = run(lambda n=n: core.fail_call(n, error))  # type: ignore[misc]
        call = core.failed()
        if exception is None and call is None:
            break
        seen.add(call)
        where = f"call {n}, {call}: {exception!r}"
        if exception is None:
            assert call in TOLERATED, where
        elif call == "mmap":
            assert isinstance(exception, MemoryError), where
        elif call.startswith("ibv_"):
            assert isinstance(exception, VerbsError), where
            assert call.startswith(exception.verb), where
            assert exception.errno == (errno.EPROTO if call == "ibv_poll_cq" else error), where
            assert isinstance(exception, DeviceRemovedError) == (exception.errno == errno.EIO)
        else:
            assert isinstance(exception, OSError), where
            assert exception.errno == error, where
        del exception
        gc.collect()
        assert core.live_handles() == handles, where
        assert open_files() == files, where
    return seen


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO])
def test_each_call_fails_once(ctx: Context, error: int) -> None:
    """How often a run polls before something arrives differs, and so does which call is the n-th:
    one that a pass has left out comes in another."""
    run(lambda: None)
    handles, files = core.live_handles(), open_files()
    seen: set[str] = set()
    for _ in range(3):
        seen |= fail_each_call(error, handles, files)
        assert run(lambda: None) is None
        if seen >= EACH_CALL:
            break
    assert EACH_CALL - seen == set()


# ---- allocations -------------------------------------------------------------------------

Setup = Callable[[World], Any]
Call = Callable[[World, Any], Any]


def arrived(w: World) -> None:
    """A message is in both CQs, its events are read; nothing was polled since."""
    drain(w)
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.qp.post_send(w.mr[64:72], wr_id=2)
    wcs = WCArray(1)
    until(lambda: w.cq.poll_into(wcs) == 1, "sent")
    assert w.channel.get_event(timeout=DEADLINE) is w.ex
    w.ex.ack(w.ex.unacked)


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
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.qp.post_send(w.mr[64:72], wr_id=2)
    wcs = WCArray(1)
    until(lambda: w.cq.poll_into(wcs) == 1, "sent")


class Loop:
    """What a Wakeup asks of an event loop."""

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: object, context: Any) -> None:
        assert isinstance(callback, core.Wakeup)


LOOP: Any = Loop()
CONTEXT = contextvars.copy_context()


def asleep() -> Any:
    wakeup = core.Wakeup(LOOP)
    wakeup.add_done_callback(repr, context=CONTEXT)
    return wakeup


def report_pending(w: World) -> None:
    w.qp.modify(qp_state=QPState.ERR)  # rxe refuses the way from SQD to RESET while that drains
    w.qp.modify(qp_state=QPState.RESET)
    w.qp.connect(w.qp.address())
    w.qp.modify(qp_state=QPState.SQD)


def failures_pending(w: World) -> None:
    """One was taken by get_async_event(), and one is unread."""
    while w.ctx.try_get_async_event() is not None:
        pass
    inject(w, AsyncEventType.QP_FATAL, w.qp)
    core.inject_event(AsyncEventType.PORT_ERR, 1)


def flushed(w: World) -> None:
    w.qp.modify(qp_state=QPState.RESET)
    drain(w)
    w.qp.connect(w.qp.address())
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.qp.modify(qp_state=QPState.ERR)


def expect(error: type[Exception], call: Callable[[], Any]) -> None:
    """A refusal is made of objects, too."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} did not come")


def nothing(_: World) -> None:
    pass


def shared_drained(w: World) -> None:
    """Nothing is posted. A new one, since nothing else takes the receives of the old one."""
    w.sqp.close()
    w.srq.close()
    w.srq = SRQ(w.pd, 8)
    w.sqp = QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=w.ex, srq=w.srq)


def closes(call: Callable[[World], Any]) -> Call:
    return lambda w, _: call(w).close()


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


def overfill(w: World) -> None:
    """What comes of it is made of objects, too."""
    try:
        w.qp.post_recv([w.recv_wr] * 100)
    except VerbsError as e:
        if e.bad_wr is not w.recv_wr:
            raise AssertionError(f"{e.bad_wr} was refused") from e


def raised(w: World) -> CompletionError:
    for _ in range(100_000):  # it is flushed soon
        try:
            w.ex.poll_ids()
        except CompletionError as e:
            return e
    raise AssertionError("the failed one does not come")


def first_poll(w: World, spin: float = 0.0) -> None:
    """It makes the room for completions."""
    with CQ(w.ctx, 4) as cq:
        cq.poll(spin=spin)


def refuse_everything(w: World) -> None:
    expect(ValueError, lambda: CQ(w.ctx, 0))
    expect(TypeError, lambda: w.cq.poll(n=1))  # type: ignore[call-arg]
    expect(ValueError, lambda: w.cq.ack(1000))
    expect(OSError, w.pd.close)
    expect(LookupError, lambda: w.ctx.find_gid("9.9.9.9"))
    expect(OSError, lambda: Context("nonsense"))
    expect(TypeError, lambda: w.qp.modify(nonsense=1))
    expect(ValueError, lambda: w.qp.post_send(w.mr[0:8], opcode=99))
    expect(ValueError, lambda: w.qp.post_recv([w.recv_wr, RecvWR([w.mr] * 64)]))
    expect(TypeError, lambda: w.qp.post_send([w.recv_wr]))  # type: ignore[call-overload]


def datagrams(w: World) -> None:
    if not w.made:
        w.made.append(QP(w.pd, QPType.UD, send_cq=w.cq))


def join_and_leave(w: World) -> None:
    w.made[0].attach_mcast(PACKED_GROUP, lid=0)
    w.made[0].detach_mcast(PACKED_GROUP)


def implicit_mr(w: World) -> None:
    with MR.implicit(w.pd) as whole, whole.over(bytearray(64)) as part:
        repr(whole), part[:]


NEED_NO_MEMORY = {"safe_to_sleep", "poll_into", "get_event", "try_get_event"}
ROOM = WCArray(2)
CASES: dict[str, tuple[Setup, Call]] = {
    "devices": (nothing, lambda w, _: devices()),
    "Context": (nothing, closes(lambda w: Context())),
    "PD": (nothing, closes(lambda w: PD(w.ctx))),
    "CompletionChannel": (nothing, closes(lambda w: CompletionChannel(w.ctx))),
    "FailureWatch": (nothing, closes(lambda w: FailureWatch(w.ctx))),
    "CQ": (nothing, closes(lambda w: CQ(w.ctx, 4, channel=w.channel))),
    "extended CQ": (nothing, closes(lambda w: CQ(w.ctx, 4, wc_flags=WCExFlags(3)))),
    "MR": (nothing, closes(lambda w: MR(w.pd, 64))),
    "MR of a buffer": (nothing, closes(lambda w: MR(w.pd, bytearray(64)))),
    "AH": (nothing, closes(lambda w: AH(w.pd, dgid=w.ctx.find_gid().gid))),  # type: ignore[arg-type]
    "QP": (nothing, closes(World.new_qp)),
    "MW": (nothing, closes(lambda w: MW(w.pd))),
    "SendWR": (nothing, lambda w, _: SendWR([w.mr[0:8], w.mr])),
    "RecvWR": (nothing, lambda w, _: RecvWR(w.mr)),
    "list of receives": (emptied, lambda w, _: w.qp.post_recv([w.recv_wr] * 20)),
    "list of sends": (emptied, lambda w, _: w.qp.post_send([SendWR()] * 20)),
    "full queue": (emptied, lambda w, _: overfill(w)),
    "bind_mw": (emptied, lambda w, _: w.qp.bind_mw(w.mw1, w.mr[0:0])),
    "SRQ": (nothing, closes(lambda w: SRQ(w.pd, 4, srq_limit=1))),
    "QP with an SRQ": (nothing, closes(lambda w: QP(w.pd, QPType.RC, send_cq=w.cq, srq=w.srq))),
    "SRQ.post_recv": (shared_drained, lambda w, _: w.srq.post_recv(w.mr, wr_id=7)),
    "SRQ.query": (nothing, lambda w, _: w.srq.query()),
    "WCArray": (nothing, lambda w, _: WCArray(4)),
    "query": (nothing, lambda w, _: [w.ctx.query_device(), w.ctx.query_port(), w.qp.query()]),
    "query_device_ex": (nothing, lambda w, _: _core.Context.query_device_ex(w.ctx)),
    "query_pkey": (nothing, lambda w, _: w.ctx.query_pkey(0)),
    "gid_table": (nothing, lambda w, _: w.ctx.gid_table()),
    "multicast": (datagrams, lambda w, _: join_and_leave(w)),
    "implicit MR": (lambda _: core.boast(True), lambda w, _: implicit_mr(w)),
    "memory": (nothing, lambda w, _: [w.mr[0:8], w.mr.read(4), memoryview(w.mr)]),
    "repr": (nothing, lambda w, _: [repr(x) for x in (w.ctx, w.cq, w.qp, w.mr, w.mr[0:8])]),
    "first poll of a CQ": (nothing, lambda w, _: first_poll(w)),
    "first spin of a CQ": (nothing, lambda w, _: first_poll(w, spin=1e-6)),
    "stats": (nothing, lambda w, _: w.cq.stats),
    "refusals": (nothing, lambda w, _: refuse_everything(w)),
    "poll": (arrived, lambda w, _: one(w.ex.poll())),
    "poll, ready to spin": (arrived, lambda w, _: one(w.ex.poll(spin=DEADLINE))),
    "poll_ids": (arrived, lambda w, _: one(w.ex.poll_ids())),
    "poll_into": (arrived, lambda w, _: w.ex.poll_into(ROOM) == 1 or one([])),
    "poll_ids of a failure": (flushed, lambda w, _: raised(w)),
    "safe_to_sleep": (drain, lambda w, _: w.cq.safe_to_sleep()),
    "Wakeup.wake": (nothing, lambda _w, _: asleep().wake()),
    "Wakeup.cancel": (nothing, lambda _w, _: asleep().cancel()),
    "Wakeup, called": (nothing, lambda _w, _: asleep()()),
    "get_event": (event_pending, lambda w, _: w.channel.get_event(DEADLINE)),
    "try_get_event": (event_pending, lambda w, _: w.channel.try_get_event()),  # type: ignore[union-attr]
    "FailureWatch.read": (failures_pending, lambda w, _: told(w, w.watch.read())),
    "open_objects": (nothing, lambda w, _: _core.open_objects(w.ctx)),
    "known_async_events": (failures_pending, lambda w, _: _core.known_async_events(w.ctx)),
    "get_async_event": (report_pending, lambda w, _: w.ctx.get_async_event(timeout=DEADLINE)),
}


def close_callbacks(w: World, _: Any) -> None:
    pd = PD(w.ctx)
    try:
        for _ in range(3):
            pd.add_close_callback(close_callbacks_seen.clear)
        pd.remove_close_callback(close_callbacks_seen.clear)
    finally:
        core.fail_alloc(0) if core.failed() else None
        pd.close()


close_callbacks_seen: list[int] = []
CASES["close callbacks"] = (nothing, close_callbacks)


@pytest.mark.parametrize("name", CASES)
def test_each_allocation_fails_once(w: World, name: str) -> None:
    setup, call = CASES[name]
    # Python itself may have no memory for the instance, or the frame, of an exception that we
    # raised; then its own comes in the place of ours.
    starved = (MemoryError, SystemError) if name == "refusals" else MemoryError
    setup(w)
    call(w, None)  # what is made once only is made now
    gc.collect()
    handles, files = core.live_handles(), open_files()
    failures = []
    for n in range(1, 3000):
        setup(w)
        completions = w.ex.stats.completions
        try:
            core.fail_alloc(n)
            call(w, None)
        except starved:
            core.fail_alloc(0)
            failures.append(n)
            delivered = w.ex.stats.completions > completions
        else:
            failed = core.failed()
            core.fail_alloc(0)
            if failed is None:
                break
            continue
        gc.collect()
        assert core.live_handles() == handles, n
        assert open_files() == files, n
        if not (delivered and name == "poll_ids of a failure"):
            call(w, None)  # the next one finds everything: nothing was lost
    else:
        pytest.fail("it never came to an end")
    assert bool(failures) == (name not in NEED_NO_MEMORY)


# ---- particular failures -----------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["pd", "channel", "cq", "ex", "mr", "foreign", "srq", "sqp", "qp", "ah", "mw", "ctx"],
)
def test_what_cannot_be_destroyed_stays_open_and_usable(w: World, kind: str) -> None:
    drain(w)
    thing = getattr(w, kind)
    qps = ("sqp", "srq", "qp")
    for name in (*qps, "mw1", "mw", "ah", "foreign", "mr", "ex", "cq", "channel", "pd", "ctx"):
        if name == kind:
            break
        getattr(w, name).close()
    core.fail_call(1, errno.EINVAL)
    with pytest.raises(VerbsError, match=f"this {type(thing).__name__} stays open") as e:
        thing.close()
    assert e.value.errno == errno.EINVAL
    assert core.failed() == e.value.verb
    assert not thing.closed
    if kind == "qp":
        receive(w)
    if kind == "sqp":
        receive_shared(w)
    thing.close()
    assert thing.closed


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize("n", [1, 5])
def test_what_a_device_keeps_that_it_says_failed_stays_alive(w: World, kind: str, n: int) -> None:
    """rxe does so where only the last step of a post fails, and may send it later."""
    emptied(w)
    mr = MR(w.pd, 64)
    wrs: Any = [SendWR(mr[0:8]) if kind == "send" else RecvWR(mr[0:8]) for _ in range(n)]
    post: Any = w.qp.post_send if kind == "send" else w.qp.post_recv
    core.fail_call(2, errno.EINVAL)
    with pytest.raises(VerbsError, match="it may still be carried out") as e:
        post(wrs if n > 1 else wrs[0])
    assert core.failed() == f"ibv_post_{kind} when made"
    assert (e.value.posted, e.value.bad_wr) == (n, None)
    assert sum(w.qp.outstanding) == n
    with pytest.raises(VerbsError, match=f"needed by {n} work request"):
        mr.close()
    w.qp.modify(qp_state=QPState.RESET)
    mr.close()


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_list_is_one_call(w: World, kind: str) -> None:
    emptied(w)
    wrs: Any = [SendWR() if kind == "send" else RecvWR() for _ in range(10)]
    post: Any = w.qp.post_send if kind == "send" else w.qp.post_recv
    core.fail_call(3, errno.EINVAL)  # each call is asked for twice: before it, and when made
    post(wrs)
    assert core.failed() is None
    with pytest.raises(VerbsError) as e:
        post(wrs[3])
    assert core.failed() == f"ibv_post_{kind}"
    assert (e.value.posted, e.value.bad_wr) == (0, wrs[3])
    assert sum(w.qp.outstanding) == 10


@pytest.mark.parametrize("kind", ["send", "recv", "srq"])
def test_an_error_that_a_provider_returns_negated_is_that_error(w: World, kind: str) -> None:
    """As libsiw does."""
    posts: dict[str, Callable[[], None]] = {
        "send": lambda: w.qp.post_send(w.mr[0:8]),
        "recv": lambda: w.qp.post_recv(w.mr),
        "srq": lambda: w.srq.post_recv(w.mr),
    }
    core.fail_call(1, -errno.ENOMEM)
    with pytest.raises(VerbsError, match="is full") as e:
        posts[kind]()
    assert e.value.errno == errno.ENOMEM
    core.fail_call(1, -errno.EOPNOTSUPP)
    with pytest.raises(VerbsError, match="not supported by this device") as e:
        w.cq.resize(32)
    assert e.value.errno == errno.EOPNOTSUPP


def finish(w: World) -> dict[int, int]:
    """The wr_ids of what completed last on the two CQs, until nothing is in flight."""
    got: dict[int, int] = {}

    def is_over() -> bool:
        for cq in (w.cq, w.ex):
            for wr_id in cq.poll_ids():
                got[wr_id] = got.get(wr_id, 0) + 1
        return (w.qp.outstanding, w.sqp.outstanding, w.srq.outstanding) == ((0, 0), (0, 0), 0)

    until(is_over, "all completions")
    return got


@pytest.mark.parametrize("n", [1, 3])
def test_what_was_refused_is_none_of_what_is_posted_next(w: World, n: int) -> None:
    emptied(w)
    for post in (w.qp.post_recv, w.srq.post_recv, w.qp.post_send):
        make: Any = SendWR if post == w.qp.post_send else RecvWR
        refused = [make(w.mr[0:8], wr_id=90) for _ in range(n)]
        core.fail_call(1, errno.ENOMEM)
        with pytest.raises(VerbsError) as e:
            post(refused if n > 1 else refused[0])
        assert (e.value.posted, e.value.bad_wr) == (0, refused[0])
    assert (w.qp.outstanding, w.srq.outstanding) == ((0, 0), 0)
    for wr_id in (1, 2):
        w.qp.post_recv(w.mr[0:8], wr_id=wr_id)
        w.srq.post_recv(w.mr[0:8], wr_id=wr_id + 2)
    for wr_id in (5, 6):
        w.qp.post_send(w.mr[8:16], wr_id=wr_id)
        w.sqp.post_send(w.mr[8:16], wr_id=wr_id + 2)
    assert finish(w) == dict.fromkeys(range(1, 9), 1)


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_what_completed_keeps_its_wr_id_where_a_cq_can_not_be_polled_at_the_end(
    w: World, end: str, n: int
) -> None:
    emptied(w)
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1 << 63)
    w.qp.post_send(w.mr[64:72], wr_id=1 << 62)
    assert w.channel.get_event(timeout=DEADLINE) is w.ex
    w.ex.ack()
    w.qp.post_recv(w.mr[0:64], wr_id=3)  # it will not complete
    core.fail_call(n + (end == "close"), errno.EIO)  # those before end it, the others poll
    w.qp.close() if end == "close" else w.qp.modify(qp_state=QPState.RESET)
    assert core.failed() in ("ibv_poll_cq", "ibv_start_poll", None)
    core.fail_call(0)
    expected = {1 << 63}
    if end == "reset":
        assert w.qp.outstanding == (0, 0)
        w.qp.connect(w.qp.address(), rnr_retry=7)
        w.qp.post_recv(w.mr[0:64], wr_id=5)
        w.qp.post_send(w.mr[64:72], wr_id=6)
        expected |= {5, 6}
    got: set[int] = set()

    def all_came() -> bool:
        got.update(w.ex.poll_ids(), w.cq.poll_ids())
        return expected <= got

    until(all_came, "completions")
    assert got <= {*expected, 1 << 62}  # some kernels complete a send later than its message
    assert end == "close" or w.qp.outstanding == (0, 0)
    w.mr.close()


def test_a_bind_that_is_refused_leaves_everything_as_it_was(w: World) -> None:
    for mw in (w.mw1, w.mw):
        rkey = mw.rkey
        core.fail_call(1, errno.EINVAL)
        with pytest.raises(VerbsError) as e:
            w.qp.bind_mw(mw, w.mr[0:64], access=AccessFlags.REMOTE_READ)
        assert core.failed() == e.value.verb
        assert (mw.rkey, w.qp.outstanding) == (rkey, (0, 0))
    bind(w)
    core.fail_call(1, errno.EOPNOTSUPP)
    with pytest.raises(VerbsError, match=f"of type 1 are not supported by {w.ctx.name}"):
        MW(w.pd)
    core.fail_call(1, errno.ENOMEM)
    with pytest.raises(VerbsError, match=f"of type 1: {w.ctx.name} has at most"):
        MW(w.pd)


def test_a_failure_while_a_context_closes_leaves_it_open_and_can_be_repeated(ctx: Context) -> None:
    for n in range(1, 10):
        w = World(ctx.name)
        w.sqp.close()  # that would poll its CQ as well
        core.fail_call(n, errno.EINVAL)
        with pytest.raises(VerbsError, match="stays open"):
            w.ctx.close()
        assert not w.ctx.closed
        w.ctx.close()
        assert w.ctx.closed


def test_what_cannot_be_destroyed_when_forgotten_is_reported(ctx: Context) -> None:
    """It is tried twice, by the finalizer and at last; then it is leaked, but nothing crashes."""
    pd = PD(ctx)
    reports: list[type[BaseException]] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda u: reports.append(u.exc_type)
    try:
        mr = MR(pd, 64)
        core.fail_call(1)
        del mr
    finally:
        sys.unraisablehook = hook
    assert reports == [VerbsError]
    pd.close()  # the second try did it


def test_an_event_that_is_read_while_its_cq_is_destroyed_in_vain_is_not_lost(w: World) -> None:
    event_pending(w)
    w.ex.poll()
    for qp in (w.qp, w.sqp):
        qp.close()
    core.fail_call(1, errno.EINVAL, True)
    closer = Waiter(w.ex.close)
    until(lambda: core.failed() == "ibv_destroy_cq", "the destroying has begun")
    assert w.channel.try_get_event() is None  # acked at once: the destroying would wait for it
    waiter = Waiter(lambda: w.channel.get_event(DEADLINE)).asleep()
    core.fail_call(0)
    with pytest.raises(VerbsError, match="this CQ stays open"):
        closer.join()
    assert waiter.join() is w.ex
    assert w.ex.unacked == 1
    w.ex.ack()
    with pytest.raises(ValueError, match="0 unacked"):
        w.ex.ack()
    # The same once more, and now it is closed with the late event not yet handed out.
    w.qp = w.new_qp()
    w.qp.connect(w.qp.address())
    event_pending(w)
    w.qp.close()
    core.fail_call(1, errno.EINVAL, True)
    closer = Waiter(w.ex.close)
    until(lambda: core.failed() == "ibv_destroy_cq", "the destroying has begun")
    assert w.channel.try_get_event() is None
    core.fail_call(0)
    with pytest.raises(VerbsError):
        closer.join()
    w.ex.close()
    assert w.channel.try_get_event() is None
    stats = w.ex.stats
    assert stats.events == stats.acked


def test_a_wait_goes_on_after_a_signal_that_the_kernel_reports(w: World) -> None:
    for first in ("ibv_get_cq_event", "ppoll"):  # who had to sleep does so at once the next time
        core.fail_call(1, errno.EINTR)
        with pytest.raises(TimeoutError):
            w.channel.get_event(timeout=0.01)
        assert core.failed() == first
    core.fail_call(1, errno.EINTR)
    assert w.ctx.try_get_async_event() is None
    assert core.failed() == "ibv_get_async_event"


def test_a_second_waiter_without_a_descriptor_fails_and_leaves_the_first_alone(w: World) -> None:
    first = Waiter(lambda: w.channel.get_event(timeout=DEADLINE)).asleep()
    for n in (1, 2):  # some waits look before they sleep
        core.fail_call(n, errno.EMFILE)
        with pytest.raises(OSError, match="Too many open files"):
            w.channel.get_event(timeout=DEADLINE)
        if core.failed() == "eventfd":
            break
    assert core.failed() == "eventfd"
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    w.qp.post_send(w.mr[64:72], wr_id=2)
    assert first.join() is w.ex
    drain(w)


def test_a_device_that_breaks_is_reported_to_who_polls_after_what_came(w: World) -> None:
    arrived(w)
    w.ex.resize(64)
    core.fail_call(2, errno.EIO)
    assert len(w.ex.poll()) == 1  # first what there is
    core.fail_call(1, errno.EIO)
    with pytest.raises(DeviceRemovedError, match="can't be polled"):
        w.ex.poll()
    assert w.ex.poll() == []


@pytest.mark.parametrize("reused", [True, False])
def test_a_completion_is_whole_or_there_is_none(w: World, reused: bool) -> None:
    """Also in the memory of one that is gone, which there is unless many are kept."""
    wcs = WCArray(2)
    for length in (1000, 2000):  # Python has no ints of these at hand
        w.qp.post_recv(w.mr[0:2048], wr_id=2**40 + length)
        w.qp.post_send(w.mr[2048 : 2048 + length])
    wait_completions(w.cq, 2)
    assert w.ex.poll_into(wcs) == 2
    held = [wcs[0] for _ in range(600)]
    starved = 0
    while True:
        held.append(wcs[0])
        if reused:
            held.pop()
        try:
            core.fail_alloc(starved + 1)
            wc = wcs[1]
        except MemoryError:
            core.fail_alloc(0)
        else:
            core.fail_alloc(0)
            break
        starved += 1
    assert (wc.wr_id, wc.byte_len, wc.ok) == (2**40 + 2000, 2000, True)
    assert starved == (2 if reused and not FREE_THREADED else 3)  # two ints, and itself
    assert {(wc.wr_id, wc.byte_len) for wc in held} == {(2**40 + 1000, 1000)}


@pytest.mark.parametrize("extended", [False, True])
def test_what_comes_while_one_spins_is_not_lost_to_a_lack_of_memory(
    w: World, extended: bool
) -> None:
    failures = 0
    for n in range(1, 100):
        cq = CQ(w.ctx, 16, wc_flags=WCExFlags(0x7F) if extended else None)
        qp = QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=cq)
        qp.connect(qp.address())
        qp.post_recv(w.mr[0:64], wr_id=n)
        seen: list[Any] = []

        def starving(n: int = n, cq: CQ = cq, seen: list[Any] = seen) -> list[Any]:
            core.fail_alloc(n)
            try:
                return cq.poll(spin=DEADLINE)
            finally:
                core.fail_alloc(0)
                seen.append(core.failed())

        waiter = Waiter(starving)
        until(lambda cq=cq, seen=seen: cq.stats.polls > 0 or bool(seen), "it spins")  # type: ignore[misc]
        qp.post_send(w.mr[64:72])
        try:
            got = waiter.join()
        except MemoryError:
            failures += 1
            assert seen[0] is not None
            got = cq.poll(spin=DEADLINE)
        assert [wc.wr_id for wc in got] == [n]
        assert qp.outstanding[1] == 0
        qp.close()
        cq.close()
        drain(w)
        if seen == [None]:
            break
    assert failures > 0
    assert seen == [None]


def test_a_device_that_breaks_ends_the_spin(w: World) -> None:
    drain(w)
    for cq, error in ((w.cq, errno.EPROTO), (w.ex, errno.EIO)):
        core.fail_call(20, errno.EIO)  # the first look finds nothing, and nothing is wrong
        with pytest.raises(VerbsError, match="can't be polled") as e:
            cq.poll(spin=DEADLINE)
        assert e.value.errno == error
        assert cq.poll(spin=1e-6) == []


def test_the_report_of_a_queue_pair_is_not_lost_to_a_lack_of_memory(w: World) -> None:
    report_pending(w)
    with pytest.raises(MemoryError):
        core.fail_alloc(1)
        w.ctx.try_get_async_event()
    core.fail_alloc(0)
    assert w.ctx.get_async_event(timeout=DEADLINE).event_type is AsyncEventType.SQ_DRAINED


def test_closed_is_closed_even_if_there_is_no_memory_to_say_so(w: World) -> None:
    w.close()
    with pytest.raises((ClosedError, MemoryError)):
        core.fail_alloc(1)
        w.cq.poll()


@pytest.mark.parametrize("call", ["ibv_poll_cq", "ibv_req_notify_cq"])
@pytest.mark.parametrize("use", ["arm and poll", "safe_to_sleep"])
def test_a_completion_that_comes_between_the_poll_and_the_arm_is_not_missed(
    w: World, call: str, use: str
) -> None:
    cq = w.cq
    w.qp.post_recv(w.mr[0:64])
    drain(w)

    def race() -> None:
        w.qp.post_send(w.mr[64:72], wr_id=5)
        until(lambda: bool(w.ex.poll()), "received")  # so it is in the sender's CQ as well

    core.before_call(call, race)
    if use == "safe_to_sleep":
        assert not cq.safe_to_sleep()
        got = cq.poll_ids()
    else:
        got = cq.poll_ids()
        cq.req_notify()
        got += cq.poll_ids()
    assert got == [5]
    assert cq.safe_to_sleep()
    assert cq.stats.arms == 1


# ---- reports that rxe never makes --------------------------------------------------------

FAILURES = {
    AsyncEventType.CQ_ERR: "cq",
    AsyncEventType.QP_FATAL: "qp",
    AsyncEventType.QP_REQ_ERR: "qp",
    AsyncEventType.QP_ACCESS_ERR: "qp",
    AsyncEventType.PATH_MIG_ERR: "qp",
    AsyncEventType.SRQ_ERR: "srq",
    AsyncEventType.PORT_ERR: "port",
    AsyncEventType.DEVICE_FATAL: "device",
}
UNSUPPORTED = {AsyncEventType.WQ_FATAL}
NEWS = {
    AsyncEventType.COMM_EST: "qp",
    AsyncEventType.SQ_DRAINED: "qp",
    AsyncEventType.PATH_MIG: "qp",
    AsyncEventType.QP_LAST_WQE_REACHED: "qp",
    AsyncEventType.SRQ_LIMIT_REACHED: "srq",
    AsyncEventType.PORT_ACTIVE: "port",
    AsyncEventType.LID_CHANGE: "port",
    AsyncEventType.PKEY_CHANGE: "port",
    AsyncEventType.SM_CHANGE: "port",
    AsyncEventType.CLIENT_REREGISTER: "port",
    AsyncEventType.GID_CHANGE: "port",
}


def element_of(w: World, kind: str) -> Any:
    return {"cq": w.cq, "qp": w.qp, "srq": w.srq, "port": 1, "device": None}[kind]


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


@pytest.mark.parametrize("event_type", FAILURES, ids=lambda t: t.name)
def test_each_failure_ends_the_waits_that_it_concerns_and_no_others(
    w: World, event_type: AsyncEventType
) -> None:
    idle = CompletionChannel(w.ctx)
    CQ(w.ctx, 4, channel=idle)
    with waiting(w.channel.get_event) as concerned, waiting(idle.get_event) as other:
        inject(w, event_type, element_of(w, FAILURES[event_type]))
        if event_type != AsyncEventType.DEVICE_FATAL:
            idle.interrupt()
    with pytest.raises(AsyncEventError) as e:
        concerned.join()
    assert e.value.event.event_type is event_type
    with pytest.raises(
        AsyncEventError if event_type == AsyncEventType.DEVICE_FATAL else InterruptedError
    ):
        other.join()
    with pytest.raises(TimeoutError):  # who was told once goes on
        w.channel.get_event(timeout=0)


@pytest.mark.parametrize("event_type", NEWS, ids=lambda t: t.name)
def test_news_that_are_no_failure_leave_waiters_alone(w: World, event_type: AsyncEventType) -> None:
    with waiting(w.channel.get_event) as waiter:
        inject(w, event_type, element_of(w, NEWS[event_type]))
        w.channel.interrupt()
    with pytest.raises(InterruptedError):
        waiter.join()


@pytest.mark.parametrize("event_type", FAILURES, ids=lambda t: t.name)
def test_a_watch_tells_each_failure_with_the_cqs_that_it_concerns(
    w: World, event_type: AsyncEventType
) -> None:
    idle = CQ(w.ctx, 4)
    QP(w.pd, QPType.RC, send_cq=idle)  # on no port yet
    kind = FAILURES[event_type]
    for _ in range(2):
        core.inject_event(event_type, element_of(w, kind))
        ((event, cqs),) = w.watch.read()
        assert event.event_type is event_type
        assert event.cq is (w.cq if kind == "cq" else None)
        assert event.qp is (w.qp if kind == "qp" else None)
        assert event.srq is (w.srq if kind == "srq" else None)
        assert event.port_num == (1 if kind == "port" else None)
        assert cqs == {"cq": [w.cq], "srq": [w.ex], "device": None}.get(kind, [w.cq, w.ex])
        assert w.watch.read() == []
        queued = w.ctx.try_get_async_event()
        assert queued is not None
        assert queued.event_type is event_type


def test_a_port_without_queue_pairs_concerns_no_cq(w: World) -> None:
    core.inject_event(AsyncEventType.PORT_ERR, 2)
    ((event, cqs),) = w.watch.read()
    assert (event.port_num, cqs) == (2, [])


def test_a_cq_for_both_directions_is_named_once(w: World) -> None:
    qp = QP(w.pd, QPType.RC, send_cq=w.ex)
    core.inject_event(AsyncEventType.QP_FATAL, qp)
    assert [cqs for _, cqs in w.watch.read()] == [[w.ex]]


@pytest.mark.parametrize("event_type", NEWS, ids=lambda t: t.name)
def test_a_watch_does_not_tell_news(w: World, event_type: AsyncEventType) -> None:
    core.inject_event(event_type, element_of(w, NEWS[event_type]))
    assert w.watch.read() == []
    event = w.ctx.try_get_async_event()
    assert event is not None
    assert event.event_type is event_type


def test_a_failure_is_told_to_a_watch_in_spite_of_a_lack_of_memory(w: World) -> None:
    """Whatever it is that can't be made: the descriptor stays readable, and nothing is lost."""
    readable = select.poll()
    readable.register(w.watch, select.POLLIN)
    starved = 0
    while True:
        failures_pending(w)
        assert readable.poll(0)
        try:
            core.fail_alloc(starved + 1)
            w.watch.read()
        except MemoryError:
            core.fail_alloc(0)
        else:
            core.fail_alloc(0)
            break
        assert core.failed() == "allocation"
        assert readable.poll(0)
        told(w, w.watch.read())
        assert not readable.poll(0)
        starved += 1
    assert starved > 5


def test_a_watch_tells_what_came_before_the_device_went(w: World) -> None:
    core.inject_event(AsyncEventType.DEVICE_FATAL, None)
    core.fail_call(2, errno.EIO)
    ((event, cqs),) = w.watch.read()
    assert (event.event_type, cqs) == (AsyncEventType.DEVICE_FATAL, None)
    core.fail_call(1, errno.EIO)
    with pytest.raises(DeviceRemovedError, match="no more events will come"):
        w.watch.read()


def test_a_device_that_has_gone_but_says_only_that_nothing_came_is_seen_to_have_gone(
    w: World,
) -> None:
    with device_gone(w.ctx), socket.socket() as unconnected:
        os.dup2(unconnected.fileno(), device_fd(w.ctx), inheritable=False)  # POLLHUP alone
        core.fail_call(1, errno.EAGAIN)
        with pytest.raises(DeviceRemovedError, match="no more events will come"):
            w.watch.read()
        assert core.failed() == "ibv_get_async_event"


def test_every_type_of_event_is_known() -> None:
    assert set(AsyncEventType) == {*FAILURES, *NEWS, *UNSUPPORTED}


def test_an_unknown_type_of_event_is_handed_out_as_a_number(w: World) -> None:
    core.inject_event(77, None)
    event = w.ctx.try_get_async_event()
    assert event is not None
    assert event.event_type == 77
    assert repr(event) == "<AsyncEvent 77>"


def test_a_failure_is_told_even_to_who_found_an_event_at_the_same_moment(w: World) -> None:
    w.ex.req_notify()
    w.qp.post_recv(w.mr[0:64], wr_id=1)
    seen: list[object] = []

    def loop() -> None:
        for cq in w.channel:
            seen.append(cq)
            cq.ack()

    old = sys.getswitchinterval()
    with waiting(loop) as waiter:
        sys.setswitchinterval(DEADLINE)  # the waiter runs only after both have happened
        try:
            w.qp.post_send(w.mr[64:72])
            wcs = WCArray(1)
            until(lambda: w.ex.poll_into(wcs) == 1, "received")
            inject(w, AsyncEventType.QP_FATAL, w.qp)
        finally:
            sys.setswitchinterval(old)
    with pytest.raises(AsyncEventError):
        waiter.join()
    assert seen in ([w.ex], [])


# ---- a device that can do less ---------------------------------------------------------------


def test_a_device_without_atomics_refuses_them_in_words(ctx: Context) -> None:
    core.hide_features("atomics")
    w = World(ctx.name)
    try:
        assert w.ctx.query_device().atomic_cap is AtomicCap.NONE
        far: dict[str, Any] = {"remote_addr": w.mr.addr, "rkey": w.mr.rkey, "compare_add": 1}
        for more in (
            {"opcode": WROpcode.ATOMIC_FETCH_AND_ADD},
            {"opcode": WROpcode.ATOMIC_CMP_AND_SWP, "swap": 2},
        ):
            with pytest.raises(VerbsError, match=f"{w.ctx.name} has no atomic operations") as e:
                w.qp.post_send(w.mr[0:8], **far, **more)
            assert e.value.errno == errno.EOPNOTSUPP
            assert e.value.verb == "ibv_post_send"
            assert more["opcode"].name in str(e.value)
        assert w.qp.outstanding == (0, 0)
        receive(w)  # everything else goes on
    finally:
        w.close()


def test_a_device_without_srqs_refuses_them_in_words(ctx: Context) -> None:
    core.hide_features("SRQ")
    with Context(ctx.name) as other, PD(other) as pd:
        with pytest.raises(VerbsError, match=f"{ctx.name} has no shared receive queues") as e:
            SRQ(pd, 4)
        assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_create_srq")


def test_a_device_that_resizes_no_srq_says_so_and_arms_its_limit(ctx: Context) -> None:
    core.hide_features("SRQ resize")
    with Context(ctx.name) as other, SRQ(PD(other), 4) as srq:
        for arguments in ({"max_wr": 16}, {"max_wr": 16, "srq_limit": 8}):
            with pytest.raises(VerbsError, match="does not resize an SRQ") as e:
                srq.modify(**arguments)
            assert (e.value.errno, e.value.verb) == (errno.EOPNOTSUPP, "ibv_modify_srq")
        assert srq.query().srq_limit == 0
        srq.modify(srq_limit=2)
        assert srq.query().srq_limit == 2


def test_an_srq_whose_limit_cannot_be_armed_is_not_made(w: World) -> None:
    handles = core.live_handles()
    core.fail_call(2, errno.ENOMEM)
    with pytest.raises(VerbsError, match="srq_limit 2") as e:
        SRQ(w.pd, 4, srq_limit=2)
    assert e.value.verb == core.failed() == "ibv_modify_srq"
    assert core.live_handles() == handles


def test_what_a_closed_qp_had_received_stays_until_its_cq_can_be_polled(w: World) -> None:
    drain(w)
    w.srq.post_recv(w.mr[0:64], wr_id=1)
    w.sqp.post_send(w.mr[64:72])
    until(lambda: bool(w.cq.poll_ids()), "sent")
    core.fail_call(2, errno.EIO)
    w.sqp.close()
    assert core.failed() == "ibv_start_poll"
    assert w.srq.outstanding == 1
    with pytest.raises(BusyError):
        w.mr.close()
    assert w.ex.poll_ids() == [1]
    assert w.srq.outstanding == 0
    w.mr.close()
    assert w.ex.poll_ids() == []
    w.srq.close()


# ---- groups of multicast ---------------------------------------------------------------------


def member(w: World) -> QP:
    qp = QP(w.pd, QPType.UD, send_cq=w.cq)
    qp.attach_mcast(GROUP)
    qp.attach_mcast("ff15::c0:2")
    return qp


@pytest.mark.parametrize(
    ("n", "call", "error"),
    [
        (1, "ibv_detach_mcast", errno.EBUSY),  # which is what the kernel says of who is in a group
        (2, "ibv_detach_mcast", errno.EBUSY),
        (3, "ibv_destroy_qp", errno.EINVAL),
    ],
)
def test_a_qp_that_can_not_be_closed_is_in_its_groups_as_before(
    w: World, n: int, call: str, error: int
) -> None:
    qp = member(w)
    core.fail_call(n, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open") as e:
        qp.close()
    assert (e.value.errno, e.value.verb, core.failed()) == (error, "ibv_destroy_qp", call)
    assert not qp.closed
    qp.detach_mcast(GROUP)  # the kernel refuses it to who is not in it
    qp.attach_mcast(GROUP)
    qp.detach_mcast("ff15::c0:2")
    qp.close()


def test_what_could_not_be_left_is_not_forgotten(w: World) -> None:
    qp = member(w)
    core.fail_call(1, errno.EINVAL)
    with pytest.raises(VerbsError, match=f"group {GROUP}, lid 0"):
        qp.detach_mcast(GROUP)
    core.fail_call(1, errno.ENOMEM)
    with pytest.raises(VerbsError, match="room for .* groups"):
        qp.attach_mcast("ff15::3")
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast("ff15::3")
    qp.detach_mcast(GROUP)
    with pytest.raises(ValueError, match="not attached"):
        qp.detach_mcast(GROUP)


def test_a_context_with_a_qp_that_can_not_leave_its_groups_closes_at_the_second_try(
    w: World,
) -> None:
    qp = member(w)
    core.fail_call(1, errno.EIO)
    with pytest.raises(VerbsError, match="stays open"):
        w.ctx.close()
    assert not qp.closed
    w.ctx.close()
    assert qp.closed


def test_one_at_a_time_changes_the_groups(w: World) -> None:
    """While one thread is inside the kernel, another waits for its turn, and so does close()."""
    qp = member(w)
    core.fail_call(1, errno.EINVAL, True)
    leaver = Waiter(lambda: qp.detach_mcast(GROUP))
    until(lambda: core.failed() == "ibv_detach_mcast", "it is inside")
    joiner, closer = Waiter(lambda: qp.attach_mcast("ff15::3")), Waiter(qp.close)
    until(lambda: qp.closed, "it is being closed")
    core.fail_call(0)
    with pytest.raises(VerbsError):
        leaver.join()
    with pytest.raises(ClosedError):
        joiner.join()
    closer.join()
    assert qp.closed


# ---- calls that enter the kernel ---------------------------------------------------------

# What makes one call after the first `n - 1`, by its name.
ENTERING: dict[str, tuple[int, Callable[[World], Any]]] = {
    "ibv_get_device_list": (1, lambda w: devices()),
    "ibv_open_device": (2, lambda w: Context(w.ctx.name)),
    "ibv_alloc_pd": (1, lambda w: PD(w.ctx)),
    "ibv_create_comp_channel": (2, lambda w: CompletionChannel(w.ctx)),
    "ibv_create_cq": (1, lambda w: CQ(w.ctx, 4, channel=w.channel)),
    "ibv_create_cq_ex": (1, lambda w: CQ(w.ctx, 4, channel=w.channel, wc_flags=WCExFlags(0))),
    "ibv_create_srq": (1, lambda w: SRQ(w.pd, 4)),
    "ibv_create_qp": (1, World.new_qp),
    "ibv_alloc_mw": (1, lambda w: MW(w.pd)),
    "ibv_reg_mr": (1, lambda w: MR(w.pd, bytearray(64))),
    "ibv_create_ah": (1, lambda w: AH(w.pd, dgid=w.gid.gid, sgid_index=w.gid.index)),
    "ibv_query_device": (1, lambda w: w.ctx.query_device()),
    "ibv_query_device_ex": (1, lambda w: w.ctx.query_device_ex()),
    "ibv_query_port": (1, lambda w: w.ctx.query_port()),
    "ibv_query_pkey": (2, lambda w: w.ctx.query_pkey(0)),
    "ibv_query_gid_table": (2, lambda w: w.ctx.gid_table()),
    "ibv_query_qp": (1, lambda w: w.qp.query()),
    "ibv_query_srq": (1, lambda w: w.srq.query()),
    "ibv_modify_qp": (1, lambda w: w.qp.modify(qp_state=QPState.ERR)),
    "ibv_resize_cq": (1, lambda w: w.cq.resize(64)),
}


ELSEWHERE = {"ibv_get_device_list", "ibv_open_device"}
"""What has nothing to do with the context that is open."""


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


@pytest.mark.parametrize("verb", ENTERING)
def test_others_run_while_a_call_is_in_the_kernel(w: World, verb: str) -> None:
    n, call = ENTERING[verb]
    with inside(verb, lambda: call(w), n, errno.EINVAL) as waiter:
        assert waiter.thread.is_alive()
    with pytest.raises(VerbsError) as e:
        waiter.join()
    assert (e.value.verb, e.value.errno) == (verb, errno.EINVAL)


@pytest.mark.parametrize("verb", [verb for verb in ENTERING if verb not in ELSEWHERE])
def test_a_context_that_is_closed_while_a_call_is_in_the_kernel_waits_for_it(
    w: World, verb: str
) -> None:
    n, call = ENTERING[verb]
    with inside(verb, lambda: call(w), n) as waiter:
        closer = Waiter(w.ctx.close)
        until(lambda: w.ctx.closed, "it is being closed")
        assert closer.thread.is_alive()
    closer.join()
    with suppress(ClosedError):  # which a QP says that was just being made
        made = waiter.join()
        assert getattr(made, "closed", True)
    assert core.live_handles() == 1  # that of the fixture


CHILDREN: list[tuple[str, Callable[[World], Any], Callable[[World, Any], Any], str]] = [
    (
        "ibv_create_cq",
        lambda w: CompletionChannel(w.ctx),
        lambda w, channel: CQ(w.ctx, 4, channel=channel),
        "this CompletionChannel is still used by 1 CQ",
    ),
    (
        "ibv_create_cq_ex",
        lambda w: CompletionChannel(w.ctx),
        lambda w, channel: CQ(w.ctx, 4, channel=channel, wc_flags=WCExFlags(0)),
        "this CompletionChannel is still used by 1 CQ",
    ),
    (
        "ibv_create_qp",
        lambda w: CQ(w.ctx, 4),
        lambda w, cq: QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=cq),
        "this CQ is still used by 1 QP",
    ),
    (
        "ibv_create_qp",
        lambda w: SRQ(w.pd, 4),
        lambda w, srq: QP(w.pd, QPType.RC, send_cq=w.cq, srq=srq),
        "this SRQ is still used by 1 QP",
    ),
    (
        "ibv_create_qp",
        lambda w: PD(w.ctx),
        lambda w, pd: QP(pd, QPType.RC, send_cq=w.cq),
        "this PD is still used by 1 QP",
    ),
    ("ibv_create_srq", lambda w: PD(w.ctx), lambda w, pd: SRQ(pd, 4), "used by 1 SRQ"),
    ("ibv_alloc_mw", lambda w: PD(w.ctx), lambda w, pd: MW(pd), "used by 1 MW"),
    ("ibv_reg_mr", lambda w: PD(w.ctx), lambda w, pd: MR(pd, bytearray(8)), "used by 1 MR"),
    (
        "ibv_create_ah",
        lambda w: PD(w.ctx),
        lambda w, pd: AH(pd, dgid=w.gid.gid, sgid_index=w.gid.index),
        "used by 1 AH",
    ),
]


@pytest.mark.parametrize(("verb", "make_parent", "make", "message"), CHILDREN)
def test_a_parent_is_not_closed_while_a_child_is_made(
    w: World,
    verb: str,
    make_parent: Callable[[World], Any],
    make: Callable[[World, Any], Any],
    message: str,
) -> None:
    parent = make_parent(w)
    with inside(verb, lambda: make(w, parent)) as waiter:
        closer = Waiter(parent.close)
        until(lambda: parent.closed, "it is being closed")
        assert closer.thread.is_alive()
    child = waiter.join()
    with pytest.raises(BusyError, match=message):
        closer.join()
    assert not child.closed
    assert not parent.closed
    child.close()
    parent.close()


def test_one_gid_is_asked_for_by_one_verb(w: World) -> None:
    core.fail_call(2, errno.EIO)
    assert w.ctx.query_gid(w.gid.index) == w.gid
    assert core.failed() is None


# ---- kernels that copy no pinned pages -----------------------------------------------------

NO_SUCH_FUNCTION = -1


@pytest.mark.parametrize("answer", [ForkStatus.UNNEEDED, ForkStatus.ENABLED])
def test_where_a_fork_is_safe_nothing_is_done_for_it(ctx: Context, answer: ForkStatus) -> None:
    core.pretend_fork(answer)
    with Context(ctx.name):
        assert fork_status() is answer
    assert core.pretend_fork(answer) == 0


@pytest.mark.parametrize("answer", [ForkStatus.DISABLED, NO_SUCH_FUNCTION])
def test_the_first_context_and_no_other_makes_a_fork_safe(ctx: Context, answer: int) -> None:
    core.pretend_fork(answer)
    assert fork_status() is ForkStatus.DISABLED
    for _ in range(2):
        with Context(ctx.name):
            assert fork_status() is ForkStatus.ENABLED
    assert core.pretend_fork(answer) == 1


@pytest.mark.parametrize("answer", [ForkStatus.DISABLED, NO_SUCH_FUNCTION])
def test_a_fork_that_can_not_be_made_safe_is_warned_of_once(ctx: Context, answer: int) -> None:
    core.pretend_fork(answer, errno.EINVAL)
    with pytest.warns(RuntimeWarning, match="ibv_fork_init: Invalid.*RDMAV_FORK_SAFE=1.*5.13"):
        Context(ctx.name).close()
    Context(ctx.name).close()  # a warning would be an error
    assert fork_status() is ForkStatus.DISABLED
    assert core.pretend_fork(answer) == 1


def test_a_warning_of_forks_that_is_an_error_opens_nothing(ctx: Context) -> None:
    handles = core.live_handles()
    core.pretend_fork(ForkStatus.DISABLED, errno.EINVAL)
    with pytest.raises(RuntimeWarning):
        Context(ctx.name)
    assert core.live_handles() == handles


# ---- a device that can do more ---------------------------------------------------------------


def test_xrc_is_refused_in_other_words_where_the_device_has_it(ctx: Context) -> None:
    core.boast(True)
    with Context(ctx.name) as able:
        pd, cq = PD(able), CQ(able, 4)
        for qp_type in (QPType.XRC_SEND, QPType.XRC_RECV):
            with pytest.raises(ValueError, match=f"QPType.{qp_type.name}: cqnotify has no XRC"):
                QP(pd, qp_type, send_cq=cq)


def test_memory_that_is_paged_on_demand_is_like_any_other(w: World) -> None:
    core.boast(True)
    buffer = bytearray(b"paged")
    with MR(w.pd, buffer, access=AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND) as mr:
        assert mr.access & AccessFlags.ON_DEMAND
        drain(w)
        w.qp.post_recv(w.mr[0:64], wr_id=1)
        w.qp.post_send(mr[:], wr_id=2)
        until(lambda: bool(w.ex.poll()), "received")
        assert w.mr.read(5) == b"paged"
        until(lambda: bool(w.cq.poll()), "sent")


def test_an_implicit_mr_lends_its_keys_to_buffers(w: World) -> None:
    core.boast(True)
    handles = core.live_handles()
    whole = MR.implicit(w.pd, access=AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ)
    assert (whole.addr, whole.length) == (0, 2 ** (8 * struct.calcsize("P")) - 1)
    assert whole.access == (
        AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.ON_DEMAND
    )
    assert (whole.pd, "implicit" in repr(whole)) == (w.pd, True)
    buffer = bytearray(b"0123456789")
    part, own = whole.over(buffer), whole.over(4096)
    assert core.live_handles() == handles + 1
    for mr in (part, own):
        assert (mr.lkey, mr.rkey, mr.access) == (whole.lkey, whole.rkey, whole.access)
        assert mr.pd is w.pd
    assert (part.read(), part.length, own.length) == (b"0123456789", 10, 4096)
    assert part[2:4].addr == part.addr + 2
    assert part[2:4].lkey == whole.lkey
    with pytest.raises(BufferError):
        buffer.clear()
    with pytest.raises(BusyError, match="still used by 2 MRs"):
        whole.close()
    part.close()
    buffer.clear()
    own.close()
    whole.close()
    assert core.live_handles() == handles
    with pytest.raises(ClosedError):
        whole.over(buffer)


def test_a_part_of_an_implicit_mr_is_pinned_by_what_is_posted(w: World) -> None:
    core.boast(True)
    whole = MR.implicit(w.pd)
    part = whole.over(64)
    w.qp.post_recv(part, wr_id=1)
    with pytest.raises(BusyError, match="1 work request in flight"):
        part.close()
    with pytest.raises(BusyError, match="1 MR"):
        whole.close()
    w.ctx.close()
    assert part.closed
    assert whole.closed


def test_an_implicit_mr_has_no_bytes(w: World) -> None:
    core.boast(True)
    whole = MR.implicit(w.pd)
    for call in (
        whole.read,
        lambda: whole.write(b"x"),
        lambda: whole[0:1],
        lambda: memoryview(whole),
        lambda: len(whole),
        lambda: w.qp.post_send(whole),
    ):
        with pytest.raises(ValueError, match="an implicit MR has no bytes|slice it"):
            call()
    with pytest.raises(ValueError, match="for what MR.implicit\\(\\) returned"):
        w.mr.over(64)
    for bad in (0, bytearray(), -1):
        with pytest.raises(ValueError, match="at least 1|must be 1"):
            whole.over(bad)
    with pytest.raises(TypeError, match="buffer must be a buffer or a length"):
        whole.over("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need LOCAL_WRITE"):
        MR.implicit(w.pd, access=AccessFlags.REMOTE_WRITE)
    with pytest.raises(TypeError, match="pd must be a cqnotify.PD"):
        MR.implicit(w.ctx)  # type: ignore[arg-type]


def test_an_implicit_mr_that_is_forgotten_with_its_parts_is_closed(w: World) -> None:
    core.boast(True)
    handles = core.live_handles()
    whole = MR.implicit(w.pd)
    part = whole.over(64)
    del whole, part
    gc.collect()
    assert core.live_handles() == handles


def test_what_the_device_says_of_paging_is_not_believed_if_it_can_not_be_asked(w: World) -> None:
    core.fail_call(1, errno.EINVAL)
    with pytest.raises(VerbsError) as e:
        MR.implicit(w.pd)
    assert e.value.verb == "ibv_query_device_ex"


def test_a_device_that_can_not_page_after_all_says_so_itself(w: World) -> None:
    core.boast(True)
    core.fail_call(2, errno.EOPNOTSUPP)
    with pytest.raises(VerbsError, match="not supported by this device: .*access 0x41") as e:
        MR(w.pd, bytearray(64), access=AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND)
    assert e.value.verb == "ibv_reg_mr"


def test_a_qp_for_atomic_writes_that_can_not_be_made_is_none(w: World) -> None:
    core.boast(True)
    handles = core.live_handles()
    for n, call in ((1, "ibv_query_device_ex"), (2, "ibv_create_qp_ex")):
        core.fail_call(n, errno.ENOMEM)
        with pytest.raises(VerbsError) as e:
            QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True)
        assert e.value.verb == core.failed() == call
        assert core.live_handles() == handles


def test_an_atomic_write_that_is_refused_is_not_in_the_books(w: World) -> None:
    core.boast(True)
    qp = QP(w.pd, QPType.RC, send_cq=w.cq, atomic_write=True)
    qp.connect(qp.address())
    request = {"opcode": WROpcode.ATOMIC_WRITE, "remote_addr": w.mr.addr, "rkey": w.mr.rkey}
    core.fail_call(1, errno.ENOSPC)
    with pytest.raises(VerbsError, match="is full") as e:
        qp.post_send(w.mr[0:8], **request)
    assert core.failed() == "ibv_wr_complete"
    assert (e.value.verb, e.value.errno) == ("ibv_wr_atomic_write", errno.ENOMEM)
    assert qp.outstanding == (0, 0)
    qp.post_send(w.mr[0:8], **request)  # to what is closed to peers, or by what has no such thing
    failed: list[WorkCompletion] = []
    until(lambda: bool(failed.extend(w.cq.poll()) or failed), "it failed")
    assert not failed[0].ok
    assert qp.outstanding == (0, 0)
    qp.close()


def test_conformance_tells_what_a_device_without_atomics_refuses(ctx: Context) -> None:
    chosen = [
        case
        for case in conformance.cases([QPType.RC])
        if case.outcome is conformance.Outcome.SUCCESS and case.sq_sig_all
    ]
    core.hide_features("atomics")
    report = conformance.measure(ctx.name, chosen)
    refused = [row for row in report.rows if row.refusal]
    atomics = {"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"}
    assert {row.case.operation for row in refused} == atomics
    assert len(refused) == sum(len(c.queues) for c in chosen if c.operation in atomics)
    for row in refused:
        assert (row.statuses, row.events, row.deviations) == ((), 0, ())
        assert f"{ctx.name} has no atomic operations" in str(row.refusal)
    assert not report.deviating
    text = " ".join(conformance.format_report(report).partition("Not supported:\n")[2].split())
    for name in atomics:
        assert f"- RC {name}: [Errno 95] ibv_post_send: not supported by this device: " in text
    assert conformance.Report.from_dict(report.as_dict()) == report


@pytest.mark.filterwarnings("ignore:unclosed Context")  # where closing is what fails
@pytest.mark.parametrize("error", [errno.EIO, errno.EOPNOTSUPP])
def test_each_call_of_a_conformance_trial_fails_once(ctx: Context, error: int) -> None:
    """What the device lacks is a row, and the rest goes on; other trouble ends it."""
    chosen = list(conformance.cases([QPType.UD]))[:1]
    conformance.measure(ctx.name, chosen)
    handles, files = core.live_handles(), open_files()
    refused: set[str] = set()
    posted = False
    for n in range(1, 1000):
        core.fail_call(n, error)
        report, exception = None, None
        try:
            report = conformance.measure(ctx.name, chosen)
        except (OSError, MemoryError) as e:
            exception = e
        call = core.failed()
        core.fail_call(0)
        where = f"call {n}, {call}: {exception!r}"
        if isinstance(exception, OSError):
            assert exception.errno == (errno.EPROTO if call == "ibv_poll_cq" else error), where
        elif report is not None and call not in TOLERATED:
            assert all(row.refusal for row in report.rows), where
            refused.add(call)
        del exception
        gc.collect()
        assert (core.live_handles(), open_files()) == (handles, files), where
        posted = posted or call == "ibv_post_send"
        if posted and call == "ibv_poll_cq":
            break
    else:
        raise AssertionError("it never came to poll for completions")
    lacking = {
        *("ibv_create_qp", "ibv_modify_qp", "ibv_query_gid_ex", "ibv_create_ah"),
        *("ibv_post_recv", "ibv_post_recv when made", "ibv_post_send", "ibv_post_send when made"),
    }
    assert refused == (lacking if error == errno.EOPNOTSUPP else set())


# ---- a QP that is closed while it sends ------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_qp_that_can_not_be_stopped_is_closed_all_the_same(w: World, whole: bool) -> None:
    """Nobody receives, so that it sends again and again."""
    qp = sending(w)
    core.fail_call(1, errno.EINVAL)
    (w.ctx if whole else qp).close()
    assert core.failed() == "ibv_modify_qp"
    assert qp.closed


def test_a_qp_that_was_stopped_and_can_not_be_closed_has_lost_its_requests(w: World) -> None:
    qp = sending(w)
    core.fail_call(2, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open"):
        qp.close()
    assert core.failed() == "ibv_destroy_qp"
    assert (qp.state, qp.outstanding[0]) == (QPState.RESET, 0)
    qp.close()


def test_all_qps_are_stopped_before_the_first_one_is_closed(w: World) -> None:
    qps = [sending(w) for _ in range(3)]
    core.fail_call(4, errno.EINVAL)
    with pytest.raises(VerbsError, match="this QP stays open"):
        w.ctx.close()
    assert core.failed() == "ibv_destroy_qp"
    assert all(qp.closed or qp.state == QPState.RESET for qp in qps)
    w.ctx.close()
    assert all(qp.closed for qp in qps)


def sending(w: World) -> QP:
    qp = w.new_qp()
    qp.connect(qp.address())
    qp.post_send(w.mr[0:8])
    return qp
