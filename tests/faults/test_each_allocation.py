# SPDX-License-Identifier: MIT
"""Every allocation fails once, and nothing is leaked or lost by it."""

from __future__ import annotations

import contextvars
import copy
import gc
import itertools
from collections.abc import Callable
from typing import Any, Literal

import pytest
from fault_world import (
    PACKED_GROUP,
    World,
    arrived,
    arrived_with_a_large_wr_id,
    core,
    drain,
    emptied,
    event_pending,
    failures_pending,
    held_objects,
    nothing,
    one,
    open_files,
    report_pending,
    starves,
    told,
)
from support import DEADLINE, SPIN, until

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AsyncEvent,
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
    WCArray,
    WCExFlags,
    WorkCompletion,
    _core,
    devices,
)

Setup = Callable[[World], Any]
Call = Callable[[World, Any], Any]


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


def shared_drained(w: World) -> None:
    """Nothing is posted. A new one, since nothing else takes the receives of the old one."""
    w.sqp.close()
    w.srq.close()
    w.srq = SRQ(w.pd, 8)
    w.sqp = QP(w.pd, QPType.RC, send_cq=w.cq, recv_cq=w.ex, srq=w.srq)


def closes(call: Callable[[World], Any]) -> Call:
    return lambda w, _: call(w).close()


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


def first_poll(w: World, spin: float | Literal["auto"] = 0.0) -> None:
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
    with MR.implicit(w.pd) as whole, whole.sub_mr(bytearray(64)) as part:
        repr(whole), part[:]


def values(w: World) -> list[Any]:
    """One of each that is copied and pickled."""
    array = WCArray._restore(4, bytes(2 * 48))
    wcs = [*array[:], WorkCompletion._restore(bytes(48), bytes(40))]
    assert (len({*wcs}), array.count(wcs[0]), array.index(wcs[1])) == (2, 2, 0)
    events = [AsyncEvent._restore(0, 1, None), AsyncEvent._restore(1, 0, "<a QP>")]
    inline = SendWR(bytearray(8), send_flags=SendFlags.INLINE)
    return [array, *wcs, *events, w.mr[0:8], RecvWR(w.mr), SendWR([w.mr[0:8], w.mr]), inline]


def leave_and_come_back(value: Any) -> None:
    restore, arguments = value.__reduce__()
    repr(restore(*arguments))


NEED_NO_MEMORY = {"arm_if_empty", "poll_into", "get_event", "try_get_event"}
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
    "gid_table": (nothing, lambda w, _: w.ctx.query_gid_table()),
    "values": (nothing, lambda w, _: len(values(w))),
    "copies": (nothing, lambda w, _: [copy.deepcopy(value) for value in values(w)]),
    "pickles": (nothing, lambda w, _: [leave_and_come_back(value) for value in values(w)]),
    "multicast": (datagrams, lambda w, _: join_and_leave(w)),
    "implicit MR": (lambda _: core.use_fake_device(True), lambda w, _: implicit_mr(w)),
    "memory": (nothing, lambda w, _: [w.mr[0:8], w.mr.read(4), memoryview(w.mr)]),
    "repr": (nothing, lambda w, _: [repr(x) for x in (w.ctx, w.cq, w.qp, w.mr, w.mr[0:8])]),
    "first poll of a CQ": (nothing, lambda w, _: first_poll(w)),
    "first spin of a CQ": (nothing, lambda w, _: first_poll(w, spin=1e-6)),
    "first spin of a CQ, by itself": (nothing, lambda w, _: first_poll(w, spin="auto")),
    "stats": (nothing, lambda w, _: w.cq.stats),
    "refusals": (nothing, lambda w, _: refuse_everything(w)),
    "poll": (arrived, lambda w, _: one(w.ex.poll())),
    "poll of a large wr_id": (arrived_with_a_large_wr_id, lambda w, _: one(w.ex.poll())),
    "poll, ready to spin": (arrived, lambda w, _: one(w.ex.poll(spin=SPIN))),
    "poll_ids": (arrived, lambda w, _: one(w.ex.poll_ids())),
    "poll_into": (arrived, lambda w, _: w.ex.poll_into(ROOM) == 1 or one([])),
    "poll_ids of a failure": (flushed, lambda w, _: raised(w)),
    "arm_if_empty": (drain, lambda w, _: w.cq.arm_if_empty()),
    "Wakeup.wake": (nothing, lambda _w, _: asleep().wake()),
    "Wakeup.cancel": (nothing, lambda _w, _: asleep().cancel()),
    "Wakeup, called": (nothing, lambda _w, _: asleep()()),
    "get_event": (event_pending, lambda w, _: w.channel.get_event(DEADLINE)),
    "try_get_event": (event_pending, lambda w, _: w.channel.try_get_event()),  # type: ignore[union-attr]
    "FailureWatch.read": (failures_pending, lambda w, _: told(w, w.watch.read())),
    "open_objects": (nothing, lambda w, _: _core.open_objects(w.ctx)),
    "open_contexts": (nothing, lambda w, _: _core.open_contexts()),
    "why_silent": (nothing, lambda w, _: w.cq._why_silent()),
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
    starved = (MemoryError, SystemError) if name == "refusals" else (MemoryError,)
    setup(w)
    call(w, None)  # what is made once only is made now
    gc.collect()
    handles, files = core.live_handles(), open_files()
    failures = []
    for n in range(1, 3000):
        setup(w)
        completions = w.ex.stats.completions
        if not starves(lambda: call(w, None), n, starved):
            if core.failed() is None:
                break
            continue
        failures.append(n)
        delivered = w.ex.stats.completions > completions
        gc.collect()
        assert core.live_handles() == handles, n
        assert open_files() == files, n
        if not (delivered and name == "poll_ids of a failure"):
            call(w, None)  # the next one finds everything: nothing was lost
    else:
        pytest.fail("it never came to an end")
    assert bool(failures) == (name not in NEED_NO_MEMORY)


def test_a_failed_completion_stays_if_there_is_no_memory_to_raise_it(w: World) -> None:
    kept = 0
    for n in itertools.count(1):
        flushed(w)
        until(lambda: not w.ex.arm_if_empty(), "it came")
        core.fail_alloc(n)
        try:
            w.ex.poll_ids()
        except MemoryError as e:
            core.fail_alloc(0)
            if not isinstance(e.__context__, CompletionError):  # else it was raised before
                (wc,) = w.ex.poll()
                assert not wc.ok
                kept += 1
        except CompletionError:
            core.fail_alloc(0)
            assert w.ex.poll() == []
            if core.failed() is None:
                break
    assert kept > 0


def tracked_lists() -> int:
    gc.collect()
    return sum(type(thing) is list for thing in gc.get_objects())


CHEAP = (nothing, arrived, arrived_with_a_large_wr_id)


@pytest.mark.parametrize("name", [n for n, (setup, _) in CASES.items() if setup in CHEAP])
def test_what_is_half_made_when_memory_runs_out_goes_away(w: World, name: str) -> None:
    """Again and again: each time it would leave one more of something. Of lists a few come and go
    with the exceptions, and those that Python makes of a table are its own."""
    setup, call = CASES[name]
    times = 12

    def is_starved(n: int) -> bool:
        return starves(lambda: call(w, None), n, (MemoryError, SystemError))

    setup(w)
    call(w, None)
    for n in range(1, 3000):
        setup(w)
        is_starved(n)
        if core.failed() is None:
            break
        objects, lists = held_objects(), tracked_lists()
        if all(is_starved(n) for _ in range(times)):
            assert held_objects() == objects, n
            assert setup is nothing or tracked_lists() < lists + times // 2, n
